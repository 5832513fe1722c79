use super::node::*;
use spool::promise::Pairs;
use types::{Epoch, Moment, NodeName};

const E: Epoch = Epoch(3);

/// The second node's copy follows the first one's.
fn follow(primary: &Node, copy: &Node) {
    let version = copy.pairs.follow(&primary.name.into(), SPOOL, E);
    primary.pairs.note_followed(&copy.name.into(), copy.process, SPOOL, E, version);
}

fn promised(primary: &Node, by: &str) -> Option<Moment> {
    primary.pairs.promised(&by.into(), SPOOL, E)
}

fn wait_promised_after(primary: &Node, by: &str, after: Option<Moment>) -> Moment {
    until("a younger promise", || promised(primary, by) > after);
    promised(primary, by).expect("there is one")
}

fn two(authority: &Authority) -> (Node, Node) {
    let (a, b) = (Node::start(authority, "node-1"), Node::start(authority, "node-2"));
    a.knows(&[&b]);
    b.knows(&[&a]);
    (a, b)
}

#[test]
fn beats_give_promises_and_leaving_ends_them() {
    let (a, b) = two(&Authority::new());
    follow(&a, &b);
    let first = wait_promised_after(&a, "node-2", None);
    let next = wait_promised_after(&a, "node-2", Some(first));
    assert!(crate::clock::moment() >= next);
    a.copies.wait("word of beats", |notes| (notes.beats_arrived > 1).then_some(()));
    assert!(b.pairs.silent(&"node-1".into(), crate::clock::moment()).is_some());
    let left = b.pairs.leave(SPOOL).expect("a beat had arrived");
    assert!(left >= next, "I27");
    until("that the copy has left", || promised(&a, "node-2").is_none());
    assert!(a.pairs.heard(&"node-2".into()).is_some());
    assert!(a.pairs.wall_clock(&"node-2".into()).is_some());
}

#[test]
fn a_node_that_dies_is_refused_until_it_is_back_and_what_it_promised_is_gone() {
    let authority = Authority::new();
    let (a, b) = two(&authority);
    let node_2 = NodeName::from("node-2");
    follow(&a, &b);
    let before = wait_promised_after(&a, "node-2", None);
    assert!(!a.pairs.refused(&node_2));
    let address = b.kill();
    until("that it is refused", || a.pairs.refused(&node_2));
    let b = Node::start_at(&authority, "node-2", address);
    until("that it is heard again", || !a.pairs.refused(&node_2));
    until("that its new process promised nothing", || promised(&a, "node-2").is_none());
    follow(&a, &b);
    wait_promised_after(&a, "node-2", Some(before));
}

#[test]
fn a_paused_node_promises_nothing_and_goes_on_when_it_is_back() {
    let (a, b) = two(&Authority::new());
    follow(&a, &b);
    wait_promised_after(&a, "node-2", None);
    let resume = b.pause();
    // Answers that were on their way have arrived by the time that the connection was given up for silence.
    let last = {
        let mut last = promised(&a, "node-2");
        let mut since = std::time::Instant::now();
        until("that promises stand still", || {
            let now = promised(&a, "node-2");
            if now != last {
                (last, since) = (now, std::time::Instant::now());
            }
            since.elapsed() > super::super::heartbeats::BEAT_EVERY * 5
        });
        last
    };
    assert!(!a.pairs.refused(&"node-2".into()), "it is silent, not gone");
    drop(resume);
    wait_promised_after(&a, "node-2", last);
}

#[test]
fn a_node_that_is_busy_with_everything_else_still_beats() {
    let (a, b) = two(&Authority::new());
    let heard = || {
        let now = crate::clock::moment();
        b.pairs.silent(&"node-1".into(), now).map(|silent| Moment(now.0 - silent.as_micros() as u64))
    };
    until("the first beat", || heard().is_some());
    let resume = a.pause();
    let paused = heard();
    // Ten beats' time: none of them is one that was on its way.
    let later = paused.map(|at| at + super::super::heartbeats::BEAT_EVERY * 10);
    until("beats of the busy node", || heard() > later);
    drop(resume);
}
