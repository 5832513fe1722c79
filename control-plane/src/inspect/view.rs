//! From a record, its status and the copies' answers to what people see. Pure.

use proto::{control, replication as pb};
use std::fmt;
use std::time::Duration;
use types::{CopyId, Epoch, NodeName, Position, SpoolId};

use crate::claims::Status;
use spool::controller::seals;
use spool::record::{Member, Phase, Record};

/// As in the HTTP contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No record yet.
    Placing,
    /// What a primary needs is there, or still awaited.
    Electing,
    Serving,
    /// Served, with fewer than numSync copies reachable.
    ConfirmingBlocked,
    /// No set of copies answers of which a primary could be chosen.
    NoPrimary,
    /// Every node answers, and none has its copy.
    Lost,
}

impl State {
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Placing => "placing",
            State::Electing => "electing",
            State::Serving => "serving",
            State::ConfirmingBlocked => "confirming_blocked",
            State::NoPrimary => "no_primary",
            State::Lost => "lost",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Primary,
    Copy,
    /// Listed, and counts for nothing until the epoch that made it a member is confirmed.
    Learner,
}

impl Role {
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Primary => "primary",
            Role::Copy => "copy",
            Role::Learner => "learner",
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct CopyView {
    pub member: Member,
    pub role: Role,
    /// By the primary, as its owner sees it: confirmations come from here. Without a primary: answers.
    pub reachable: bool,
    /// Answered the control plane.
    pub answers: bool,
    /// Its own last position; `None`: it does not answer.
    pub position: Option<Position>,
    /// As the primary knows it, else its own. `None`: nobody knows.
    pub confirmed: Option<Position>,
    pub behind_entries: u64,
    pub behind: Duration,
}

#[derive(Clone, PartialEq, Debug)]
pub struct SpoolView {
    pub spool: SpoolId,
    pub state: State,
    /// `None`: no record yet.
    pub record: Option<Record>,
    pub waiting_for: Vec<NodeName>,
    pub waiting_writes: u64,
    /// The members, in the record's order.
    pub copies: Vec<CopyView>,
}

/// What a node said when it was asked for a spool.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    Copy(&'a pb::CopyStatus),
    NoCopy,
    /// It did not answer.
    None,
}

/// How customers see nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aliases {
    /// A local installation's user runs the nodes.
    NodeNames,
    /// `copy-1`, `copy-2`: the place in the record says nothing of the machine.
    Numbers,
}

/// One copy as listed, and what its node says of it: only the listed copy counts, not another on that node.
struct Asked<'a> {
    member: Member,
    status: Option<&'a pb::CopyStatus>,
    /// It answered: this copy, or that it has no such copy.
    answered: bool,
}

pub fn view<'a>(
    spool: SpoolId,
    record: Option<&Record>,
    status: Option<&Status>,
    answer: impl Fn(&NodeName) -> Answer<'a>,
) -> SpoolView {
    let Some(record) = record else {
        let none = (Vec::new(), Vec::new());
        return SpoolView {
            spool,
            state: State::Placing,
            record: None,
            waiting_for: none.0,
            waiting_writes: 0,
            copies: none.1,
        };
    };
    let ask = |member: Member| match answer(&member.node) {
        Answer::Copy(status) if *status.copy_id == *member.copy.as_bytes() => {
            Asked { member, status: Some(status), answered: true }
        }
        Answer::Copy(_) | Answer::NoCopy => Asked { member, status: None, answered: true },
        Answer::None => Asked { member, status: None, answered: false },
    };
    let voters: Vec<Asked<'_>> = seals::voters(record).into_iter().map(ask).collect();
    let primary = primary(record, &voters);
    let state = state(record, status, &voters, primary);
    let copies = record.members.iter().map(|member| copy(record, member, &voters, primary)).collect();
    let waiting_for = match state {
        State::NoPrimary => waiting_for(status, &voters),
        _ => Vec::new(),
    };
    SpoolView {
        spool,
        state,
        record: Some(record.clone()),
        waiting_for,
        waiting_writes: primary.map_or(0, |primary| primary.waiting_writes),
        copies,
    }
}

/// The last assigned copy, if it says that it serves in the record's epoch.
fn primary<'a>(record: &Record, voters: &[Asked<'a>]) -> Option<&'a pb::CopyStatus> {
    let last = record.last.as_ref().filter(|last| last.epoch == record.epoch)?;
    let status = voters.iter().find(|asked| asked.member == last.member)?.status?;
    let serves = status.role == "serving" && status.role_epoch == record.epoch.0;
    (serves && record.phase == Phase::Active).then_some(status)
}

fn state(
    record: &Record,
    status: Option<&Status>,
    voters: &[Asked<'_>],
    primary: Option<&pb::CopyStatus>,
) -> State {
    if let Some(primary) = primary {
        let reachable = primary.peers.iter().filter(|peer| peer.reachable && is_listed(record, peer)).count();
        return match reachable >= usize::from(record.k) {
            true => State::Serving,
            false => State::ConfirmingBlocked,
        };
    }
    if voters.iter().all(|asked| asked.answered && asked.status.is_none()) {
        return State::Lost;
    }
    let waits = status.is_some_and(|status| !status.waiting_for.is_empty());
    match waits || !electable(record, voters) {
        true => State::NoPrimary,
        false => State::Electing,
    }
}

fn is_listed(record: &Record, peer: &pb::PeerStatus) -> bool {
    let is = |member: &pb::Member, listed: &Member| *member.copy_id == *listed.copy.as_bytes();
    peer.member.as_ref().is_some_and(|member| record.members.iter().any(|listed| is(member, listed)))
}

/// Whether an election could succeed with those who answer. E4
fn electable(record: &Record, voters: &[Asked<'_>]) -> bool {
    let answers = |member: &Member| voters.iter().any(|a| a.member == *member && a.status.is_some());
    match &record.last {
        Some(last) if answers(&last.member) => true,
        Some(_) if record.n == 1 => false,
        _ => {
            let enough = |config: &[Member]| config.iter().filter(|m| answers(m)).count() >= record.need();
            record.configs().into_iter().all(enough)
        }
    }
}

/// As elections say; before they do, whoever does not answer.
fn waiting_for(status: Option<&Status>, voters: &[Asked<'_>]) -> Vec<NodeName> {
    match status.filter(|status| !status.waiting_for.is_empty()) {
        Some(status) => status.waiting_for.clone(),
        None => voters.iter().filter(|a| a.status.is_none()).map(|a| a.member.node.clone()).collect(),
    }
}

fn copy(
    record: &Record,
    member: &Member,
    voters: &[Asked<'_>],
    primary: Option<&pb::CopyStatus>,
) -> CopyView {
    let status = voters.iter().find(|asked| asked.member == *member).and_then(|asked| asked.status);
    let position = status.and_then(|status| status.position).map(read);
    let is_primary = primary.is_some_and(|primary| *primary.copy_id == *member.copy.as_bytes());
    let peer = primary.and_then(|primary| peer(primary, member.copy));
    let (reachable, confirmed, behind_entries, behind_ms) = match (is_primary, peer) {
        (true, _) => (true, position, 0, 0),
        (false, Some(p)) => (p.reachable, p.confirmed.map(read), p.behind_entries, p.behind_ms),
        // Without a primary only the distance to the furthest copy that answers is known.
        (false, None) => {
            let furthest = voters.iter().filter_map(|asked| asked.status?.position).map(|p| p.seq).max();
            let behind = furthest.zip(position).map_or(0, |(end, own)| end.saturating_sub(own.seq.0));
            (status.is_some(), position, behind, 0)
        }
    };
    let role = match (is_primary, record.configs().iter().all(|config| config.contains(member))) {
        (true, _) => Role::Primary,
        (false, true) => Role::Copy,
        (false, false) => Role::Learner,
    };
    CopyView {
        member: member.clone(),
        role,
        reachable,
        answers: status.is_some(),
        position,
        confirmed,
        behind_entries,
        behind: Duration::from_millis(behind_ms),
    }
}

fn peer(primary: &pb::CopyStatus, copy: CopyId) -> Option<&pb::PeerStatus> {
    let is = |member: &pb::Member| *member.copy_id == *copy.as_bytes();
    primary.peers.iter().find(|peer| peer.member.as_ref().is_some_and(is))
}

fn read(position: pb::Position) -> Position {
    Position::new(position.epoch, position.seq)
}

impl SpoolView {
    pub fn epoch(&self) -> Epoch {
        self.record.as_ref().map(|record| record.epoch).unwrap_or_default()
    }

    /// For the spool's owner. `row` is what PostgreSQL has of it.
    pub fn detail(&self, row: control::Spool, aliases: Aliases) -> control::SpoolDetail {
        control::SpoolDetail {
            spool: Some(row),
            state: self.state.as_str().to_owned(),
            epoch: self.epoch().0,
            waiting_for: self.waiting_for.iter().map(|node| self.alias(node, aliases)).collect(),
            waiting_writes: self.waiting_writes,
            copies: self.copies.iter().map(|copy| self.copy_detail(copy, aliases)).collect(),
        }
    }

    fn copy_detail(&self, copy: &CopyView, aliases: Aliases) -> control::CopyDetail {
        control::CopyDetail {
            alias: self.alias(&copy.member.node, aliases),
            role: copy.role.as_str().to_owned(),
            reachable: copy.reachable,
            confirmed_position: copy.confirmed.unwrap_or(Position::ZERO).to_string(),
            behind_entries: copy.behind_entries,
            behind_seconds: copy.behind.as_secs_f64(),
        }
    }

    /// Members come first; a node that is only waited for is numbered after them.
    fn alias(&self, node: &NodeName, aliases: Aliases) -> String {
        if aliases == Aliases::NodeNames {
            return node.to_string();
        }
        let members = self.copies.iter().map(|copy| &copy.member.node);
        let others = self.waiting_for.iter().filter(|node| members.clone().all(|member| member != *node));
        let place = members.clone().chain(others).position(|listed| listed == node);
        place.map_or_else(|| "copy".to_owned(), |place| format!("copy-{}", place + 1))
    }
}
