//! A Seal that meets a primary of its own epoch, step by step.

use spool::copy::{Context, ProcessFacts, Settings, SpoolCopy};
use spool::entry::{Body, Entry, genesis};
use spool::event::{Append, Call, CallId, CallReply, Effects, Event, PeerMessage};
use spool::memstore::MemStore;
use std::time::Duration;
use types::time::Now;
use types::{Epoch, Moment, Position, ProcessId, Seq, WallMs};

use crate::node::{PROMISE, SPOOL, identity, member};
use crate::pairs::PairTable;

/// Enough other copies sealed the epoch first; its primary's barrier is here before this copy's disk is done.
#[test]
fn a_copy_that_follows_the_epochs_primary_by_now_does_not_answer_as_sealed() {
    let (id, process) = (identity(1, 3, 1), ProcessId::from_u128(1));
    let mut store = MemStore::default();
    store.apply(&spool::create(&id));
    let facts = ProcessFacts { process, boot_no: 1, started: Moment(1_000) };
    let settings = Settings { promise: PROMISE, ..Settings::default() };
    let begun = Now { mono: Moment(1_000), wall: WallMs(5) };
    let mut copy = SpoolCopy::open(id, facts, settings, begun, &store).expect("a copy of this spool");
    let pairs = PairTable::new(process, [0, 2].into_iter().map(|other| member(other).node));
    let now = Now { mono: begun.mono + Duration::from_secs(1), ..begun };
    let mut step = |event| {
        let mut out = Effects::default();
        let context = Context { now, store: &store, pairs: &pairs };
        copy.handle(&context, event, &mut out).expect("a store in memory can be read");
        copy.check();
        store.apply(&out.batch);
        out
    };
    let epoch = Epoch(1);
    let sealing = step(Event::Call { id: CallId(7), call: Call::Seal { epoch } });
    assert!(sealing.calls.is_empty(), "I2: the seal is not on disk");
    let chain = genesis(SPOOL);
    let barrier = Entry::encode(Position { epoch, seq: Seq(1) }, WallMs(5), &Body::Barrier, &chain);
    let append = Append {
        epoch,
        number: 1,
        prev: Position::ZERO,
        prev_chain: chain,
        entries: vec![barrier.bytes],
        commit_end: Seq(1),
        trim_end: Seq(1),
    };
    let appending = step(Event::Peer { from: member(0), message: PeerMessage::Append(append) });
    assert!(appending.peers.is_empty(), "I6: nothing is on disk");
    let sealed = step(Event::Synced(sealing.sync.expect("a seal is synced")));
    assert_eq!(sealed.calls, [(CallId(7), CallReply::StaleEpoch { sealed: epoch })]);
    let appended = step(Event::Synced(appending.sync.expect("an entry is synced")));
    assert!(matches!(&appended.peers[..], [(_, PeerMessage::Confirm(confirm))] if confirm.end == Seq(2)));
}
