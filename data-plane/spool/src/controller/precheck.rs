//! Before an epoch is spent: is the primary really gone, and would an election succeed? One round asks every
//! voter what it knows. All of it is advisory, no safety is in it: it keeps a hiccup, or one copy's lost
//! connection, from deposing a primary that serves.

use std::collections::BTreeMap;
use std::time::Duration;
use types::{Moment, NodeName};

use super::seals;
use crate::event::Probed;
use crate::record::{Last, Member, Phase, Record};

/// What came back from a voter's node.
#[derive(Clone, PartialEq, Debug)]
pub enum ProbeAnswer {
    Probed(Probed),
    /// No such spool, or another copy of it, on that node's disk.
    UnknownCopy,
    /// No answer within the call's deadline, or no connection.
    Failed,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// Not enough is known yet.
    Wait,
    /// The primary answered: it serves.
    Serving,
    Elect {
        /// The primary serves on while the record says electing: seal its own copy first, so that it goes on
        /// at once, with its leases.
        last_first: bool,
    },
    NotElectable {
        /// Whose answers are missing.
        waiting_for: Vec<NodeName>,
        /// A copy says that it hears the primary.
        heard: bool,
    },
}

/// What a verdict depends on beside the answers.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// T_suspect.
    pub suspect: Duration,
    /// Elections of numSync = 0 that lose the last primary's tail are allowed.
    pub lossy: bool,
    /// The primary's node still renews its alive key.
    pub last_advances: bool,
    /// Connections to the primary's node are refused, so its process is gone.
    pub refused: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Round {
    pub number: u64,
    /// From here on, a primary that did not answer counts as silent.
    pub silent_after: Moment,
    /// From here on, nobody is waited for. Much later: with many elections at once, answers take their time.
    pub ends: Moment,
    answers: BTreeMap<Member, ProbeAnswer>,
}

impl Round {
    pub fn new(number: u64, silent_after: Moment, ends: Moment) -> Round {
        Round { number, silent_after, ends, answers: BTreeMap::new() }
    }

    /// An answer for another copy than the one asked says nothing about it. E3
    pub fn answered(&mut self, from: Member, answer: ProbeAnswer) {
        let answer = match answer {
            ProbeAnswer::Probed(probed) if probed.copy != from.copy => ProbeAnswer::UnknownCopy,
            answer => answer,
        };
        self.answers.insert(from, answer);
    }

    pub fn probed(&self, member: &Member) -> Option<&Probed> {
        match self.answers.get(member) {
            Some(ProbeAnswer::Probed(probed)) => Some(probed),
            _ => None,
        }
    }

    pub fn has_answer(&self, member: &Member) -> bool {
        self.answers.contains_key(member)
    }

    pub fn verdict(&self, now: Moment, record: &Record, about: Circumstances) -> Verdict {
        // Nobody was ever assigned: there is nobody to depose.
        let Some(last) = &record.last else { return Verdict::Elect { last_first: false } };
        if let Some(own) = self.probed(&last.member) {
            return match own.serving {
                Some(epoch) if epoch >= record.epoch => Verdict::Serving,
                // It has not heard of the epochs that came after its own.
                Some(_) => Verdict::Elect { last_first: true },
                // It waits for promises. Without the others nobody could serve in its place; else
                // they say whether they have lost it.
                None if own.leading == Some(record.epoch) => match record.n == 1 || record.k == 0 {
                    true => Verdict::Serving,
                    false => return self.of_the_others(now, record, last, about),
                },
                // Its own copy is there and does not serve: it alone suffices.
                None => Verdict::Elect { last_first: false },
            };
        }
        self.of_the_others(now, record, last, about)
    }

    fn of_the_others(&self, now: Moment, record: &Record, last: &Last, about: Circumstances) -> Verdict {
        let over = now >= self.ends;
        let primary_is_silent = now >= self.silent_after || self.has_answer(&last.member);
        if primary_is_silent && self.enough_lost_it(record, &last.member, about) {
            return Verdict::Elect { last_first: false };
        }
        let voters = seals::voters(record);
        if !over && !voters.iter().all(|voter| self.has_answer(voter)) {
            return Verdict::Wait;
        }
        let heard =
            voters.iter().filter_map(|voter| self.probed(voter)).any(|p| !lost_primary(p, about.suspect));
        let silent = voters.into_iter().filter(|voter| self.probed(voter).is_none()).map(|voter| voter.node);
        let only_last = record.n == 1 || (record.k == 0 && !about.lossy);
        let waiting_for = if only_last { vec![last.member.node.clone()] } else { silent.collect() };
        Verdict::NotElectable { waiting_for, heard: heard && record.phase == Phase::Active }
    }

    /// So many voters of each configuration as an election without the last primary needs say that it is gone.
    fn enough_lost_it(&self, record: &Record, last: &Member, about: Circumstances) -> bool {
        // Its node lives, and is heard, but has no such copy any more: nobody serves there.
        let gone = matches!(self.answers.get(last), Some(ProbeAnswer::UnknownCopy));
        let says_so = |probed: &Probed| gone || lost_primary(probed, about.suspect);
        let lost = |m: &&Member| *m != last && self.probed(m).is_some_and(says_so);
        let enough = |config: &[Member]| config.iter().filter(lost).count() >= record.need();
        if record.n == 1 || !record.configs().into_iter().all(enough) {
            return false;
        }
        // With numSync = 0 electing past a primary that lives loses its tail: its node must be gone, too.
        record.k > 0 || (about.lossy && (gone || about.refused || !about.last_advances))
    }
}

fn lost_primary(probed: &Probed, suspect: Duration) -> bool {
    probed.primary_refused || probed.heard.is_none_or(|ago| ago >= suspect)
}
