//! The decisions of one spool's elections, pure like the rest of this crate: is the primary gone, which epoch is
//! next, which copies must seal, who becomes primary. Inputs come in, actions go out, time is an argument.
//!
//! A controller decides and remembers nothing that matters: all truth is in the record and on the copies. One
//! that dies anywhere is replaced by one that is given the record alone, and bumps the epoch again. Any number
//! of controllers may act for one spool at once; compare-and-swap on the record lets one of them win each
//! step. E1
//!
//! An election, in order:
//! 1. [`precheck`]: probes say that the primary does not serve and that an election would succeed. The first
//!    election of a spool, and one after a step-down, skip it.
//! 2. [`next_record::electing`]: an epoch, by compare-and-swap. E1
//! 3. [`sealing`], [`seals`]: every voter is asked to seal it, until the answers suffice. E2 E3 E4
//! 4. [`next_record::assigned`]: the furthest sealed copy, by compare-and-swap. E5 I12
//! 5. It is told, appends its barrier and makes the record active itself; the controller watches. E7 E8
//!
//! Where nothing moves (a record that stays electing or assigned, a candidate that refuses), it starts over at
//! 1, with a growing gap between elections, so that there is no livelock of epochs.
//!
//! Not here: calls, etcd, tasks (the control plane's `elections`); deciding which node looks dead (who feeds
//! [`Input::Suspected`]).

mod decide;
mod interface;
pub mod next_record;
mod planned;
pub mod precheck;
mod sealing;
pub mod seals;

use std::collections::BTreeSet;
use std::time::Duration;
use types::{Epoch, Moment, NodeName, SpoolId};

pub use interface::{Action, AssignAnswer, CasOutcome, Input, MoveError, Moved, SealAnswer, StepDownAnswer};
pub use precheck::ProbeAnswer;

use crate::event::Assign;
use crate::record::{Member, Phase, Record};
use planned::Move;
use precheck::Round;
use sealing::{Call, Sealing, Start};

/// Times, and what is allowed. Equal for all controllers of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// D: a copy's promise, and how long a Seal may wait for it.
    pub promise: Duration,
    /// T_suspect: a copy that heard no serving primary for so long says so.
    pub suspect: Duration,
    /// A primary that does not answer a probe for so long is silent.
    pub probe_wait: Duration,
    /// A call that waits for nothing.
    pub call_wait: Duration,
    /// Between two elections of this controller; doubles after each one that brought no primary.
    pub election_gap: Duration,
    pub election_gap_max: Duration,
    /// A record that others left electing or assigned for so long is taken over.
    pub stalled_after: Duration,
    /// A suspicion that the copies do not share is dropped after this.
    pub suspicion_lasts: Duration,
    /// A planned move takes at most this.
    pub move_wait: Duration,
    /// G, skew included: how long an older right to serve may rest on the etcd guard.
    pub fence: Duration,
    /// numSync = 0: the last primary's time to come back before an election goes without it.
    pub grace: Duration,
    /// numSync = 0: elect without the last primary, and lose what only it had. Where false, the spool waits.
    pub lossy: bool,
}

impl Settings {
    pub fn new(promise: Duration, suspect: Duration) -> Settings {
        Settings {
            promise,
            suspect,
            probe_wait: (suspect / 8).max(Duration::from_millis(100)),
            call_wait: Duration::from_secs(1),
            election_gap: Duration::from_secs(2),
            election_gap_max: Duration::from_secs(30),
            stalled_after: Duration::from_secs(2),
            suspicion_lasts: Duration::from_secs(10),
            move_wait: Duration::from_secs(30),
            fence: Duration::from_millis(4_040),
            grace: Duration::from_secs(5),
            lossy: false,
        }
    }

    /// A Seal is held open while promises run.
    pub fn seal_wait(&self) -> Duration {
        self.promise + self.call_wait
    }
}

/// A primary that just answered is not asked again at once, however many copies complain.
const SERVED_LASTS: Duration = Duration::from_secs(1);
const PROBE_GAP_MIN: Duration = Duration::from_millis(250);
/// More steps than this at one moment would be a loop that waits for nothing.
const STEPS_MAX: usize = 8;

#[derive(Debug)]
pub struct Controller {
    spool: SpoolId,
    settings: Settings,
    /// Sets controllers apart that would otherwise do the same at the same time.
    jitter: Duration,
    now: Moment,
    known: Option<Known>,
    step: Step,
    suspicion: Option<Suspicion>,
    planned: Option<Move>,
    /// Nodes whose alive key stands still or is gone.
    standing: BTreeSet<NodeName>,
    /// The highest epoch that a copy refused an election with.
    sealed_elsewhere: Epoch,
    rounds: u64,
    probe_after: Moment,
    probe_gap: Duration,
    /// When the primary last answered that it serves.
    served_at: Option<Moment>,
    elect_after: Moment,
    /// Elections since the record was last active.
    attempts: u32,
    /// From here on a record that is electing or assigned counts as left alone.
    stalled_at: Moment,
    status: Status,
    /// `None`: an earlier controller may have left something.
    published: Option<Status>,
}

#[derive(Debug)]
struct Known {
    record: Record,
    revision: i64,
}

#[derive(Debug, Clone, Copy)]
struct Suspicion {
    since: Moment,
    refused: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Status {
    waiting_for: Vec<NodeName>,
    reason: String,
}

/// Where the controller is. Only `Watch` has nothing on its way.
#[derive(Debug)]
enum Step {
    Watch,
    Probing(Round),
    /// For a planned move: who could take over?
    ProbingTargets(Round),
    SteppingDown {
        until: Moment,
    },
    Electing {
        expected: i64,
        new: Record,
        start: Start,
        until: Moment,
    },
    Sealing(Box<Sealing>),
    Assigning {
        expected: i64,
        new: Record,
        to: Member,
        assign: Box<Assign>,
        until: Moment,
    },
    TakingOver {
        to: Member,
        assign: Box<Assign>,
        call: Option<Call>,
        until: Moment,
    },
}

impl Controller {
    /// `seed` differs between controllers that may act for the same spool.
    pub fn new(spool: SpoolId, settings: Settings, seed: u64) -> Controller {
        Controller {
            spool,
            jitter: Duration::from_millis(seed % 1_000),
            settings,
            now: Moment::ZERO,
            known: None,
            step: Step::Watch,
            suspicion: None,
            planned: None,
            standing: BTreeSet::new(),
            sealed_elsewhere: Epoch(0),
            rounds: 0,
            probe_after: Moment::ZERO,
            probe_gap: PROBE_GAP_MIN,
            served_at: None,
            elect_after: Moment::ZERO,
            attempts: 0,
            stalled_at: Moment::ZERO,
            status: Status::default(),
            published: None,
        }
    }

    /// Time never goes back: an earlier `now` counts as the latest one.
    pub fn handle(&mut self, now: Moment, input: Input, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        match input {
            Input::Record { record, revision } => self.on_record(record, revision, actions),
            Input::RecordGone => self.on_record_gone(actions),
            Input::Suspected { refused } => self.on_suspected(refused),
            Input::NodeAlive { node, advancing } => self.on_node(node, advancing),
            Input::ProbeReply { from, round, answer } => self.on_probe_reply(from, round, answer),
            Input::CasResult { expected_revision, outcome } => {
                self.on_cas_result(expected_revision, outcome, actions);
            }
            Input::SealReply { from, epoch, answer } => self.on_seal_reply(&from, epoch, answer, actions),
            Input::AssignReply { from, epoch, answer } => self.on_assign_reply(&from, epoch, &answer),
            Input::StepDownReply { from, epoch, answer } => {
                self.on_step_down_reply(&from, epoch, &answer, actions);
            }
            Input::Move { target } => self.on_move(target, actions),
            Input::Tick => {}
        }
        let mut steps = 0;
        while self.advance(actions) {
            steps += 1;
            assert!(steps <= STEPS_MAX, "{}: {:?} goes round at {:?}", self.spool, self.step, self.now);
        }
        self.publish(actions);
    }

    /// Feed [`Input::Tick`] no later than this.
    pub fn next_wakeup(&self) -> Option<Moment> {
        let mut at: Vec<Moment> = self.planned.iter().map(|planned| planned.ends).collect();
        match &self.step {
            Step::Watch => at.extend(self.watch_again_at()),
            Step::Probing(round) | Step::ProbingTargets(round) => at.extend([round.silent_after, round.ends]),
            Step::SteppingDown { until } | Step::Electing { until, .. } | Step::Assigning { until, .. } => {
                at.push(*until)
            }
            Step::Sealing(sealing) => at.extend(sealing.wakeups(self.now, &self.settings)),
            Step::TakingOver { call, until, .. } => {
                at.push(*until);
                at.extend(call.iter().map(|call| call.due(self.settings.call_wait)));
            }
        }
        // What is due was done, or waits for something else.
        at.into_iter().filter(|at| *at > self.now).min()
    }

    /// The record is active and nothing is under way: this controller may be dropped.
    pub fn is_idle(&self) -> bool {
        let settled = self.record().is_none_or(|record| record.phase == Phase::Active);
        settled && matches!(self.step, Step::Watch) && self.suspicion.is_none() && self.planned.is_none()
    }

    /// Calls or transactions are on their way, and will be over soon: a shell with many controllers may let
    /// others wait. Not so one that waits for nodes to return, however long that takes.
    pub fn is_busy(&self) -> bool {
        match &self.step {
            Step::Watch => false,
            Step::Sealing(sealing) => !sealing.is_overdue(self.now, &self.settings),
            _ => true,
        }
    }

    pub fn record(&self) -> Option<&Record> {
        self.known.as_ref().map(|known| &known.record)
    }

    fn on_record(&mut self, record: Record, revision: i64, actions: &mut Vec<Action>) {
        assert_eq!(record.spool, self.spool, "the record of another spool");
        // A lower epoch at a higher revision: etcd was restored from something old. Nothing good comes from
        // electing on it. I1
        let is_old = |known: &Known| known.revision >= revision || known.record.epoch > record.epoch;
        if self.known.as_ref().is_some_and(is_old) {
            return;
        }
        let before = self.known.replace(Known { record: record.clone(), revision });
        let before = before.map(|known| (known.record.epoch, known.record.phase));
        let same_reign = before == Some((record.epoch, record.phase));
        match self.step {
            // Their outcome tells more.
            Step::Electing { .. } | Step::Assigning { .. } => {}
            // The previous configurations were superseded; nothing else changes within a reign.
            Step::Probing(_) | Step::ProbingTargets(_) | Step::SteppingDown { .. } if same_reign => {}
            _ => self.step = Step::Watch,
        }
        if record.phase != Phase::Active {
            // Nobody ever began: do it. Else whoever wrote this is at work.
            let left_alone = record.epoch == Epoch(0);
            self.stalled_at =
                if left_alone { self.now } else { self.now + self.settings.stalled_after + self.jitter };
        } else if !same_reign {
            self.attempts = 0;
            self.suspicion = None;
            self.served_at = None;
            self.probe_gap = PROBE_GAP_MIN;
            if before.is_some() {
                self.nothing_is_waited_for();
            }
            self.settle_move(&record, actions);
        }
    }

    fn on_record_gone(&mut self, actions: &mut Vec<Action>) {
        self.known = None;
        self.step = Step::Watch;
        self.suspicion = None;
        self.status = Status::default();
        self.published = None;
        self.end_move(Err(MoveError::NoSuchSpool), actions);
    }

    fn on_suspected(&mut self, refused: bool) {
        let now = self.now;
        match self.record().map(|record| record.phase) {
            Some(Phase::Active) => {
                let before = self.suspicion;
                let suspicion = self.suspicion.get_or_insert(Suspicion { since: now, refused });
                suspicion.refused |= refused;
                if before.is_none_or(|before| refused && !before.refused) {
                    let asked_before = self.served_at.filter(|_| !refused);
                    self.probe_after = asked_before.map_or(now, |at| now.max(at + SERVED_LASTS));
                    self.probe_gap = PROBE_GAP_MIN;
                }
            }
            // The process that was just assigned is gone.
            Some(Phase::Assigned) if refused => {
                self.stalled_at = now;
                if let Step::TakingOver { .. } = self.step {
                    self.step = Step::Watch;
                }
            }
            _ => {}
        }
    }

    fn on_node(&mut self, node: NodeName, advancing: bool) {
        if !advancing {
            self.standing.insert(node);
            return;
        }
        self.standing.remove(&node);
        self.probe_after = self.now;
        if let Step::Sealing(sealing) = &mut self.step {
            sealing.node_is_back(&node);
        }
    }

    fn on_probe_reply(&mut self, from: Member, number: u64, answer: ProbeAnswer) {
        if let Step::Probing(round) | Step::ProbingTargets(round) = &mut self.step
            && round.number == number
        {
            round.answered(from, answer);
        }
    }

    fn on_cas_result(&mut self, expected_revision: i64, outcome: CasOutcome, actions: &mut Vec<Action>) {
        let (Step::Electing { expected, .. } | Step::Assigning { expected, .. }) = self.step else { return };
        if expected != expected_revision {
            return;
        }
        let step = std::mem::replace(&mut self.step, Step::Watch);
        match outcome {
            CasOutcome::Done { record, revision } => {
                self.on_record(record.clone(), revision, actions);
                // Otherwise another controller was quicker with the next epoch.
                if self.known.as_ref().is_some_and(|known| known.revision == revision) {
                    self.after_cas(step, record, revision);
                }
            }
            CasOutcome::Other { record, revision } => self.on_record(record, revision, actions),
            CasOutcome::Gone => self.on_record_gone(actions),
            CasOutcome::Unknown => self.after_unknown_cas(actions),
        }
    }

    /// Whoever began this had a reason: the primary may have stepped down for it. If the record still says that
    /// one serves, look whether it does.
    pub(super) fn after_unknown_cas(&mut self, actions: &mut Vec<Action>) {
        actions.push(Action::ReadRecord);
        if self.record().is_some_and(|record| record.phase == Phase::Active) {
            self.suspicion.get_or_insert(Suspicion { since: self.now, refused: false });
        }
    }

    fn after_cas(&mut self, step: Step, record: Record, revision: i64) {
        let now = self.now;
        match step {
            Step::Electing { new, start, .. } => {
                assert_eq!(
                    Record { fence_due: new.fence_due, ..record.clone() },
                    new,
                    "E1: not what was written"
                );
                let sealing = Sealing::new(now, record, revision, start, &self.settings);
                self.step = Step::Sealing(Box::new(sealing));
            }
            Step::Assigning { new, to, mut assign, .. } => {
                assert_eq!(record, new, "E1: not what was written");
                assign.record_revision = revision;
                let until = now + self.settings.stalled_after;
                self.step = Step::TakingOver { to, assign, call: None, until };
            }
            other => unreachable!("no compare-and-swap on its way in {other:?}"),
        }
    }

    fn on_seal_reply(&mut self, from: &Member, epoch: Epoch, answer: SealAnswer, actions: &mut Vec<Action>) {
        let now = self.now;
        let Step::Sealing(sealing) = &mut self.step else { return };
        if sealing.record.epoch != epoch {
            return;
        }
        if let Some(sealed) = sealing.answered(now, from, answer) {
            // This epoch cannot be won any more: another controller's is newer, or etcd fell back.
            self.start_over(sealed);
            actions.push(Action::ReadRecord);
        }
    }

    fn on_assign_reply(&mut self, from: &Member, epoch: Epoch, answer: &AssignAnswer) {
        let now = self.now;
        let Step::TakingOver { to, assign, call, .. } = &mut self.step else { return };
        if to != from || assign.epoch != epoch {
            return;
        }
        match answer {
            AssignAnswer::Assigned => *call = Some(Call::sent(now + self.settings.stalled_after)),
            AssignAnswer::Failed => drop(call.as_mut().map(|call| call.failed(now))),
            AssignAnswer::Refused(_) => self.start_over(Epoch(0)),
            AssignAnswer::StaleEpoch(sealed) => self.start_over(*sealed),
        }
    }

    /// This election brings no primary: the next one may begin as soon as the gap allows.
    fn start_over(&mut self, sealed: Epoch) {
        self.sealed_elsewhere = self.sealed_elsewhere.max(sealed);
        self.step = Step::Watch;
        self.stalled_at = self.now;
    }
}
