//! Controllers in a small world of copies, a record and a network that loses, repeats and reorders: whatever
//! happens, no epoch gets two primaries, no acknowledged write is missing from a new one, and once the faults
//! end there is a primary. Copies are simple here (no promises, no divergence beyond taking the primary's
//! log); the whole system is simulated elsewhere.

use spool::controller::{
    Action, AssignAnswer, CasOutcome, Controller, Input, ProbeAnswer, SealAnswer, Settings, StepDownAnswer,
};
use spool::event::{Assign, Probed, Sealed};
use spool::record::{Member, Phase, Record};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{CopyId, Epoch, Moment, NodeName, Position, ProcessId, Seq, SpoolId};

const SPOOL: SpoolId = SpoolId::from_u128(1);
const CONTROLLERS: usize = 2;

/// SplitMix64: the same seed, the same run.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct SimpleCopy {
    member: Member,
    up: bool,
    process: u128,
    sealed: Epoch,
    log: Vec<Position>,
    commit_end: Seq,
    /// Volatile.
    assigned: Option<Assign>,
    serving: Option<Epoch>,
}

impl SimpleCopy {
    fn position(&self) -> Position {
        self.log.last().copied().unwrap_or(Position::ZERO)
    }
}

#[derive(Clone)]
enum Message {
    ToCopy { controller: usize, to: usize, action: Action },
    ToController { controller: usize, life: u64, input: Input },
    Cas { controller: usize, life: u64, expected: i64, new: Record },
    Read { controller: usize, life: u64 },
    Watch { controller: usize, life: u64 },
}

struct World {
    rng: Rng,
    now: Moment,
    settings: Settings,
    record: Record,
    revision: i64,
    copies: Vec<SimpleCopy>,
    controllers: Vec<(u64, Controller)>,
    /// By when they arrive, and a number.
    messages: BTreeMap<(Moment, u64), Message>,
    sent: u64,
    faults: bool,
    primaries: BTreeMap<Epoch, ProcessId>,
    acked: Vec<Position>,
    moves_done: u32,
}

impl World {
    fn new(seed: u64, n: u8, k: u8) -> World {
        let member = |i: u128| Member { node: NodeName(format!("node-{i}")), copy: CopyId::from_u128(i) };
        let members: Vec<Member> = (0..u128::from(n)).map(member).collect();
        let copy = |member: &Member| SimpleCopy {
            member: member.clone(),
            up: true,
            process: 0,
            sealed: Epoch(0),
            log: Vec::new(),
            commit_end: Seq(0),
            assigned: None,
            serving: None,
        };
        let settings = Settings::new(Duration::from_millis(400), Duration::from_millis(800));
        let mut world = World {
            rng: Rng(seed),
            now: Moment(1),
            copies: members.iter().map(copy).collect(),
            record: Record::first(SPOOL, n, k, members),
            revision: 1,
            controllers: Vec::new(),
            messages: BTreeMap::new(),
            sent: 0,
            faults: true,
            primaries: BTreeMap::new(),
            acked: Vec::new(),
            moves_done: 0,
            settings,
        };
        for i in 0..CONTROLLERS {
            let fresh = world.fresh(i);
            world.controllers.push((0, fresh));
            world.send(Message::Read { controller: i, life: 0 });
        }
        world
    }

    fn fresh(&mut self, i: usize) -> Controller {
        Controller::new(SPOOL, self.settings.clone(), self.rng.next().wrapping_add(i as u64))
    }

    fn process(copy: &SimpleCopy) -> ProcessId {
        ProcessId::from_u128(copy.member.copy.0.as_u128() * 1_000 + copy.process)
    }

    fn send(&mut self, message: Message) {
        if self.faults && self.rng.one_in(8) && !matches!(message, Message::Watch { .. }) {
            return;
        }
        let copies = 1 + u64::from(self.faults && self.rng.one_in(8));
        for _ in 0..copies {
            let slow = if self.faults && self.rng.one_in(10) { 3_000_000 } else { 20_000 };
            let delay = Duration::from_micros(self.rng.below(slow));
            self.sent += 1;
            self.messages.insert((self.now + delay, self.sent), message.clone());
        }
    }

    fn feed(&mut self, i: usize, input: Input) {
        let mut actions = Vec::new();
        self.controllers[i].1.handle(self.now, input, &mut actions);
        let life = self.controllers[i].0;
        for action in actions {
            match action {
                Action::CasRecord { expected_revision: expected, new } => {
                    self.send(Message::Cas { controller: i, life, expected, new });
                }
                Action::ReadRecord => self.send(Message::Read { controller: i, life }),
                Action::PublishStatus { .. } => {}
                Action::MoveDone { .. } => self.moves_done += 1,
                Action::Probe { ref to, .. }
                | Action::Seal { ref to, .. }
                | Action::Assign { ref to, .. }
                | Action::StepDown { ref to, .. } => {
                    let to = self.copies.iter().position(|copy| copy.member == *to).expect("a known copy");
                    self.send(Message::ToCopy { controller: i, to, action });
                }
            }
        }
    }

    fn write_record(&mut self, expected: i64, new: Record) -> bool {
        if self.revision != expected {
            return false;
        }
        assert!(new.epoch >= self.record.epoch, "I1: {new:?} after {:?}", self.record);
        if new.phase == Phase::Electing {
            assert!(new.epoch > self.record.epoch, "I1: {new:?} after {:?}", self.record);
        }
        self.record = new;
        self.revision += 1;
        for controller in 0..CONTROLLERS {
            self.send(Message::Watch { controller, life: self.controllers[controller].0 });
        }
        true
    }

    fn deliver(&mut self, message: Message) {
        let lives: Vec<u64> = self.controllers.iter().map(|(life, _)| *life).collect();
        match message {
            Message::ToController { controller, life, input } if lives[controller] == life => {
                self.feed(controller, input);
            }
            Message::Read { controller, life } | Message::Watch { controller, life }
                if lives[controller] == life =>
            {
                let (record, revision) = (self.record.clone(), self.revision);
                self.feed(controller, Input::Record { record, revision });
            }
            Message::Cas { controller, life, expected, new } => {
                let (record, revision) = (new.clone(), self.revision + 1);
                let outcome = if self.write_record(expected, new) {
                    CasOutcome::Done { record, revision }
                } else {
                    CasOutcome::Other { record: self.record.clone(), revision: self.revision }
                };
                let outcome = if self.faults && self.rng.one_in(10) { CasOutcome::Unknown } else { outcome };
                let input = Input::CasResult { expected_revision: expected, outcome };
                self.send(Message::ToController { controller, life, input });
            }
            Message::ToCopy { controller, to, action } => {
                let input = if self.copies[to].up { self.at_copy(to, &action) } else { failed(&action) };
                let life = lives[controller];
                self.send(Message::ToController { controller, life, input });
            }
            _ => {}
        }
    }

    fn at_copy(&mut self, i: usize, action: &Action) -> Input {
        let copy = &mut self.copies[i];
        let from = copy.member.clone();
        match action {
            Action::Probe { round, .. } => {
                let heard = self.record.last.as_ref().and_then(|last| {
                    let p = self.copies.iter().find(|copy| copy.member == last.member)?;
                    (p.up && p.serving.is_some()).then_some(Duration::from_millis(50))
                });
                let copy = &self.copies[i];
                let probed = Probed {
                    copy: from.copy,
                    sealed: copy.sealed,
                    serving: copy.serving,
                    leading: copy.serving,
                    heard,
                    primary_refused: false,
                    position: copy.position(),
                };
                Input::ProbeReply { from, round: *round, answer: ProbeAnswer::Probed(probed) }
            }
            Action::Seal { epoch, .. } => {
                let epoch = *epoch;
                if epoch < copy.sealed {
                    return Input::SealReply { from, epoch, answer: SealAnswer::StaleEpoch(copy.sealed) };
                }
                if epoch > copy.sealed {
                    (copy.sealed, copy.serving, copy.assigned) = (epoch, None, None);
                }
                let sealed = Sealed {
                    epoch,
                    copy: from.copy,
                    process: World::process(copy),
                    authoritative: true,
                    position: copy.position(),
                    chain: [0; 32],
                    commit_end: copy.commit_end,
                    lineage: 0,
                };
                Input::SealReply { from, epoch, answer: SealAnswer::Sealed(sealed) }
            }
            Action::Assign { assign, .. } => {
                let epoch = assign.epoch;
                let fits = copy.sealed == epoch && assign.process == World::process(copy);
                let answer = if copy.assigned.as_ref() == Some(assign) {
                    AssignAnswer::Assigned
                } else if fits && assign.position == copy.position() {
                    copy.assigned = Some(assign.clone());
                    self.take_over(i);
                    AssignAnswer::Assigned
                } else {
                    AssignAnswer::Refused("does not fit".to_owned())
                };
                Input::AssignReply { from, epoch, answer }
            }
            Action::StepDown { epoch, .. } => {
                let answer = if copy.serving == Some(*epoch) {
                    copy.serving = None;
                    StepDownAnswer::SteppedDown(copy.position())
                } else {
                    StepDownAnswer::NotPrimary
                };
                Input::StepDownReply { from, epoch: *epoch, answer }
            }
            other => unreachable!("{other:?} is not for a copy"),
        }
    }

    /// The barrier, and the record made active.
    fn take_over(&mut self, i: usize) {
        let copy = &mut self.copies[i];
        let assign = copy.assigned.clone().expect("just assigned");
        let barrier = Position { epoch: assign.epoch, seq: copy.position().seq.next() };
        let (log, process) = (copy.log.clone(), assign.process);
        copy.log.push(barrier);
        assert_eq!(*self.primaries.entry(assign.epoch).or_insert(process), process, "I1: two primaries");
        // I9: what was acknowledged is there, and what comes later at such a place is the same.
        for acked in &self.acked {
            assert!(log.contains(acked), "I9: {acked} is lost in {:?}", assign.epoch);
        }
        let active = Record { phase: Phase::Active, ..self.record.clone() };
        if self.write_record(assign.record_revision, active) {
            self.copies[i].serving = Some(assign.epoch);
        }
    }

    /// Each primary that thinks it is one writes, and k copies may confirm.
    fn replicate(&mut self) {
        for i in 0..self.copies.len() {
            let Some(epoch) = self.copies[i].serving.filter(|_| self.copies[i].up) else { continue };
            let next = Position { epoch, seq: self.copies[i].position().seq.next() };
            self.copies[i].log.push(next);
            let log = self.copies[i].log.clone();
            let commit_end = self.copies[i].commit_end;
            let mut confirmed = 0;
            for j in 0..self.copies.len() {
                let reached = !self.faults || !self.rng.one_in(3);
                let other = &mut self.copies[j];
                if j != i && other.up && other.sealed <= epoch && reached {
                    other.sealed = epoch;
                    (other.serving, other.assigned) = (None, None);
                    other.log.clone_from(&log);
                    other.commit_end = commit_end;
                    confirmed += 1;
                }
            }
            if confirmed >= usize::from(self.record.k) {
                self.copies[i].commit_end = next.seq.next();
                self.acked.push(next);
                let mut superseded = self.record.clone();
                if superseded.epoch == epoch && !superseded.prev.is_empty() {
                    superseded.prev.clear();
                    self.write_record(self.revision, superseded);
                }
            }
        }
    }

    fn disturb(&mut self) {
        match self.rng.below(12) {
            0 | 1 => {
                let i = self.rng.below(self.copies.len() as u64) as usize;
                let copy = &mut self.copies[i];
                copy.up = !copy.up;
                (copy.serving, copy.assigned) = (None, None);
                copy.process += 1;
            }
            2 => {
                let i = self.rng.below(CONTROLLERS as u64) as usize;
                let (life, fresh) = (self.controllers[i].0 + 1, self.fresh(i));
                self.controllers[i] = (life, fresh);
                self.send(Message::Read { controller: i, life });
            }
            3 => {
                let target = self.rng.below(self.copies.len() as u64) as usize;
                let target = (!self.rng.one_in(3)).then(|| self.copies[target].member.node.clone());
                let i = self.rng.below(CONTROLLERS as u64) as usize;
                self.feed(i, Input::Move { target });
            }
            _ => self.replicate(),
        }
    }

    fn suspect(&mut self) {
        let Some(last) = &self.record.last else { return };
        let p = self.copies.iter().find(|copy| copy.member == last.member);
        if p.is_some_and(|p| !p.up || p.serving != Some(self.record.epoch)) {
            for i in 0..CONTROLLERS {
                self.feed(i, Input::Suspected { refused: false });
            }
        }
    }

    fn run(&mut self, until: Moment, steps_max: u32) {
        let mut disturb_at = self.now;
        for _ in 0..steps_max {
            let wakeups =
                self.controllers.iter().filter_map(|(_, controller)| controller.next_wakeup()).min();
            let message = self.messages.keys().next().map(|(at, _)| *at);
            let next =
                [wakeups, message, Some(disturb_at)].into_iter().flatten().min().expect("disturbances");
            if next >= until {
                self.now = until;
                return;
            }
            self.now = self.now.max(next);
            if let Some((_, message)) = self.messages.range(..=(self.now, u64::MAX)).next()
                && next >= message_time(&self.messages)
            {
                let message = message.clone();
                self.messages.pop_first();
                self.deliver(message);
            } else if self.now >= disturb_at {
                disturb_at = self.now + Duration::from_millis(300);
                if self.faults {
                    self.disturb()
                } else {
                    self.replicate()
                }
                self.suspect();
            } else {
                for i in 0..CONTROLLERS {
                    self.feed(i, Input::Tick);
                }
            }
        }
        panic!("{steps_max} steps did not reach {until:?}; the controllers: {:?}", self.controllers);
    }
}

fn message_time(messages: &BTreeMap<(Moment, u64), Message>) -> Moment {
    messages.keys().next().map_or(Moment(u64::MAX), |(at, _)| *at)
}

fn failed(action: &Action) -> Input {
    match action.clone() {
        Action::Probe { to: from, round } => Input::ProbeReply { from, round, answer: ProbeAnswer::Failed },
        Action::Seal { to: from, epoch } => Input::SealReply { from, epoch, answer: SealAnswer::Failed },
        Action::Assign { to: from, assign } => {
            Input::AssignReply { from, epoch: assign.epoch, answer: AssignAnswer::Failed }
        }
        Action::StepDown { to: from, epoch, .. } => {
            Input::StepDownReply { from, epoch, answer: StepDownAnswer::Failed }
        }
        other => unreachable!("{other:?} is not a call"),
    }
}

/// A run with faults for two minutes, then thirty seconds without. Returns (epochs, acknowledged, moves).
fn run(seed: u64, n: u8, k: u8) -> (u64, usize, u32) {
    let mut world = World::new(seed, n, k);
    world.run(world.now + Duration::from_secs(120), 200_000);
    world.faults = false;
    for copy in &mut world.copies {
        if !copy.up {
            copy.up = true;
            copy.process += 1;
        }
    }
    // What was missed is listed again; each node's return is seen by the watch of its alive key.
    for i in 0..CONTROLLERS {
        let life = world.controllers[i].0;
        world.send(Message::Read { controller: i, life });
        for j in 0..world.copies.len() {
            let node = world.copies[j].member.node.clone();
            world.feed(i, Input::NodeAlive { node, advancing: true });
        }
    }
    world.run(world.now + Duration::from_secs(40), 200_000);
    let record = &world.record;
    let last = record.last.as_ref().expect("elected");
    let primary = world.copies.iter().find(|copy| copy.member == last.member).expect("a copy");
    assert_eq!(record.phase, Phase::Active, "seed {seed}: {record:?} {:?}", world.controllers);
    assert_eq!(primary.serving, Some(record.epoch), "seed {seed}: {:?}", world.controllers);
    assert!(record.prev.is_empty(), "seed {seed}: {record:?}");
    assert!(world.controllers.iter().all(|(_, c)| c.is_idle()), "seed {seed}: {:?}", world.controllers);
    assert_eq!(world.controllers.iter().filter_map(|(_, c)| c.next_wakeup()).count(), 0);
    (record.epoch.0, world.acked.len(), world.moves_done)
}

#[test]
fn whatever_happens_no_write_is_lost_and_a_primary_returns() {
    for (n, k) in [(1, 0), (2, 1), (3, 1), (3, 2), (5, 2)] {
        let (mut epochs, mut acked, mut moves) = (0, 0, 0);
        for seed in 0..200 {
            let (e, a, m) = run(seed, n, k);
            (epochs, acked, moves) = (epochs + e, acked + a, moves + m);
        }
        // A run in which nothing happened shows nothing.
        assert!(
            epochs > 1_000 && acked > 10_000 && moves > 200,
            "{n},{k}: {epochs} epochs, {acked} acks, {moves} moves"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7, 3, 1), run(7, 3, 1));
}
