//! What a node's process does beside its core: beats and their answers, calls of controllers, requests of clients.

use spool::command::RequestId;
use spool::event::{Call, CallId, CallReply, Event, PeerMessage, Reject, RejectReason};
use spool::promise::{Beat, BeatReply};
use spool::record::{Member, Phase};
use spool::token::Token;

use crate::clock::SEC;
use crate::net::End;
use crate::trace::say;
use crate::world::{Answer, Happening, SPOOL, ToController, ToNode, World};

impl World {
    // ---- pairs

    pub fn send_beats(&mut self, at: usize) {
        let mono = self.nodes[at].clock.mono(self.now);
        let healthy = self.nodes[at].is_healthy(self.now);
        for other in 0..self.nodes.len() {
            let name = self.nodes[other].member.node.clone();
            let Some(process) = &self.nodes[at].process else { return };
            if let Some(beat) = process.pairs.beat(&name, mono, healthy) {
                self.send_node(at, other, &ToNode::Beat { from: at, beat });
            }
        }
    }

    pub fn on_beat(&mut self, at: usize, from: usize, beat: &Beat) {
        self.heard_from(at, from);
        let now = self.nodes[at].clock.now(self.now);
        let mono = now.mono;
        let name = self.nodes[from].member.node.clone();
        let Some(process) = &self.nodes[at].process else { return };
        if let Some((reply, promised_to)) = process.pairs.on_beat(&name, now, beat, SPOOL) {
            if let Some(epoch) = promised_to {
                let until = self.nodes[at].promised.entry(epoch).or_default();
                *until = (*until).max(mono + self.config.promise);
            }
            self.send_node(at, from, &ToNode::BeatReply { from: at, reply });
        }
    }

    pub fn on_beat_reply(&mut self, at: usize, from: usize, reply: &BeatReply) {
        self.heard_from(at, from);
        let mono = self.nodes[at].clock.mono(self.now);
        let name = self.nodes[from].member.node.clone();
        if let Some(process) = &self.nodes[at].process {
            process.pairs.on_reply(&name, mono, reply);
        }
        // New promises may be what answers wait for.
        if self.nodes[at].copy().is_some_and(|copy| copy.primary_epoch().is_some()) {
            self.step(at, Event::Tick);
        }
    }

    pub fn heard_from(&mut self, at: usize, from: usize) {
        self.set_refused(at, from, false);
    }

    pub fn set_refused(&mut self, at: usize, from: usize, refused: bool) {
        let name = self.nodes[from].member.node.clone();
        if let Some(process) = &self.nodes[at].process {
            process.pairs.set_refused(&name, refused);
        }
    }

    /// Tells the controllers when the primary that the copy follows is not heard any more.
    pub fn watch_primary(&mut self, at: usize) {
        let node = &self.nodes[at];
        let (Some(process), Some(copy)) = (&node.process, node.copy()) else { return };
        // Every node watches the records: this one says that it serves here, and it does not.
        let record = &self.etcd.record;
        let idle = copy.primary_epoch() != Some(record.epoch);
        let mine = record.last.as_ref().is_some_and(|last| last.process == process.id);
        if record.phase == Phase::Active && mine && idle && self.net.reaches(End::Etcd, End::Node(at)) {
            self.report_suspicion(at, false);
            return;
        }
        let Some(primary) = copy.primary_member() else { return };
        let now = node.clock.mono(self.now);
        let silent = spool::promise::Pairs::silent(&process.pairs, &primary.node, now);
        if silent.unwrap_or(now.since(process.started)) >= self.config.suspect {
            self.report_suspicion(at, false);
        }
    }

    pub fn report_suspicion(&mut self, at: usize, refused: bool) {
        let now = self.now;
        let Some(process) = &mut self.nodes[at].process else { return };
        if !refused && process.reported.is_some_and(|before| now.0 - before.0 < SEC / 2) {
            return;
        }
        process.reported = Some(now);
        for controller in 0..self.config.controllers {
            let input = spool::controller::Input::Suspected { refused };
            let what = Happening::AtController(controller, ToController::Input(input));
            self.send_once(End::Node(at), End::Controller(controller), what);
        }
    }

    // ---- calls

    pub fn on_call(&mut self, at: usize, controller: usize, number: u64, to: &Member, call: Call) {
        if !self.nodes[at].has_copy() || self.nodes[at].member != *to {
            self.answer_controller(at, controller, number, Answer::UnknownCopy);
            return;
        }
        self.next_call += 1;
        let id = CallId((at as u64) << 48 | self.next_call);
        self.calls.insert(id, (controller, number));
        self.step(at, Event::Call { id, call });
    }

    pub fn answer_call(&mut self, at: usize, id: CallId, reply: CallReply) {
        let Some((controller, number)) = self.calls.remove(&id) else {
            panic!("node-{at} answers call {id:?} twice: {reply:?}");
        };
        if let CallReply::Sealed(sealed) = &reply {
            let identity = self.identity(at);
            self.oracle.logs.on_sealed(at, identity, &self.nodes[at].disk, sealed);
        }
        self.trace
            .line(self.now, || format!("node-{at} tells controller-{controller}: {}", say::debug(&reply)));
        self.answer_controller(at, controller, number, Answer::Reply(reply));
    }

    /// What a node without the copy says.
    pub fn answer_for_no_copy(&mut self, at: usize, to: &Member, message: PeerMessage) {
        if let PeerMessage::Append(append) = message {
            let reason = RejectReason::UnknownCopy;
            let reject = Reject { epoch: append.epoch, number: append.number, reason };
            self.send_peer(at, to, PeerMessage::Reject(reject));
        }
    }

    // ---- requests

    pub fn on_request(&mut self, at: usize, op: u64) {
        let Some(asked) = self.clients.op(op) else { return };
        let (command, wait) = (asked.command.clone(), asked.wait);
        if !self.nodes[at].has_copy() {
            self.send_once(End::Node(at), End::Clients, Happening::AtClient { op, reply: None });
            return;
        }
        let Some(process) = self.nodes[at].process_id() else { return };
        let mono = self.nodes[at].clock.mono(self.now);
        self.oracle.on_request(self.now, mono, at, process, asked);
        self.step(at, Event::Request { id: RequestId(op), command, wait });
    }

    pub fn on_cancel(&mut self, at: usize, op: u64) {
        let clean = self.nodes[at].process.as_ref().is_none_or(|process| !process.flush_waits);
        self.oracle.on_cancelled(op, clean);
        self.step(at, Event::Cancelled { id: RequestId(op) });
    }

    pub fn on_hand_back(&mut self, at: usize, tokens: Vec<Token>) {
        if let Some(process) = self.nodes[at].process_id() {
            self.oracle.on_handed_back(process, &tokens);
            self.step(at, Event::HandedBack { tokens });
        }
    }
}
