//! What waits to be handled by an engine, in two lanes: what others wait for (syncs, peers, calls) is never behind
//! a crowd of requests.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

pub(super) struct Inbox<T> {
    lanes: Mutex<Lanes<T>>,
    wake: Condvar,
    requests_max: usize,
    peers_max: usize,
}

struct Lanes<T> {
    /// Bounded by what the node itself has under way: syncs, calls, openings.
    urgent: VecDeque<T>,
    peers: VecDeque<T>,
    requests: VecDeque<T>,
    sleeping: bool,
}

/// The lane is full; nothing was taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl<T> Inbox<T> {
    pub fn new(peers_max: usize, requests_max: usize) -> Inbox<T> {
        let lanes = Lanes {
            urgent: VecDeque::new(),
            peers: VecDeque::new(),
            requests: VecDeque::new(),
            sleeping: false,
        };
        Inbox { lanes: Mutex::new(lanes), wake: Condvar::new(), requests_max, peers_max }
    }

    pub fn urgent(&self, item: T) {
        let mut lanes = self.lanes.lock();
        lanes.urgent.push_back(item);
        self.rouse(&lanes);
    }

    pub fn peer(&self, item: T) -> Result<(), Full> {
        let mut lanes = self.lanes.lock();
        if lanes.peers.len() >= self.peers_max {
            return Err(Full);
        }
        lanes.peers.push_back(item);
        self.rouse(&lanes);
        Ok(())
    }

    pub fn request(&self, item: T) -> Result<(), Full> {
        let mut lanes = self.lanes.lock();
        if lanes.requests.len() >= self.requests_max {
            return Err(Full);
        }
        lanes.requests.push_back(item);
        self.rouse(&lanes);
        Ok(())
    }

    fn rouse(&self, lanes: &Lanes<T>) {
        if lanes.sleeping {
            self.wake.notify_one();
        }
    }

    /// Up to `max` items, urgent ones first, after at most `wait`. What came earlier in a lane comes out earlier.
    pub fn take(&self, into: &mut Vec<T>, max: usize, wait: Option<Duration>) {
        let mut lanes = self.lanes.lock();
        if lanes.is_empty() && wait.is_none_or(|wait| !wait.is_zero()) {
            lanes.sleeping = true;
            match wait {
                Some(wait) => drop(self.wake.wait_for(&mut lanes, wait)),
                None => self.wake.wait(&mut lanes),
            }
            lanes.sleeping = false;
        }
        let Lanes { urgent, peers, requests, .. } = &mut *lanes;
        for lane in [urgent, peers, requests] {
            let count = lane.len().min(max.saturating_sub(into.len()));
            into.extend(lane.drain(..count));
        }
    }
}

impl<T> Lanes<T> {
    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.peers.is_empty() && self.requests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_requests_holds_up_neither_syncs_nor_peers() {
        let inbox = Inbox::new(1, 2);
        inbox.request(1).unwrap();
        inbox.request(2).unwrap();
        assert_eq!(inbox.request(3), Err(Full));
        inbox.peer(10).unwrap();
        assert_eq!(inbox.peer(11), Err(Full));
        inbox.urgent(20);
        let mut taken = Vec::new();
        inbox.take(&mut taken, 3, None);
        assert_eq!(taken, [20, 10, 1]);
        inbox.take(&mut taken, 4, Some(Duration::ZERO));
        assert_eq!(taken, [20, 10, 1, 2]);
    }
}
