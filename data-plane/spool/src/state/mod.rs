//! The applied state: what the committed log amounts to. Equal on every copy at equal `applied_end`, because
//! applying is a function of state and entry alone. I20
//!
//! Messages stay where their entry is; the state says where each stands ([`rows::Block`]) and keeps them findable
//! in order ([`crate::keys::READY`], [`crate::keys::DUE`]). In memory is what is bounded by the number of
//! queues: their configuration and counts.
//!
//! * [`rows`]: the values
//! * [`apply`]: what each kind of entry does

pub mod apply;
pub mod rows;

use crate::config::QueueConfig;
use crate::keys::{self, ContentNo, QueueNo};
use crate::store::{Batch, Key, Overlay, Store, StoreError};
use bytes::Bytes;
use rows::{AppliedRow, Block, Counts, QueueRow};
use std::collections::{BTreeMap, BTreeSet};
use types::{QueueName, Seq, WallMs};

pub use apply::Change;

#[derive(Clone, Debug)]
pub struct Queue {
    pub name: QueueName,
    pub content: ContentNo,
    pub created: WallMs,
    pub config: QueueConfig,
    pub counts: Counts,
}

#[derive(Debug)]
pub struct State {
    row: AppliedRow,
    queues: BTreeMap<QueueNo, Queue>,
    names: BTreeMap<QueueName, QueueNo>,
    contents: BTreeMap<ContentNo, QueueNo>,
    /// Counts and queues whose rows are behind what is in memory.
    dirty: BTreeSet<QueueNo>,
    /// Log times of the first `D` and the first `X` row: what there may be to do. Only ever early.
    next_due: Option<WallMs>,
    next_dedup_expiry: Option<WallMs>,
    /// Contents to sweep, and the key that the next sweep begins from: what was before is gone already, and looking
    /// over it again and again would cost ever more.
    to_sweep: BTreeMap<ContentNo, Key>,
}

/// The store as the step's batch leaves it, and that batch.
pub struct Rw<'a> {
    pub store: &'a dyn Store,
    pub batch: &'a mut Batch,
}

impl Rw<'_> {
    pub fn read(&self) -> Overlay<'_> {
        Overlay { store: self.store, batch: self.batch }
    }
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.read().get(key)
    }
    pub fn block(&self, msg: keys::Msg) -> Result<Option<Block>, StoreError> {
        self.get(&keys::block_of(msg))?.map(|bytes| Block::decode(&bytes)).transpose()
    }
}

impl State {
    pub fn empty() -> State {
        State {
            row: AppliedRow { applied_end: Seq(1), log_time: WallMs(0), next_queue: 1, next_content: 1 },
            queues: BTreeMap::new(),
            names: BTreeMap::new(),
            contents: BTreeMap::new(),
            dirty: BTreeSet::new(),
            next_due: None,
            next_dedup_expiry: None,
            to_sweep: BTreeMap::new(),
        }
    }

    pub fn open(store: &dyn Store) -> Result<State, StoreError> {
        let mut state = State::empty();
        if let Some(bytes) = store.get(keys::APPLIED)? {
            state.row = AppliedRow::decode(&bytes)?;
        }
        let mut found = Vec::new();
        store.scan(&[keys::QUEUE], &[keys::QUEUE + 1], &mut |key, value| {
            found.push((key[1..].to_vec(), value.to_vec()));
            true
        })?;
        for (name, value) in found {
            let row = QueueRow::decode(&value)?;
            let name = std::str::from_utf8(&name)
                .ok()
                .and_then(|name| QueueName::from_stored(name).ok())
                .ok_or_else(|| crate::codec::corrupt("a queue's name"))?;
            let counts = match store.get(&keys::counts(row.no))? {
                Some(bytes) => Counts::decode(&bytes)?,
                None => Counts::default(),
            };
            state.names.insert(name.clone(), row.no);
            state.contents.insert(row.content, row.no);
            let QueueRow { no, content, created, config } = row;
            state.queues.insert(no, Queue { name, content, created, config, counts });
        }
        store.scan(&[keys::SWEEP], &[keys::SWEEP + 1], &mut |key, _| {
            state
                .to_sweep
                .extend(keys::of_sweep(key).map(|content| (content, keys::ready_content(content).0)));
            true
        })?;
        state.look_for_due(store)?;
        state.look_for_expiry(store)?;
        Ok(state)
    }

    /// Looks from what was first before: earlier rows are gone, and none can have come.
    fn look_for_due(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.next_due = first_time(store, keys::DUE, self.next_due)?;
        Ok(())
    }

    fn look_for_expiry(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.next_dedup_expiry = first_time(store, keys::DEDUP_EXPIRY, self.next_dedup_expiry)?;
        Ok(())
    }

    /// Exclusive end of what is applied.
    pub fn applied_end(&self) -> Seq {
        self.row.applied_end
    }
    pub fn log_time(&self) -> WallMs {
        self.row.log_time
    }
    /// The log time at which the next delayed message becomes ready, or earlier.
    pub fn next_due(&self) -> Option<WallMs> {
        self.next_due
    }
    /// Something is left to do that an entry's application does in bounded steps.
    pub fn has_chores(&self, log_time: WallMs) -> bool {
        !self.to_sweep.is_empty() || self.next_due.is_some_and(|due| due <= log_time)
    }
    pub fn is_sweeping(&self) -> bool {
        !self.to_sweep.is_empty()
    }
    pub fn queue_no(&self, name: &QueueName) -> Option<QueueNo> {
        self.names.get(name).copied()
    }
    pub fn queue(&self, no: QueueNo) -> Option<&Queue> {
        self.queues.get(&no)
    }
    pub fn named(&self, name: &QueueName) -> Option<(QueueNo, &Queue)> {
        let no = self.queue_no(name)?;
        self.queues.get(&no).map(|queue| (no, queue))
    }
    pub fn queue_of(&self, content: ContentNo) -> Option<(QueueNo, &Queue)> {
        let no = *self.contents.get(&content)?;
        self.queues.get(&no).map(|queue| (no, queue))
    }
    pub fn names(&self) -> &BTreeMap<QueueName, QueueNo> {
        &self.names
    }
    pub fn queues(&self) -> impl Iterator<Item = (QueueNo, &Queue)> {
        self.queues.iter().map(|(no, queue)| (*no, queue))
    }
}

fn first_time(store: &dyn Store, tag: u8, from: Option<WallMs>) -> Result<Option<WallMs>, StoreError> {
    let mut first = None;
    let from = [&[tag][..], &from.map_or(0, |from| from.0.max(0)).to_be_bytes()].concat();
    store.scan(&from, &[tag + 1], &mut |key, _| {
        first = key.get(1..9).and_then(|be| be.try_into().ok()).map(|be| WallMs(i64::from_be_bytes(be)));
        false
    })?;
    Ok(first)
}
