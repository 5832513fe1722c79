//! The sealed copies of one election: which of them count, whether they suffice, and which is furthest.
//! Pure questions to the record; nothing here remembers anything. E3 E4 E5 I12 I13

use std::collections::{BTreeMap, BTreeSet};
use types::{NodeName, Position, Seq};

use crate::event::Sealed;
use crate::record::{Member, Record};

/// Answers to the Seal of the record's epoch that count, by who gave them.
pub type SealedCopies = BTreeMap<Member, Sealed>;

/// Why the sealed copies suffice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// The last assigned primary's own copy is among them: it holds everything that was ever committed.
    LastPrimary,
    /// So many of each configuration that every committed entry is on at least one of them.
    Counted,
    /// Nobody was ever assigned, so nothing was ever committed.
    First,
    /// numSync is 0 and one of each configuration answered: what only the last primary has is lost.
    Lossy,
}

/// Who takes over.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    pub member: Member,
    pub sealed: Sealed,
    /// The highest commit end told by any of the sealed copies, within the chosen log.
    pub commit_end: Seq,
}

/// Sealed copies that suffice by number and of which none can be chosen.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    #[error("the furthest copy, on {}, is not a member", .holder.node)]
    NotAMember { holder: Member },
    #[error("the furthest copy ends at {position}, but a copy knows of commits before {commit_end}")]
    BelowCommit { position: Position, commit_end: Seq },
}

/// Everybody that an election asks: the members and the configurations not yet superseded. The last
/// primary's copy is first, because its answer alone suffices; then the order of the record.
pub fn voters(record: &Record) -> Vec<Member> {
    let mut seen = BTreeSet::new();
    let last = record.last.iter().map(|last| &last.member);
    let all = record.members.iter().chain(record.prev.iter().flatten());
    let listed: BTreeSet<&Member> = all.clone().collect();
    last.filter(|last| listed.contains(last)).chain(all).filter(|m| seen.insert(*m)).cloned().collect()
}

/// Whether an answer counts: of this epoch, by the copy (node AND disk) that the record lists, which trusts
/// itself, and did not lose what it had when it was assigned. E3 I13
pub fn counts(record: &Record, from: &Member, sealed: &Sealed) -> bool {
    let listed = record.members.iter().chain(record.prev.iter().flatten()).any(|member| member == from);
    let fell_back =
        record.last.as_ref().is_some_and(|last| last.member == *from && sealed.position < last.position);
    listed && sealed.copy == from.copy && sealed.epoch == record.epoch && sealed.authoritative && !fell_back
}

/// E4: the last assigned primary on its own disk, or n-k (one, if numSync is 0) of every configuration that
/// is not yet superseded.
pub fn basis(record: &Record, sealed: &SealedCopies) -> Option<Basis> {
    if record.last.as_ref().is_some_and(|last| sealed.contains_key(&last.member)) {
        return Some(Basis::LastPrimary);
    }
    let of = |config: &[Member]| config.iter().filter(|member| sealed.contains_key(member)).count();
    if record.configs().into_iter().any(|config| of(config) < record.need()) {
        return None;
    }
    match record.last {
        None => Some(Basis::First),
        // Another copy of a spool with one copy does not exist.
        Some(_) if record.n == 1 => None,
        Some(_) if record.k == 0 => Some(Basis::Lossy),
        Some(_) => Some(Basis::Counted),
    }
}

/// E5: the greatest (last epoch, seq) over all that are sealed, by a copy that is a member. Among equals:
/// `prefer`, the previous primary, the order of the record.
pub fn choose(
    record: &Record,
    sealed: &SealedCopies,
    prefer: Option<&Member>,
) -> Option<Result<Choice, Unfit>> {
    let (holder, furthest) = sealed.iter().max_by_key(|(_, sealed)| sealed.position)?;
    let last = record.last.as_ref().map(|last| &last.member);
    let equal = |member: &&Member| sealed.get(member).is_some_and(|s| s.position == furthest.position);
    let rank = |member: &&Member| (Some(*member) != prefer, Some(*member) != last);
    // `min_by_key` takes the first of equals.
    let Some(member) = record.members.iter().filter(equal).min_by_key(rank) else {
        return Some(Err(Unfit::NotAMember { holder: holder.clone() }));
    };
    let chosen = &sealed[member];
    let log_end = chosen.position.seq.next();
    let told = sealed.values().filter(|s| s.lineage == chosen.lineage).map(|s| s.commit_end).max();
    let commit_end = told.unwrap_or_default();
    // With numSync = 0 a copy may know of commits that it never received: they say what is lost.
    if record.k > 0 && commit_end > log_end {
        return Some(Err(Unfit::BelowCommit { position: chosen.position, commit_end }));
    }
    let commit_end = commit_end.min(log_end);
    Some(Ok(Choice { member: member.clone(), sealed: chosen.clone(), commit_end }))
}

/// The nodes of voters that are not sealed, in the order that they are asked in.
pub fn missing(record: &Record, sealed: &SealedCopies) -> Vec<NodeName> {
    let mut nodes = Vec::new();
    for voter in voters(record).into_iter().filter(|voter| !sealed.contains_key(voter)) {
        if !nodes.contains(&voter.node) {
            nodes.push(voter.node);
        }
    }
    nodes
}

/// I12, stated anew and by other means than [`basis`] and [`choose`]: called with every assignment.
pub fn assert_may_be_assigned(record: &Record, sealed: &SealedCopies, choice: &Choice) {
    let epoch = record.epoch;
    for (member, answer) in sealed {
        assert!(
            counts(record, member, answer),
            "I13 {epoch}: {member:?} counted with {answer:?} in {record:?}"
        );
    }
    let holds_last = record.last.as_ref().is_some_and(|last| sealed.keys().any(|m| *m == last.member));
    let need = if record.k == 0 { 1 } else { usize::from(record.n) - usize::from(record.k) };
    let configs = if record.prev.is_empty() { vec![record.members.clone()] } else { record.prev.clone() };
    let each = configs.iter().all(|config| sealed.keys().filter(|m| config.contains(m)).count() >= need);
    assert!(holds_last || each, "I12 {epoch}: {sealed:?} do not suffice in {record:?}");
    assert!(
        sealed.values().all(|other| other.position <= choice.sealed.position),
        "I12 {epoch}: {choice:?} is not the furthest of {sealed:?}"
    );
    assert!(record.members.contains(&choice.member), "I12 {epoch}: {choice:?} is not a member of {record:?}");
}
