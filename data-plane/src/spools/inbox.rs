//! What waits to be handled by an engine, in lanes: what others wait for (syncs, calls, other copies) is never behind a
//! crowd of requests, and each lane has its share of every pass. Writes can be left to gather: while a sync runs, what
//! they would write has to wait for the next one anyway.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

/// How much a lane holds: things, and bytes that they occupy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub items: usize,
    pub bytes: usize,
}

pub(super) struct Inbox<T> {
    lanes: Mutex<Lanes<T>>,
    wake: Condvar,
    peers_max: Bound,
    requests_max: Bound,
}

struct Lanes<T> {
    /// Bounded by what the node itself has under way: syncs, calls, requests that are withdrawn.
    urgent: Lane<T>,
    peers: Lane<T>,
    reads: Lane<T>,
    writes: Lane<T>,
    sleep: Sleep,
    closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    Awake,
    /// Writes do not wake it.
    Light,
    Deep,
}

/// Which lane a request waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

struct Lane<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
}

/// Nothing was taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Closed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    pub urgent: usize,
    pub peers: usize,
    pub requests: usize,
}

impl<T> Inbox<T> {
    pub fn new(peers_max: Bound, requests_max: Bound) -> Inbox<T> {
        let lane = || Lane { items: VecDeque::new(), bytes: 0 };
        let (urgent, peers, reads, writes) = (lane(), lane(), lane(), lane());
        let lanes = Lanes { urgent, peers, reads, writes, sleep: Sleep::Awake, closed: false };
        Inbox { lanes: Mutex::new(lanes), wake: Condvar::new(), peers_max, requests_max }
    }

    /// Dropped if nobody takes it any more.
    pub fn urgent(&self, item: T) {
        let mut lanes = self.lanes.lock();
        if lanes.closed {
            return;
        }
        lanes.urgent.items.push_back((item, 0));
        self.rouse(&mut lanes);
    }

    pub fn peer(&self, item: T, bytes: usize) -> Result<(), Refused> {
        let mut lanes = self.lanes.lock();
        if lanes.closed {
            return Err(Refused::Closed);
        }
        lanes.peers.push(item, bytes, self.peers_max)?;
        self.rouse(&mut lanes);
        Ok(())
    }

    pub fn request(&self, item: T, kind: Kind, bytes: usize) -> Result<(), Refused> {
        let mut lanes = self.lanes.lock();
        if lanes.closed {
            return Err(Refused::Closed);
        }
        match kind {
            Kind::Read => lanes.reads.push(item, bytes, self.requests_max)?,
            Kind::Write => lanes.writes.push(item, bytes, self.requests_max)?,
        }
        if kind == Kind::Read || lanes.sleep == Sleep::Deep {
            self.rouse(&mut lanes);
        }
        Ok(())
    }

    fn rouse(&self, lanes: &mut Lanes<T>) {
        // Once: those who come next find it awake.
        if std::mem::replace(&mut lanes.sleep, Sleep::Awake) != Sleep::Awake {
            self.wake.notify_one();
        }
    }

    /// Up to `max` items of each lane, urgent ones first, after at most `wait`. What came earlier in a lane comes
    /// out earlier. `gather`: writes alone are no reason to end the wait.
    pub fn take(&self, into: &mut Vec<T>, max: Bound, wait: Option<Duration>, gather: bool) {
        let mut lanes = self.lanes.lock();
        if lanes.may_sleep(gather) && wait.is_none_or(|wait| !wait.is_zero()) {
            lanes.sleep = if gather { Sleep::Light } else { Sleep::Deep };
            match wait {
                Some(wait) => drop(self.wake.wait_for(&mut lanes, wait)),
                None => self.wake.wait(&mut lanes),
            }
            lanes.sleep = Sleep::Awake;
        }
        let Lanes { urgent, peers, reads, writes, .. } = &mut *lanes;
        for lane in [urgent, peers, reads, writes] {
            lane.take(into, max);
        }
    }

    /// Drops what waits, and whatever comes.
    pub fn close(&self) {
        let mut lanes = self.lanes.lock();
        lanes.closed = true;
        let Lanes { urgent, peers, reads, writes, .. } = &mut *lanes;
        let dropped = [urgent, peers, reads, writes].map(|lane| std::mem::take(&mut lane.items));
        drop(lanes);
        drop(dropped);
    }

    pub fn depth(&self) -> Depth {
        let lanes = self.lanes.lock();
        Depth {
            urgent: lanes.urgent.items.len(),
            peers: lanes.peers.items.len(),
            requests: lanes.reads.items.len() + lanes.writes.items.len(),
        }
    }
}

impl<T> Lane<T> {
    fn push(&mut self, item: T, bytes: usize, max: Bound) -> Result<(), Refused> {
        // One that is larger than the bound still goes through an empty lane.
        let fits = self.items.is_empty() || self.bytes + bytes <= max.bytes;
        if !fits || self.items.len() >= max.items {
            return Err(Refused::Full);
        }
        self.items.push_back((item, bytes));
        self.bytes += bytes;
        Ok(())
    }

    fn take(&mut self, into: &mut Vec<T>, max: Bound) {
        let (mut items, mut taken) = (0, 0);
        while items < max.items
            && taken < max.bytes
            && let Some((item, bytes)) = self.items.pop_front()
        {
            into.push(item);
            items += 1;
            taken += bytes;
        }
        self.bytes -= taken;
    }
}

impl<T> Lanes<T> {
    fn may_sleep(&self, gather: bool) -> bool {
        let others = [&self.urgent, &self.peers, &self.reads].iter().all(|lane| lane.items.is_empty());
        others && (gather || self.writes.items.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::Kind::{Read, Write};
    use super::*;
    use std::sync::Arc;

    const ONE: Bound = Bound { items: 1, bytes: 100 };
    const TWO: Bound = Bound { items: 2, bytes: 100 };

    #[test]
    fn a_crowd_of_requests_holds_up_neither_syncs_nor_peers_nor_the_other_way_round() {
        let inbox = Inbox::new(TWO, TWO);
        inbox.request(1, Write, 0).unwrap();
        inbox.request(2, Write, 0).unwrap();
        assert_eq!(inbox.request(3, Write, 0), Err(Refused::Full));
        inbox.request(30, Read, 0).unwrap();
        inbox.peer(10, 0).unwrap();
        inbox.peer(11, 0).unwrap();
        assert_eq!(inbox.peer(12, 0), Err(Refused::Full));
        inbox.urgent(20);
        let mut taken = Vec::new();
        inbox.take(&mut taken, ONE, None, false);
        assert_eq!(taken, [20, 10, 30, 1]);
        inbox.take(&mut taken, TWO, Some(Duration::ZERO), false);
        assert_eq!(taken, [20, 10, 30, 1, 11, 2]);
    }

    #[test]
    fn a_lane_holds_so_many_bytes() {
        let inbox = Inbox::new(TWO, TWO);
        inbox.request(1, Write, 150).unwrap();
        assert_eq!(inbox.request(2, Write, 1), Err(Refused::Full));
        inbox.take(&mut Vec::new(), TWO, None, false);
        inbox.request(3, Write, 60).unwrap();
        assert_eq!(inbox.request(4, Write, 60), Err(Refused::Full));
        inbox.request(5, Write, 40).unwrap();
        assert_eq!(inbox.depth(), Depth { urgent: 0, peers: 0, requests: 2 });
        inbox.close();
        assert_eq!(inbox.request(6, Write, 0), Err(Refused::Closed));
        assert_eq!(inbox.depth(), Depth::default());
    }

    #[test]
    fn writes_gather_until_something_else_comes_or_the_wait_is_over() {
        let inbox = Arc::new(Inbox::new(TWO, TWO));
        inbox.request(1, Write, 0).unwrap();
        let mut taken = Vec::new();
        inbox.take(&mut taken, TWO, Some(Duration::from_millis(1)), true);
        assert_eq!(taken, [1], "the wait is over");
        let its = inbox.clone();
        let sleeper = std::thread::spawn(move || {
            let mut taken = Vec::new();
            its.take(&mut taken, TWO, None, true);
            taken
        });
        inbox.request(2, Write, 0).unwrap();
        inbox.urgent(20);
        assert_eq!(sleeper.join().unwrap()[0], 20);
    }
}
