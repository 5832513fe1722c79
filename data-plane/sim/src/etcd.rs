//! As much of etcd as the spool needs: its record under compare-and-swap, and the nodes' alive keys. The truth about
//! epochs is here, so this is also where invariants about them are checked.

use spool::event::Activate;
use spool::record::{Last, Phase, Record};
use std::collections::BTreeMap;
use types::{Epoch, NodeName, ProcessId};

pub struct Etcd {
    pub record: Record,
    pub revision: i64,
    pub alive: BTreeMap<NodeName, (ProcessId, u64)>,
    /// Who was assigned which epoch.
    pub assigned: BTreeMap<Epoch, Last>,
    pub elections: u64,
    pub activations: u64,
}

pub enum Cas {
    Done,
    Other,
}

impl Etcd {
    pub fn new(record: Record) -> Etcd {
        Etcd {
            record,
            revision: 1,
            alive: BTreeMap::new(),
            assigned: BTreeMap::new(),
            elections: 0,
            activations: 0,
        }
    }

    /// The highest epoch that was ever assigned.
    pub fn assigned_epoch(&self) -> Epoch {
        self.assigned.keys().next_back().copied().unwrap_or_default()
    }

    fn put(&mut self, new: Record) {
        let old = &self.record;
        assert!(new.epoch >= old.epoch, "I1: epoch {} after {}", new.epoch, old.epoch);
        assert!(new.lineage >= old.lineage, "lineage went back");
        if new.epoch == old.epoch {
            let order = |phase: Phase| match phase {
                Phase::Electing => 0,
                Phase::Assigned => 1,
                Phase::Active => 2,
            };
            assert!(order(new.phase) >= order(old.phase), "I1: {:?} after {:?}", new.phase, old.phase);
        } else {
            assert_eq!(new.phase, Phase::Electing, "I1: an epoch begins with an election");
            assert_eq!(new.last, old.last, "I1: `last` changes with an assignment alone");
        }
        if new.phase == Phase::Assigned && old.phase == Phase::Electing {
            let Some(last) = &new.last else { panic!("I12: assigned to nobody") };
            assert_eq!(last.epoch, new.epoch, "I12: assigned with another epoch");
            let before = self.assigned.insert(new.epoch, last.clone());
            assert_eq!(before, None, "I1: {} was assigned already", new.epoch);
        } else {
            assert_eq!(new.last, old.last, "I1: `last` changes with an assignment alone");
        }
        self.record = new;
        self.revision += 1;
    }

    /// A controller's write.
    pub fn cas(&mut self, expected: i64, new: Record) -> Cas {
        if self.revision != expected {
            return Cas::Other;
        }
        assert!(new.phase != Phase::Active, "E7: only the primary makes its record active");
        let kept = self.record.prev.iter().all(|config| new.prev.contains(config));
        assert!(kept, "I14: a controller removed a configuration from `prev`");
        if new.phase == Phase::Electing {
            self.elections += 1;
        }
        self.put(new);
        Cas::Done
    }

    /// A primary's Txn. Asked again after a lost answer, it finds what it did.
    pub fn activate(&mut self, by: ProcessId, ask: &Activate) -> bool {
        let mine = |record: &Record| {
            record.epoch == ask.epoch && record.last.as_ref().is_some_and(|last| last.process == by)
        };
        if self.revision != ask.record_revision {
            return self.record.phase == Phase::Active && mine(&self.record);
        }
        assert!(mine(&self.record), "I1: {by} activates {:?}", self.record);
        self.activations += 1;
        let prev = if ask.clear_prev { Vec::new() } else { self.record.prev.clone() };
        self.put(Record { phase: Phase::Active, prev, ..self.record.clone() });
        true
    }

    pub fn clear_prev(&mut self, by: ProcessId, epoch: Epoch) -> bool {
        if self.record.epoch != epoch || self.record.phase != Phase::Active {
            return false;
        }
        let mine = self.record.last.as_ref().is_some_and(|last| last.process == by);
        assert!(mine, "I14: {by} clears `prev` of {:?}", self.record);
        if !self.record.prev.is_empty() {
            self.put(Record { prev: Vec::new(), ..self.record.clone() });
        }
        true
    }
}
