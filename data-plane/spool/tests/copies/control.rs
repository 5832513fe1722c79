//! The spool's record under compare-and-swap, and the real controller that elects over it.

use spool::controller::{
    Action, AssignAnswer, CasOutcome, Controller, Input, ProbeAnswer, SealAnswer, Settings, StepDownAnswer,
};
use spool::event::{Call, CallReply};
use spool::record::{Last, Member, Phase, Record};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Epoch, Moment, ProcessId};

use crate::node::{PROMISE, SPOOL, Txn, member};

pub struct Control {
    pub record: Record,
    pub revision: i64,
    /// Who was assigned which epoch.
    pub assigned: BTreeMap<Epoch, Last>,
    pub controller: Controller,
    pub calls: BTreeMap<u64, Asked>,
    next_call: u64,
    lives: u64,
}

pub struct Asked {
    to: Member,
    call: Call,
    round: u64,
    pub until: u64,
}

/// What a controller wants to be carried.
pub enum Errand {
    Call { number: u64, to: Member, call: Call },
    Input(Input),
    Read,
}

impl Control {
    pub fn new(n: u8, k: u8) -> Control {
        let members = (0..usize::from(n)).map(member).collect();
        Control {
            record: Record::first(SPOOL, n, k, members),
            revision: 1,
            assigned: BTreeMap::new(),
            controller: fresh(0),
            calls: BTreeMap::new(),
            next_call: 0,
            lives: 0,
        }
    }

    /// The controller's process ends; another begins and knows nothing.
    pub fn restart(&mut self) {
        self.lives += 1;
        self.controller = fresh(self.lives);
        self.calls.clear();
    }

    /// The highest epoch that was ever assigned.
    pub fn assigned_epoch(&self) -> Epoch {
        self.assigned.keys().next_back().copied().unwrap_or_default()
    }

    fn put(&mut self, new: Record) {
        let old = &self.record;
        assert!(new.epoch >= old.epoch, "I1: epoch {} after {}", new.epoch, old.epoch);
        if new.epoch > old.epoch {
            assert_eq!((new.phase, &new.last), (Phase::Electing, &old.last), "I1: an epoch begins electing");
        }
        if new.phase == Phase::Assigned && old.phase == Phase::Electing {
            let last = new.last.clone().expect("I12: assigned to somebody");
            assert_eq!(last.epoch, new.epoch, "I12");
            let before = self.assigned.insert(new.epoch, last);
            assert_eq!(before, None, "I1: {} is assigned twice", new.epoch);
        } else {
            assert_eq!(new.last, old.last, "I1: `last` changes with an assignment alone");
        }
        self.record = new;
        self.revision += 1;
    }

    fn cas(&mut self, expected: i64, new: Record) -> CasOutcome {
        let done = expected == self.revision;
        if done {
            let kept = self.record.prev.iter().all(|config| new.prev.contains(config));
            assert!(kept && new.phase != Phase::Active, "I14: {new:?} by a controller");
            self.put(new);
        }
        let (record, revision) = (self.record.clone(), self.revision);
        if done { CasOutcome::Done { record, revision } } else { CasOutcome::Other { record, revision } }
    }

    /// A primary's Txn. Asked again after a lost answer, it finds what it did.
    pub fn txn(&mut self, by: ProcessId, txn: &Txn) -> bool {
        let mine = self.record.last.as_ref().is_some_and(|last| last.process == by);
        match txn {
            Txn::Activate(ask) if ask.record_revision != self.revision => {
                mine && self.record.phase == Phase::Active && self.record.epoch == ask.epoch
            }
            Txn::Activate(ask) => {
                assert!(mine && self.record.epoch == ask.epoch, "I1: {by} activates {:?}", self.record);
                let prev = if ask.clear_prev { Vec::new() } else { self.record.prev.clone() };
                self.put(Record { phase: Phase::Active, prev, ..self.record.clone() });
                true
            }
            Txn::ClearPrev(epoch) => {
                let ok = mine && self.record.epoch == *epoch && self.record.phase == Phase::Active;
                if ok && !self.record.prev.is_empty() {
                    self.put(Record { prev: Vec::new(), ..self.record.clone() });
                }
                ok
            }
        }
    }

    pub fn as_read(&self) -> Input {
        Input::Record { record: self.record.clone(), revision: self.revision }
    }

    pub fn feed(&mut self, time: u64, input: Input) -> Vec<Errand> {
        let mut actions = Vec::new();
        self.controller.handle(Moment(time), input, &mut actions);
        let errand = |action| self.errand(time, action);
        actions.into_iter().filter_map(errand).collect()
    }

    fn errand(&mut self, time: u64, action: Action) -> Option<Errand> {
        let (to, call, round) = match action {
            Action::Probe { to, round } => (to, Call::Probe, round),
            Action::Seal { to, epoch } => (to, Call::Seal { epoch }, 0),
            Action::Assign { to, assign } => (to, Call::Assign(assign), 0),
            Action::StepDown { to, epoch, target } => (to, Call::StepDown { epoch, target: Some(target) }, 0),
            Action::CasRecord { expected_revision, new } => {
                let outcome = self.cas(expected_revision, new);
                return Some(Errand::Input(Input::CasResult { expected_revision, outcome }));
            }
            Action::ReadRecord => return Some(Errand::Read),
            Action::PublishStatus { .. } | Action::MoveDone { .. } => return None,
        };
        self.next_call += 1;
        let number = self.next_call;
        let until = time + (PROMISE + Duration::from_secs(1)).as_micros() as u64;
        self.calls.insert(number, Asked { to: to.clone(), call: call.clone(), round, until });
        Some(Errand::Call { number, to, call })
    }

    /// What an answer, or none, says to the controller. Nothing: it is late.
    pub fn answered(&mut self, number: u64, reply: Option<CallReply>) -> Option<Input> {
        let Asked { to: from, call, round, .. } = self.calls.remove(&number)?;
        Some(match call {
            Call::Probe => {
                let answer = match reply {
                    Some(CallReply::Probed(probed)) => ProbeAnswer::Probed(probed),
                    _ => ProbeAnswer::Failed,
                };
                Input::ProbeReply { from, round, answer }
            }
            Call::Seal { epoch } => {
                let answer = match reply {
                    Some(CallReply::Sealed(sealed)) => SealAnswer::Sealed(sealed),
                    Some(CallReply::StaleEpoch { sealed }) => SealAnswer::StaleEpoch(sealed),
                    _ => SealAnswer::Failed,
                };
                Input::SealReply { from, epoch, answer }
            }
            Call::Assign(assign) => {
                let answer = match reply {
                    Some(CallReply::Assigned) => AssignAnswer::Assigned,
                    Some(CallReply::AssignRefused { why }) => AssignAnswer::Refused(why),
                    Some(CallReply::StaleEpoch { sealed }) => AssignAnswer::StaleEpoch(sealed),
                    _ => AssignAnswer::Failed,
                };
                Input::AssignReply { from, epoch: assign.epoch, answer }
            }
            Call::StepDown { epoch, .. } => {
                let answer = match reply {
                    Some(CallReply::SteppedDown { position }) => StepDownAnswer::SteppedDown(position),
                    Some(CallReply::NotPrimary { .. }) => StepDownAnswer::NotPrimary,
                    _ => StepDownAnswer::Failed,
                };
                Input::StepDownReply { from, epoch, answer }
            }
            Call::Status => return None,
        })
    }
}

fn fresh(life: u64) -> Controller {
    Controller::new(SPOOL, Settings::new(PROMISE, 2 * PROMISE), life * 331)
}
