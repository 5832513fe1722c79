//! Several copies of one spool, what is on its way between them, and one event after the other.

use spool::command::{Command, RequestId};
use spool::controller::Input;
use spool::copy::Context;
use spool::event::{Call, CallId, CallReply, Effects, PeerMessage};
use spool::promise::{Beat, BeatReply};
use spool::record::{Member, Phase};
use types::{Moment, limits};

use crate::clients::Clients;
use crate::control::{Control, Errand};
use crate::event::Event;
use crate::facts::Facts;
use crate::node::{Node, SPOOL, Txn, member};

const MS: u64 = 1_000;
/// More letters than this in one flow would be a conversation without end.
const LETTERS_PER_FLOW_MAX: usize = 5_000;

pub struct World {
    pub now: u64,
    pub nodes: Vec<Node>,
    pub control: Control,
    pub clients: Clients,
    pub facts: Facts,
    letters: Vec<Letter>,
    /// Stuck, for as long as it pleases.
    held: Vec<Letter>,
    cut_off: Option<usize>,
    controller_turn: u64,
}

#[derive(Clone)]
enum Letter {
    Peer { from: usize, to: usize, message: PeerMessage },
    Beat { from: usize, to: usize, beat: Beat },
    BeatReply { from: usize, to: usize, reply: BeatReply },
    Call { number: u64, to: usize, call: Call },
    Answer { number: u64, reply: Option<CallReply> },
    ToController(Input),
    Read,
    Txn { from: usize, process: types::ProcessId, txn: Txn },
}

impl Letter {
    /// It comes from this node, or goes there.
    fn is_of(&self, at: usize) -> bool {
        match self {
            Letter::Peer { from, to, .. } | Letter::Beat { from, to, .. } => *from == at || *to == at,
            Letter::BeatReply { from, to, .. } => *from == at || *to == at,
            Letter::Call { to, .. } => *to == at,
            Letter::Txn { from, .. } => *from == at,
            Letter::Answer { .. } | Letter::ToController(_) | Letter::Read => false,
        }
    }
}

impl World {
    /// With a primary in office, and its queues.
    pub fn new(n: u8, k: u8) -> World {
        let mut world = World {
            now: 0,
            nodes: (0..usize::from(n)).map(|at| Node::new(at, n, k)).collect(),
            control: Control::new(n, k),
            clients: Clients::default(),
            facts: Facts::new(usize::from(n)),
            letters: Vec::new(),
            held: Vec::new(),
            cut_off: None,
            controller_turn: 0,
        };
        for at in 0..world.nodes.len() {
            world.start(at);
        }
        world.calm("elect its first primary");
        for command in Clients::queues() {
            world.request(world.elected(), command);
            world.flow(1);
        }
        world
    }

    pub fn happen(&mut self, event: &Event) {
        let node = |pick: u8| usize::from(pick) % self.nodes.len();
        match *event {
            Event::Ask { to, ref ask } => {
                let to = if to.is_multiple_of(8) { node(to / 8) } else { self.elected() };
                if let Some(command) = self.clients.command(ask) {
                    self.request(to, command);
                }
            }
            Event::Cancel(pick) => {
                if let Some((at, id)) = self.clients.cancel(pick) {
                    self.step(at, spool::event::Event::Cancelled { id });
                }
            }
            Event::HandBack(pick) => {
                if let Some((at, token)) = self.clients.hand_back(pick) {
                    self.step(at, spool::event::Event::HandedBack { tokens: vec![token] });
                }
            }
            Event::Deliver(pick) => {
                if let Some(letter) = self.take(pick) {
                    self.deliver(letter);
                }
            }
            Event::Lose(pick) => drop(self.take(pick)),
            Event::Repeat(pick) => {
                if let Some(letter) = self.take(pick) {
                    self.held.push(letter.clone());
                    self.deliver(letter);
                }
            }
            Event::Hold(pick) => {
                let letter = self.take(pick);
                self.held.extend(letter);
            }
            Event::Bring(pick) => {
                if let Some(at) = usize::from(pick).checked_rem(self.held.len()) {
                    let letter = self.held.remove(at);
                    self.deliver(letter);
                }
            }
            Event::Mail(count) => {
                for _ in 0..count {
                    if let Some(letter) = self.take(0) {
                        self.deliver(letter);
                    }
                }
            }
            Event::Sync(pick) => self.sync(node(pick)),
            Event::Beats => self.beats(),
            Event::Pass { ms } => self.pass(u64::from(ms) * MS),
            Event::Flow(rounds) => self.flow(rounds),
            Event::PowerCut { node: pick, kept } => {
                let at = node(pick);
                if self.stop(at) {
                    self.facts.seen.batches_lost += self.nodes[at].disk.power_cut(kept.into()) as u64;
                }
            }
            Event::Kill(pick) => drop(self.stop(node(pick))),
            Event::Start(pick) => {
                let all = (0..self.nodes.len()).map(|next| (node(pick) + next) % self.nodes.len());
                let down = all.into_iter().find(|at| self.nodes[*at].process.is_none());
                self.start(down.unwrap_or(node(pick)));
            }
            Event::Break(a, b) => self.break_connection(node(a), node(b)),
            Event::CutOff { rounds, ref ask } => {
                let at = self.elected();
                self.cut_off = Some(at);
                for _ in 0..rounds {
                    self.feed(Input::Suspected { refused: false });
                    self.flow(1);
                }
                if let Some(command) = self.clients.command(ask) {
                    self.request(at, command);
                }
                self.cut_off = None;
            }
            Event::Suspect => self.feed(Input::Suspected { refused: false }),
            Event::Move(pick) => self.feed(Input::Move { target: Some(member(node(pick)).node) }),
            Event::NewController => {
                self.control.restart();
                self.tell_controller();
            }
            Event::GiveUp(pick) => self.step(node(pick), spool::event::Event::GiveUpRole),
        }
    }

    // ---- nodes

    fn start(&mut self, at: usize) {
        if self.nodes[at].process.is_none() {
            self.nodes[at].start(self.now);
            self.facts.on_open(at, &self.nodes[at]);
            let node = member(at).node;
            self.feed(Input::NodeAlive { node, advancing: true });
        }
    }

    /// The process is gone, with its connections. False: none ran.
    fn stop(&mut self, at: usize) -> bool {
        let Some(process) = self.nodes[at].process.take() else { return false };
        self.nodes[at].down_since = self.now;
        self.clients.on_process_end(at);
        drop(process);
        for other in 0..self.nodes.len() {
            self.break_connection(at, other);
        }
        true
    }

    /// What was on it is lost, and both ends are told.
    fn break_connection(&mut self, a: usize, b: usize) {
        let between = |from: usize, to: usize| (from, to) == (a, b) || (from, to) == (b, a);
        self.letters.retain(|letter| match letter {
            Letter::Peer { from, to, .. } => !between(*from, *to),
            _ => true,
        });
        if a != b {
            self.step(a, spool::event::Event::PeerDisconnected { node: member(b).node });
            self.step(b, spool::event::Event::PeerDisconnected { node: member(a).node });
        }
    }

    fn sync(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some((no, upto)) = node.process.as_mut().and_then(|process| process.syncs.pop_front()) else {
            return;
        };
        node.disk.sync(upto);
        self.step(at, spool::event::Event::Synced(no));
    }

    fn request(&mut self, at: usize, command: Command) {
        if self.nodes[at].process.is_none() {
            return;
        }
        let id: RequestId = self.clients.on_request(at, &command);
        let wait = limits::CONFIRM_WAIT_DEFAULT / 6;
        self.step(at, spool::event::Event::Request { id, command, wait });
    }

    /// One step of a copy, carried out, and everything checked.
    fn step(&mut self, at: usize, event: spool::event::Event) {
        let now = self.nodes[at].now(self.now);
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else { return };
        let (id, sealed, last) = (process.id, process.copy.sealed(), process.copy.log().last());
        let stale = match &event {
            spool::event::Event::Peer { message: PeerMessage::Append(append), .. } => append.epoch < sealed,
            _ => false,
        };
        let mut out = Effects::default();
        let context = Context { now, store: &node.disk.current, pairs: &process.pairs };
        process.copy.handle(&context, event, &mut out).expect("a store in memory can be read");
        process.copy.check();
        assert!(process.copy.sealed() >= sealed, "I2: node-{at} seals below {sealed}");
        let ends = (last, process.copy.log().last());
        if stale {
            self.facts.on_stale_append(at, sealed, ends, &out);
        }
        let made = self.facts.on_effects(at, (&self.nodes[at], id), &out, &self.control.assigned);
        for (payload, position) in made {
            self.clients.on_logged(&payload, position);
        }
        self.facts.on_notes(at, now.mono, &out.notes);
        let node = &mut self.nodes[at];
        node.disk.write(std::mem::take(&mut out.batch));
        if let (Some(no), Some(process)) = (out.sync, &mut node.process) {
            process.syncs.push_back((no, node.disk.written_no()));
        }
        self.facts.on_step(at, &self.nodes);
        self.leave(at, id, now.mono, out);
    }

    /// What is not the batch leaves the node.
    fn leave(&mut self, at: usize, process: types::ProcessId, now: Moment, out: Effects) {
        for (to, message) in out.peers {
            if let PeerMessage::Confirm(confirm) = &message {
                self.facts.on_confirm(at, &self.nodes[at], confirm);
            }
            self.letters.push(Letter::Peer { from: at, to: index(&to), message });
        }
        let epoch = self.nodes[at].copy().map(|copy| copy.sealed());
        let newest = epoch == Some(self.control.assigned_epoch());
        for (id, reply) in out.replies {
            self.clients.on_reply((at, now, newest), id, &reply, &self.facts, &self.nodes);
        }
        for (CallId(number), reply) in out.calls {
            if let CallReply::Sealed(sealed) = &reply {
                self.facts.on_sealed(at, &self.nodes[at], sealed);
            }
            self.letters.push(Letter::Answer { number, reply: Some(reply) });
        }
        let asks = out.activate.map(Txn::Activate).into_iter().chain(out.clear_prev.map(Txn::ClearPrev));
        for txn in asks {
            if let Some(process) = &mut self.nodes[at].process {
                process.txns.push(txn.clone());
            }
            self.letters.push(Letter::Txn { from: at, process, txn });
        }
    }

    // ---- letters

    fn take(&mut self, pick: u16) -> Option<Letter> {
        let len = self.letters.len();
        (len > 0).then(|| self.letters.remove(usize::from(pick) % len))
    }

    fn deliver(&mut self, letter: Letter) {
        if self.cut_off.is_some_and(|at| letter.is_of(at)) {
            return;
        }
        match letter {
            Letter::Peer { from, to, message } => {
                if let PeerMessage::Release { epoch } = &message {
                    self.facts.copies[to].promised.remove(epoch);
                }
                self.step(to, spool::event::Event::Peer { from: member(from), message });
            }
            Letter::Beat { from, to, beat } => {
                let now = self.nodes[to].now(self.now);
                let Some(process) = &self.nodes[to].process else { return };
                let (reply, promised) = process.pairs.on_beat(&member(from).node, now, &beat, SPOOL);
                if let Some(epoch) = promised {
                    assert!(epoch >= process.copy.sealed(), "I27: node-{to} promises to {epoch}");
                    let until = self.facts.copies[to].promised.entry(epoch).or_default();
                    *until = (*until).max(now.mono + crate::node::PROMISE);
                }
                self.letters.push(Letter::BeatReply { from: to, to: from, reply });
            }
            Letter::BeatReply { from, to, reply } => {
                let now = self.nodes[to].now(self.now).mono;
                if let Some(process) = &self.nodes[to].process {
                    process.pairs.on_reply(&member(from).node, now, &reply);
                }
            }
            Letter::Call { number, to, call } => match self.nodes[to].process {
                Some(_) => self.step(to, spool::event::Event::Call { id: CallId(number), call }),
                None => self.letters.push(Letter::Answer { number, reply: None }),
            },
            Letter::Answer { number, reply } => {
                if let Some(input) = self.control.answered(number, reply) {
                    self.feed(input);
                }
            }
            Letter::ToController(input) => self.feed(input),
            Letter::Read => self.feed(self.control.as_read()),
            Letter::Txn { from, process, txn } => self.txn(from, process, txn),
        }
    }

    fn txn(&mut self, from: usize, by: types::ProcessId, txn: Txn) {
        let ok = self.control.txn(by, &txn);
        let process = self.nodes[from].process.as_mut().filter(|process| process.id == by);
        let Some(process) = process else { return };
        if !process.txns.contains(&txn) {
            return;
        }
        process.txns.retain(|asked| *asked != txn);
        let event = match txn {
            Txn::Activate(ask) => spool::event::Event::Activated { epoch: ask.epoch, ok },
            Txn::ClearPrev(epoch) => spool::event::Event::PrevCleared { epoch, ok },
        };
        self.step(from, event);
    }

    fn feed(&mut self, input: Input) {
        let errands = self.control.feed(self.now, input);
        self.facts.on_assigned(self.control.assigned_epoch());
        for errand in errands {
            self.letters.push(match errand {
                Errand::Call { number, to, call } => Letter::Call { number, to: index(&to), call },
                Errand::Input(input) => Letter::ToController(input),
                Errand::Read => Letter::Read,
            });
        }
    }

    fn beats(&mut self) {
        for from in 0..self.nodes.len() {
            for to in (0..self.nodes.len()).filter(|to| *to != from) {
                let now = self.nodes[from].now(self.now).mono;
                if let Some(process) = &self.nodes[from].process {
                    let beat = process.pairs.beat(&member(to).node, now);
                    self.letters.push(Letter::Beat { from, to, beat });
                }
            }
        }
    }

    // ---- time

    pub fn pass(&mut self, us: u64) {
        let end = self.now + us;
        while self.now < end {
            self.now = end.min(self.now + 20 * MS);
            for at in 0..self.nodes.len() {
                let now = self.nodes[at].now(self.now).mono;
                let due =
                    self.nodes[at].copy().and_then(|copy| copy.next_wakeup()).is_some_and(|at| at <= now);
                if due {
                    self.step(at, spool::event::Event::Tick);
                }
            }
            if self.control.controller.next_wakeup().is_some_and(|at| at <= Moment(self.now)) {
                self.feed(Input::Tick);
            }
            let late = |until: u64| until <= self.now;
            let calls = self.control.calls.iter().filter(|(_, asked)| late(asked.until));
            for number in calls.map(|(number, _)| *number).collect::<Vec<_>>() {
                self.deliver(Letter::Answer { number, reply: None });
            }
            if self.now >= self.controller_turn {
                self.controller_turn = self.now + 400 * MS;
                self.tell_controller();
                self.ask_again();
            }
        }
    }

    fn tell_controller(&mut self) {
        self.feed(self.control.as_read());
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            let advancing = node.process.is_some();
            if advancing || node.down_since + 2_500 * MS <= self.now {
                self.feed(Input::NodeAlive { node: member(at).node, advancing });
            }
        }
        let record = &self.control.record;
        let serves = self.nodes[self.elected()].copy().and_then(|copy| copy.primary_epoch());
        if record.phase == Phase::Active && serves != Some(record.epoch) {
            self.feed(Input::Suspected { refused: false });
        }
    }

    /// Txns that were not answered.
    fn ask_again(&mut self) {
        for (from, node) in self.nodes.iter().enumerate() {
            let Some(process) = &node.process else { continue };
            let again = |txn: &Txn| Letter::Txn { from, process: process.id, txn: txn.clone() };
            self.letters.extend(process.txns.iter().map(again));
        }
    }

    fn flow(&mut self, rounds: u8) {
        for _ in 0..rounds {
            self.beats();
            for _ in 0..LETTERS_PER_FLOW_MAX {
                if !self.letters.is_empty() {
                    let letter = self.letters.remove(0);
                    self.deliver(letter);
                } else if let Some(at) = (0..self.nodes.len()).find(|at| {
                    self.nodes[*at].process.as_ref().is_some_and(|process| !process.syncs.is_empty())
                }) {
                    self.sync(at);
                } else {
                    break;
                }
            }
            assert!(self.letters.is_empty(), "the copies talk without end");
            self.pass(60 * MS);
        }
    }

    /// Where the last elected primary is.
    pub fn elected(&self) -> usize {
        self.control.record.last.as_ref().map_or(0, |last| index(&last.member))
    }

    fn is_calm(&self) -> bool {
        let record = &self.control.record;
        let primary = self.nodes[self.elected()].copy();
        let end = primary.map(|copy| copy.log().end());
        let equal = |node: &Node| node.copy().map(|copy| copy.state().applied_end()) == end;
        record.phase == Phase::Active
            && record.prev.is_empty()
            && primary.is_some_and(|copy| copy.primary_epoch() == Some(record.epoch))
            && self.nodes.iter().all(equal)
    }

    /// Every node runs and nothing is lost any more: there is a primary, and the copies become equal. I26
    pub fn calm(&mut self, to: &str) {
        for at in 0..self.nodes.len() {
            self.start(at);
        }
        // A stream that loses a letter breaks, sooner or later.
        for (a, b) in (0..self.nodes.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
            self.break_connection(a, b);
        }
        for _ in 0..800 {
            self.flow(1);
            if self.is_calm() {
                return;
            }
        }
        let status = |node: &Node| {
            let process = node.process.as_ref()?;
            let (now, store) = (node.now(self.now), &node.disk.current);
            Some(process.copy.status(&Context { now, store, pairs: &process.pairs }))
        };
        let copies: Vec<_> = self.nodes.iter().map(status).collect();
        panic!("I26: 48 s were not enough to {to}: {copies:#?} {:?}", self.control.record);
    }
}

fn index(member: &Member) -> usize {
    (member.copy.0.as_u128() - 100) as usize
}
