//! Controllers: the pure [`Controller`] with what a control plane puts around it. Calls are answered, refused or
//! time out; etcd is read now and then.

use spool::controller::{AssignAnswer, Controller, Input, ProbeAnswer, SealAnswer, Settings, StepDownAnswer};
use spool::event::{Call, CallReply};
use spool::record::{Member, Phase, Record};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Epoch, Moment, NodeName, ProcessId};

use crate::clock::{Clock, MS, Time};
use crate::config::Config;
use crate::net::End;
use crate::rng::Rng;
use crate::world::{Answer, Happening, SPOOL, ToController, ToEtcd, ToNode, World};

const TURN_EVERY: u64 = 200 * MS;
/// An alive key that does not change for so long stands still: two heartbeats and a half.
const STANDS_STILL: Duration = Duration::from_millis(2_500);

pub struct Control {
    pub controllers: Vec<One>,
    next_number: u64,
}

pub struct One {
    clock: Clock,
    core: Option<Controller>,
    calls: BTreeMap<u64, Asked>,
    alive: BTreeMap<NodeName, Alive>,
    wake_at: Option<Time>,
    starts: u64,
}

struct Asked {
    to: Member,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Probe(u64),
    Seal(Epoch),
    Assign(Epoch),
    StepDown(Epoch),
}

struct Alive {
    process: ProcessId,
    number: u64,
    since: Moment,
    advancing: bool,
}

impl Control {
    pub fn new(config: &Config, rng: &mut Rng) -> Control {
        let one = |rng: &mut Rng| One {
            clock: Clock::any(rng),
            core: None,
            calls: BTreeMap::new(),
            alive: BTreeMap::new(),
            wake_at: None,
            starts: 0,
        };
        Control { controllers: (0..config.controllers).map(|_| one(rng)).collect(), next_number: 0 }
    }

    pub fn is_up(&self, at: usize) -> bool {
        self.controllers[at].core.is_some()
    }
}

impl World {
    pub fn start_controllers(&mut self) {
        for at in 0..self.config.controllers {
            self.start_controller(at);
            self.after(0, Happening::ControllerTurn(at));
        }
    }

    pub fn start_controller(&mut self, at: usize) {
        let settings = Settings::new(self.config.promise, self.config.suspect);
        let one = &mut self.control.controllers[at];
        one.starts += 1;
        let seed = one.starts * 331 + at as u64 * 577;
        one.core = Some(Controller::new(SPOOL, settings, seed));
        self.trace.line(self.now, || format!("controller-{at}: starts"));
    }

    pub fn stop_controller(&mut self, at: usize) {
        let one = &mut self.control.controllers[at];
        one.core = None;
        one.calls.clear();
        one.alive.clear();
        one.wake_at = None;
        self.oracle.seen.controller_crashes += 1;
        self.trace.line(self.now, || format!("controller-{at}: dies"));
    }

    pub fn controller_turn(&mut self, at: usize) {
        self.after(TURN_EVERY, Happening::ControllerTurn(at));
        if self.control.is_up(at) {
            let read = Happening::AtEtcd(ToEtcd::Read { controller: at });
            self.send_once(End::Controller(at), End::Etcd, read);
        }
    }

    pub fn call(&mut self, at: usize, to: Member, call: Call, number: u64) {
        let (what, wait) = match &call {
            Call::Probe => (What::Probe(number), Duration::from_millis(500)),
            Call::Seal { epoch } => (What::Seal(*epoch), self.config.promise + Duration::from_secs(1)),
            Call::Assign(assign) => (What::Assign(assign.epoch), Duration::from_secs(1)),
            Call::StepDown { epoch, .. } => (What::StepDown(*epoch), Duration::from_secs(3)),
            Call::Status => return,
        };
        self.trace.line(self.now, || {
            format!("controller-{at} -> {}: {}", to.node, crate::trace::say::debug(&call))
        });
        let Some(node) = self.node_index(&to.node) else { return };
        self.control.next_number += 1;
        let number = self.control.next_number;
        self.control.controllers[at].calls.insert(number, Asked { to: to.clone(), what });
        let asked = ToNode::Call { controller: at, number, to, call };
        self.send_once(End::Controller(at), End::Node(node), Happening::AtNode(node, asked));
        let timeout = Happening::AtController(at, ToController::CallTimeout { number });
        self.after(wait.as_micros() as u64, timeout);
    }

    pub fn at_controller(&mut self, at: usize, what: ToController) {
        if !self.control.is_up(at) {
            return;
        }
        match what {
            ToController::Input(input) => self.feed(at, input),
            ToController::Answer { number, answer } => self.call_answered(at, number, answer),
            ToController::CallTimeout { number } => self.call_answered(at, number, Answer::Failed),
            ToController::CasTimeout { expected } => {
                let outcome = spool::controller::CasOutcome::Unknown;
                self.feed(at, Input::CasResult { expected_revision: expected, outcome });
            }
            ToController::Read { record, revision, alive } => self.on_read(at, record, revision, alive),
            ToController::Wake(time) => {
                if self.control.controllers[at].wake_at == Some(time) {
                    self.control.controllers[at].wake_at = None;
                    self.feed(at, Input::Tick);
                }
            }
        }
    }

    pub fn feed(&mut self, at: usize, input: Input) {
        let one = &mut self.control.controllers[at];
        let now = one.clock.mono(self.now);
        let Some(core) = &mut one.core else { return };
        let mut actions = Vec::new();
        core.handle(now, input, &mut actions);
        let wanted = core.next_wakeup().map(|moment| one.clock.when(moment).max(self.now.after(MS)));
        let sooner = |wanted: &Time| one.wake_at.is_none_or(|at| at > *wanted);
        if let Some(time) = wanted.filter(sooner) {
            one.wake_at = Some(time);
            self.at(time, Happening::AtController(at, ToController::Wake(time)));
        }
        for action in actions {
            self.carry_out(at, action);
        }
    }

    fn call_answered(&mut self, at: usize, number: u64, answer: Answer) {
        let Some(Asked { to: from, what }) = self.control.controllers[at].calls.remove(&number) else {
            return;
        };
        let input = match what {
            What::Probe(round) => {
                let answer = match answer {
                    Answer::Reply(CallReply::Probed(probed)) => ProbeAnswer::Probed(probed),
                    Answer::UnknownCopy => ProbeAnswer::UnknownCopy,
                    _ => ProbeAnswer::Failed,
                };
                Input::ProbeReply { from, round, answer }
            }
            What::Seal(epoch) => {
                let answer = match answer {
                    Answer::Reply(CallReply::Sealed(sealed)) => SealAnswer::Sealed(sealed),
                    Answer::Reply(CallReply::StaleEpoch { sealed }) => SealAnswer::StaleEpoch(sealed),
                    Answer::UnknownCopy => SealAnswer::UnknownCopy,
                    _ => SealAnswer::Failed,
                };
                Input::SealReply { from, epoch, answer }
            }
            What::Assign(epoch) => {
                let answer = match answer {
                    Answer::Reply(CallReply::Assigned) => AssignAnswer::Assigned,
                    Answer::Reply(CallReply::AssignRefused { why }) => AssignAnswer::Refused(why),
                    Answer::Reply(CallReply::StaleEpoch { sealed }) => AssignAnswer::StaleEpoch(sealed),
                    _ => AssignAnswer::Failed,
                };
                Input::AssignReply { from, epoch, answer }
            }
            What::StepDown(epoch) => {
                let answer = match answer {
                    Answer::Reply(CallReply::SteppedDown { position }) => {
                        StepDownAnswer::SteppedDown(position)
                    }
                    Answer::Reply(CallReply::NotPrimary { .. }) => StepDownAnswer::NotPrimary,
                    _ => StepDownAnswer::Failed,
                };
                Input::StepDownReply { from, epoch, answer }
            }
        };
        self.feed(at, input);
    }

    fn on_read(
        &mut self,
        at: usize,
        record: Record,
        revision: i64,
        alive: BTreeMap<NodeName, (ProcessId, u64)>,
    ) {
        let one = &mut self.control.controllers[at];
        let now = one.clock.mono(self.now);
        let mut inputs = Vec::new();
        for (node, (process, number)) in alive {
            let known = one.alive.entry(node.clone()).or_insert_with(|| {
                inputs.push(Input::NodeAlive { node: node.clone(), advancing: true });
                Alive { process, number, since: now, advancing: true }
            });
            if (known.process, known.number) != (process, number) {
                (known.process, known.number, known.since) = (process, number, now);
                if !known.advancing {
                    known.advancing = true;
                    inputs.push(Input::NodeAlive { node, advancing: true });
                }
            } else if known.advancing && now.since(known.since) >= STANDS_STILL {
                known.advancing = false;
                inputs.push(Input::NodeAlive { node, advancing: false });
            }
        }
        if record.phase == Phase::Active
            && let Some(last) = &record.last
            && let Some(known) = one.alive.get(&last.member.node)
            && (!known.advancing || known.process != last.process)
        {
            inputs.push(Input::Suspected { refused: false });
        }
        inputs.insert(0, Input::Record { record, revision });
        for input in inputs {
            self.feed(at, input);
        }
    }
}
