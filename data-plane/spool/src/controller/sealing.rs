//! One election between its two compare-and-swaps: who is asked to seal, who answered, and whether the answers
//! allow a choice yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{Epoch, Moment, Position};

use super::interface::SealAnswer;
use super::seals::{self, Basis, Choice, SealedCopies, Unfit};
use super::{Settings, precheck::Circumstances};
use crate::record::{Member, Record};

/// A call that is repeated until it is answered.
#[derive(Clone, Debug)]
pub(super) struct Call {
    sent: Moment,
    failed: Option<Moment>,
    tries: u32,
}

impl Call {
    pub(super) fn sent(now: Moment) -> Call {
        Call { sent: now, failed: None, tries: 1 }
    }

    pub(super) fn failed(&mut self, now: Moment) {
        self.failed.get_or_insert(now);
    }

    pub(super) fn resent(&mut self, now: Moment) {
        *self = Call { sent: now, failed: None, tries: self.tries.saturating_add(1) };
    }

    /// When it is sent again: some time after it failed, or once it is too late for an answer.
    pub(super) fn due(&self, deadline: Duration) -> Moment {
        const RETRY_MAX: Duration = Duration::from_secs(5);
        let retry = Duration::from_millis(250).saturating_mul(1 << self.tries.min(6)).min(RETRY_MAX);
        self.failed.map_or(self.sent + deadline, |at| at + retry)
    }
}

#[derive(Debug)]
pub(super) struct Sealing {
    pub(super) record: Record,
    pub(super) revision: i64,
    pub(super) answers: SealedCopies,
    started: Moment,
    calls: BTreeMap<Member, Call>,
    /// Their nodes say that the copy is not there, or does not trust itself.
    gone: BTreeSet<Member>,
    /// Until then the last primary's copy alone is asked.
    last_first_until: Option<Moment>,
    fence_ends: Option<Moment>,
    grace_ends: Moment,
    prefer: Option<Member>,
    prefer_until: Moment,
    /// Where the primary that stepped down said that its reign ended.
    stepped_down: Option<(Member, Position)>,
}

/// What an election starts with.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) last_first: bool,
    pub(super) prefer: Option<Member>,
    pub(super) stepped_down: Option<(Member, Position)>,
    pub(super) suspected: Moment,
}

#[derive(Debug)]
pub(super) enum Progress {
    Wait,
    Choose(Basis, Choice),
    Unfit(Unfit),
}

impl Sealing {
    pub(super) fn new(
        now: Moment,
        record: Record,
        revision: i64,
        start: Start,
        settings: &Settings,
    ) -> Sealing {
        Sealing {
            // S8: counted from the return of this controller's own Txn.
            fence_ends: record.fence_due.then_some(now + settings.fence),
            grace_ends: start.suspected + settings.grace,
            last_first_until: start.last_first.then_some(now + settings.call_wait),
            prefer: start.prefer,
            prefer_until: now + settings.call_wait,
            stepped_down: start.stepped_down,
            record,
            revision,
            started: now,
            answers: SealedCopies::new(),
            calls: BTreeMap::new(),
            gone: BTreeSet::new(),
        }
    }

    /// Notes an answer; returns the higher epoch that it told of, if any.
    pub(super) fn answered(&mut self, now: Moment, from: &Member, answer: SealAnswer) -> Option<Epoch> {
        match answer {
            SealAnswer::StaleEpoch(sealed) if sealed > self.record.epoch => return Some(sealed),
            SealAnswer::Sealed(sealed) if self.counts(from, &sealed) => {
                self.gone.remove(from);
                self.answers.insert(from.clone(), sealed);
            }
            SealAnswer::Sealed(_) | SealAnswer::UnknownCopy => {
                self.gone.insert(from.clone());
                self.failed(now, from);
            }
            SealAnswer::StaleEpoch(_) | SealAnswer::Failed => self.failed(now, from),
        }
        None
    }

    fn counts(&self, from: &Member, sealed: &crate::event::Sealed) -> bool {
        let whole = |(member, end): &(Member, Position)| member != from || sealed.position >= *end;
        seals::counts(&self.record, from, sealed) && self.stepped_down.as_ref().is_none_or(whole)
    }

    fn failed(&mut self, now: Moment, from: &Member) {
        if let Some(call) = self.calls.get_mut(from) {
            call.failed(now);
        }
    }

    /// A node came back: ask it now.
    pub(super) fn node_is_back(&mut self, node: &types::NodeName) {
        self.calls.retain(|member, _| member.node != *node);
    }

    /// Whom to ask now; they count as asked.
    pub(super) fn take_due_calls(&mut self, now: Moment, settings: &Settings) -> Vec<Member> {
        let mut due = Vec::new();
        for voter in self.asked(now) {
            if self.answers.contains_key(&voter) {
                continue;
            }
            match self.calls.get_mut(&voter) {
                Some(call) if now < call.due(settings.seal_wait()) => continue,
                Some(call) => call.resent(now),
                None => drop(self.calls.insert(voter.clone(), Call::sent(now))),
            }
            due.push(voter);
        }
        due
    }

    fn asked(&self, now: Moment) -> Vec<Member> {
        let voters = seals::voters(&self.record);
        if let (Some(until), Some(last)) = (self.last_first_until, &self.record.last) {
            let failed = self.calls.get(&last.member).is_some_and(|call| call.failed.is_some());
            if now < until && !failed {
                return voters.into_iter().filter(|voter| *voter == last.member).collect();
            }
        }
        voters
    }

    pub(super) fn progress(&self, now: Moment, about: Circumstances) -> Progress {
        let Some(basis) = seals::basis(&self.record, &self.answers) else { return Progress::Wait };
        let waits_for_preferred = self.prefer.as_ref().is_some_and(|prefer| {
            now < self.prefer_until && !self.answers.contains_key(prefer) && !self.gone.contains(prefer)
        });
        // S9: a right to serve that rests on the etcd guard ends by time, or with its holder's own seal.
        let fenced = self.fence_ends.is_some_and(|ends| now < ends) && basis != Basis::LastPrimary;
        if waits_for_preferred || fenced || (basis == Basis::Lossy && !self.may_lose(now, about)) {
            return Progress::Wait;
        }
        match seals::choose(&self.record, &self.answers, self.prefer.as_ref()) {
            None => Progress::Wait,
            Some(Ok(choice)) => Progress::Choose(basis, choice),
            Some(Err(unfit)) => Progress::Unfit(unfit),
        }
    }

    /// The last primary had its time to come back, and is gone: its node stands still, or its copy is no more.
    fn may_lose(&self, now: Moment, about: Circumstances) -> bool {
        let gone = self.record.last.as_ref().is_some_and(|last| self.gone.contains(&last.member));
        about.lossy && now >= self.grace_ends && (gone || !about.last_advances)
    }

    /// The first round of Seals had time enough to be answered.
    pub(super) fn is_overdue(&self, now: Moment, settings: &Settings) -> bool {
        now >= self.started + settings.seal_wait()
    }

    pub(super) fn wakeups(&self, now: Moment, settings: &Settings) -> impl Iterator<Item = Moment> {
        let open = self.asked(now).into_iter().filter(|voter| !self.answers.contains_key(voter));
        let calls: Vec<Moment> = open
            .filter_map(|voter| self.calls.get(&voter).map(|call| call.due(settings.seal_wait())))
            .collect();
        calls.into_iter().chain(self.last_first_until).chain(self.fence_ends).chain([
            self.grace_ends,
            self.prefer_until,
            self.started + settings.seal_wait(),
        ])
    }
}
