//! A node: its disk, its clock, and the process that runs there by now.

use spool::copy::{Identity, ProcessFacts, Settings, SpoolCopy};
use spool::event::{Activate, SyncNo};
use spool::record::Member;
use spool::token::TokenKey;
use std::collections::VecDeque;
use std::time::Duration;
use types::time::Now;
use types::{CopyId, Epoch, Moment, NodeName, ProcessId, SpoolId, WallMs};

use crate::disk::Disk;
use crate::pairs::PairTable;

pub const SPOOL: SpoolId = SpoolId::from_u128(1);
pub const PROMISE: Duration = Duration::from_millis(400);
/// Short, so that logs are trimmed in every longer run.
const TRIM_STRIDE: u64 = 16;

pub struct Node {
    pub at: usize,
    pub n: u8,
    pub k: u8,
    pub disk: Disk,
    pub boot_no: u64,
    pub process: Option<Process>,
    pub down_since: u64,
}

pub struct Process {
    pub id: ProcessId,
    pub copy: SpoolCopy,
    pub pairs: PairTable,
    /// Asked for and not done, with what each makes durable.
    pub syncs: VecDeque<(SyncNo, usize)>,
    /// Asked of etcd and not answered.
    pub txns: Vec<Txn>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Txn {
    Activate(Activate),
    ClearPrev(Epoch),
}

pub fn member(at: usize) -> Member {
    Member { node: NodeName(format!("node-{at}")), copy: CopyId::from_u128(at as u128 + 100) }
}

pub fn identity(at: usize, n: u8, k: u8) -> Identity {
    let Member { node, copy } = member(at);
    Identity { spool: SPOOL, copy, node, n, k, token_key: TokenKey([9; 32]), created: WallMs(0) }
}

impl Node {
    pub fn new(at: usize, n: u8, k: u8) -> Node {
        let mut disk = Disk::default();
        disk.write(spool::create(&identity(at, n, k)));
        disk.sync(1);
        Node { at, n, k, disk, boot_no: 0, process: None, down_since: 0 }
    }

    /// Clocks show different times, and run up to half a percent apart.
    pub fn now(&self, time: u64) -> Now {
        let rate = 1_000 + [0, 5, 2, 3, 1][self.at % 5];
        let mono = Moment(self.at as u64 * 77_000_000 + 1_000_000 + time * rate / 1_000);
        let skew = [0, -40_000, 900, 3_600_000, -5][self.at % 5];
        Now { mono, wall: WallMs(1_700_000_000_000 + (time / 1_000) as i64 + skew) }
    }

    pub fn start(&mut self, time: u64) {
        self.boot_no += 1;
        let now = self.now(time);
        let id = ProcessId::from_u128((self.at as u128 + 1) * 1_000 + u128::from(self.boot_no));
        // A store syncs what it finds.
        self.disk.sync(self.disk.written_no());
        let facts = ProcessFacts { process: id, boot_no: self.boot_no, started: now.mono };
        let settings = Settings { promise: PROMISE, trim_stride: TRIM_STRIDE, ..Settings::default() };
        let copy =
            SpoolCopy::open(identity(self.at, self.n, self.k), facts, settings, now, &self.disk.current)
                .expect("a copy of this spool");
        let others = (0..usize::from(self.n)).filter(|other| *other != self.at);
        let pairs = PairTable::new(id, others.map(|other| member(other).node));
        self.process = Some(Process { id, copy, pairs, syncs: VecDeque::new(), txns: Vec::new() });
    }

    pub fn copy(&self) -> Option<&SpoolCopy> {
        self.process.as_ref().map(|process| &process.copy)
    }
}
