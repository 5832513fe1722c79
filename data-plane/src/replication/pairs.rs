//! The node's promise pairs, one for every other node: what the heartbeats carry, and what the copies ask.
//!
//! One lock over all of them, held for a few map operations and never across I/O. A moment is read *before* the
//! lock is taken, and stored before the set of spools is read: so a promise that a beat's answer gives is never
//! younger than the moment that a copy that leaves the set is told. I27
//!
//! A pair lasts as long as the process: its numbers and versions would start over under the same process ids, and
//! an answer from before would then be taken for a later one.

use parking_lot::Mutex;
use spool::promise::{Beat, BeatReply, Counted, Follows, Pairs};
use std::collections::HashMap;
use std::time::Duration;
use types::time::Now;
use types::{Epoch, Moment, NodeName, ProcessId, SpoolId, WallMs};

/// A longer gap between two beats' times is no delay any more.
const STOPPED_MIN: Duration = Duration::from_secs(1);

pub struct PairTable {
    node: NodeName,
    process: ProcessId,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    pairs: HashMap<NodeName, Pair>,
    /// Whose primary each of this node's copies follows.
    followed: HashMap<SpoolId, NodeName>,
    running: Running,
}

/// Whether this process itself was there to hear others: the clock goes on while it is stopped.
#[derive(Default)]
struct Running {
    noted: Moment,
    since: Moment,
}

struct Pair {
    counted: Counted,
    follows: Follows,
    refused: bool,
}

impl PairTable {
    pub fn new(node: NodeName, process: ProcessId) -> PairTable {
        PairTable { node, process, inner: Mutex::default() }
    }

    /// Called at every beat's time. After a longer gap this process was stopped, and whoever it did not hear
    /// meanwhile may have spoken.
    pub fn note_running(&self, now: Moment) {
        let running = &mut self.inner.lock().running;
        if now.since(running.noted) > STOPPED_MIN {
            running.since = now;
        }
        running.noted = now;
    }

    /// The next beat for a node; `now` is read before. Nothing for this node itself.
    pub fn beat(&self, to: &NodeName, now: Moment, healthy: bool) -> Option<Beat> {
        if *to == self.node {
            return None;
        }
        Some(self.with(to, |pair| pair.counted.beat(now, healthy)))
    }

    /// `now` is read before the call, after the beat arrived.
    pub fn on_beat(&self, from: &NodeName, now: Now, beat: &Beat) -> BeatReply {
        self.with(from, |pair| {
            pair.refused = false;
            pair.follows.on_beat(now, beat)
        })
    }

    pub fn on_reply(&self, from: &NodeName, now: Moment, reply: &BeatReply) {
        self.with(from, |pair| {
            pair.refused = false;
            pair.counted.on_reply(now, reply);
        });
    }

    /// Whether the node's address refuses connections since its last one was reset.
    pub fn set_refused(&self, node: &NodeName, refused: bool) {
        self.with(node, |pair| pair.refused = refused);
    }

    fn with<T>(&self, node: &NodeName, f: impl FnOnce(&mut Pair) -> T) -> T {
        f(self.inner.lock().pair(node, self.process))
    }

    /// What is only looked at brings no pair into being.
    fn look<T>(&self, node: &NodeName, f: impl FnOnce(&Pair) -> Option<T>) -> Option<T> {
        self.inner.lock().pairs.get(node).and_then(f)
    }
}

impl Inner {
    fn pair(&mut self, node: &NodeName, process: ProcessId) -> &mut Pair {
        if !self.pairs.contains_key(node) {
            let pair =
                Pair { counted: Counted::new(process), follows: Follows::new(process), refused: false };
            self.pairs.insert(node.clone(), pair);
        }
        self.pairs.get_mut(node).expect("it is there or was just put there")
    }
}

impl Pairs for PairTable {
    fn heard(&self, node: &NodeName) -> Option<Moment> {
        self.look(node, |pair| pair.counted.heard())
    }

    fn promised(&self, node: &NodeName, spool: SpoolId, epoch: Epoch) -> Option<Moment> {
        self.look(node, |pair| pair.counted.promised(spool, epoch))
    }

    fn note_followed(&self, node: &NodeName, process: ProcessId, spool: SpoolId, epoch: Epoch, version: u64) {
        self.with(node, |pair| pair.counted.note_followed(process, spool, epoch, version));
    }

    fn follow(&self, primary: &NodeName, spool: SpoolId, epoch: Epoch) -> u64 {
        let mut inner = self.inner.lock();
        let before = inner.followed.insert(spool, primary.clone());
        let same = before.as_ref().is_none_or(|before| before == primary);
        // A promise to the one before would go on, and nobody would wait for its end.
        assert!(same, "I27: {spool} follows {primary} without having left {before:?}");
        inner.pair(primary, self.process).follows.follow(spool, epoch)
    }

    fn leave(&self, spool: SpoolId) -> Option<Moment> {
        let mut inner = self.inner.lock();
        let followed = inner.followed.remove(&spool)?;
        inner.pair(&followed, self.process).follows.leave(spool)
    }

    fn wall_clock(&self, node: &NodeName) -> Option<(Moment, WallMs)> {
        self.look(node, |pair| pair.counted.wall_clock())
    }

    fn silent(&self, node: &NodeName, now: Moment) -> Option<Duration> {
        let inner = self.inner.lock();
        let heard = inner.pairs.get(node)?.follows.received_healthy()?;
        let Running { noted, since, .. } = inner.running;
        // It has only just begun to run again.
        let since = if now.since(noted) > STOPPED_MIN { now } else { since };
        Some(now.since(heard.max(since)))
    }

    fn refused(&self, node: &NodeName) -> bool {
        self.look(node, |pair| Some(pair.refused)).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Instant;

    const SPOOL: SpoolId = SpoolId::from_u128(7);
    const PRIMARY: ProcessId = ProcessId::from_u128(1);
    const COPY: ProcessId = ProcessId::from_u128(2);
    /// Reigns are tried one after the other for so long, and so many at most.
    const TRIED_FOR: Duration = Duration::from_secs(2);
    const REIGNS_MAX: u64 = 2_000;

    fn table(node: &str, process: ProcessId) -> Arc<PairTable> {
        Arc::new(PairTable::new(node.into(), process))
    }

    /// Each reading differs from every other, and readings are in real order across threads.
    struct Clock(AtomicU64);

    impl Clock {
        fn read(&self) -> Moment {
            Moment(self.0.fetch_add(1, Ordering::SeqCst))
        }
        fn now(&self) -> Now {
            Now { mono: self.read(), wall: WallMs(0) }
        }
    }

    /// I27, and with it I15: whatever threads do meanwhile, a primary never counts a promise of an epoch from a moment
    /// after the one that the copy waits from when it seals for a later epoch.
    #[test]
    fn no_promise_is_counted_beyond_what_the_sealing_copy_waits_for() {
        let (primary, copy) = (table("primary", PRIMARY), table("copy", COPY));
        let (primary_node, copy_node) = (NodeName::from("primary"), NodeName::from("copy"));
        let clock = Clock(AtomicU64::new(1));
        let done = AtomicBool::new(false);
        // What the primary counts, in its reign.
        let reign: Mutex<Option<(Epoch, Option<Moment>)>> = Mutex::default();
        let mut wrong = Vec::new();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        let beat = primary.beat(&copy_node, clock.read(), true).expect("another node");
                        let reply = copy.on_beat(&primary_node, clock.now(), &beat);
                        primary.on_reply(&copy_node, clock.read(), &reply);
                        if let Some((epoch, counted)) = &mut *reign.lock() {
                            *counted = primary.promised(&copy_node, SPOOL, *epoch).max(*counted);
                        }
                        std::thread::yield_now();
                    }
                });
            }
            let until = Instant::now() + TRIED_FOR;
            for epoch in (1..=REIGNS_MAX).map(Epoch).take_while(|_| Instant::now() < until) {
                let version = copy.follow(&primary_node, SPOOL, epoch);
                primary.note_followed(&copy_node, COPY, SPOOL, epoch, version);
                *reign.lock() = Some((epoch, None));
                let promised = || primary.promised(&copy_node, SPOOL, epoch);
                // Every reign is one in which promises are counted, and still are when the copy leaves.
                while promised().is_none() {
                    std::thread::yield_now();
                }
                let waits_from = copy.leave(SPOOL);
                while promised().is_some() {
                    std::thread::yield_now();
                }
                let counted = reign.lock().take().and_then(|(_, counted)| counted);
                if waits_from < counted {
                    wrong.push((epoch, counted, waits_from));
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        assert!(wrong.is_empty(), "epoch, counted from, waits from: {wrong:?}");
    }

    #[test]
    fn a_node_is_refused_until_it_is_heard() {
        let table = table("a", PRIMARY);
        let b = NodeName::from("b");
        assert!(!table.refused(&b));
        table.set_refused(&b, true);
        assert!(table.refused(&b));
        let beat = Beat { process: COPY, number: 1, seen: None, healthy: true };
        table.on_beat(&b, Now::default(), &beat);
        assert!(!table.refused(&b));
    }

    #[test]
    fn a_process_that_was_stopped_blames_nobody_for_what_it_did_not_hear() {
        let (table, b) = (table("a", PRIMARY), NodeName::from("b"));
        let at = |ms: u64| Moment::ZERO + Duration::from_millis(ms);
        table.note_running(at(100));
        let beat = Beat { process: COPY, number: 1, seen: None, healthy: true };
        table.on_beat(&b, Now { mono: at(100), wall: WallMs(0) }, &beat);
        for ms in (200..=5_000).step_by(100) {
            table.note_running(at(ms));
        }
        let silent = |ms| table.silent(&b, at(ms)).map(|span| span.as_millis());
        assert_eq!(silent(5_050), Some(4_950), "it ran all the time");
        assert_eq!(silent(9_000), Some(0), "it runs again, and has not noted it yet");
        table.note_running(at(9_010));
        assert_eq!(silent(9_060), Some(50));
        assert_eq!(table.silent(&"c".into(), at(9_060)), None);
    }

    #[test]
    fn a_node_sends_itself_no_beats() {
        assert_eq!(table("a", PRIMARY).beat(&"a".into(), Moment(1), true), None);
    }

    #[test]
    #[should_panic(expected = "I27")]
    fn a_copy_follows_one_primary_at_a_time() {
        let table = table("a", PRIMARY);
        table.follow(&"b".into(), SPOOL, Epoch(1));
        table.follow(&"c".into(), SPOOL, Epoch(2));
    }
}
