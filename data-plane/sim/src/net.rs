//! The network: who can reach whom, and what happens to a message on its way.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Time;
use crate::config::NetConfig;
use crate::rng::Rng;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum End {
    Node(usize),
    Controller(usize),
    Etcd,
    Clients,
}

/// Between two nodes, in either direction.
type Link = (usize, usize);

pub struct Net {
    pub config: NetConfig,
    /// From, to: nothing arrives.
    cut: BTreeSet<(End, End)>,
    /// Streams between copies: an older number is a broken connection, and what it carried is gone.
    connections: BTreeMap<Link, u64>,
    /// When the last message of a stream arrives.
    stream_end: BTreeMap<(usize, usize), Time>,
    /// Nobody connects again before; what is to be sent till then is lost.
    reconnect_at: BTreeMap<Link, Time>,
    pub lost: u64,
    pub doubled: u64,
}

/// What becomes of a message between copies.
pub enum Stream {
    /// Arrives at these times, if the connection still has this number then.
    Arrives { at: Vec<Time>, connection: Option<u64> },
    /// Lost, and the connection with it.
    Breaks,
}

impl Net {
    pub fn new(config: NetConfig) -> Net {
        Net {
            config,
            cut: BTreeSet::new(),
            connections: BTreeMap::new(),
            stream_end: BTreeMap::new(),
            reconnect_at: BTreeMap::new(),
            lost: 0,
            doubled: 0,
        }
    }

    pub fn cut(&mut self, from: End, to: End) {
        self.cut.insert((from, to));
    }

    pub fn cut_both(&mut self, a: End, b: End) {
        self.cut(a, b);
        self.cut(b, a);
    }

    pub fn mend(&mut self, from: End, to: End) {
        self.cut.remove(&(from, to));
    }

    pub fn mend_all(&mut self) {
        self.cut.clear();
    }

    pub fn reaches(&self, from: End, to: End) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// When a message arrives: not at all, once, or more than once.
    pub fn send(&mut self, rng: &mut Rng, now: Time, from: End, to: End) -> Vec<Time> {
        if !self.reaches(from, to) || rng.percent(self.config.loss) {
            self.lost += 1;
            return Vec::new();
        }
        let mut at = vec![now.after(self.delay(rng))];
        if rng.percent(self.config.duplicates) {
            self.doubled += 1;
            at.push(now.after(self.delay(rng)));
        }
        at
    }

    /// A call or an answer of one: TCP delivers it once or not at all.
    pub fn send_once(&mut self, rng: &mut Rng, now: Time, from: End, to: End) -> Option<Time> {
        if !self.reaches(from, to) || rng.percent(self.config.loss) {
            self.lost += 1;
            return None;
        }
        Some(now.after(self.delay(rng)))
    }

    fn delay(&self, rng: &mut Rng) -> u64 {
        let late = rng.percent(self.config.late);
        if late {
            rng.range(0, self.config.delay_late)
        } else {
            rng.range(self.config.delay_min, self.config.delay_max)
        }
    }

    fn link(a: usize, b: usize) -> Link {
        (a.min(b), a.max(b))
    }

    pub fn connection(&self, a: usize, b: usize) -> u64 {
        self.connections.get(&Net::link(a, b)).copied().unwrap_or(0)
    }

    pub fn break_connection(&mut self, a: usize, b: usize, until: Time) {
        self.reconnect_at.insert(Net::link(a, b), until);
        *self.connections.entry(Net::link(a, b)).or_default() += 1;
        self.stream_end.remove(&(a, b));
        self.stream_end.remove(&(b, a));
    }

    /// A message between copies.
    pub fn stream(&mut self, rng: &mut Rng, now: Time, from: usize, to: usize) -> Stream {
        if self.reconnect_at.get(&Net::link(from, to)).is_some_and(|until| now < *until) {
            self.lost += 1;
            return Stream::Arrives { at: Vec::new(), connection: None };
        }
        let at = self.send(rng, now, End::Node(from), End::Node(to));
        if !self.config.ordered {
            return Stream::Arrives { at, connection: None };
        }
        let Some(first) = at.first() else {
            return Stream::Breaks;
        };
        let connection = Some(self.connection(from, to));
        let end = self.stream_end.entry((from, to)).or_default();
        *end = (*end).max(*first);
        Stream::Arrives { at: vec![*end], connection }
    }
}
