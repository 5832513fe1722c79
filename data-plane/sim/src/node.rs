//! A node: its disk, its clock, and the process that runs there, which carries out what the core asks for.

use spool::command::Reply;
use spool::copy::{Context, Identity, ProcessFacts, Settings, SpoolCopy};
use spool::event::{CallId, Effects, Event, Note, PeerMessage, SyncNo};
use spool::record::Member;
use spool::token::TokenKey;
use std::collections::BTreeMap;
use types::{Epoch, Moment, ProcessId, WallMs};

/// Short, so that every run trims.
const TRIM_STRIDE: u64 = 32;

use crate::clock::{Clock, MS, SEC, Time};
use crate::disk::Disk;
use crate::net::End;
use crate::trace::say;
use crate::world::{Answer, Happening, Inside, SPOOL, ToEtcd, ToNode, World};

const BEAT_EVERY: u64 = 100 * MS;
const ALIVE_EVERY: u64 = SEC;
/// A disk that did not finish a sync for so long is not healthy.
const HEALTHY_SYNC: u64 = SEC;
/// More wake-ups than this in a second are a core that asks for nothing but time.
const WAKES_PER_SEC_MAX: u32 = 600;

pub struct Node {
    pub member: Member,
    pub clock: Clock,
    pub disk: Disk,
    pub boot_no: u64,
    pub wiped: bool,
    pub process: Option<Process>,
    pub paused_until: Option<Time>,
    /// The end of its last pause.
    pub awake_since: Time,
    /// What arrived while it was paused.
    pub deferred: Vec<Happening>,
    /// Syncs take so much longer until then.
    pub slow_disk: Option<(Time, u64)>,
    /// Until when promises of any process of this node run, by the epoch promised to, on its own clock. I27
    pub promised: BTreeMap<Epoch, Moment>,
}

pub struct Process {
    pub id: ProcessId,
    pub started: Moment,
    pub pairs: crate::pairs::PairTable,
    pub copy: Option<SpoolCopy>,
    effects: Effects,
    pub flush_waits: bool,
    wake_at: Option<Time>,
    wakes: (u64, u32),
    syncs_end: Time,
    /// Syncs that were asked for and are not done: number, when.
    syncs: Vec<(SyncNo, Time)>,
    alive_no: u64,
    pub reported: Option<Time>,
    /// Txns that were not answered yet.
    txns: Vec<ToEtcd>,
}

impl Node {
    pub fn new(member: Member, clock: Clock) -> Node {
        Node {
            member,
            clock,
            disk: Disk::default(),
            boot_no: 0,
            wiped: false,
            process: None,
            paused_until: None,
            awake_since: Time(0),
            deferred: Vec::new(),
            slow_disk: None,
            promised: BTreeMap::new(),
        }
    }

    pub fn is_paused(&self, now: Time) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }

    pub fn copy(&self) -> Option<&SpoolCopy> {
        self.process.as_ref().and_then(|process| process.copy.as_ref())
    }

    pub fn has_copy(&self) -> bool {
        self.copy().is_some()
    }

    pub fn process_id(&self) -> Option<ProcessId> {
        self.process.as_ref().map(|process| process.id)
    }

    pub fn is_healthy(&self, now: Time) -> bool {
        let oldest = self.process.as_ref().and_then(|process| process.syncs.first());
        oldest.is_none_or(|(_, since)| now.0 - since.0 < HEALTHY_SYNC)
    }
}

impl World {
    pub fn identity(&self, node: usize) -> Identity {
        let member = &self.nodes[node].member;
        Identity {
            spool: SPOOL,
            copy: member.copy,
            node: member.node.clone(),
            n: self.config.n,
            k: self.config.k,
            token_key: TokenKey([9; 32]),
            created: WallMs(0),
        }
    }

    pub fn create_copies(&mut self) {
        for at in 0..self.nodes.len() {
            let batch = spool::create(&self.identity(at));
            let disk = &mut self.nodes[at].disk;
            disk.write(batch);
            let all = disk.written_no();
            disk.sync(all, |_| ());
        }
    }

    // ---- life and death

    pub fn start_node(&mut self, at: usize) {
        let process = ProcessId::from_u128(self.rng.bits128());
        let identity = self.identity(at);
        let now = self.nodes[at].clock.now(self.now);
        self.nodes[at].boot_no += 1;
        let facts = ProcessFacts { process, boot_no: self.nodes[at].boot_no, started: now.mono };
        // A store syncs what it finds: of a killed process the last writes may be in the kernel's memory alone.
        let all = self.nodes[at].disk.written_no();
        let logs = &mut self.oracle.logs;
        self.nodes[at].disk.sync(all, |batch| logs.on_synced(at, batch));
        let settings =
            Settings { promise: self.config.promise, trim_stride: TRIM_STRIDE, ..Settings::default() };
        let copy = match self.nodes[at].wiped {
            true => None,
            false => match SpoolCopy::open(identity, facts, settings, now, &self.nodes[at].disk) {
                Ok(copy) => Some(copy),
                Err(error) => panic!("node-{at} cannot open its copy: {error}"),
            },
        };
        self.trace.line(self.now, || {
            let copy =
                copy.as_ref().map(|copy| (copy.sealed(), copy.log().last(), copy.state().applied_end()));
            format!("node-{at}: starts as {process}, boot {}: {copy:?}", facts.boot_no)
        });
        if let Some(copy) = &copy {
            self.oracle.logs.on_open(at, copy, &self.nodes[at].disk);
        }
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != at);
        let pairs = crate::pairs::PairTable::new(process, others.map(|(_, node)| &node.member.node));
        self.nodes[at].process = Some(Process {
            id: process,
            started: now.mono,
            pairs,
            copy,
            effects: Effects::default(),
            flush_waits: false,
            wake_at: None,
            wakes: (0, 0),
            syncs_end: self.now,
            syncs: Vec::new(),
            alive_no: 0,
            reported: None,
            txns: Vec::new(),
        });
        for (what, us) in [(Inside::BeatTurn, BEAT_EVERY), (Inside::AliveTurn, 300 * MS)] {
            let us = self.rng.below(us);
            self.after(us, Happening::In(at, process, what));
        }
        for other in 0..self.nodes.len() {
            self.net.break_connection(at, other, self.now);
        }
        self.wake_later(at);
    }

    /// The process is gone, with everything in its memory. With `power`, so is what was not synced.
    pub fn stop_node(&mut self, at: usize, power: bool) {
        let Some(process) = self.nodes[at].process.take() else { return };
        let node = &mut self.nodes[at];
        node.paused_until = None;
        node.deferred.clear();
        let logs = &mut self.oracle.logs;
        let lost =
            if power { node.disk.power_cut(&mut self.rng, |batch| logs.on_synced(at, batch)) } else { 0 };
        self.oracle.seen.batches_lost += lost as u64;
        self.oracle.seen.crashes += 1;
        self.trace.line(self.now, || format!("node-{at}: dies (power {power}, {lost} batches lost)"));
        self.oracle.on_process_end(process.id);
        self.fail_open_ops(at);
        for other in 0..self.nodes.len() {
            if other != at {
                self.net.break_connection(at, other, self.now);
                // A killed process resets its connections; a machine without power says nothing.
                if !power {
                    let gone = ToNode::Disconnected { from: at, refused: true };
                    self.send_node(at, other, &gone);
                }
            }
        }
        for (controller, number) in self.calls_at(at) {
            self.answer_controller(at, controller, number, Answer::Failed);
        }
    }

    fn calls_at(&mut self, at: usize) -> Vec<(usize, u64)> {
        let node = at as u64;
        let ids: Vec<CallId> = self.calls.keys().filter(|id| id.0 >> 48 == node).copied().collect();
        ids.into_iter().filter_map(|id| self.calls.remove(&id)).collect()
    }

    pub fn wipe_node(&mut self, at: usize) {
        self.nodes[at].disk.wipe();
        self.nodes[at].wiped = true;
        self.oracle.seen.wipes += 1;
        self.trace.line(self.now, || format!("node-{at}: its disk is lost"));
    }

    pub fn resume_node(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.is_paused(self.now) {
            return;
        }
        node.paused_until = None;
        node.awake_since = self.now;
        for what in std::mem::take(&mut node.deferred) {
            self.at(self.now, what);
        }
    }

    // ---- one step of the core

    pub fn step(&mut self, at: usize, event: Event) {
        self.trace.line(self.now, || format!("node-{at} <- {}", say::event(&event)));
        let now = self.nodes[at].clock.now(self.now);
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else { return };
        let Some(copy) = &mut process.copy else { return };
        let before = copy.primary_epoch();
        let sealed_before = copy.sealed();
        let (replies, notes) = (process.effects.replies.len(), process.effects.notes.len());
        let context = Context { now, store: &node.disk, pairs: &process.pairs };
        if let Err(error) = copy.handle(&context, event, &mut process.effects) {
            panic!("node-{at}: the core failed: {error}");
        }
        copy.check();
        if let Some(why) = copy.halted() {
            panic!("node-{at}: halted: {why}");
        }
        assert!(
            copy.sealed() >= sealed_before,
            "I2: node-{at} seals {:?} after {sealed_before:?}",
            copy.sealed()
        );
        let epoch = before.max(copy.primary_epoch());
        let new_replies: Vec<_> = process.effects.replies[replies..].to_vec();
        let new_notes: Vec<_> = process.effects.notes[notes..].to_vec();
        let id = process.id;
        for note in new_notes {
            self.on_note(at, &note);
        }
        // A copy that lost its role before it committed anything in this step commits as any other.
        let leads = self.nodes[at].copy().and_then(|copy| {
            let own = before.filter(|epoch| copy.log().epoch_at(copy.commit_end().prev()) == *epoch);
            copy.primary_epoch().or(own)
        });
        if leads.is_some() {
            self.oracle.logs.on_commit(at, &self.nodes[at], leads);
        }
        for (request, reply) in &new_replies {
            self.on_reply(at, id, epoch, request.0, reply);
        }
        self.flush_later(at);
        self.wake_later(at);
    }

    fn on_reply(&mut self, at: usize, process: ProcessId, epoch: Option<Epoch>, op: u64, reply: &Reply) {
        let moment = crate::oracle::When {
            time: self.now,
            mono: self.nodes[at].clock.mono(self.now),
            node: at,
            process,
            epoch,
            assigned: self.etcd.assigned_epoch(),
        };
        self.trace.line(self.now, || format!("node-{at} answers op {op}: {}", say::debug(&reply)));
        self.oracle.on_reply(&moment, op, reply);
    }

    fn on_note(&mut self, at: usize, note: &Note) {
        self.trace.line(self.now, || format!("node-{at}: {note:?}"));
        let node = &self.nodes[at];
        let mono = node.clock.mono(self.now);
        match note {
            Note::Sealed { epoch, .. } => {
                for (promised, until) in &node.promised {
                    let over = promised >= epoch || *until <= mono;
                    assert!(over, "I27: node-{at} seals {epoch:?} while its promise to {promised:?} runs");
                }
            }
            Note::BecamePrimary { epoch, .. } => {
                self.oracle.logs.on_primary(at, *epoch);
                self.oracle.seen.takeovers += 1;
            }
            Note::CutSuffix { .. } => self.oracle.seen.truncations += 1,
            Note::LostRole { .. } => self.oracle.seen.depositions += 1,
            _ => {}
        }
    }

    fn flush_later(&mut self, at: usize) {
        let gather = self.config.gather && self.rng.percent(70);
        let us = if gather { self.rng.range(1, 3 * MS) } else { 0 };
        let Some(process) = &mut self.nodes[at].process else { return };
        if process.flush_waits {
            return;
        }
        if us == 0 {
            self.flush(at);
        } else {
            process.flush_waits = true;
            let flush = Happening::In(at, process.id, Inside::Flush);
            self.after(us, flush);
        }
    }

    /// Carries out what gathered: write, ask for the sync, let everything else leave.
    fn flush(&mut self, at: usize) {
        let Some(process) = &mut self.nodes[at].process else { return };
        process.flush_waits = false;
        let effects = std::mem::take(&mut process.effects);
        let id = process.id;
        let (epoch, end) = match &process.copy {
            Some(copy) => (copy.primary_epoch(), copy.state().applied_end()),
            None => return,
        };
        if !effects.batch.is_empty() {
            self.oracle.logs.on_write(
                at,
                id,
                epoch,
                end,
                &effects.batch,
                &self.etcd.assigned,
                &mut self.oracle.messages,
            );
            self.nodes[at].disk.write(effects.batch);
        }
        if let Some(no) = effects.sync {
            self.sync_later(at, no);
        }
        self.oracle.logs.on_flushed(at, &self.nodes[at]);
        for (to, message) in effects.peers {
            self.trace.line(self.now, || format!("node-{at} -> {}: {}", to.node, say::peer(&message)));
            if let PeerMessage::Confirm(confirm) = &message {
                self.oracle.logs.on_confirm(at, &self.nodes[at].disk, confirm);
            }
            self.send_peer(at, &to, message);
        }
        for (request, reply) in effects.replies {
            let what = Happening::AtClient { op: request.0, reply: Some(reply) };
            self.send_once(End::Node(at), End::Clients, what);
        }
        for (call, reply) in effects.calls {
            self.answer_call(at, call, reply);
        }
        if let Some(ask) = effects.activate {
            self.txn(at, ToEtcd::Activate { node: at, process: id, ask });
        }
        if let Some(epoch) = effects.clear_prev {
            self.txn(at, ToEtcd::ClearPrev { node: at, process: id, epoch });
        }
    }

    fn sync_later(&mut self, at: usize, no: SyncNo) {
        let slow = self.nodes[at].slow_disk.filter(|(until, _)| self.now < *until).map_or(0, |(_, us)| us);
        let us = self.rng.range(MS / 5, 6 * MS) + slow;
        let node = &mut self.nodes[at];
        let written = node.disk.written_no();
        let Some(process) = &mut node.process else { return };
        process.syncs.push((no, self.now));
        // One sync at a time, in order.
        let end = self.now.after(us).max(process.syncs_end);
        process.syncs_end = end;
        let what = Happening::In(at, process.id, Inside::Synced(no, written));
        self.at(end, what);
    }

    fn wake_later(&mut self, at: usize) {
        let slop = self.rng.below(MS);
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else { return };
        let Some(moment) = process.copy.as_ref().and_then(SpoolCopy::next_wakeup) else {
            process.wake_at = None;
            return;
        };
        if moment == Moment(u64::MAX) {
            process.wake_at = None;
            return;
        }
        let wanted = node.clock.when(moment).max(self.now.after(100));
        if process.wake_at.is_some_and(|at| at >= wanted && at.0 <= wanted.0 + MS) {
            return;
        }
        let time = wanted.after(slop);
        process.wake_at = Some(time);
        let what = Happening::In(at, process.id, Inside::Wake(time));
        self.at(time, what);
    }

    // ---- what happens inside of the process

    pub fn inside(&mut self, at: usize, id: ProcessId, what: Inside) {
        let now = self.now;
        let Some(process) = self.nodes[at].process.as_mut().filter(|process| process.id == id) else {
            return;
        };
        match what {
            Inside::Flush => {
                if process.flush_waits {
                    self.flush(at);
                }
            }
            Inside::Wake(time) => {
                if process.wake_at == Some(time) {
                    process.wake_at = None;
                    let second = now.0 / SEC;
                    process.wakes =
                        if process.wakes.0 == second { (second, process.wakes.1 + 1) } else { (second, 0) };
                    assert!(process.wakes.1 < WAKES_PER_SEC_MAX, "node-{at}: the core wakes without end");
                    self.step(at, Event::Tick);
                }
            }
            Inside::Synced(no, written) => {
                process.syncs.retain(|(asked, _)| *asked > no);
                let logs = &mut self.oracle.logs;
                self.nodes[at].disk.sync(written, |batch| logs.on_synced(at, batch));
                self.step(at, Event::Synced(no));
            }
            Inside::BeatTurn => {
                self.after(BEAT_EVERY, Happening::In(at, id, Inside::BeatTurn));
                self.send_beats(at);
                self.watch_primary(at);
                self.oracle.check_waits(at, now, self.nodes[at].awake_since);
            }
            Inside::AliveTurn => {
                process.alive_no += 1;
                let number = process.alive_no;
                self.after(ALIVE_EVERY, Happening::In(at, id, Inside::AliveTurn));
                if self.nodes[at].is_healthy(now) {
                    let alive = ToEtcd::Alive { node: at, process: id, number };
                    self.send_once(End::Node(at), End::Etcd, Happening::AtEtcd(alive));
                }
            }
            Inside::RetryTxn => {
                for txn in process.txns.clone() {
                    self.send_once(End::Node(at), End::Etcd, Happening::AtEtcd(txn));
                }
                self.retry_txns_later(at);
            }
        }
    }

    fn txn(&mut self, at: usize, txn: ToEtcd) {
        let Some(process) = &mut self.nodes[at].process else { return };
        process.txns.push(txn.clone());
        self.send_once(End::Node(at), End::Etcd, Happening::AtEtcd(txn));
        self.retry_txns_later(at);
    }

    fn retry_txns_later(&mut self, at: usize) {
        let us = self.rng.range(500 * MS, SEC);
        let Some(process) = &self.nodes[at].process else { return };
        if !process.txns.is_empty() {
            let what = Happening::In(at, process.id, Inside::RetryTxn);
            self.after(us, what);
        }
    }

    pub fn on_activated(&mut self, at: usize, by: ProcessId, epoch: Epoch, ok: bool) {
        let Some(process) = self.nodes[at].process.as_mut().filter(|process| process.id == by) else {
            return;
        };
        let asked = |txn: &ToEtcd| matches!(txn, ToEtcd::Activate { ask, .. } if ask.epoch == epoch);
        if process.txns.iter().any(asked) {
            process.txns.retain(|txn| !asked(txn));
            self.step(at, Event::Activated { epoch, ok });
        }
    }

    pub fn on_prev_cleared(&mut self, at: usize, by: ProcessId, epoch: Epoch, ok: bool) {
        let Some(process) = self.nodes[at].process.as_mut().filter(|process| process.id == by) else {
            return;
        };
        let asked = |txn: &ToEtcd| matches!(txn, ToEtcd::ClearPrev { epoch: of, .. } if *of == epoch);
        if process.txns.iter().any(asked) {
            process.txns.retain(|txn| !asked(txn));
            self.step(at, Event::PrevCleared { epoch, ok });
        }
    }
}
