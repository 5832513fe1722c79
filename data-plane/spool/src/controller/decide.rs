//! What a controller does next, given what it knows: each step decides once it is due, and asks for actions.

use std::time::Duration;
use types::{Moment, NodeName, Position};

use super::interface::{Action, MoveError};
use super::precheck::{Circumstances, Round, Verdict};
use super::sealing::{Call, Progress, Start};
use super::{Controller, Status, Step, next_record, seals};
use crate::event::Assign;
use crate::record::{Member, Phase};
use types::Epoch;

/// Bounds what a lost answer of etcd can hold up.
const CAS_WAIT: Duration = Duration::from_secs(5);
const PROBE_GAP_MAX: Duration = Duration::from_secs(4);

impl Controller {
    /// Takes one step if one is due.
    pub(super) fn advance(&mut self, actions: &mut Vec<Action>) -> bool {
        let now = self.now;
        if self.planned.as_ref().is_some_and(|planned| now >= planned.ends) {
            self.end_move(Err(MoveError::TimedOut), actions);
        }
        match &mut self.step {
            Step::Watch => self.watch(actions),
            Step::Probing(_) => self.judge(actions),
            Step::ProbingTargets(_) => self.pick_target(actions),
            Step::SteppingDown { until } if now >= *until => {
                self.step_down_unanswered();
                true
            }
            Step::Electing { until, .. } | Step::Assigning { until, .. } if now >= *until => {
                self.step = Step::Watch;
                self.after_unknown_cas(actions);
                self.probe_after = now + self.settings.call_wait;
                true
            }
            Step::Sealing(_) => self.seal(actions),
            Step::TakingOver { until, .. } if now >= *until => {
                self.start_over(Epoch(0));
                true
            }
            Step::TakingOver { to, assign, call, .. } => {
                match call {
                    Some(call) if now < call.due(self.settings.call_wait) => return false,
                    Some(call) => call.resent(now),
                    None => *call = Some(Call::sent(now)),
                }
                actions.push(Action::Assign { to: to.clone(), assign: (**assign).clone() });
                false
            }
            Step::SteppingDown { .. } | Step::Electing { .. } | Step::Assigning { .. } => false,
        }
    }

    /// When something may be begun that nobody asks for.
    pub(super) fn watch_again_at(&self) -> Option<Moment> {
        let record = self.record()?;
        let after = self.probe_after.max(self.elect_after);
        match record.phase {
            Phase::Active => self.suspicion.map(|_| after),
            Phase::Electing | Phase::Assigned => Some(after.max(self.stalled_at)),
        }
    }

    fn watch(&mut self, actions: &mut Vec<Action>) -> bool {
        let Some(known) = &self.known else { return false };
        if known.record.phase == Phase::Active && self.begin_move(actions) {
            return true;
        }
        if self.watch_again_at().is_none_or(|at| self.now < at) {
            return false;
        }
        let Some(known) = &self.known else { return false };
        if known.record.last.is_none() {
            // Nobody to depose, nothing to lose.
            return self.elect(false, None, actions);
        }
        let voters = seals::voters(&known.record);
        let round = self.probe(voters, actions);
        self.step = Step::Probing(round);
        true
    }

    pub(super) fn probe(&mut self, of: Vec<Member>, actions: &mut Vec<Action>) -> Round {
        self.rounds += 1;
        let round = self.rounds;
        actions.extend(of.into_iter().map(|to| Action::Probe { to, round }));
        Round::new(round, self.now + self.settings.probe_wait, self.now + self.settings.call_wait)
    }

    fn judge(&mut self, actions: &mut Vec<Action>) -> bool {
        let (Step::Probing(round), Some(known)) = (&self.step, &self.known) else { return false };
        match round.verdict(self.now, &known.record, self.circumstances()) {
            Verdict::Wait => return false,
            Verdict::Elect { last_first } => return self.elect(last_first, None, actions),
            Verdict::Serving => {
                if known.record.phase != Phase::Active {
                    // The record that says so is on its way here.
                    actions.push(Action::ReadRecord);
                }
                self.stalled_at = self.now + self.settings.stalled_after;
                self.served_at = Some(self.now);
                self.suspicion = None;
                self.nothing_is_waited_for();
            }
            Verdict::NotElectable { waiting_for, heard } => self.not_electable(waiting_for, heard),
        }
        self.step = Step::Watch;
        true
    }

    /// No epoch is spent; ask again later.
    fn not_electable(&mut self, waiting_for: Vec<NodeName>, heard: bool) {
        self.probe_after = self.now + self.probe_gap;
        self.probe_gap = (self.probe_gap * 2).min(PROBE_GAP_MAX);
        if !heard {
            self.status =
                Status { waiting_for, reason: "too few copies answer to elect a primary".to_owned() };
        } else if self.suspicion.is_some_and(|s| self.now >= s.since + self.settings.suspicion_lasts) {
            self.suspicion = None;
            self.nothing_is_waited_for();
        }
    }

    fn circumstances(&self) -> Circumstances {
        let last = self.record().and_then(|record| record.last.as_ref());
        Circumstances {
            suspect: self.settings.suspect,
            lossy: self.settings.lossy,
            last_advances: last.is_none_or(|last| !self.standing.contains(&last.member.node)),
            refused: self.suspicion.is_some_and(|suspicion| suspicion.refused),
        }
    }

    /// Takes the next epoch. `stepped_down`: the primary gave up its role, and said where it ended.
    pub(super) fn elect(
        &mut self,
        last_first: bool,
        stepped_down: Option<(Member, Position)>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let now = self.now;
        let Some(known) = &self.known else { return false };
        let expected = known.revision;
        let Some(new) = next_record::electing(&known.record, self.sealed_elsewhere) else {
            self.status.reason = "there are no epochs left".to_owned();
            self.probe_after = now + self.settings.election_gap_max;
            self.step = Step::Watch;
            return false;
        };
        let gap = self.settings.election_gap.saturating_mul(1 << self.attempts.min(8));
        self.attempts = self.attempts.saturating_add(1);
        self.elect_after = now + gap.min(self.settings.election_gap_max);
        let start = Start {
            last_first,
            prefer: self.planned.as_ref().and_then(|planned| planned.target.clone()),
            stepped_down,
            suspected: self.suspicion.map_or(now, |suspicion| suspicion.since),
        };
        actions.push(Action::CasRecord { expected_revision: expected, new: new.clone() });
        self.step = Step::Electing { expected, new, start, until: now + CAS_WAIT };
        true
    }

    fn seal(&mut self, actions: &mut Vec<Action>) -> bool {
        let (now, about) = (self.now, self.circumstances());
        let Step::Sealing(sealing) = &mut self.step else { return false };
        let epoch = sealing.record.epoch;
        let reason = match sealing.progress(now, about) {
            Progress::Choose(basis, choice) => {
                let new = next_record::assigned(&sealing.record, &sealing.answers, basis, &choice);
                let assign = Assign {
                    epoch,
                    members: new.members.clone(),
                    process: choice.sealed.process,
                    position: choice.sealed.position,
                    prev_last: sealing.record.last.clone(),
                    commit_end: choice.commit_end,
                    lineage: new.lineage,
                    record_revision: 0, // known once it is written
                };
                let expected = sealing.revision;
                actions.push(Action::CasRecord { expected_revision: expected, new: new.clone() });
                let (to, assign) = (choice.member, Box::new(assign));
                self.step = Step::Assigning { expected, new, to, assign, until: now + CAS_WAIT };
                return true;
            }
            Progress::Unfit(unfit) => unfit.to_string(),
            Progress::Wait => "too few copies are sealed to choose a primary".to_owned(),
        };
        for to in sealing.take_due_calls(now, &self.settings) {
            actions.push(Action::Seal { to, epoch });
        }
        if sealing.is_overdue(now, &self.settings) {
            let waiting_for = seals::missing(&sealing.record, &sealing.answers);
            self.status = Status { waiting_for, reason };
        }
        false
    }

    pub(super) fn nothing_is_waited_for(&mut self) {
        self.status = Status::default();
        // What an earlier controller may have left goes, too.
        self.published.get_or_insert(Status { waiting_for: Vec::new(), reason: "unknown".to_owned() });
    }

    pub(super) fn publish(&mut self, actions: &mut Vec<Action>) {
        let published = self.published.clone().unwrap_or_default();
        if published != self.status {
            let Status { waiting_for, reason } = self.status.clone();
            actions.push(Action::PublishStatus { waiting_for, reason });
            self.published = Some(self.status.clone());
        }
    }
}
