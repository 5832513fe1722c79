use super::beat::{read_beat, read_reply};
use super::call::{self, Whom};
use super::peer::{Envelope, Frame, Hello, read_frame};
use super::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;
use spool::event::{Append, Assign, Call, Confirm, PeerMessage, Reject, RejectReason};
use spool::promise::{Beat, BeatReply};
use spool::record::Last;
use types::{Seq, WallMs};

fn copy() -> impl Strategy<Value = CopyId> {
    any::<u128>().prop_map(CopyId::from_u128)
}
fn spool() -> impl Strategy<Value = SpoolId> {
    any::<u128>().prop_map(SpoolId::from_u128)
}
fn process() -> impl Strategy<Value = ProcessId> {
    any::<u128>().prop_map(ProcessId::from_u128)
}
fn a_member() -> impl Strategy<Value = Member> {
    ("[a-z0-9-]{1,20}", copy()).prop_map(|(node, copy)| Member { node: NodeName(node), copy })
}
fn a_position() -> impl Strategy<Value = Position> {
    any::<(u64, u64)>().prop_map(|(epoch, seq)| Position::new(epoch, seq))
}
fn epoch() -> impl Strategy<Value = Epoch> {
    any::<u64>().prop_map(Epoch)
}
fn seq() -> impl Strategy<Value = Seq> {
    any::<u64>().prop_map(Seq)
}

fn message() -> impl Strategy<Value = PeerMessage> {
    let entry = vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    let append = (epoch(), any::<u64>(), a_position(), any::<Chain>(), vec(entry, 0..5), seq(), seq())
        .prop_map(|(epoch, number, prev, prev_chain, entries, commit_end, trim_end)| {
            PeerMessage::Append(Append { epoch, number, prev, prev_chain, entries, commit_end, trim_end })
        });
    let confirm =
        (process(), epoch(), any::<u64>(), seq(), any::<Chain>(), any::<u64>(), option::of(epoch()))
            .prop_map(|(process, epoch, number, end, chain, follows_version, pending_seal)| {
                let confirm = Confirm { process, epoch, number, end, chain, follows_version, pending_seal };
                PeerMessage::Confirm(confirm)
            });
    let reason = prop_oneof![
        epoch().prop_map(|sealed| RejectReason::StaleEpoch { sealed }),
        (vec((epoch(), seq()), 0..9), seq()).prop_map(|(epochs, end)| RejectReason::NoMatch { epochs, end }),
        Just(RejectReason::UnknownCopy),
        Just(RejectReason::Damaged),
        Just(RejectReason::Busy),
    ];
    let reject = (epoch(), any::<u64>(), reason)
        .prop_map(|(epoch, number, reason)| PeerMessage::Reject(Reject { epoch, number, reason }));
    let release = epoch().prop_map(|epoch| PeerMessage::Release { epoch });
    prop_oneof![append, confirm, reject, release]
}

fn an_envelope() -> impl Strategy<Value = Envelope> {
    (spool(), any::<u64>(), a_member(), a_member(), message())
        .prop_map(|(spool, lineage, from, to, message)| Envelope { spool, lineage, from, to, message })
}

proptest! {
    #[test]
    fn messages_of_copies_go_there_and_back(envelope in an_envelope()) {
        let bytes = peer::envelope(envelope.clone()).encode_to_vec();
        prop_assert_eq!(read_frame(pb::PeerMessage::decode(&*bytes)?), Ok(Frame::Copy(envelope)));
    }

    #[test]
    fn hello_goes_there_and_back(node in "[a-z0-9-]{1,20}", process in process()) {
        let hello = Hello { node: NodeName(node), process };
        prop_assert_eq!(read_frame(peer::hello(&hello)), Ok(Frame::Hello(hello)));
    }

    #[test]
    fn beats_go_there_and_back(
        process in process(), number: u64, seen in option::of((process(), any::<u64>())), healthy: bool,
    ) {
        let beat = Beat { process, number, seen, healthy };
        let node = NodeName::from("a");
        prop_assert_eq!(read_beat(beat::beat(&node, &beat)), Ok((node, beat)));
    }

    #[test]
    fn answers_to_beats_go_there_and_back(
        process in process(), to in process(), number: u64, version: u64, left in vec(spool(), 0..20),
        left_all: bool, wall: i64,
    ) {
        let reply = BeatReply { process, to, number, version, left, left_all, wall: WallMs(wall) };
        prop_assert_eq!(read_reply(&beat::reply(&reply)), Ok(reply));
    }

    #[test]
    fn an_assignment_arrives_as_it_was_sent(
        spool in spool(), copy in copy(), epoch in epoch(), members in vec(a_member(), 0..5), process in process(),
        at in a_position(), last in option::of((epoch(), a_member(), process(), a_position())), end in seq(),
        lineage: u64, record_revision: i64,
    ) {
        let prev_last = last.map(|(epoch, member, process, position)| Last { epoch, member, process, position });
        let request = pb::AssignRequest {
            spool_id: id(spool.as_bytes()),
            copy_id: id(copy.as_bytes()),
            epoch: epoch.0,
            members: members.iter().map(member).collect(),
            process_id: id(process.as_bytes()),
            position: Some(position(at)),
            prev_last: prev_last.as_ref().map(|last| pb::Last {
                epoch: last.epoch.0,
                member: Some(member(&last.member)),
                process_id: id(last.process.as_bytes()),
                position: Some(position(last.position)),
            }),
            commit_end: end.0,
            lineage,
            record_revision,
        };
        let commit_end = end;
        let position = at;
        let assign =
            Assign { epoch, members, process, position, prev_last, commit_end, lineage, record_revision };
        let whom = Whom { spool, copy: Some(copy) };
        prop_assert_eq!(call::read_assign(request), Ok((whom, Call::Assign(assign))));
    }

    /// What a stranger or another version sends is read or refused, and never more than that.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..400)) {
        if let Ok(frame) = pb::PeerMessage::decode(&*bytes) {
            drop(read_frame(frame));
        }
        if let Ok(beat) = pb::Beat::decode(&*bytes) {
            drop(read_beat(beat));
        }
        if let Ok(reply) = pb::BeatReply::decode(&*bytes) {
            drop(read_reply(&reply));
        }
        if let Ok(assign) = pb::AssignRequest::decode(&*bytes) {
            drop(call::read_assign(assign));
        }
        if let Ok(create) = pb::CreateCopyRequest::decode(&*bytes) {
            drop(call::read_create_copy(create));
        }
    }

    /// The same, close to what is right.
    #[test]
    fn a_damaged_message_is_read_or_refused(envelope in an_envelope(), at: prop::sample::Index, byte: u8) {
        let mut bytes = peer::envelope(envelope).encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(frame) = pb::PeerMessage::decode(&*bytes) {
            drop(read_frame(frame));
        }
    }
}

fn an_append(entries: Vec<Bytes>) -> pb::PeerMessage {
    let member = |node: &str| Member { node: node.into(), copy: CopyId::from_u128(1) };
    let append = Append {
        epoch: Epoch(1),
        number: 1,
        prev: Position::ZERO,
        prev_chain: [0; 32],
        entries,
        commit_end: Seq(1),
        trim_end: Seq(1),
    };
    let (spool, message) = (SpoolId::from_u128(1), PeerMessage::Append(append));
    peer::envelope(Envelope { spool, lineage: 0, from: member("a"), to: member("b"), message })
}

#[test]
fn a_refusal_names_the_field() {
    let mut short = an_append(Vec::new());
    short.spool_id = Bytes::from_static(b"short");
    assert_eq!(read_frame(short), Err(WireError::Length { field: "spool_id", bytes: 5, expected: 16 }));
    let mut nobody = an_append(Vec::new());
    nobody.from = None;
    assert_eq!(read_frame(nobody), Err(WireError::Missing { field: "from" }));
    assert_eq!(read_frame(pb::PeerMessage::default()), Err(WireError::Missing { field: "message" }));
    let many = an_append(vec![Bytes::new(); limits::APPEND_ENTRIES_MAX + 1]);
    assert!(matches!(read_frame(many), Err(WireError::TooMany { field: "append.entries", .. })));
    let large = an_append(vec![Bytes::from(vec![0; ENTRIES_BYTES_MAX + 1])]);
    assert!(matches!(read_frame(large), Err(WireError::TooLarge { field: "append.entries", .. })));
}

#[test]
fn the_largest_append_fits_into_a_message() {
    let mut entries = vec![Bytes::new(); limits::APPEND_ENTRIES_MAX - 1];
    entries.push(Bytes::from(vec![0; ENTRIES_BYTES_MAX]));
    let largest = an_append(entries);
    assert!(largest.encoded_len() <= MESSAGE_BYTES_MAX);
    assert!(read_frame(largest).is_ok());
}

#[test]
fn a_copy_of_a_spool_that_cannot_be_is_refused() {
    let request = pb::CreateCopyRequest {
        spool_id: id(&[1; 16]),
        account_id: id(&[2; 16]),
        name: "orders".to_owned(),
        num_replicas: 3,
        num_sync: 1,
        token_key: Bytes::from_static(&[3; 32]),
        created_ms: 5,
    };
    assert!(call::read_create_copy(request.clone()).is_ok());
    let range = |field| Err(WireError::Range { field });
    let with = |change: fn(&mut pb::CreateCopyRequest)| {
        let mut request = request.clone();
        change(&mut request);
        call::read_create_copy(request)
    };
    assert_eq!(with(|r| r.num_replicas = 0), range("num_replicas"));
    assert_eq!(with(|r| r.num_replicas = 259), range("num_replicas"));
    assert_eq!(with(|r| r.num_sync = 3), range("num_sync"));
    assert_eq!(with(|r| r.name = "not a name".to_owned()), range("name"));
    assert!(with(|r| r.token_key = Bytes::from_static(b"short")).is_err());
}
