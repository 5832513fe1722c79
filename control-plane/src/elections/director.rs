//! One task that owns every controller: it hears records, alive keys, commands and answers, feeds whoever they
//! concern, and starts what is asked for. Nothing here waits: calls run beside it and come back as inputs.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use types::{Moment, NodeName, SpoolId};

use super::calls::{Answer, Calls};
use super::clients::NodeClients;
use super::liveness::{Liveness, News};
use super::statuses::{self, Word};
use super::{Command, MoveError, Moved, Settings};
use crate::claims::{Alive, Change, Etcd, Status, Versioned};
use spool::controller::{Action, Controller, Input, seals};
use spool::record::{Phase, Record};

/// Controllers that begin something while others are at it. With more, all would be slower and none sooner.
const BUSY_MAX: usize = 64;
/// A controller that had to let others go first is looked at again after this.
const POSTPONED: Duration = Duration::from_millis(50);
/// How often alive keys are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often records are looked at that nobody told of.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// A controller with nothing to do is kept so long for what it remembers: when it last elected.
const IDLE_MAX: Duration = Duration::from_secs(60);
pub async fn run(
    etcd: Etcd,
    clients: NodeClients,
    settings: Settings,
    mut commands: mpsc::Receiver<Command>,
) {
    let (mut records, mut nodes) = (etcd.watch_records(), etcd.watch_nodes());
    let (words, words_received) = mpsc::unbounded_channel();
    tokio::spawn(statuses::run(etcd.clone(), words_received));
    // Holds at most one answer for each call on its way.
    let (answers, mut answered) = mpsc::unbounded_channel();
    let mut director = Director::new(etcd, clients, settings, answers, words);
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        let wakeup = director.next_wakeup();
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => director.on_command(command),
                None => return,
            },
            Some(answer) = answered.recv() => director.on_answer(answer),
            change = records.next() => match change {
                Some(change) => director.on_record_change(change),
                None => return,
            },
            change = nodes.next() => match change {
                Some(change) => director.on_node_change(change),
                None => return,
            },
            () = sleep_until(wakeup) => director.wake(),
            _ = look.tick() => director.look(),
        }
        director.admit();
    }
}

struct Driven {
    controller: Controller,
    wakeup: Option<Moment>,
    idle_since: Option<Moment>,
    /// As it was counted.
    busy: bool,
    mover: Option<oneshot::Sender<Result<Moved, MoveError>>>,
}

/// Why a spool waits.
#[derive(Default, Clone, Copy)]
struct Suspected {
    by_someone: bool,
    refused: bool,
}

struct Director {
    calls: Calls,
    clients: NodeClients,
    settings: Settings,
    started: Instant,
    records: HashMap<SpoolId, Versioned<Record>>,
    nodes: Liveness,
    driven: HashMap<SpoolId, Driven>,
    timers: BTreeSet<(Moment, SpoolId)>,
    /// Spools that need a controller or a look, in the order that they came; each once.
    waiting: VecDeque<SpoolId>,
    suspected: HashMap<SpoolId, Suspected>,
    /// How many controllers are busy.
    busy: usize,
    words: mpsc::UnboundedSender<Word>,
    swept: Moment,
}

impl Director {
    fn new(
        etcd: Etcd,
        clients: NodeClients,
        settings: Settings,
        answers: mpsc::UnboundedSender<Answer>,
        words: mpsc::UnboundedSender<Word>,
    ) -> Director {
        let still_after = settings.controller.suspect + Duration::from_secs(1);
        let calls = Calls::new(etcd, clients.clone(), settings.controller.clone(), answers);
        Director {
            calls,
            clients,
            settings,
            started: Instant::now(),
            records: HashMap::new(),
            nodes: Liveness::new(still_after),
            driven: HashMap::new(),
            timers: BTreeSet::new(),
            waiting: VecDeque::new(),
            suspected: HashMap::new(),
            busy: 0,
            words,
            swept: Moment::ZERO,
        }
    }

    /// Stands still while this machine is suspended. A controller then waits longer than it must, which is safe.
    fn now(&self) -> Moment {
        Moment::ZERO + self.started.elapsed()
    }

    fn next_wakeup(&self) -> Instant {
        let at = self.timers.first().map_or(self.now() + SWEEP_EVERY, |(at, _)| *at);
        self.started + at.since(Moment::ZERO)
    }

    // What is heard.

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Kick(spool) => self.calls.read_record(spool),
            Command::Suspect { node, refused } => self.suspect(&node, refused, |_| true),
            Command::Move { spool, target, answer } => self.begin_move(spool, target, answer),
        }
    }

    fn begin_move(
        &mut self,
        spool: SpoolId,
        target: Option<NodeName>,
        answer: oneshot::Sender<Result<Moved, MoveError>>,
    ) {
        if !self.records.contains_key(&spool) {
            drop(answer.send(Err(MoveError::NoSuchSpool)));
            return;
        }
        self.adopt(spool);
        // Dropping the answer tells the caller that nothing will come of it.
        let Some(driven) = self.driven.get_mut(&spool) else { return };
        if driven.mover.as_ref().is_some_and(|mover| !mover.is_closed()) {
            drop(answer.send(Err(MoveError::Busy)));
            return;
        }
        driven.mover = Some(answer);
        self.feed(spool, Input::Move { target });
    }

    fn on_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Input(spool, input) => self.feed(spool, input),
            Answer::Record(_, Ok(Some(record))) => self.on_record(record),
            Answer::Record(spool, Ok(None)) => self.on_record_gone(spool),
            Answer::Record(spool, Err(error)) => {
                // The watch, or the controller's next step, tells.
                tracing::warn!(%spool, error = &error as &dyn std::error::Error, "a record was not read");
            }
        }
    }

    fn on_record_change(&mut self, change: Change<SpoolId, Record>) {
        match change {
            Change::Set { value, revision, .. } => self.on_record(Versioned { value, revision }),
            Change::Gone { key } => self.on_record_gone(key),
            Change::Complete => {}
        }
    }

    fn on_record(&mut self, record: Versioned<Record>) {
        let spool = record.value.spool;
        if self.records.get(&spool).is_some_and(|known| known.revision >= record.revision) {
            return;
        }
        let now = self.now();
        for member in seals::voters(&record.value) {
            self.nodes.expect(now, &member.node);
        }
        let Versioned { value, revision } = record.clone();
        self.records.insert(spool, record);
        if self.driven.contains_key(&spool) {
            self.feed(spool, Input::Record { record: value.clone(), revision });
        } else if value.phase != Phase::Active {
            self.attend(spool, None);
        }
        if self.runs_another_process(&value) {
            self.attend(spool, Some(true));
        }
    }

    /// A restarted process never takes its epoch up again, so an active record whose process is not the one
    /// that runs has no primary. E1
    fn runs_another_process(&self, record: &Record) -> bool {
        let last = record.last.as_ref().filter(|_| record.phase == Phase::Active);
        last.is_some_and(|last| {
            self.nodes.process(&last.member.node).is_some_and(|runs| runs != last.process)
        })
    }

    fn on_record_gone(&mut self, spool: SpoolId) {
        self.records.remove(&spool);
        self.feed(spool, Input::RecordGone);
        self.release(spool);
    }

    fn on_node_change(&mut self, change: Change<NodeName, Alive>) {
        let now = self.now();
        let news = match change {
            Change::Set { key, value, .. } => {
                self.clients.set_address(&key, &value.internal);
                self.nodes.alive(now, &key, &value)
            }
            Change::Gone { key } => self.nodes.gone(now, &key),
            Change::Complete => None,
        };
        if let Some(news) = news {
            self.on_news(news);
        }
    }

    fn on_news(&mut self, news: News) {
        match news {
            News::Back(node) => {
                tracing::info!(%node, "is alive");
                self.tell_all(&node, true);
                let runs = self.nodes.process(&node);
                self.suspect(&node, true, |record| {
                    record.last.as_ref().is_some_and(|last| runs.is_some_and(|runs| runs != last.process))
                });
            }
            News::StandsStill(node) => {
                tracing::warn!(%node, "its alive key stands still");
                self.tell_all(&node, false);
                self.suspect(&node, false, |_| true);
            }
            News::StandsStillOn(node) => self.suspect(&node, false, |_| true),
        }
    }

    fn tell_all(&mut self, node: &NodeName, advancing: bool) {
        let spools: Vec<SpoolId> = self.driven.keys().copied().collect();
        for spool in spools {
            self.feed(spool, Input::NodeAlive { node: node.clone(), advancing });
        }
    }

    /// Every primary on this node, of those whose record `which` picks.
    fn suspect(&mut self, node: &NodeName, refused: bool, which: impl Fn(&Record) -> bool) {
        let on_node = |record: &Record| {
            let last = record.last.as_ref().filter(|last| last.member.node == *node);
            last.is_some() && record.phase != Phase::Electing && which(record)
        };
        let suspected = self.records.values().filter(|known| on_node(&known.value));
        let suspected: Vec<SpoolId> = suspected.map(|known| known.value.spool).collect();
        for spool in suspected {
            self.attend(spool, Some(refused));
        }
    }

    fn look(&mut self) {
        let now = self.now();
        for news in self.nodes.tick(now) {
            self.on_news(news);
        }
        if now.since(self.swept) < SWEEP_EVERY {
            return;
        }
        self.swept = now;
        let idle = |driven: &Driven| driven.idle_since.is_some_and(|since| now.since(since) > IDLE_MAX);
        let idle: Vec<SpoolId> =
            self.driven.iter().filter(|(_, d)| idle(d)).map(|(spool, _)| *spool).collect();
        for spool in idle {
            self.release(spool);
        }
        // A controller that was lost to a bug of ours is replaced.
        let waiting = self.records.values().filter(|known| known.value.phase != Phase::Active);
        let orphans: Vec<SpoolId> = waiting.map(|known| known.value.spool).collect();
        for spool in orphans {
            self.attend(spool, None);
        }
    }

    fn wake(&mut self) {
        let now = self.now();
        let due: Vec<SpoolId> =
            self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, s)| *s).collect();
        for spool in due {
            let busy = self.driven.get(&spool).is_some_and(|driven| driven.controller.is_busy());
            if busy || self.busy < BUSY_MAX {
                self.feed(spool, Input::Tick);
            } else {
                self.set_timer(spool, Some(now + POSTPONED));
            }
        }
    }

    /// The spool needs a look, and a controller if it has none; `suspected` if its primary is, and whether its
    /// node refuses connections. Its turn comes when few enough others are at it.
    fn attend(&mut self, spool: SpoolId, suspected: Option<bool>) {
        let why = self.suspected.entry(spool).or_insert_with(|| {
            self.waiting.push_back(spool);
            Suspected::default()
        });
        why.by_someone |= suspected.is_some();
        why.refused |= suspected == Some(true);
    }

    fn admit(&mut self) {
        while self.busy < BUSY_MAX
            && let Some(spool) = self.waiting.pop_front()
        {
            let why = self.suspected.remove(&spool).unwrap_or_default();
            self.adopt(spool);
            if why.by_someone {
                self.feed(spool, Input::Suspected { refused: why.refused });
            }
        }
    }

    // The controllers.

    /// Sees to it that the spool has a controller, which was told what is known.
    fn adopt(&mut self, spool: SpoolId) {
        if self.driven.contains_key(&spool) {
            return;
        }
        let Some(Versioned { value, revision }) = self.records.get(&spool).cloned() else { return };
        let low = u64::from_be_bytes(std::array::from_fn(|i| spool.as_bytes()[8 + i]));
        let controller = Controller::new(spool, self.settings.controller.clone(), self.settings.seed ^ low);
        self.driven
            .insert(spool, Driven { controller, wakeup: None, idle_since: None, busy: false, mover: None });
        let nodes: BTreeSet<NodeName> = seals::voters(&value).into_iter().map(|m| m.node).collect();
        self.feed(spool, Input::Record { record: value, revision });
        for node in nodes {
            let advancing = self.nodes.advances(&node);
            self.feed(spool, Input::NodeAlive { node, advancing });
        }
    }

    fn release(&mut self, spool: SpoolId) {
        self.set_timer(spool, None);
        if let Some(driven) = self.driven.remove(&spool) {
            self.busy -= usize::from(driven.busy);
        }
    }

    fn set_timer(&mut self, spool: SpoolId, next: Option<Moment>) {
        let Some(driven) = self.driven.get_mut(&spool) else { return };
        let was = std::mem::replace(&mut driven.wakeup, next);
        if was != next {
            was.map(|at| self.timers.remove(&(at, spool)));
            next.map(|at| self.timers.insert((at, spool)));
        }
    }

    fn feed(&mut self, spool: SpoolId, input: Input) {
        let now = self.now();
        let Some(driven) = self.driven.get_mut(&spool) else { return };
        let mut actions = Vec::new();
        let fed = catch_unwind(AssertUnwindSafe(|| driven.controller.handle(now, input, &mut actions)));
        if fed.is_err() {
            // An invariant did not hold. Nothing is done; a new controller, which knows the record alone, is
            // made by the next that happens, and the other spools go on.
            tracing::error!(%spool, "a controller broke an invariant and is dropped");
            self.release(spool);
            return;
        }
        driven.idle_since = driven.controller.is_idle().then(|| driven.idle_since.unwrap_or(now));
        let was_busy = std::mem::replace(&mut driven.busy, driven.controller.is_busy());
        self.busy = self.busy + usize::from(driven.busy) - usize::from(was_busy);
        let next = driven.controller.next_wakeup();
        self.set_timer(spool, next);
        for action in actions {
            self.perform(spool, action);
        }
    }

    // What they ask for.

    fn perform(&mut self, spool: SpoolId, action: Action) {
        match action {
            Action::CasRecord { expected_revision, new } => self.calls.cas(spool, expected_revision, new),
            Action::ReadRecord => self.calls.read_record(spool),
            Action::PublishStatus { waiting_for, reason } => {
                let nothing = waiting_for.is_empty() && reason.is_empty();
                if !nothing {
                    tracing::warn!(%spool, ?waiting_for, reason, "no primary");
                }
                // Fails only when the runtime shuts down.
                drop(self.words.send((spool, (!nothing).then_some(Status { waiting_for, reason }))));
            }
            Action::MoveDone { outcome } => {
                if let Some(mover) = self.driven.get_mut(&spool).and_then(|driven| driven.mover.take()) {
                    drop(mover.send(outcome));
                }
            }
            Action::Probe { .. } | Action::Seal { .. } | Action::Assign { .. } | Action::StepDown { .. } => {
                self.calls.call(spool, action);
            }
        }
    }
}
