//! One engine: a thread that owns some of the node's copies, and everything that happens to them.
//!
//! A pass takes what waits, lets each copy handle its events, writes what all of them changed in one piece, asks for
//! the syncs they want, and only then lets answers and messages leave. While a sync runs, more passes write for
//! the next one: that is the whole group commit.

use super::inbox::{Bound, Inbox};
use super::{Answer, Outside, Shared};
use crate::clock;
use crate::metrics::Metrics;
use crate::store::{Completed, Db, SpoolNumber, SpoolStore, SyncHandle, fatal};
use spool::command::{Command, Failure, Reply, RequestId};
use spool::copy::{Context, SpoolCopy};
use spool::event::{Call, CallId, CallReply, Effects, Event, Note, SyncNo};
use spool::promise::Pairs;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use types::time::Now;
use types::{Epoch, ErrorCode, Moment, NodeName, SpoolId};

/// What one pass takes of each lane at most: what comes after waits for one write more.
const PASS_MAX: Bound = Bound { items: 2_048, bytes: 8 << 20 };
/// A copy that wants to be woken in the past is woken so soon.
const WAKE_MIN: Duration = Duration::from_micros(100);
/// While a sync runs, writes gather for the next one; not longer, so that a slow disk holds up no deadline.
const GATHER_MAX: Duration = Duration::from_millis(5);
/// Calls whose callers gave up are looked for from so many on.
const CALLS_KEPT: usize = 1_024;

pub(super) enum Input {
    /// A copy that this engine owns from now on. `ready` is told once it handles events.
    Own {
        number: SpoolNumber,
        copy: Box<SpoolCopy>,
        ready: oneshot::Sender<()>,
    },
    Event {
        number: SpoolNumber,
        event: Event,
    },
    Request {
        number: SpoolNumber,
        id: RequestId,
        command: Command,
        wait: Duration,
        answer: oneshot::Sender<Answer>,
    },
    /// Nobody waits for the answer any more.
    Withdrawn {
        number: SpoolNumber,
        id: RequestId,
    },
    Call {
        number: SpoolNumber,
        call: Call,
        answer: oneshot::Sender<CallReply>,
    },
    Synced(Completed),
    PeerDisconnected(NodeName),
    /// Beats arrived: primaries may have the right to answer again.
    TickPrimaries,
    /// Gives up every role, and ends.
    Stop,
}

/// What others see of an engine.
#[derive(Default)]
pub(super) struct Pulse {
    /// The moment at which the pass that is under way began; zero: none is.
    pub busy_since: AtomicU64,
    /// A tick of the primaries waits already.
    pub tick_waits: AtomicBool,
}

/// What an engine works with.
pub(super) struct Tools<P, O> {
    pub inbox: Arc<Inbox<Input>>,
    pub pulse: Arc<Pulse>,
    pub db: Arc<Db>,
    pub sync: SyncHandle,
    pub pairs: Arc<P>,
    pub outside: O,
    pub shared: Arc<Shared>,
    pub metrics: Metrics,
}

pub(super) struct Engine<P, O> {
    tools: Tools<P, O>,
    owned: BTreeMap<SpoolNumber, Owned>,
    wakeups: BTreeSet<(Moment, SpoolNumber)>,
    touched: BTreeSet<SpoolNumber>,
    answers: HashMap<RequestId, oneshot::Sender<Answer>>,
    calls: HashMap<CallId, oneshot::Sender<CallReply>>,
    last_call: u64,
    /// Syncs that were asked for and are not done.
    syncing: usize,
}

struct Owned {
    copy: Box<SpoolCopy>,
    store: SpoolStore,
    effects: Effects,
    /// Of each reply among the effects: in which epoch it was given.
    reply_epochs: Vec<Epoch>,
    wakeup: Option<Moment>,
    /// Syncs under way and when they were asked for: one a pass, so bounded by what a sync takes.
    syncs: VecDeque<(SyncNo, Moment)>,
}

impl<P: Pairs, O: Outside> Engine<P, O> {
    pub fn new(tools: Tools<P, O>) -> Engine<P, O> {
        Engine {
            tools,
            owned: BTreeMap::new(),
            wakeups: BTreeSet::new(),
            touched: BTreeSet::new(),
            answers: HashMap::new(),
            calls: HashMap::new(),
            last_call: 0,
            syncing: 0,
        }
    }

    pub fn run(mut self) {
        let mut taken = Vec::new();
        let mut stopping = false;
        while !stopping {
            let next = self.wakeups.first().map(|(at, _)| at.since(clock::moment()));
            let gather = self.syncing > 0;
            let wait = if gather { Some(next.map_or(GATHER_MAX, |next| next.min(GATHER_MAX))) } else { next };
            self.tools.inbox.take(&mut taken, PASS_MAX, wait, gather);
            // After the last arrival: whatever is answered was asked before. I15
            let now = clock::now();
            self.tools.pulse.busy_since.store(now.mono.0, Ordering::Relaxed);
            for input in taken.drain(..) {
                stopping |= matches!(input, Input::Stop);
                self.handle(now, input);
            }
            self.wake(now);
            self.carry_out(now);
            self.tools.pulse.busy_since.store(0, Ordering::Relaxed);
        }
        self.tools.inbox.close();
    }

    fn wake(&mut self, now: Now) {
        while let Some((at, number)) = self.wakeups.first().copied()
            && at <= now.mono
        {
            self.wakeups.pop_first();
            self.step(now, number, Event::Tick);
        }
    }

    fn handle(&mut self, now: Now, input: Input) {
        match input {
            Input::Own { number, copy, ready } => self.own(now, number, copy, ready),
            Input::Event { number, event } => self.step(now, number, event),
            Input::Request { number, id, command, wait, answer } => {
                // Withdrawn before anybody looked at it.
                if !answer.is_closed() {
                    self.answers.insert(id, answer);
                    self.step(now, number, Event::Request { id, command, wait });
                }
            }
            Input::Withdrawn { number, id } => {
                self.answers.remove(&id);
                self.step(now, number, Event::Cancelled { id });
            }
            Input::Call { number, call, answer } => self.call(now, number, call, answer),
            Input::Synced(completed) => {
                for (number, sync_no) in completed {
                    self.note_synced(now, number, sync_no);
                    self.step(now, number, Event::Synced(sync_no));
                }
            }
            Input::PeerDisconnected(node) => {
                self.step_all(now, |_| true, &Event::PeerDisconnected { node });
            }
            Input::TickPrimaries => {
                self.tools.pulse.tick_waits.store(false, Ordering::Release);
                self.step_all(now, |copy| copy.primary_epoch().is_some(), &Event::Tick);
            }
            Input::Stop => self.step_all(now, |_| true, &Event::GiveUpRole),
        }
    }

    fn own(&mut self, now: Now, number: SpoolNumber, copy: Box<SpoolCopy>, ready: oneshot::Sender<()>) {
        self.tools.outside.register(copy.identity().copy);
        let store = self.tools.db.spool(number);
        let owned = Owned {
            copy,
            store,
            effects: Effects::default(),
            reply_epochs: Vec::new(),
            wakeup: None,
            syncs: VecDeque::new(),
        };
        self.owned.insert(number, owned);
        self.step(now, number, Event::Tick);
        // At start nobody waits for it.
        let _heard = ready.send(());
    }

    fn call(&mut self, now: Now, number: SpoolNumber, call: Call, answer: oneshot::Sender<CallReply>) {
        if self.calls.len() >= CALLS_KEPT {
            self.calls.retain(|_, answer| !answer.is_closed());
        }
        self.last_call += 1;
        let id = CallId(self.last_call);
        self.calls.insert(id, answer);
        self.step(now, number, Event::Call { id, call });
    }

    fn note_synced(&mut self, now: Now, number: SpoolNumber, sync_no: SyncNo) {
        let Some(owned) = self.owned.get_mut(&number) else { return };
        let mut asked = None;
        while let Some((_, at)) = owned.syncs.pop_front_if(|(no, _)| *no <= sync_no) {
            asked = asked.or(Some(at));
            self.syncing -= 1;
        }
        if let Some(at) = asked {
            self.tools.metrics.synced(now.mono.since(at));
        }
    }

    fn step_all(&mut self, now: Now, which: impl Fn(&SpoolCopy) -> bool, event: &Event) {
        let those = self.owned.iter().filter(|(_, owned)| which(&owned.copy)).map(|(number, _)| *number);
        for number in those.collect::<Vec<_>>() {
            self.step(now, number, event.clone());
        }
    }

    fn step(&mut self, now: Now, number: SpoolNumber, event: Event) {
        let Some(owned) = self.owned.get_mut(&number) else { return };
        self.touched.insert(number);
        let context = Context { now, store: &owned.store, pairs: &*self.tools.pairs };
        let before = owned.copy.primary_epoch();
        if let Err(error) = owned.copy.handle(&context, event, &mut owned.effects) {
            fatal::fatal_storage_error("reading", &error);
        }
        // A copy that gives up its role answers first.
        let epoch = before.or(owned.copy.primary_epoch()).unwrap_or(Epoch(0));
        owned.reply_epochs.resize(owned.effects.replies.len(), epoch);
    }

    /// Writes, asks for syncs, lets the rest leave: in this order.
    fn carry_out(&mut self, now: Now) {
        let touched = std::mem::take(&mut self.touched);
        let mut changed = Vec::with_capacity(touched.len());
        let mut syncs = Vec::new();
        for number in &touched {
            let Some(owned) = self.owned.get_mut(number) else { continue };
            if let Some(sync_no) = owned.effects.sync {
                owned.syncs.push_back((sync_no, now.mono));
                self.syncing += 1;
                syncs.push((*number, sync_no));
            }
        }
        for number in &touched {
            if let Some(owned) = self.owned.get(number).filter(|owned| !owned.effects.batch.is_empty()) {
                changed.push((*number, &owned.effects.batch));
            }
        }
        if !changed.is_empty() {
            self.tools.db.write(&changed);
            self.tools.metrics.wrote();
        }
        if !syncs.is_empty() {
            self.tools.sync.request(syncs);
        }
        for number in touched {
            self.let_leave(now, number);
        }
    }

    fn let_leave(&mut self, now: Now, number: SpoolNumber) {
        let Some(owned) = self.owned.get_mut(&number) else { return };
        let effects = std::mem::take(&mut owned.effects);
        let epochs = std::mem::take(&mut owned.reply_epochs);
        let Owned { copy, wakeup: before, .. } = owned;
        let wakeup = copy.next_wakeup().filter(|at| *at != Moment(u64::MAX));
        let wakeup = wakeup.map(|at| at.max(now.mono + WAKE_MIN));
        if let Some(at) = std::mem::replace(before, wakeup) {
            self.wakeups.remove(&(at, number));
        }
        self.wakeups.extend(wakeup.map(|at| (at, number)));

        let spool = copy.identity().spool;
        for note in &effects.notes {
            say(spool, note);
        }
        // Before anybody acts on what this copy asks for.
        self.tools.shared.publish(spool, copy);
        let outside = &self.tools.outside;
        if !effects.peers.is_empty() {
            let from = copy.identity().member();
            for (to, message) in effects.peers {
                outside.send(spool, copy.lineage(), from.clone(), to, message);
            }
        }
        if let Some(activate) = effects.activate {
            outside.activate(spool, activate);
        }
        if let Some(epoch) = effects.clear_prev {
            outside.clear_prev(spool, epoch);
        }
        for (id, reply) in effects.calls {
            if let Some(answer) = self.calls.remove(&id) {
                // The caller's deadline may have passed.
                let _heard = answer.send(reply);
            }
        }
        for ((id, reply), epoch) in effects.replies.into_iter().zip(epochs) {
            let answer = Answer { epoch, reply };
            let unheard = match self.answers.remove(&id) {
                Some(waiting) => waiting.send(answer).err(),
                None => Some(answer),
            };
            if let Some(event) = unheard.and_then(|answer| hand_back(&answer)) {
                self.tools.inbox.urgent(Input::Event { number, event });
            }
        }
    }
}

/// What is to be done about an answer that reached nobody.
pub(super) fn hand_back(answer: &Answer) -> Option<Event> {
    let tokens = answer.reply.tokens();
    (!tokens.is_empty()).then_some(Event::HandedBack { tokens })
}

fn say(spool: SpoolId, note: &Note) {
    match note {
        Note::BecamePrimary { epoch, position } => {
            tracing::info!(%spool, %epoch, %position, "this copy takes over as primary");
        }
        Note::LostRole { epoch, why } => {
            tracing::info!(%spool, %epoch, why, "this copy is not primary any more");
        }
        Note::Sealed { epoch, position } => tracing::info!(%spool, %epoch, %position, "sealed"),
        Note::CutSuffix { from, to } => {
            tracing::warn!(%spool, %from, %to, "a suffix that was never confirmed is cut");
        }
        Note::Halted { why } => tracing::error!(%spool, why, "this copy must not count any more"),
    }
}

/// The answer where there is nobody to ask.
pub(super) fn nobody(code: ErrorCode, detail: &str) -> Answer {
    Answer { epoch: Epoch(0), reply: Reply::Failed(Failure::new(code, detail)) }
}
