//! Knows everything that was asked and answered, and says when an answer cannot be right. Its words carry the
//! numbers of the invariants.
//!
//! * [`logs`]: what is in the logs and on the disks
//! * [`messages`]: what is known of each message
//! * [`replies`]: what an answer may say
//! * [`at_end`]: what must be true once the storm is over

mod at_end;
pub mod logs;
pub mod messages;
mod replies;

use spool::command::{Command, Settle};
use spool::record::{Phase, Record};
use spool::token::Token;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Epoch, MessageId, Moment, ProcessId, limits};

use crate::clients::Op;
use crate::clock::Time;
use crate::config::Config;
use logs::Logs;
use messages::{LeaseNo, Messages};

/// When and where an answer came into being.
#[derive(Clone, Copy, Debug)]
pub struct When {
    pub time: Time,
    pub mono: Moment,
    pub node: usize,
    pub process: ProcessId,
    /// Of the primary that answers.
    pub epoch: Option<Epoch>,
    /// The highest epoch that was assigned by then, in true time.
    pub assigned: Epoch,
}

macro_rules! seen {
    ($($(#[$doc:meta])* $field:ident >= $floor:literal,)*) => {
        /// What a run met. A set of runs that met nothing proves nothing.
        #[derive(Clone, Debug, Default)]
        pub struct Seen { $($(#[$doc])* pub $field: u64,)* }

        impl Seen {
            pub fn add(&mut self, other: &Seen) {
                $(self.$field += other.$field;)*
            }

            /// What so many runs must have met at least, and did not. The floors are per thousand runs.
            pub fn below_floors(&self, runs: u64) -> Vec<&'static str> {
                let mut below = Vec::new();
                $(if self.$field * 1_000 < $floor * runs {
                    below.push(stringify!($field));
                })*
                below
            }
        }
    };
}

seen! {
    crashes >= 1_000,
    batches_lost >= 300,
    wipes >= 20,
    controller_crashes >= 300,
    pauses >= 500,
    partitions >= 3_000,
    elections >= 2_000,
    takeovers >= 2_000,
    depositions >= 200,
    truncations >= 50,
    moves >= 200,
    sends >= 50_000,
    /// 2xx to a keyed send that was accepted before.
    duplicates >= 500,
    settles >= 20_000,
    deliveries >= 30_000,
    redeliveries >= 2_000,
    dead_letters >= 200,
    stale_tokens >= 500,
    refusals >= 5_000,
    unconfirmed >= 200,
    /// Requests whose client or primary went away before the answer.
    in_doubt >= 500,
    lost >= 10_000,
    doubled >= 10_000,
    /// Applied states compared between two copies.
    digests >= 10_000,
}

struct Asked {
    node: usize,
    process: ProcessId,
    client: usize,
    command: Command,
    messages: Vec<u64>,
    at: Time,
    wait: Duration,
    /// What its tokens were when it arrived.
    current: Vec<bool>,
}

pub struct Oracle {
    pub logs: Logs,
    pub messages: Messages,
    pub seen: Seen,
    asked: BTreeMap<u64, Asked>,
    nodes_of: BTreeMap<u64, usize>,
    /// Who confirmed writes in which epoch. H10
    served: BTreeMap<Epoch, ProcessId>,
    /// The id of the last confirmed send of each client. H19
    last_acked: BTreeMap<usize, MessageId>,
    cancelled: BTreeSet<u64>,
    n: u8,
    k: u8,
    /// Some clock is wrong. A primary that knows of one other clock cannot tell which of the two.
    clocks_jump: bool,
}

impl Oracle {
    pub fn new(config: &Config) -> Oracle {
        Oracle {
            logs: Logs::new(config.n, config.k),
            messages: Messages::default(),
            seen: Seen::default(),
            asked: BTreeMap::new(),
            nodes_of: BTreeMap::new(),
            served: BTreeMap::new(),
            last_acked: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            n: config.n,
            k: config.k,
            clocks_jump: config.faults.wall_jump,
        }
    }

    /// A controller's write is in etcd.
    pub fn on_record(&mut self, record: &Record) {
        if record.phase != Phase::Assigned {
            return;
        }
        let Some(last) = &record.last else { return };
        assert_eq!(record.lineage, 0, "an election that may lose writes, where none is allowed");
        let sealed = |member: &spool::record::Member| {
            let at = record.members.iter().position(|listed| listed == member);
            at.is_some_and(|at| self.logs.told(at) >= record.epoch)
        };
        let count = record.members.iter().filter(|member| sealed(member)).count();
        // The last primary's own seal is enough; who that was is checked by the controller itself.
        assert!(
            sealed(&last.member),
            "I12: {:?} is assigned {:?} and has not sealed it",
            last.member,
            record.epoch
        );
        assert!(count >= 1, "I12: nobody sealed {:?}", record.epoch);
    }

    pub fn on_request(&mut self, time: Time, mono: Moment, node: usize, process: ProcessId, op: &Op) {
        for number in &op.messages {
            let message = self.messages.get_mut(*number);
            message.attempts += 1;
            message.arrived.get_or_insert(time);
        }
        let mut current = Vec::new();
        if let Command::Settle { tokens, .. } = &op.command {
            for token in tokens {
                current.push(self.settle_arrives(op.id, process, mono, token));
            }
        }
        let asked = Asked {
            node,
            process,
            client: op.client,
            command: op.command.clone(),
            messages: op.messages.clone(),
            at: time,
            wait: op.wait,
            current,
        };
        self.nodes_of.insert(op.id, node);
        assert!(self.asked.insert(op.id, asked).is_none(), "op {} arrives twice", op.id);
    }

    /// Whether the token is its message's current lease, as far as one can see from outside.
    fn settle_arrives(&mut self, op: u64, process: ProcessId, now: Moment, token: &Token) -> bool {
        let no = lease_no(token);
        let Some(lease) = self.messages.leases.get(&no) else { return false };
        let (number, mine) = (lease.message, lease.process == process && !lease.over && lease.until > now);
        let current = mine && self.messages.get(number).lease == Some(no);
        if current {
            if let Some(lease) = self.messages.leases.get_mut(&no) {
                lease.asked = true;
            }
            self.messages.get_mut(number).open_settles.push(op);
        }
        current
    }

    pub fn node_of(&self, op: u64) -> Option<usize> {
        self.nodes_of.get(&op).copied()
    }

    /// The client is gone: what it asked for may have been forgotten, or not.
    /// `clean`: everything that the core has appended is known here.
    pub fn on_cancelled(&mut self, op: u64, clean: bool) {
        if let Some(asked) = self.asked.remove(&op) {
            self.cancelled.insert(op);
            for number in &asked.messages {
                let message = self.messages.get_mut(*number);
                message.forgotten |=
                    clean && message.logged.is_none() && message.attempts == 1 && !message.keyed;
            }
            self.in_doubt(op, &asked);
        }
    }

    pub fn on_process_end(&mut self, process: ProcessId) {
        let gone: Vec<u64> =
            self.asked.iter().filter(|(_, asked)| asked.process == process).map(|(op, _)| *op).collect();
        for op in gone {
            if let Some(asked) = self.asked.remove(&op) {
                self.in_doubt(op, &asked);
            }
        }
        for lease in self.messages.leases.values_mut().filter(|lease| lease.process == process) {
            lease.over = true;
        }
    }

    /// It may have taken effect, or may yet.
    fn in_doubt(&mut self, op: u64, asked: &Asked) {
        self.seen.in_doubt += 1;
        match &asked.command {
            Command::Settle { tokens, settle, .. } => {
                for token in tokens {
                    self.settle_in_doubt(op, settle, token);
                }
            }
            Command::Purge { queue } => {
                for message in self.messages.in_queue(queue.as_str()) {
                    message.maybe_settled = true;
                }
            }
            Command::DeleteMessage { id, .. } => {
                if let Some(number) = self.messages.number_of_id(*id) {
                    self.messages.get_mut(number).maybe_settled = true;
                }
            }
            _ => {}
        }
    }

    fn settle_in_doubt(&mut self, op: u64, settle: &Settle, token: &Token) {
        let Some(lease) = self.messages.leases.get_mut(&lease_no(token)) else { return };
        lease.over = true;
        let number = lease.message;
        let message = self.messages.get_mut(number);
        message.open_settles.retain(|open| *open != op);
        match settle {
            Settle::Nack { .. } => {}
            Settle::Ack => message.maybe_settled = true,
            // It is in one of two queues, and will be found there.
            Settle::Reject { .. } => {}
        }
    }

    pub fn on_handed_back(&mut self, process: ProcessId, tokens: &[Token]) {
        for token in tokens {
            if let Some(lease) = self.messages.leases.get_mut(&lease_no(token))
                && lease.process == process
            {
                lease.over = true;
            }
        }
    }

    /// No request waits without end at a process that runs: its own wait, the wait for the right to serve, and the
    /// least that an appended write waits. I17 I23
    pub fn check_waits(&self, node: usize, now: Time, awake_since: Time) {
        for (op, asked) in self.asked.iter().filter(|(_, asked)| asked.node == node) {
            let polls =
                if let Command::Receive { wait, .. } = &asked.command { *wait } else { Duration::ZERO };
            let longest = asked.wait.max(limits::CONFIRM_WAIT_MIN) + polls + limits::GUARD_WAIT;
            let waited = now.since(asked.at.max(awake_since));
            // Clocks are 1 % off, and ticks come a little late.
            let late = waited > longest + longest / 50 + Duration::from_millis(200);
            assert!(
                !late,
                "I23: op {op} waits at node-{node} since {}, and {:?} were asked for",
                asked.at, asked.wait
            );
        }
    }
}

pub fn lease_no(token: &Token) -> LeaseNo {
    (token.tenure.epoch.0, token.tenure.boot_no, token.lease_no)
}
