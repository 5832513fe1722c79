use super::node::*;
use crate::spools::Delivery;
use bytes::Bytes;
use spool::event::{Append, Confirm, PeerMessage, Reject, RejectReason};
use std::time::{Duration, Instant};
use types::{CopyId, Epoch, Position, Seq};

use super::super::lane::BYTES_MAX;

fn append(number: u64, bytes: usize) -> PeerMessage {
    PeerMessage::Append(Append {
        epoch: Epoch(1),
        number,
        prev: Position::ZERO,
        prev_chain: [0; 32],
        entries: vec![Bytes::from(vec![7; bytes])],
        commit_end: Seq(1),
        trim_end: Seq(1),
    })
}

fn confirm(node: &Node, number: u64) -> PeerMessage {
    PeerMessage::Confirm(Confirm {
        process: node.process,
        epoch: Epoch(1),
        number,
        end: Seq(number),
        chain: [1; 32],
        follows_version: 1,
        pending_seal: None,
    })
}

fn numbers(messages: &[(spool::record::Member, PeerMessage)]) -> Vec<u64> {
    let number = |message: &PeerMessage| match message {
        PeerMessage::Append(append) => append.number,
        PeerMessage::Confirm(confirm) => confirm.number,
        PeerMessage::Reject(reject) => reject.number,
        PeerMessage::Release { epoch } => epoch.0,
    };
    messages.iter().map(|(_, message)| number(message)).collect()
}

/// Two nodes, and a stream from the first to the second.
fn two(authority: &Authority) -> (Node, Node) {
    let (a, b) = (Node::start(authority, "node-1"), Node::start(authority, "node-2"));
    a.knows(&[&b]);
    a.copies.wait_disconnected("node-2", 0);
    (a, b)
}

#[test]
fn messages_arrive_in_order_and_answers_come_back_to_a_node_whose_address_is_not_known() {
    const COUNT: u64 = 5_000;
    let (a, b) = two(&Authority::new());
    for number in 1..=COUNT {
        a.send("node-2", append(number, 100));
    }
    a.send("node-2", PeerMessage::Release { epoch: Epoch(COUNT + 1) });
    let all = usize::try_from(COUNT).unwrap() + 1;
    b.copies.wait("all messages", |notes| (notes.messages.len() == all).then_some(()));
    {
        let notes = b.copies.notes.lock();
        assert_eq!(numbers(&notes.messages), (1..=COUNT + 1).collect::<Vec<_>>());
        assert!(notes.messages.iter().all(|(from, _)| *from == copy_of("node-1")));
        assert_eq!(notes.messages[0].1, append(1, 100));
    }
    for number in 1..=COUNT {
        b.send("node-1", confirm(&b, number));
    }
    a.copies.wait("all answers", |notes| (notes.messages.len() == all - 1).then_some(()));
    assert_eq!(numbers(&a.copies.notes.lock().messages), (1..=COUNT).collect::<Vec<_>>());
}

#[test]
fn a_lost_stream_is_told_and_opened_again() {
    let authority = Authority::new();
    let (a, b) = two(&authority);
    a.send("node-2", append(1, 10));
    b.copies.wait("the first message", |notes| (!notes.messages.is_empty()).then_some(()));
    let before = a.copies.disconnects("node-2");
    let address = b.kill();
    let lost = a.copies.wait_disconnected("node-2", before);
    let b = Node::start_at(&authority, "node-2", address);
    // Whoever lost something is told again once it makes sense to ask.
    a.copies.wait_disconnected("node-2", lost);
    a.send("node-2", append(2, 10));
    b.copies.wait("the second message", |notes| (numbers(&notes.messages) == [2]).then_some(()));
}

#[test]
fn a_receiver_that_is_slow_for_a_while_loses_nothing() {
    let (a, b) = two(&Authority::new());
    let before = a.copies.disconnects("node-2");
    let resume = b.pause();
    // More than the windows hold, less than the lane does.
    let (count, bytes) = (24_u64, 1024 * 1024);
    for number in 1..=count {
        a.send("node-2", append(number, bytes));
    }
    drop(resume);
    let got = b.copies.wait("the last one", |notes| {
        let got = numbers(&notes.messages);
        got.contains(&count).then_some(got)
    });
    assert_eq!(got, (1..=count).collect::<Vec<_>>());
    assert_eq!(a.copies.disconnects("node-2"), before);
}

#[test]
fn a_stalled_receiver_costs_neither_memory_nor_the_others() {
    let authority = Authority::new();
    let (a, b) = two(&authority);
    let c = Node::start(&authority, "node-3");
    a.knows(&[&b, &c]);
    a.copies.wait_disconnected("node-3", 0);
    let before = a.copies.disconnects("node-2");
    let resume = b.pause();
    // More than the windows and the lane hold.
    let large = 1024 * 1024;
    for number in 1..=(2 * BYTES_MAX / large) as u64 {
        a.send("node-2", append(number, large));
        a.send("node-3", append(number, 10));
    }
    let all = 2 * BYTES_MAX / large;
    c.copies.wait("the other's messages", |notes| (notes.messages.len() == all).then_some(()));
    let lost = a.copies.wait_disconnected("node-2", before);
    drop(resume);
    // It comes back by itself, and nothing from before comes out of order after what is sent now.
    a.copies.wait_disconnected("node-2", lost - 1);
    until("a message after the stall", || {
        a.send("node-2", append(1_000, 10));
        b.copies.notes.lock().messages.iter().any(|(_, message)| *message == append(1_000, 10))
    });
    let notes = b.copies.notes.lock();
    assert!(numbers(&notes.messages).is_sorted(), "{:?}", numbers(&notes.messages));
}

#[test]
fn an_append_to_a_copy_that_is_not_there_or_busy_is_rejected() {
    let (a, b) = two(&Authority::new());
    let rejected = |reason| PeerMessage::Reject(Reject { epoch: Epoch(1), number: 1, reason });
    let foreign = spool::record::Member { node: "node-2".into(), copy: CopyId::from_u128(99) };
    a.peers.send(SPOOL, 0, copy_of("node-1"), foreign.clone(), append(1, 10));
    let first = a.copies.wait("a rejection", |notes| notes.messages.first().cloned());
    assert_eq!(first, (foreign, rejected(RejectReason::UnknownCopy)));
    *b.copies.delivery.lock() = Delivery::Busy;
    a.send("node-2", append(1, 10));
    let second = a.copies.wait("another", |notes| notes.messages.get(1).cloned());
    assert_eq!(second, (copy_of("node-2"), rejected(RejectReason::Busy)));
}

#[test]
fn a_confirmation_that_finds_no_room_counts_as_a_lost_connection() {
    let (a, b) = two(&Authority::new());
    a.send("node-2", append(1, 10));
    b.copies.wait("the message", |notes| (!notes.messages.is_empty()).then_some(()));
    *a.copies.delivery.lock() = Delivery::Busy;
    let before = a.copies.disconnects("node-2");
    b.send("node-1", confirm(&b, 1));
    a.copies.wait_disconnected("node-2", before);
}

#[test]
fn shutting_down_does_not_wait_for_open_streams() {
    let (a, b) = two(&Authority::new());
    let before = a.copies.disconnects("node-2");
    let began = Instant::now();
    b.stop.cancel();
    a.copies.wait_disconnected("node-2", before);
    assert!(began.elapsed() < Duration::from_secs(10));
}
