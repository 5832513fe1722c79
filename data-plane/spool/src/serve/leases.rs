//! Who holds which message until when, and what became of leases that are over.
//!
//! A lease that is being settled does not lapse: the message comes back, or not, when the settle's fate is
//! known. I16

use crate::command::{Failure, RequestId, Settle, Written};
use crate::keys::{ContentNo, Msg, Order};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{ErrorCode, Moment, Seq, limits};

#[derive(Debug, Clone)]
pub(super) struct Lease {
    /// Counts the leases of a tenure.
    pub no: u64,
    pub content: ContentNo,
    pub priority: u8,
    pub order: Order,
    pub expires: Moment,
    /// This one included.
    pub deliveries: u32,
    pub settling: Option<Settling>,
}

#[derive(Debug, Clone)]
pub(super) struct Settling {
    pub settle: Settle,
    pub at: SettlingAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettlingAt {
    /// By a request that is not in the log yet.
    Parked(RequestId),
    Open(Seq),
}

/// What became of a lease.
#[derive(Debug, Clone)]
pub(super) enum Past {
    Settled {
        settle: Settle,
        written: Written,
    },
    Expired,
    HandedBack,
    /// Purged, deleted, or gone with its queue.
    Removed,
}

#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub leased: usize,
    pub settling: usize,
}

#[derive(Default)]
pub(super) struct Leases {
    by_msg: BTreeMap<Msg, Lease>,
    timers: BTreeSet<(Moment, Msg)>,
    held: BTreeMap<ContentNo, Held>,
    last_no: u64,
    past: BTreeMap<(Msg, u64), Past>,
    past_order: VecDeque<(Moment, Msg, u64)>,
    /// Delivery counts that the state does not know yet, and when they came to be.
    counts: BTreeMap<Msg, u32>,
    counts_order: VecDeque<(Moment, Msg)>,
}

impl Leases {
    pub fn get(&self, msg: Msg) -> Option<&Lease> {
        self.by_msg.get(&msg)
    }

    pub fn holds(&self, msg: Msg) -> bool {
        self.by_msg.contains_key(&msg)
    }

    pub fn held(&self, content: ContentNo) -> Held {
        self.held.get(&content).copied().unwrap_or_default()
    }

    /// In order of messages.
    pub fn of_content(&self, content: ContentNo) -> impl Iterator<Item = (Msg, &Lease)> {
        self.by_msg
            .iter()
            .filter(move |(_, lease)| lease.content == content)
            .map(|(msg, lease)| (*msg, lease))
    }

    /// Deliveries so far: what the state says, or more.
    pub fn deliveries(&self, msg: Msg, stored: u32) -> u32 {
        self.counts.get(&msg).map_or(stored, |count| stored.max(*count))
    }

    /// Gives a lease and counts a delivery. Returns the lease's number.
    pub fn give(&mut self, now: Moment, msg: Msg, mut lease: Lease) -> u64 {
        self.last_no += 1;
        lease.no = self.last_no;
        self.timers.insert((lease.expires, msg));
        if self.counts.insert(msg, lease.deliveries).is_none() {
            self.counts_order.push_back((now, msg));
        }
        self.held.entry(lease.content).or_default().leased += 1;
        let before = self.by_msg.insert(msg, lease);
        assert!(before.is_none(), "{msg:?} is leased already"); // I16
        self.last_no
    }

    /// The lease is over; whoever has its token is told why.
    pub fn end(&mut self, now: Moment, msg: Msg, why: Past) -> Option<Lease> {
        let lease = self.by_msg.remove(&msg)?;
        self.timers.remove(&(lease.expires, msg));
        if let Some(held) = self.held.get_mut(&lease.content) {
            *(if lease.settling.is_some() { &mut held.settling } else { &mut held.leased }) -= 1;
            if *held == Held::default() {
                self.held.remove(&lease.content);
            }
        }
        self.remember(now, msg, lease.no, why);
        Some(lease)
    }

    fn remember(&mut self, now: Moment, msg: Msg, no: u64, why: Past) {
        self.past.insert((msg, no), why);
        self.past_order.push_back((now, msg, no));
        let old = |(at, ..): &(Moment, Msg, u64)| now.since(*at) > limits::SETTLED_REMEMBERED_FOR;
        while self.past_order.len() > limits::SETTLED_REMEMBERED_MAX
            || self.past_order.front().is_some_and(old)
        {
            if let Some((_, msg, no)) = self.past_order.pop_front() {
                self.past.remove(&(msg, no));
            }
        }
    }

    pub fn past(&self, msg: Msg, no: u64) -> Option<&Past> {
        self.past.get(&(msg, no))
    }

    /// Why a token is not its message's current lease.
    pub fn why_stale(&self, msg: Msg, no: u64) -> Failure {
        let detail = match self.past.get(&(msg, no)) {
            Some(Past::Settled { .. }) => "the message was settled with this token, in another way",
            Some(Past::Removed) => "the message was purged or deleted",
            Some(Past::HandedBack) => "the message was given back before it was received",
            Some(Past::Expired) if self.holds(msg) => "the lease expired and the message was delivered again",
            Some(Past::Expired) => "the lease expired",
            None => "the lease is over",
        };
        Failure::new(ErrorCode::StaleToken, detail)
    }

    /// The lease's settle waits to enter the log, or is in it.
    pub fn mark(&mut self, msg: Msg, settle: &Settle, at: SettlingAt) {
        let Some(lease) = self.by_msg.get_mut(&msg) else { return };
        if lease.settling.is_none()
            && let Some(held) = self.held.get_mut(&lease.content)
        {
            held.leased -= 1;
            held.settling += 1;
        }
        lease.settling = Some(Settling { settle: settle.clone(), at });
        self.timers.remove(&(lease.expires, msg));
    }

    /// The request did not get into the log: its leases go on, and lapse if their time is over.
    pub fn unmark(&mut self, id: RequestId, msgs: impl Iterator<Item = Msg>) {
        for msg in msgs {
            let settling = self.by_msg.get(&msg).and_then(|lease| lease.settling.as_ref());
            if settling.is_some_and(|settling| settling.at == SettlingAt::Parked(id)) {
                self.unmark_one(msg);
            }
        }
    }

    fn unmark_one(&mut self, msg: Msg) {
        let Some(lease) = self.by_msg.get_mut(&msg) else { return };
        if lease.settling.take().is_some() {
            self.timers.insert((lease.expires, msg));
            let held = self.held.entry(lease.content).or_default();
            held.settling -= 1;
            held.leased += 1;
        }
    }

    pub fn extend(&mut self, msg: Msg, expires: Moment) {
        if let Some(lease) = self.by_msg.get_mut(&msg) {
            self.timers.remove(&(lease.expires, msg));
            lease.expires = expires;
            self.timers.insert((expires, msg));
        }
    }

    /// The next lease whose time is over.
    pub fn lapsed(&self, now: Moment) -> Option<Msg> {
        self.timers.first().filter(|(expires, _)| *expires <= now).map(|(_, msg)| *msg)
    }

    pub fn next_lapse(&self) -> Option<Moment> {
        self.timers.first().map(|(expires, _)| *expires)
    }

    /// It was not received after all.
    pub fn uncount(&mut self, msg: Msg, deliveries: u32) {
        self.counts.insert(msg, deliveries.saturating_sub(1));
    }

    /// The message is gone, or its count is in the state.
    pub fn forget_count(&mut self, msg: Msg) {
        self.counts.remove(&msg);
    }

    pub fn count_saved(&mut self, msg: Msg, saved: u32) {
        if self.counts.get(&msg).is_some_and(|count| *count <= saved) {
            self.counts.remove(&msg);
        }
    }

    /// Counts that came to be before `until`, to be written.
    pub fn take_unsaved(&mut self, until: Moment, max: usize) -> Vec<(Msg, u32)> {
        let mut unsaved = BTreeMap::new();
        while unsaved.len() < max
            && let Some((_, msg)) = self.counts_order.pop_front_if(|(at, _)| *at <= until)
        {
            if let Some(count) = self.counts.get(&msg).filter(|count| **count > 0) {
                unsaved.insert(msg, *count);
            }
        }
        unsaved.into_iter().collect()
    }

    pub fn oldest_unsaved(&self) -> Option<Moment> {
        self.counts_order.front().map(|(at, _)| *at)
    }

    pub fn check(&self) {
        let running = self.by_msg.values().filter(|lease| lease.settling.is_none()).count();
        assert_eq!(running, self.timers.len(), "each lease that can lapse has a timer, and no other");
        let (leased, settling) =
            self.held.values().fold((0, 0), |sum, held| (sum.0 + held.leased, sum.1 + held.settling));
        assert_eq!((leased, settling), (running, self.by_msg.len() - running));
        assert!(self.past.len() <= self.past_order.len());
    }
}
