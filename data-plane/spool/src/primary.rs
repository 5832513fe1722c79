//! A primary and the other copies: taking over, sending entries, counting confirmations, the right to serve.

use crate::copy::{Context, Role, SpoolCopy};
use crate::entry::{Body, Entry};
use crate::event::{
    Activate, Append, Assign, CallId, CallReply, Confirm, CopyStatus, Effects, Note, PeerMessage, PeerStatus,
    Reject, RejectReason, RoleStatus,
};
use crate::record::{Member, promises_needed};
use crate::serve::Serve;
use crate::store::{Overlay, StoreError};
use crate::token::Tenure;
use std::collections::VecDeque;
use std::time::Duration;
use types::{CopyId, Epoch, Moment, NodeName, Position, Seq, WallMs, limits};

/// Activation waits so long for the barrier's commit, so that one Txn does for both.
const ACTIVATE_AFTER: Duration = Duration::from_millis(100);
/// A question that got no answer is asked again.
const PROBE_EVERY: Duration = Duration::from_millis(300);
/// Entries sent and not confirmed for so long were lost.
const STALLED_AFTER: Duration = Duration::from_secs(2);
/// What copies should know though nothing new is written: the commit, the trim point.
const KEEP_UP_EVERY: Duration = Duration::from_millis(200);

pub(crate) struct Primary {
    pub epoch: Epoch,
    /// The configuration that this epoch was assigned with.
    members: Vec<Member>,
    pub peers: Vec<Peer>,
    /// Exclusive end of the barrier: nothing older counts before it commits. E7
    barrier_end: Seq,
    record_revision: i64,
    assigned_at: Moment,
    looked_at: Moment,
    activation: Activation,
    prev_cleared: bool,
    /// A planned change: admits nothing more, and answers this call when drained.
    stepping_down: Option<(CallId, Option<CopyId>, Moment)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Activation {
    NotAsked,
    Asked { clear_prev: bool },
    Active,
}

/// Another copy, as its primary sees it.
pub(crate) struct Peer {
    pub member: Member,
    /// The next entry to send.
    next: Seq,
    /// Exclusive end of what it confirmed in this epoch. Never goes back.
    pub match_end: Seq,
    /// Whether the logs agree before `next` is being asked.
    probing: bool,
    probe_at: Moment,
    /// Sent and not confirmed: exclusive end, bytes.
    inflight: VecDeque<(Seq, usize)>,
    inflight_bytes: usize,
    progress_at: Moment,
    number: u64,
    said_commit: Seq,
    said_at: Moment,
    /// Its log ends before this copy's begins: entries alone do not help.
    pub needs_state: bool,
}

impl Peer {
    fn new(member: Member, next: Seq, now: Moment) -> Peer {
        Peer {
            member,
            next,
            match_end: Seq(0),
            probing: true,
            probe_at: now,
            inflight: VecDeque::new(),
            inflight_bytes: 0,
            progress_at: now,
            number: 0,
            said_commit: Seq(0),
            said_at: now,
            needs_state: false,
        }
    }

    fn ask_again(&mut self, now: Moment) {
        self.probing = true;
        self.probe_at = now;
        self.inflight.clear();
        self.inflight_bytes = 0;
        if self.match_end > Seq(0) {
            self.next = self.match_end;
        }
    }
}

impl SpoolCopy {
    // ---- taking over

    pub(crate) fn on_assign(
        &mut self,
        ctx: &Context<'_>,
        assign: Assign,
        out: &mut Effects,
    ) -> Result<CallReply, StoreError> {
        if let Role::Primary(primary) = &self.role
            && primary.epoch == assign.epoch
        {
            return Ok(CallReply::Assigned);
        }
        if assign.epoch < self.meta.sealed {
            return Ok(CallReply::StaleEpoch { sealed: self.meta.sealed });
        }
        let refused = |why: &str| Ok(CallReply::AssignRefused { why: why.to_owned() });
        // An epoch is taken up once, by the process that answered its Seal. E1
        if assign.epoch != self.meta.sealed || !self.seal_is_durable() || self.following.is_some() {
            return refused("this copy has not sealed that epoch");
        }
        if assign.process != self.facts.process {
            return refused("another process answered the Seal");
        }
        if assign.position != self.log.last() {
            return refused("this copy is not where it was");
        }
        if self.log.last().epoch >= assign.epoch {
            return refused("the epoch was taken up and given up again");
        }
        if !assign.members.contains(&self.id.member()) {
            return refused("this copy is not a member");
        }
        self.take_over(ctx, assign, out)?;
        Ok(CallReply::Assigned)
    }

    fn take_over(&mut self, ctx: &Context<'_>, assign: Assign, out: &mut Effects) -> Result<(), StoreError> {
        let now = ctx.now.mono;
        // The same process, and nobody in between: its leases still hold.
        let goes_on = self.serve.as_ref().is_some_and(|serve| {
            assign
                .prev_last
                .as_ref()
                .is_some_and(|last| last.epoch == serve.last_epoch && last.process == self.facts.process)
        });
        if !goes_on {
            let tenure = Tenure { epoch: assign.epoch, boot_no: self.facts.boot_no };
            let floor = self.log_time_floor(ctx, out)?;
            let log_time = self.log_time_now(ctx, &assign.members).max(floor);
            self.serve = Some(Box::new(Serve::new(tenure, ctx.now.mono, log_time)));
        }
        if let Some(serve) = &mut self.serve {
            serve.last_epoch = assign.epoch;
        }
        let others = assign.members.iter().filter(|member| member.copy != self.id.copy);
        let peers = others.map(|member| Peer::new(member.clone(), self.log.end(), now)).collect();
        self.role = Role::Primary(Box::new(Primary {
            epoch: assign.epoch,
            members: assign.members,
            peers,
            barrier_end: self.log.end().next(),
            record_revision: assign.record_revision,
            assigned_at: now,
            looked_at: now,
            activation: Activation::NotAsked,
            prev_cleared: false,
            stepping_down: None,
        }));
        self.meta.lineage = self.meta.lineage.max(assign.lineage);
        self.append(ctx, Body::Barrier, out);
        out.notes.push(Note::BecamePrimary { epoch: assign.epoch, position: self.log.last() });
        Ok(())
    }

    /// The log time of the last entry: the next one's is not earlier. I19
    fn log_time_floor(&self, ctx: &Context<'_>, out: &Effects) -> Result<WallMs, StoreError> {
        if self.log.last() == Position::ZERO || self.log.end() == self.log.trim_end() {
            return Ok(self.state.log_time());
        }
        let read = Overlay { store: ctx.store, batch: &out.batch };
        Ok(self.log.entry(self.log.end().prev(), &read)?.log_time)
    }

    /// What log time should be by now: as the last primary counted it, as far as this process has heard, and no
    /// earlier than most clocks say. One clock that is wrong moves no delay and no window. I19
    fn log_time_now(&self, ctx: &Context<'_>, members: &[Member]) -> WallMs {
        let heard = self.heard_time.map(|(at, time)| time + ctx.now.mono.since(at));
        let shown = |(at, wall): (Moment, WallMs)| wall + ctx.now.mono.since(at);
        let others = members.iter().filter_map(|member| ctx.pairs.wall_clock(&member.node)).map(shown);
        let mut clocks: Vec<WallMs> = others.chain([ctx.now.wall]).collect();
        clocks.sort_unstable();
        let middle = clocks[(clocks.len() - 1) / 2];
        match heard {
            Some(heard) if clocks.len() == 1 => heard,
            Some(heard) => heard.max(middle),
            None => middle,
        }
    }

    /// The one place where an entry comes into being. Returns its seq.
    pub(crate) fn append(&mut self, ctx: &Context<'_>, body: Body, out: &mut Effects) -> Seq {
        let (Role::Primary(primary), Some(serve)) = (&self.role, &mut self.serve) else {
            unreachable!("only a primary appends") // I1
        };
        assert_eq!(primary.epoch, self.meta.sealed); // I3
        let position = Position { epoch: primary.epoch, seq: self.log.end() };
        let entry = Entry::encode(position, serve.stamp(ctx.now), &body, self.log.end_chain());
        serve.appended(&entry, body);
        self.log.append(entry, &mut out.batch);
        self.want_sync = true;
        position.seq
    }

    pub(crate) fn on_activated(&mut self, epoch: Epoch, ok: bool, out: &mut Effects) {
        let Role::Primary(primary) = &mut self.role else { return };
        if primary.epoch != epoch {
            return;
        }
        let Activation::Asked { clear_prev } = primary.activation else { return };
        if ok {
            primary.activation = Activation::Active;
            primary.prev_cleared = clear_prev;
        } else {
            self.drop_role("the record has moved on", out);
        }
    }

    pub(crate) fn on_prev_cleared(&mut self, epoch: Epoch, ok: bool) {
        if let Role::Primary(primary) = &mut self.role
            && primary.epoch == epoch
            && !ok
        {
            // Somebody elects; the Seal will say so.
            primary.prev_cleared = true;
        }
    }

    // ---- giving up

    pub(crate) fn drop_role(&mut self, why: &'static str, out: &mut Effects) {
        if let Role::Primary(primary) = std::mem::replace(&mut self.role, Role::Follower) {
            if let Some((call, ..)) = primary.stepping_down {
                out.calls.push((call, CallReply::SteppedDown { position: self.log.last() }));
            }
            self.dismiss_clients(primary.epoch, out);
            out.notes.push(Note::LostRole { epoch: primary.epoch, why });
        }
    }

    pub(crate) fn on_step_down(
        &mut self,
        ctx: &Context<'_>,
        id: CallId,
        epoch: Epoch,
        target: Option<CopyId>,
        out: &mut Effects,
    ) {
        let sealed = self.meta.sealed;
        match &mut self.role {
            Role::Primary(primary) if primary.epoch == epoch && primary.stepping_down.is_none() => {
                let until = ctx.now.mono + Duration::from_secs(1);
                primary.stepping_down = Some((id, target, until));
            }
            _ => out.calls.push((id, CallReply::NotPrimary { sealed })),
        }
    }

    /// Drained, and the target has everything: give up the role for good, then tell the copies. S5
    ///
    /// At a step's end: what this step commits is answered first.
    pub(crate) fn finish_step_down(&mut self, ctx: &Context<'_>, out: &mut Effects) {
        let Role::Primary(primary) = &self.role else { return };
        let Some((_, target, until)) = primary.stepping_down else { return };
        let end = self.log.end();
        let drained = self.state.applied_end() == end && self.log.durable_end() == end;
        let equal = primary
            .peers
            .iter()
            .any(|peer| peer.match_end == end && target.is_none_or(|target| peer.member.copy == target));
        if !(drained && equal) && ctx.now.mono < until {
            return;
        }
        let epoch = primary.epoch;
        let copies: Vec<Member> = primary.peers.iter().map(|peer| peer.member.clone()).collect();
        self.drop_role("handed over", out);
        for member in copies {
            out.peers.push((member, PeerMessage::Release { epoch }));
        }
    }

    // ---- the right to serve

    /// Until when promises of the copies cover this primary's answers. I15
    fn guard_until(&self, ctx: &Context<'_>) -> Moment {
        let Role::Primary(primary) = &self.role else { return Moment::ZERO };
        let needed = promises_needed(self.id.n, self.id.k);
        if needed == 0 {
            return Moment(u64::MAX);
        }
        let mut sent: Vec<Moment> = primary
            .peers
            .iter()
            .filter_map(|peer| ctx.pairs.promised(&peer.member.node, self.id.spool, primary.epoch))
            .collect();
        sent.sort_unstable_by(|a, b| b.cmp(a));
        // S3: counted from the sending.
        sent.get(needed - 1)
            .map_or(Moment::ZERO, |at| *at + self.settings.promise.saturating_sub(self.settings.promise_skew))
    }

    pub(crate) fn guard_is_valid(&self, ctx: &Context<'_>) -> bool {
        ctx.now.mono < self.guard_until(ctx)
    }

    /// Active, and its barrier committed: requests can be taken. Says nothing about the guard.
    pub(crate) fn in_office(&self) -> bool {
        match &self.role {
            Role::Primary(primary) => {
                primary.activation == Activation::Active && self.commit_end >= primary.barrier_end
            }
            Role::Follower => false,
        }
    }

    pub(crate) fn is_stepping_down(&self) -> bool {
        matches!(&self.role, Role::Primary(primary) if primary.stepping_down.is_some())
    }

    pub(crate) fn serving_epoch(&self, ctx: &Context<'_>) -> Option<Epoch> {
        match &self.role {
            Role::Primary(primary) if self.in_office() && self.guard_is_valid(ctx) => Some(primary.epoch),
            _ => None,
        }
    }

    pub(crate) fn enough_reachable(&self, ctx: &Context<'_>) -> bool {
        let Role::Primary(primary) = &self.role else { return false };
        let reachable = primary.peers.iter().filter(|peer| self.is_reachable(ctx, peer)).count();
        reachable >= usize::from(self.id.k)
    }

    fn is_reachable(&self, ctx: &Context<'_>, peer: &Peer) -> bool {
        let heard = ctx
            .pairs
            .heard(&peer.member.node)
            .is_some_and(|at| ctx.now.mono.since(at) < limits::REACHABLE_WITHIN);
        let behind = self.log.end().0 - peer.match_end.0;
        heard && !peer.probing && peer.match_end > Seq(0) && behind <= limits::UNCOMMITTED_ENTRIES_MAX
    }

    /// Nodes known to hold everything before `end`, synced. I7
    pub(crate) fn copies_holding(&self, end: Seq) -> u8 {
        let Role::Primary(primary) = &self.role else { return 0 };
        let others = primary.peers.iter().filter(|peer| peer.match_end >= end).count();
        // What is committed was confirmed by k others, in this epoch or before.
        let floor = if end <= self.commit_end { usize::from(self.id.k) } else { 0 };
        (1 + others.max(floor)).min(usize::from(self.id.n)) as u8
    }

    // ---- entries out, confirmations in

    pub(crate) fn on_disconnected(&mut self, ctx: &Context<'_>, node: &NodeName) {
        if let Role::Primary(primary) = &mut self.role {
            for peer in primary.peers.iter_mut().filter(|peer| peer.member.node == *node) {
                peer.ask_again(ctx.now.mono);
            }
        }
    }

    pub(crate) fn on_confirm(
        &mut self,
        ctx: &Context<'_>,
        from: Member,
        confirm: Confirm,
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        let Role::Primary(primary) = &mut self.role else { return Ok(()) };
        if confirm.epoch != primary.epoch {
            return Ok(());
        }
        // Node AND disk: a replaced disk does not count. I13
        let Some(at) = primary.peers.iter().position(|peer| peer.member == from) else { return Ok(()) };
        let spool = self.id.spool;
        ctx.pairs.note_followed(&from.node, confirm.process, spool, confirm.epoch, confirm.follows_version);
        if let Some(epoch) = confirm.pending_seal.filter(|pending| *pending > primary.epoch) {
            return self.deposed(epoch, out);
        }
        if confirm.end > self.log.end() || confirm.end <= primary.peers[at].match_end {
            // Late, or an answer to a question: it still says where the copy is.
            let peer = &mut primary.peers[at];
            if confirm.end == peer.match_end {
                peer.probing = false;
                peer.needs_state = false;
                peer.next = peer.next.max(peer.match_end);
            }
            return Ok(());
        }
        let read = Overlay { store: ctx.store, batch: &out.batch };
        if self.log.chain_at(confirm.end.prev(), &read)?.is_some_and(|own| own != confirm.chain) {
            return Ok(()); // Not of this log. I6
        }
        let peer = &mut primary.peers[at];
        peer.match_end = confirm.end;
        peer.next = peer.next.max(confirm.end);
        peer.probing = false;
        peer.needs_state = false;
        peer.progress_at = ctx.now.mono;
        while let Some((_, bytes)) = peer.inflight.pop_front_if(|(end, _)| *end <= confirm.end) {
            peer.inflight_bytes -= bytes;
        }
        Ok(())
    }

    pub(crate) fn on_reject(
        &mut self,
        ctx: &Context<'_>,
        from: Member,
        reject: Reject,
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        let Role::Primary(primary) = &mut self.role else { return Ok(()) };
        if reject.epoch != primary.epoch {
            return Ok(());
        }
        let Some(peer) = primary.peers.iter_mut().find(|peer| peer.member == from) else { return Ok(()) };
        match reject.reason {
            RejectReason::StaleEpoch { sealed } if sealed > primary.epoch => {
                return self.deposed(sealed, out);
            }
            RejectReason::NoMatch { epochs, end } => {
                let common = common_end(self.log.epochs(), self.log.end(), &epochs, end);
                if common.next() < self.log.trim_end() || common < peer.match_end {
                    peer.needs_state = common < self.log.trim_end();
                    peer.ask_again(ctx.now.mono + PROBE_EVERY);
                } else {
                    peer.ask_again(ctx.now.mono);
                    peer.next = common;
                }
            }
            RejectReason::StaleEpoch { .. }
            | RejectReason::UnknownCopy
            | RejectReason::Damaged
            | RejectReason::Busy => peer.ask_again(ctx.now.mono + PROBE_EVERY),
        }
        Ok(())
    }

    /// A later epoch is being elected: stop, and seal this copy so that its answer is there at once. S4
    fn deposed(&mut self, epoch: Epoch, out: &mut Effects) -> Result<(), StoreError> {
        self.drop_role("a later epoch is being elected", out);
        self.put_seal(epoch, out);
        Ok(())
    }

    /// Counts, commits, and asks for the activation.
    pub(crate) fn lead(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let Role::Primary(primary) = &mut self.role else { return Ok(()) };
        let mut confirmed: Vec<Seq> = primary.peers.iter().map(|peer| peer.match_end).collect();
        confirmed.sort_unstable_by(|a, b| b.cmp(a));
        let durable = self.log.durable_end();
        let commit = match self.id.k {
            0 => durable,
            k => confirmed.get(usize::from(k) - 1).map_or(Seq(0), |kth| durable.min(*kth)),
        };
        // E7: what older epochs left counts only once this epoch's barrier does.
        if commit >= primary.barrier_end && commit > self.commit_end {
            self.commit_end = commit; // I8
        }
        let barrier_committed = self.commit_end >= primary.barrier_end;
        let waited = ctx.now.mono.since(primary.assigned_at) >= ACTIVATE_AFTER;
        if primary.activation == Activation::NotAsked && (barrier_committed || waited) {
            primary.activation = Activation::Asked { clear_prev: barrier_committed };
            out.activate = Some(Activate {
                epoch: primary.epoch,
                record_revision: primary.record_revision,
                clear_prev: barrier_committed,
            });
        }
        if primary.activation == Activation::Active && barrier_committed && !primary.prev_cleared {
            primary.prev_cleared = true;
            out.clear_prev = Some(primary.epoch); // I14
        }
        let slowest = primary.peers.iter().map(|peer| peer.match_end).min().unwrap_or(self.log.end());
        self.trim_hint = self.trim_hint.max(slowest);
        Ok(())
    }

    /// Sends what the copies do not have yet.
    pub(crate) fn lead_on(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let Role::Primary(primary) = &mut self.role else { return Ok(()) };
        let now = ctx.now.mono;
        primary.looked_at = now;
        let (epoch, commit_end, trim_end) = (primary.epoch, self.commit_end, self.trim_hint);
        let append = |peer: &mut Peer, prev: Position, prev_chain, entries| {
            peer.number += 1;
            peer.said_commit = commit_end;
            peer.said_at = now;
            let number = peer.number;
            let append = Append { epoch, number, prev, prev_chain, entries, commit_end, trim_end };
            (peer.member.clone(), PeerMessage::Append(append))
        };
        for peer in &mut primary.peers {
            if !peer.inflight.is_empty() && now.since(peer.progress_at) >= STALLED_AFTER {
                peer.ask_again(now);
            }
            let unpromised = ctx.pairs.promised(&peer.member.node, self.id.spool, epoch).is_none();
            let news = peer.said_commit < commit_end || unpromised;
            let keep_up = news && peer.inflight.is_empty() && now.since(peer.said_at) >= KEEP_UP_EVERY;
            loop {
                let sends = !peer.probing
                    && peer.next < self.log.end()
                    && peer.inflight_bytes < limits::APPEND_INFLIGHT_BYTES_MAX;
                if !(sends || (peer.probing && now >= peer.probe_at) || (keep_up && peer.said_at < now)) {
                    break;
                }
                let read = Overlay { store: ctx.store, batch: &out.batch };
                let before = peer.next.prev();
                let Some(chain) = self.log.chain_at(before, &read)? else {
                    peer.needs_state = true;
                    peer.probe_at = now + PROBE_EVERY;
                    peer.said_at = now;
                    break;
                };
                let prev = Position { epoch: self.log.epoch_at(before), seq: before };
                let entries = if sends { self.log.read(peer.next, &read)? } else { Vec::new() };
                let (count, bytes) = (entries.len() as u64, entries.iter().map(|entry| entry.len()).sum());
                out.peers.push(append(peer, prev, chain, entries));
                if peer.probing {
                    peer.probe_at = now + PROBE_EVERY;
                }
                if !sends {
                    break;
                }
                if peer.inflight.is_empty() {
                    peer.progress_at = now;
                }
                peer.next = Seq(peer.next.0 + count);
                peer.inflight.push_back((peer.next, bytes));
                peer.inflight_bytes += bytes;
            }
        }
        Ok(())
    }

    pub(crate) fn lead_wakeup(&self) -> Option<Moment> {
        let Role::Primary(primary) = &self.role else { return None };
        let mut at = None;
        let mut soonest = |moment: Moment| at = Some(at.map_or(moment, |at: Moment| at.min(moment)));
        if primary.activation == Activation::NotAsked {
            soonest(primary.assigned_at + ACTIVATE_AFTER);
        }
        if let Some((_, _, until)) = primary.stepping_down {
            soonest(until);
        }
        for peer in &primary.peers {
            match peer.probing {
                true => soonest(peer.probe_at),
                false if !peer.inflight.is_empty() => soonest(peer.progress_at + STALLED_AFTER),
                // Promises may lapse and commits be unsaid: look now and then.
                false if peer.said_commit < self.commit_end => soonest(peer.said_at + KEEP_UP_EVERY),
                false => soonest(primary.looked_at + KEEP_UP_EVERY * 5),
            }
        }
        at
    }

    pub fn status(&self, ctx: &Context<'_>) -> CopyStatus {
        let (role, peers) = match &self.role {
            Role::Follower => (RoleStatus::Follower, Vec::new()),
            Role::Primary(primary) => {
                let role = match self.in_office() {
                    true => RoleStatus::Serving(primary.epoch),
                    false => RoleStatus::TakingOver(primary.epoch),
                };
                (role, primary.peers.iter().map(|peer| self.peer_status(ctx, peer)).collect())
            }
        };
        CopyStatus {
            spool: self.id.spool,
            copy: self.id.copy,
            node: self.id.node.clone(),
            role,
            sealed: self.meta.sealed,
            position: self.log.last(),
            commit_end: self.commit_end,
            applied_end: self.state.applied_end(),
            trim_end: self.log.trim_end(),
            waiting_writes: self.serve.as_ref().map_or(0, |serve| serve.waiting_writes()),
            peers,
        }
    }

    fn peer_status(&self, ctx: &Context<'_>, peer: &Peer) -> PeerStatus {
        let seq = peer.match_end.prev();
        let time = |seq: Seq| self.log.entry(seq, ctx.store).map(|entry| entry.log_time.0).ok();
        let behind_entries = self.log.end().0 - peer.match_end.0.max(1);
        let behind_ms = match behind_entries {
            0 => 0,
            _ => time(self.log.end().prev()).zip(time(seq)).map_or(0, |(last, then)| last.abs_diff(then)),
        };
        PeerStatus {
            member: peer.member.clone(),
            reachable: self.is_reachable(ctx, peer),
            confirmed: Position { epoch: self.log.epoch_at(seq), seq },
            behind_entries,
            behind_ms,
        }
    }

    pub fn members(&self) -> Option<&[Member]> {
        match &self.role {
            Role::Primary(primary) => Some(&primary.members),
            Role::Follower => None,
        }
    }
}

/// How far two logs can agree, by where their epochs begin: the end of the last epoch they share. The chain decides
/// whether they do.
fn common_end(own: &[(Epoch, Seq)], own_end: Seq, other: &[(Epoch, Seq)], other_end: Seq) -> Seq {
    let end_of =
        |epochs: &[(Epoch, Seq)], at: usize, end: Seq| epochs.get(at + 1).map_or(end, |(_, start)| *start);
    for (at, (epoch, start)) in own.iter().enumerate().rev() {
        if let Some(there) = other.iter().position(|(e, s)| e == epoch && s == start) {
            return end_of(own, at, own_end).min(end_of(other, there, other_end));
        }
    }
    Seq(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_agree_at_most_to_the_end_of_their_last_common_epoch() {
        let e = |epoch, seq| (Epoch(epoch), Seq(seq));
        let own = [e(1, 1), e(3, 10)];
        assert_eq!(common_end(&own, Seq(20), &[e(1, 1), e(2, 8)], Seq(15)), Seq(8));
        assert_eq!(common_end(&own, Seq(20), &[e(1, 1), e(3, 10)], Seq(12)), Seq(12));
        assert_eq!(common_end(&own, Seq(20), &[], Seq(1)), Seq(1));
        assert_eq!(common_end(&own, Seq(20), &[e(1, 1)], Seq(30)), Seq(10));
    }
}
