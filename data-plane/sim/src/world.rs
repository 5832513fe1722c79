//! The whole: what is on its way, in the order of true time, and who it goes to.

use spool::controller::{Action, CasOutcome, Input};
use spool::event::{Activate, Call, CallId, CallReply, Event, PeerMessage, SyncNo};
use spool::promise::{Beat, BeatReply};
use spool::record::{Member, Record};
use std::collections::BTreeMap;
use types::{CopyId, Epoch, NodeName, ProcessId, SpoolId};

use crate::clients::Clients;
use crate::clock::{Clock, MS, Time};
use crate::config::{Config, NetConfig};
use crate::control::Control;
use crate::etcd::Etcd;
use crate::faults::Fault;
use crate::net::{End, Net, Stream};
use crate::node::Node;
use crate::oracle::Oracle;
use crate::rng::Rng;
use crate::trace::Trace;

pub const SPOOL: SpoolId = SpoolId::from_u128(0x5b00_15b0);

/// Something that happens at a moment.
#[derive(Clone, Debug)]
pub enum Happening {
    /// Arrives at a node, whatever process runs there by then.
    AtNode(usize, ToNode),
    /// Something inside of one run of a process.
    In(usize, ProcessId, Inside),
    AtController(usize, ToController),
    AtEtcd(ToEtcd),
    AtClient {
        op: u64,
        reply: Option<spool::command::Reply>,
    },
    ClientTurn(usize),
    ClientTimeout {
        op: u64,
    },
    ControllerTurn(usize),
    Fault(Fault),
    NextFault,
}

#[derive(Clone, Debug)]
pub enum ToNode {
    Peer { from: usize, member: Member, message: PeerMessage, connection: Option<u64> },
    Disconnected { from: usize, refused: bool },
    Beat { from: usize, beat: Beat },
    BeatReply { from: usize, reply: BeatReply },
    Call { controller: usize, number: u64, to: Member, call: Call },
    Request { op: u64 },
    Cancel { op: u64 },
    HandBack { tokens: Vec<spool::token::Token> },
    Activated { process: ProcessId, epoch: Epoch, ok: bool },
    PrevCleared { process: ProcessId, epoch: Epoch, ok: bool },
}

#[derive(Clone, Debug)]
pub enum Inside {
    Flush,
    Wake(Time),
    Synced(SyncNo, u64),
    BeatTurn,
    AliveTurn,
    /// A Txn that was not answered is sent again.
    RetryTxn,
}

#[derive(Clone, Debug)]
pub enum ToController {
    Input(Input),
    /// The answer to a call; `None`: no connection, or another copy is there.
    Answer {
        number: u64,
        answer: Answer,
    },
    /// What it read in etcd.
    Read {
        record: Record,
        revision: i64,
        alive: BTreeMap<NodeName, (ProcessId, u64)>,
    },
    CasTimeout {
        expected: i64,
    },
    CallTimeout {
        number: u64,
    },
    Wake(Time),
}

#[derive(Clone, Debug)]
pub enum Answer {
    Reply(CallReply),
    UnknownCopy,
    Failed,
}

#[derive(Clone, Debug)]
pub enum ToEtcd {
    Cas { controller: usize, expected: i64, new: Box<Record> },
    Read { controller: usize },
    Alive { node: usize, process: ProcessId, number: u64 },
    Activate { node: usize, process: ProcessId, ask: Activate },
    ClearPrev { node: usize, process: ProcessId, epoch: Epoch },
}

pub struct World {
    pub config: Config,
    pub rng: Rng,
    pub now: Time,
    queue: BTreeMap<(Time, u64), Happening>,
    next_no: u64,
    pub net: Net,
    pub etcd: Etcd,
    pub etcd_down: bool,
    pub nodes: Vec<Node>,
    pub control: Control,
    pub clients: Clients,
    pub oracle: Oracle,
    pub trace: Trace,
    pub next_call: u64,
    /// Which controller's call a core's call id stands for.
    pub calls: BTreeMap<CallId, (usize, u64)>,
    pub stormy: bool,
    pub events: u64,
}

impl World {
    pub fn new(config: Config, trace: Trace) -> World {
        let mut rng = Rng::new(config.seed);
        let members: Vec<Member> = (0..config.n)
            .map(|at| Member {
                node: NodeName(format!("node-{at}")),
                copy: CopyId::from_u128(u128::from(at) + 0xc0),
            })
            .collect();
        let record = Record::first(SPOOL, config.n, config.k, members.clone());
        let nodes = members.iter().map(|member| Node::new(member.clone(), Clock::any(&mut rng))).collect();
        let mut world = World {
            net: Net::new(NetConfig { ordered: config.net.ordered, ..NetConfig::calm() }),
            etcd: Etcd::new(record),
            etcd_down: false,
            nodes,
            control: Control::new(&config, &mut rng),
            clients: Clients::new(&config),
            oracle: Oracle::new(&config),
            trace,
            rng,
            now: Time(0),
            queue: BTreeMap::new(),
            next_no: 0,
            next_call: 0,
            calls: BTreeMap::new(),
            stormy: false,
            events: 0,
            config,
        };
        world.create_copies();
        for node in 0..world.nodes.len() {
            world.start_node(node);
        }
        world.start_controllers();
        world.start_clients();
        world
    }

    pub fn at(&mut self, time: Time, what: Happening) {
        self.next_no += 1;
        self.queue.insert((time.max(self.now), self.next_no), what);
    }

    pub fn after(&mut self, us: u64, what: Happening) {
        self.at(self.now.after(us), what);
    }

    /// Until true time is `until`, or `done` says so.
    pub fn run(&mut self, until: Time, mut done: impl FnMut(&World) -> bool) {
        while let Some(((time, _), _)) = self.queue.first_key_value()
            && *time <= until
            && !done(self)
        {
            let Some(((time, _), what)) = self.queue.pop_first() else { break };
            self.now = time;
            self.events += 1;
            self.happen(what);
        }
        if !done(self) {
            self.now = until.max(self.now);
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::AtNode(node, _) | Happening::In(node, ..) if self.nodes[node].is_paused(self.now) => {
                self.nodes[node].deferred.push(what);
            }
            Happening::AtNode(node, what) => self.at_node(node, what),
            Happening::In(node, process, what) => self.inside(node, process, what),
            Happening::AtController(controller, what) => self.at_controller(controller, what),
            Happening::AtEtcd(what) => self.at_etcd(what),
            Happening::AtClient { op, reply } => self.at_client(op, reply),
            Happening::ClientTurn(client) => self.client_turn(client),
            Happening::ClientTimeout { op } => self.client_timeout(op),
            Happening::ControllerTurn(controller) => self.controller_turn(controller),
            Happening::Fault(fault) => self.fault(fault),
            Happening::NextFault => self.next_fault(),
        }
    }

    // ---- sending

    pub fn send_peer(&mut self, from: usize, to: &Member, message: PeerMessage) {
        let Some(to) = self.node_index(&to.node) else { return };
        let member = self.nodes[from].member.clone();
        match self.net.stream(&mut self.rng, self.now, from, to) {
            Stream::Arrives { at, connection } => {
                for time in at {
                    let (member, message) = (member.clone(), message.clone());
                    let peer = ToNode::Peer { from, member, message, connection };
                    self.at(time, Happening::AtNode(to, peer));
                }
            }
            Stream::Breaks => self.disconnect(from, to),
        }
    }

    /// Both ends notice, in their time.
    pub fn disconnect(&mut self, a: usize, b: usize) {
        let until = self.now.after(self.rng.range(20 * MS, 300 * MS));
        self.net.break_connection(a, b, until);
        for (at, from) in [(a, b), (b, a)] {
            let us = self.rng.range(MS, 300 * MS);
            self.after(us, Happening::AtNode(at, ToNode::Disconnected { from, refused: false }));
        }
    }

    /// Beats have a connection of their own; they may come late, twice or never.
    pub fn send_node(&mut self, from: usize, to: usize, what: &ToNode) {
        for time in self.net.send(&mut self.rng, self.now, End::Node(from), End::Node(to)) {
            self.at(time, Happening::AtNode(to, what.clone()));
        }
    }

    pub fn send_once(&mut self, from: End, to: End, what: Happening) -> bool {
        match self.net.send_once(&mut self.rng, self.now, from, to) {
            Some(time) => {
                self.at(time, what);
                true
            }
            None => false,
        }
    }

    pub fn node_index(&self, name: &NodeName) -> Option<usize> {
        self.nodes.iter().position(|node| node.member.node == *name)
    }

    // ---- arriving

    fn at_node(&mut self, node: usize, what: ToNode) {
        if self.nodes[node].process.is_none() {
            self.at_dead_node(node, what);
            return;
        }
        match what {
            ToNode::Peer { from, member, message, connection } => {
                if connection.is_some_and(|number| number != self.net.connection(from, node)) {
                    return;
                }
                self.heard_from(node, from);
                if let PeerMessage::Release { epoch } = &message {
                    self.nodes[node].promised.remove(epoch);
                }
                if self.nodes[node].has_copy() {
                    self.step(node, Event::Peer { from: member, message });
                } else {
                    self.answer_for_no_copy(node, &member, message);
                }
            }
            ToNode::Disconnected { from, refused } => {
                let down = self.nodes[from].process.is_none();
                self.set_refused(node, from, refused && down);
                let name = self.nodes[from].member.node.clone();
                self.step(node, Event::PeerDisconnected { node: name });
                let follows = self.nodes[node].copy().and_then(|copy| copy.primary_member());
                if refused && down && follows.is_some_and(|primary| *primary == self.nodes[from].member) {
                    self.report_suspicion(node, true);
                }
            }
            ToNode::Beat { from, beat } => self.on_beat(node, from, &beat),
            ToNode::BeatReply { from, reply } => self.on_beat_reply(node, from, &reply),
            ToNode::Call { controller, number, to, call } => {
                self.on_call(node, controller, number, &to, call)
            }
            ToNode::Request { op } => self.on_request(node, op),
            ToNode::Cancel { op } => self.on_cancel(node, op),
            ToNode::HandBack { tokens } => self.on_hand_back(node, tokens),
            ToNode::Activated { process, epoch, ok } => self.on_activated(node, process, epoch, ok),
            ToNode::PrevCleared { process, epoch, ok } => self.on_prev_cleared(node, process, epoch, ok),
        }
    }

    /// Connections are refused.
    fn at_dead_node(&mut self, node: usize, what: ToNode) {
        match what {
            ToNode::Call { controller, number, .. } => {
                self.answer_controller(node, controller, number, Answer::Failed);
            }
            ToNode::Request { op } => {
                self.send_once(End::Node(node), End::Clients, Happening::AtClient { op, reply: None });
            }
            ToNode::Peer { from, .. } => {
                // A reset, where a live node would have taken it.
                let until = self.now.after(self.rng.range(20 * MS, 300 * MS));
                self.net.break_connection(from, node, until);
                let refused = ToNode::Disconnected { from: node, refused: true };
                self.send_once(End::Node(node), End::Node(from), Happening::AtNode(from, refused));
            }
            _ => {}
        }
    }

    pub fn answer_controller(&mut self, node: usize, controller: usize, number: u64, answer: Answer) {
        let what = Happening::AtController(controller, ToController::Answer { number, answer });
        self.send_once(End::Node(node), End::Controller(controller), what);
    }

    fn at_etcd(&mut self, what: ToEtcd) {
        if self.etcd_down {
            return;
        }
        match what {
            ToEtcd::Cas { controller, expected, new } => {
                let outcome = self.etcd_cas(controller, expected, *new);
                let input = Input::CasResult { expected_revision: expected, outcome };
                let what = Happening::AtController(controller, ToController::Input(input));
                self.send_once(End::Etcd, End::Controller(controller), what);
            }
            ToEtcd::Read { controller } => {
                let (record, revision) = (self.etcd.record.clone(), self.etcd.revision);
                let read = ToController::Read { record, revision, alive: self.etcd.alive.clone() };
                let what = Happening::AtController(controller, read);
                self.send_once(End::Etcd, End::Controller(controller), what);
            }
            ToEtcd::Alive { node, process, number } => {
                let name = self.nodes[node].member.node.clone();
                self.etcd.alive.insert(name, (process, number));
            }
            ToEtcd::Activate { node, process, ask } => {
                let ok = self.etcd.activate(process, &ask);
                if ok && ask.clear_prev {
                    self.oracle.logs.on_prev_cleared(ask.epoch);
                }
                self.trace.line(self.now, || format!("etcd: node-{node} activates {:?}: {ok}", ask.epoch));
                let what = ToNode::Activated { process, epoch: ask.epoch, ok };
                self.send_once(End::Etcd, End::Node(node), Happening::AtNode(node, what));
            }
            ToEtcd::ClearPrev { node, process, epoch } => {
                let ok = self.etcd.clear_prev(process, epoch);
                if ok {
                    self.oracle.logs.on_prev_cleared(epoch);
                }
                self.trace.line(self.now, || format!("etcd: node-{node} clears prev of {epoch:?}: {ok}"));
                let what = ToNode::PrevCleared { process, epoch, ok };
                self.send_once(End::Etcd, End::Node(node), Happening::AtNode(node, what));
            }
        }
    }

    fn etcd_cas(&mut self, controller: usize, expected: i64, new: Record) -> CasOutcome {
        let outcome = self.etcd.cas(expected, new);
        let (record, revision) = (self.etcd.record.clone(), self.etcd.revision);
        let done = matches!(outcome, crate::etcd::Cas::Done);
        self.trace.line(self.now, || {
            let last = record.last.as_ref().map(|last| (&last.member.node.0, last.position));
            let (epoch, phase, prev) = (record.epoch, record.phase, record.prev.len());
            format!(
                "etcd: controller-{controller} writes {done}: {epoch:?} {phase:?} last {last:?} prev {prev}"
            )
        });
        if !done {
            return CasOutcome::Other { record, revision };
        }
        self.oracle.on_record(&record);
        CasOutcome::Done { record, revision }
    }

    /// What a controller asks for.
    pub fn carry_out(&mut self, controller: usize, action: Action) {
        let from = End::Controller(controller);
        match action {
            Action::Probe { to, round } => self.call(controller, to, Call::Probe, round),
            Action::Seal { to, epoch } => self.call(controller, to, Call::Seal { epoch }, epoch.0),
            Action::Assign { to, assign } => {
                let epoch = assign.epoch.0;
                self.call(controller, to, Call::Assign(assign), epoch);
            }
            Action::StepDown { to, epoch, target } => {
                let call = Call::StepDown { epoch, target: Some(target) };
                self.call(controller, to, call, epoch.0);
            }
            Action::CasRecord { expected_revision: expected, new } => {
                let cas = ToEtcd::Cas { controller, expected, new: Box::new(new) };
                self.send_once(from, End::Etcd, Happening::AtEtcd(cas));
                self.after(
                    1_000 * MS,
                    Happening::AtController(controller, ToController::CasTimeout { expected }),
                );
            }
            Action::ReadRecord => {
                self.send_once(from, End::Etcd, Happening::AtEtcd(ToEtcd::Read { controller }));
            }
            Action::PublishStatus { waiting_for, reason } => {
                self.trace.line(self.now, || {
                    format!("controller-{controller}: waits for {waiting_for:?}: {reason}")
                });
            }
            Action::MoveDone { outcome } => {
                self.oracle.seen.moves += u64::from(outcome.is_ok());
                self.trace.line(self.now, || format!("controller-{controller}: move done: {outcome:?}"));
            }
        }
    }
}
