//! A planned move: probe who could take over, ask the primary to step down for it, elect with the primary's own
//! seal. It loses nothing and waits for no promise, because the primary releases them. Once the primary was
//! asked, the move is an election like any other; what a move adds is who is preferred among equals.

use std::time::Duration;
use types::{Epoch, Moment, NodeName, Position};

use super::interface::{Action, MoveError, Moved, StepDownAnswer};
use super::{Controller, Step, Suspicion};
use crate::record::{Member, Phase, Record};

/// A primary drains for at most a second before it answers a StepDown.
const STEP_DOWN_WAIT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Move {
    /// The primary to move away from, and its epoch.
    from: Member,
    epoch: Epoch,
    /// Who may take over; what was asked for, or all others.
    candidates: Vec<Member>,
    pub(super) target: Option<Member>,
    pub(super) ends: Moment,
}

impl Controller {
    pub(super) fn on_move(&mut self, target: Option<NodeName>, actions: &mut Vec<Action>) {
        match self.plan_move(target) {
            Ok(planned) => self.planned = Some(planned),
            Err(outcome) => actions.push(Action::MoveDone { outcome }),
        }
    }

    /// `Err` is the outcome of a move that is over before it began.
    fn plan_move(&self, target: Option<NodeName>) -> Result<Move, Result<Moved, MoveError>> {
        if self.planned.is_some() {
            return Err(Err(MoveError::Busy));
        }
        let record = self.record().ok_or(Err(MoveError::NoSuchSpool))?;
        let last = record.last.as_ref().filter(|_| record.phase == Phase::Active);
        let from = &last.ok_or(Err(MoveError::NoPrimary))?.member;
        let candidates: Vec<Member> = match target {
            Some(node) if node == from.node => {
                return Err(Ok(Moved { epoch: record.epoch, from: node.clone(), to: node }));
            }
            Some(node) => match record.members.iter().find(|member| member.node == node) {
                Some(member) => vec![member.clone()],
                None => return Err(Err(MoveError::NotAMember { node })),
            },
            None => record.members.iter().filter(|member| *member != from).cloned().collect(),
        };
        if candidates.is_empty() {
            return Err(Err(MoveError::NoOther));
        }
        let (from, epoch, ends) = (from.clone(), record.epoch, self.now + self.settings.move_wait);
        Ok(Move { from, epoch, candidates, target: None, ends })
    }

    /// Starts the move that waits, if one does. A suspected primary is asked all the same: if it does not
    /// answer, the pre-check follows.
    pub(super) fn begin_move(&mut self, actions: &mut Vec<Action>) -> bool {
        let Some(planned) = self.planned.as_ref().filter(|planned| planned.target.is_none()) else {
            return false;
        };
        let candidates = planned.candidates.clone();
        let round = self.probe(candidates, actions);
        self.step = Step::ProbingTargets(round);
        true
    }

    /// The furthest of those who answer.
    pub(super) fn pick_target(&mut self, actions: &mut Vec<Action>) -> bool {
        let (Step::ProbingTargets(round), Some(planned)) = (&self.step, &mut self.planned) else {
            self.step = Step::Watch;
            return true;
        };
        let position = |member: &Member| round.probed(member).map(|probed| probed.position);
        // The first of equals.
        let answered = planned.candidates.iter().rev().filter(|member| position(member).is_some());
        let furthest = answered.max_by_key(|member| position(member));
        let all = planned.candidates.iter().all(|member| round.has_answer(member));
        let until = if furthest.is_some() { round.silent_after } else { round.ends };
        if self.now < until && !all {
            return false;
        }
        let Some(target) = furthest.cloned() else {
            self.step = Step::Watch;
            self.end_move(Err(MoveError::Unreachable), actions);
            return true;
        };
        let (to, epoch) = (planned.from.clone(), planned.epoch);
        actions.push(Action::StepDown { to, epoch, target: target.copy });
        planned.target = Some(target);
        self.step = Step::SteppingDown { until: self.now + STEP_DOWN_WAIT };
        true
    }

    pub(super) fn on_step_down_reply(
        &mut self,
        from: &Member,
        epoch: Epoch,
        answer: &StepDownAnswer,
        actions: &mut Vec<Action>,
    ) {
        let asked =
            self.planned.as_ref().is_some_and(|planned| planned.from == *from && planned.epoch == epoch);
        if !asked || !matches!(self.step, Step::SteppingDown { .. }) {
            return;
        }
        match answer {
            StepDownAnswer::SteppedDown(end) => {
                self.step = Step::Watch;
                let stepped_down: Option<(Member, Position)> = Some((from.clone(), *end));
                self.elect(false, stepped_down, actions);
            }
            StepDownAnswer::NotPrimary => {
                self.step_down_unanswered();
                self.end_move(Err(MoveError::NoPrimary), actions);
            }
            StepDownAnswer::Failed => self.step_down_unanswered(),
        }
    }

    /// It may have given up its role: look, as after any suspicion.
    pub(super) fn step_down_unanswered(&mut self) {
        self.step = Step::Watch;
        self.probe_after = self.now;
        self.suspicion.get_or_insert(Suspicion { since: self.now, refused: false });
    }

    /// A primary is active: is it the one that was asked for?
    pub(super) fn settle_move(&mut self, record: &Record, actions: &mut Vec<Action>) {
        let (Some(planned), Some(last)) = (&self.planned, &record.last) else { return };
        if record.epoch <= planned.epoch {
            return;
        }
        let to = last.member.node.clone();
        let arrived = match &planned.target {
            Some(target) => *target == last.member,
            None => planned.candidates.contains(&last.member),
        };
        let moved = Moved { epoch: record.epoch, from: planned.from.node.clone(), to: to.clone() };
        self.end_move(if arrived { Ok(moved) } else { Err(MoveError::Elsewhere { node: to }) }, actions);
    }

    pub(super) fn end_move(&mut self, outcome: Result<Moved, MoveError>, actions: &mut Vec<Action>) {
        if self.planned.take().is_some() {
            actions.push(Action::MoveDone { outcome });
        }
    }
}
