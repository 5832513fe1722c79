//! One engine: a thread that owns some of the node's copies, and everything that happens to them.
//!
//! A pass takes what waits, lets each copy handle its events, writes what all of them changed in one piece, asks for
//! the syncs they want, and only then lets answers and messages leave. While a sync runs, more passes write for
//! the next one: that is the whole group commit.

use super::inbox::Inbox;
use super::{Answer, Outside, Shared};
use crate::clock;
use crate::store::{Db, SpoolNumber, SpoolStore, SyncHandle, fatal_storage_error};
use spool::command::{Command, Reply, RequestId};
use spool::copy::{Context, SpoolCopy};
use spool::event::{CallId, CallReply, Effects, Event, Note, SyncNo};
use spool::promise::Pairs;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use types::time::Now;
use types::{Epoch, Moment, NodeName, ErrorCode};

/// Events that one pass handles at most: what comes after waits for one write more.
const PASS_MAX: usize = 2_048;

pub(super) enum Input {
    /// A copy that this engine owns from now on. `ready` is told once it handles events.
    Own { number: SpoolNumber, copy: Box<SpoolCopy>, ready: Option<oneshot::Sender<()>> },
    Event { number: SpoolNumber, event: Event },
    Request { number: SpoolNumber, id: RequestId, command: Command, wait: Duration, answer: oneshot::Sender<Answer> },
    Call { number: SpoolNumber, call: spool::event::Call, answer: oneshot::Sender<CallReply> },
    Synced(Vec<(SpoolNumber, SyncNo)>),
    PeerDisconnected(NodeName),
    /// Beats arrived: primaries may have the right to answer again.
    TickPrimaries,
    Stop { done: oneshot::Sender<()> },
}

pub(super) struct Engine<P, O> {
    pub inbox: Arc<Inbox<Input>>,
    pub db: Arc<Db>,
    pub sync: SyncHandle,
    pub pairs: Arc<P>,
    pub outside: O,
    pub shared: Arc<Shared>,
    owned: BTreeMap<SpoolNumber, Owned>,
    wakeups: BTreeSet<(Moment, SpoolNumber)>,
    answers: HashMap<RequestId, oneshot::Sender<Answer>>,
    calls: HashMap<CallId, oneshot::Sender<CallReply>>,
    next_call: u64,
}

struct Owned {
    copy: Box<SpoolCopy>,
    store: SpoolStore,
    effects: Effects,
    wakeup: Option<Moment>,
}

impl<P: Pairs, O: Outside> Engine<P, O> {
    pub fn new(
        inbox: Arc<Inbox<Input>>,
        db: Arc<Db>,
        sync: SyncHandle,
        pairs: Arc<P>,
        outside: O,
        shared: Arc<Shared>,
    ) -> Engine<P, O> {
        Engine {
            inbox,
            db,
            sync,
            pairs,
            outside,
            shared,
            owned: BTreeMap::new(),
            wakeups: BTreeSet::new(),
            answers: HashMap::new(),
            calls: HashMap::new(),
            next_call: 0,
        }
    }

    pub fn run(mut self) {
        let mut taken = Vec::new();
        let mut touched = BTreeSet::new();
        loop {
            let next = self.wakeups.first().map(|(at, _)| at.since(clock::moment()));
            self.inbox.take(&mut taken, PASS_MAX, next);
            // After the last arrival: whatever is answered was asked before. I15
            let now = clock::now();
            let mut stop = None;
            for input in taken.drain(..) {
                match input {
                    Input::Stop { done } => stop = Some(done),
                    input => self.handle(now, input, &mut touched),
                }
            }
            while let Some((at, number)) = self.wakeups.first().copied()
                && at <= now.mono
            {
                self.wakeups.pop_first();
                self.step(now, number, Event::Tick, &mut touched);
            }
            self.carry_out(&mut touched);
            if let Some(done) = stop {
                // Nobody may be there any more to hear it.
                let _heard = done.send(());
                return;
            }
        }
    }

    fn handle(&mut self, now: Now, input: Input, touched: &mut BTreeSet<SpoolNumber>) {
        match input {
            Input::Own { number, copy, ready } => {
                let store = self.db.spool(number);
                let owned = Owned { copy, store, effects: Effects::default(), wakeup: None };
                self.owned.insert(number, owned);
                self.step(now, number, Event::Tick, touched);
                if let Some(ready) = ready {
                    let _heard = ready.send(());
                }
            }
            Input::Event { number, event } => self.step(now, number, event, touched),
            Input::Request { number, id, command, wait, answer } => {
                self.answers.insert(id, answer);
                self.step(now, number, Event::Request { id, command, wait }, touched);
            }
            Input::Call { number, call, answer } => {
                self.next_call += 1;
                let id = CallId(self.next_call);
                self.calls.insert(id, answer);
                self.step(now, number, Event::Call { id, call }, touched);
            }
            Input::Synced(completed) => {
                for (number, sync_no) in completed {
                    self.step(now, number, Event::Synced(sync_no), touched);
                }
            }
            Input::PeerDisconnected(node) => {
                for number in self.numbers(|_| true) {
                    self.step(now, number, Event::PeerDisconnected { node: node.clone() }, touched);
                }
            }
            Input::TickPrimaries => {
                for number in self.numbers(|copy| copy.primary_epoch().is_some()) {
                    self.step(now, number, Event::Tick, touched);
                }
            }
            Input::Stop { .. } => {}
        }
    }

    fn numbers(&self, which: impl Fn(&SpoolCopy) -> bool) -> Vec<SpoolNumber> {
        self.owned.iter().filter(|(_, owned)| which(&owned.copy)).map(|(number, _)| *number).collect()
    }

    fn step(&mut self, now: Now, number: SpoolNumber, event: Event, touched: &mut BTreeSet<SpoolNumber>) {
        let Some(owned) = self.owned.get_mut(&number) else { return };
        touched.insert(number);
        let context = Context { now, store: &owned.store, pairs: &*self.pairs };
        if let Err(error) = owned.copy.handle(&context, event, &mut owned.effects) {
            fatal_storage_error("reading", &error);
        }
    }

    fn carry_out(&mut self, touched: &mut BTreeSet<SpoolNumber>) {
        if touched.is_empty() {
            return;
        }
        let changed: Vec<_> = touched
            .iter()
            .filter_map(|number| self.owned.get(number).map(|owned| (*number, &owned.effects.batch)))
            .filter(|(_, batch)| !batch.is_empty())
            .collect();
        if !changed.is_empty() {
            self.db.write(&changed);
        }
        let syncs = touched
            .iter()
            .filter_map(|number| self.owned.get(number)?.effects.sync.map(|sync_no| (*number, sync_no)));
        self.sync.request(syncs);
        for number in std::mem::take(touched) {
            self.let_leave(number);
        }
    }

    fn let_leave(&mut self, number: SpoolNumber) {
        let Some(owned) = self.owned.get_mut(&number) else { return };
        let effects = std::mem::take(&mut owned.effects);
        let copy = &owned.copy;
        let (spool, from) = (copy.identity().spool, copy.identity().member());
        for note in &effects.notes {
            say(spool, note);
        }
        for (to, message) in effects.peers {
            self.outside.send(spool, copy.lineage(), from.clone(), to, message);
        }
        if let Some(activate) = effects.activate {
            self.outside.activate(spool, activate);
        }
        if let Some(epoch) = effects.clear_prev {
            self.outside.clear_prev(spool, epoch);
        }
        let epoch = copy.primary_epoch().unwrap_or(Epoch(0));
        self.shared.publish(spool, copy);
        let wakeup = copy.next_wakeup();
        if wakeup != owned.wakeup {
            if let Some(before) = std::mem::replace(&mut owned.wakeup, wakeup) {
                self.wakeups.remove(&(before, number));
            }
        }
        if let Some(at) = wakeup {
            self.wakeups.insert((at, number));
        }
        for (id, reply) in effects.calls {
            if let Some(answer) = self.calls.remove(&id) {
                // The caller's deadline may have passed.
                let _heard = answer.send(reply);
            }
        }
        for (id, reply) in effects.replies {
            let Some(answer) = self.answers.remove(&id) else { continue };
            if let Err(Answer { reply: Reply::Received { messages }, .. }) = answer.send(Answer { epoch, reply }) {
                // Nobody is there to receive them.
                let tokens = messages.iter().filter_map(|message| message.lease.as_ref()).map(|l| l.token).collect();
                self.inbox.urgent(Input::Event { number, event: Event::HandedBack { tokens } });
            }
        }
    }
}

fn say(spool: types::SpoolId, note: &Note) {
    match note {
        Note::BecamePrimary { epoch, position } => {
            tracing::info!(%spool, %epoch, %position, "this copy takes over as primary");
        }
        Note::LostRole { epoch, why } => tracing::warn!(%spool, %epoch, why, "this copy is not primary any more"),
        Note::Sealed { epoch, position } => tracing::info!(%spool, %epoch, %position, "sealed"),
        Note::CutSuffix { from, to } => {
            tracing::warn!(%spool, %from, %to, "a suffix that was never confirmed is cut");
        }
        Note::Halted { why } => tracing::error!(%spool, why, "this copy must not count any more"),
    }
}

/// The answer where there is nobody to ask.
pub(super) fn nobody(code: ErrorCode, detail: &str) -> Answer {
    let failure = spool::command::Failure::new(code, detail);
    Answer { epoch: Epoch(0), reply: Reply::Failed(failure) }
}
