//! Writes: admitted to the log if they can be confirmed, else parked; what each command appends.
//!
//! A write is checked twice: when it arrives, so that what is wrong anyway is said at once, and when its turn comes.
//! Both times it is the same look at the applied state, under the right to serve.

use super::leases::{Lease, Past, SettlingAt};
use super::{Place, Serve, failed};
use crate::command::{
    Command, DeadLetterReason, Delay, Failure, NewMessage, Precondition, Reply, RequestId, Sent, Settle,
    SettleResult, Written,
};
use crate::config::{ConfigChange, QueueConfig};
use crate::copy::{Context, SpoolCopy};
use crate::entry::{Body, Dedup, Fate, Message, SettleItem, payload_hash};
use crate::event::Effects;
use crate::keys::{self, Msg, QueueNo};
use crate::state::rows::DedupRow;
use crate::state::{Queue, State};
use crate::store::{Overlay, Store, StoreError};
use crate::token::{Token, TokenKey};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{ErrorCode, MessageId, Moment, Position, QueueName, Seq, WallMs, limits};

/// Not in the log: may still be refused. I17
pub(super) struct Parked {
    id: RequestId,
    command: Command,
    arrived: Moment,
    wait: Duration,
    weight: usize,
}

/// In the log: only its commit, or doubt, ends it. I17
pub(super) struct Open {
    pub id: RequestId,
    pub answer: Answer,
}

/// What an open write says once its entry is applied.
#[derive(Debug)]
pub(super) enum Answer {
    /// `latest`: of the entry, or of the first sends that these are duplicates of.
    Sent {
        queue: Option<QueueNo>,
        messages: Vec<Sent>,
        latest: Position,
    },
    Settled {
        slots: Vec<Slot>,
    },
    QueuePut {
        name: QueueName,
        created: bool,
    },
    QueueDeleted,
    Purged,
    MessageDeleted {
        msg: Msg,
    },
    KeyLookedUp {
        queue: QueueName,
        key: Bytes,
    },
    Refused(Failure),
}

/// One token of a settle.
#[derive(Debug)]
pub(super) enum Slot {
    Known(SettleResult, Option<Written>),
    /// As soon as this lease's settle is applied.
    Lease(Msg, u64),
}

#[derive(Default)]
pub(super) struct Writes {
    parked: BTreeMap<u64, Parked>,
    parked_bytes: usize,
    last_no: u64,
    open: BTreeMap<Seq, Vec<Open>>,
    open_len: usize,
    /// Dedup keys in the log and not yet applied.
    keys: BTreeMap<(QueueNo, Bytes), OpenKey>,
    /// A change of the configuration in the log: the next one has to see what comes of it.
    config_open: Option<Seq>,
}

#[derive(Clone, Copy)]
struct OpenKey {
    id: MessageId,
    hash: [u8; 16],
    expires: WallMs,
}

impl Writes {
    pub fn len(&self) -> usize {
        self.parked.len() + self.open_len
    }

    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    pub fn is_parked(&self, no: u64, id: RequestId) -> bool {
        self.parked.get(&no).is_some_and(|parked| parked.id == id)
    }

    pub fn is_open(&self, seq: Seq, id: RequestId) -> bool {
        self.open.get(&seq).is_some_and(|open| open.iter().any(|open| open.id == id))
    }

    /// The client does not wait any more. The write stays where it is.
    pub fn stop_waiting(&mut self, seq: Seq, id: RequestId) {
        if let Some(open) = self.open.get_mut(&seq) {
            let before = open.len();
            open.retain(|open| open.id != id);
            self.open_len -= before - open.len();
            if open.is_empty() {
                self.open.remove(&seq);
            }
        }
    }

    /// What waits for the entry at `seq`.
    pub fn take_open(&mut self, seq: Seq) -> Vec<Open> {
        let open = self.open.remove(&seq).unwrap_or_default();
        self.open_len -= open.len();
        open
    }

    /// Forgets who waits. Returns the settles that were not in the log.
    pub fn dismiss(&mut self) -> Vec<(RequestId, Vec<Token>)> {
        self.open.clear();
        self.open_len = 0;
        self.parked_bytes = 0;
        let settle = |parked: Parked| match parked.command {
            Command::Settle { tokens, .. } => Some((parked.id, tokens)),
            _ => None,
        };
        std::mem::take(&mut self.parked).into_values().filter_map(settle).collect()
    }

    /// It only asks: its end leaves no doubt.
    pub fn is_look_up(&self, seq: Seq, id: RequestId) -> bool {
        let look_up = |open: &Open| open.id == id && matches!(open.answer, Answer::KeyLookedUp { .. });
        self.open.get(&seq).is_some_and(|open| open.iter().any(look_up))
    }

    /// The entry at `seq` is applied: what was open in it is in the state now.
    pub fn applied(&mut self, seq: Seq, body: &Body) {
        if self.config_open.is_some_and(|open| open <= seq) {
            self.config_open = None;
        }
        if let Body::Send { queue, messages } = body {
            for dedup in messages.iter().filter_map(|message| message.dedup.as_ref()) {
                let key = (*queue, dedup.key.clone());
                if self.keys.get(&key).is_some_and(|open| open.id.seq == seq) {
                    self.keys.remove(&key);
                }
            }
        }
    }

    fn is_full(&self, weight: usize) -> bool {
        self.parked.len() >= limits::PARKED_WRITES_MAX
            || self.parked_bytes + weight > limits::PARKED_BYTES_MAX
    }
}

/// What a write comes to, looked at now.
enum Plan {
    /// Nothing has to be written.
    Answer(Reply),
    /// Written already, by another request: wait for that.
    Join(Seq, Answer),
    Append(Body, Answer),
    /// Not before what is in the log is applied.
    NotYet,
}

impl SpoolCopy {
    /// Why nothing can be appended now.
    pub(super) fn why_not_write(&self, ctx: &Context<'_>) -> Option<Failure> {
        if !self.in_office() || self.is_stepping_down() {
            return Some(Failure::new(ErrorCode::NoPrimary, "the primary is taking over or handing over"));
        }
        if !self.enough_reachable(ctx) {
            let detail =
                format!("fewer than numSync ({}) copies answer; the write is not in the log", self.id.k);
            return Some(Failure::new(ErrorCode::NotEnoughCopies, detail));
        }
        if let Some(failure) = self.why_not_read(ctx) {
            return Some(failure);
        }
        let entries = self.log.end().0 - self.commit_end.0;
        let bytes = self.serve.as_ref().map_or(0, |serve| serve.unapplied_bytes);
        if entries >= limits::UNCOMMITTED_ENTRIES_MAX || bytes >= limits::UNCOMMITTED_BYTES_MAX {
            return Some(Failure::new(ErrorCode::SpoolBusy, "too many writes wait to be confirmed"));
        }
        None
    }

    pub(super) fn admit(
        &mut self,
        ctx: &Context<'_>,
        id: RequestId,
        command: Command,
        wait: Duration,
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        let first = self.serve.as_ref().is_some_and(|serve| !serve.writes.has_parked());
        let why_not = self.why_not_write(ctx);
        if first && why_not.is_none() && self.try_write(ctx, id, &command, ctx.now.mono, wait, out)? {
            return Ok(());
        }
        if self.why_not_read(ctx).is_none()
            && let Some(reply) = self.refusal(ctx, &command, out)?
        {
            out.replies.push((id, reply));
            return Ok(());
        }
        if wait.is_zero() {
            let failure = why_not
                .unwrap_or_else(|| Failure::new(ErrorCode::SpoolBusy, "other writes are before this one"));
            out.replies.push((id, Reply::Failed(failure)));
            return Ok(());
        }
        self.park(ctx, id, command, wait, out);
        Ok(())
    }

    fn park(
        &mut self,
        ctx: &Context<'_>,
        id: RequestId,
        command: Command,
        wait: Duration,
        out: &mut Effects,
    ) {
        let Some(serve) = &mut self.serve else { return };
        let weight = command.weight();
        if serve.writes.is_full(weight) {
            out.replies.push((id, failed(ErrorCode::SpoolBusy, "too many writes wait in this spool")));
            return;
        }
        if let Command::Settle { settle, tokens, .. } = &command {
            // The leases do not lapse before the settle's fate is known.
            for token in tokens {
                let free =
                    serve.lease_of(&self.id.token_key, token).is_ok_and(|lease| lease.settling.is_none());
                if free {
                    serve.leases.mark(msg_of(token), settle, SettlingAt::Parked(id));
                }
            }
        }
        serve.writes.last_no += 1;
        let no = serve.writes.last_no;
        serve.writes.parked_bytes += weight;
        serve.writes.parked.insert(no, Parked { id, command, arrived: ctx.now.mono, wait, weight });
        serve.wait(id, ctx.now.mono + wait, Place::Parked(no));
    }

    pub(super) fn forget_parked(&mut self, ctx: &Context<'_>, no: u64) -> Option<()> {
        let serve = self.serve.as_mut()?;
        let parked = serve.writes.parked.remove(&no)?;
        serve.writes.parked_bytes -= parked.weight;
        if let Command::Settle { tokens, .. } = &parked.command {
            serve.leases.unmark(parked.id, tokens.iter().map(msg_of));
            self.lapse_leases(ctx);
        }
        Some(())
    }

    /// Parked writes enter the log in their order.
    pub(super) fn unpark(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        loop {
            let Some(serve) = &mut self.serve else { return Ok(()) };
            let Some((no, parked)) = serve.writes.parked.pop_first() else { return Ok(()) };
            let done = self.why_not_write(ctx).is_none()
                && self.try_write(ctx, parked.id, &parked.command, parked.arrived, parked.wait, out)?;
            let Some(serve) = &mut self.serve else { return Ok(()) };
            if !done {
                serve.writes.parked.insert(no, parked);
                return Ok(());
            }
            serve.writes.parked_bytes -= parked.weight;
        }
    }

    /// Appends, joins or answers. False if it is not its turn yet.
    fn try_write(
        &mut self,
        ctx: &Context<'_>,
        id: RequestId,
        command: &Command,
        arrived: Moment,
        wait: Duration,
        out: &mut Effects,
    ) -> Result<bool, StoreError> {
        let plan = self.plan(ctx, id, command, out)?;
        let Some(serve) = &mut self.serve else { return Ok(false) };
        let (seq, answer) = match plan {
            Plan::NotYet => return Ok(false),
            Plan::Answer(reply) => {
                serve.wait_is_over(id);
                out.replies.push((id, reply));
                return Ok(true);
            }
            Plan::Join(seq, answer) => (seq, answer),
            Plan::Append(body, answer) => {
                serve.note_open(command, &body, self.log.end(), self.meta.sealed);
                (self.append(ctx, body, out), answer)
            }
        };
        let Some(serve) = &mut self.serve else { return Ok(false) };
        let until = (arrived + wait).max(ctx.now.mono + limits::CONFIRM_WAIT_MIN);
        serve.wait(id, until, Place::Open(seq));
        serve.writes.open.entry(seq).or_default().push(Open { id, answer });
        serve.writes.open_len += 1;
        Ok(true)
    }

    /// What is wrong with the write whether or not it can be written.
    fn refusal(
        &self,
        ctx: &Context<'_>,
        command: &Command,
        out: &Effects,
    ) -> Result<Option<Reply>, StoreError> {
        // The id is only used to tell own marks from others'; nobody has this one.
        match self.plan(ctx, RequestId(u64::MAX), command, out)? {
            Plan::Answer(reply) => Ok(Some(reply)),
            Plan::Join(..) | Plan::Append(..) | Plan::NotYet => Ok(None),
        }
    }

    fn plan(
        &self,
        ctx: &Context<'_>,
        id: RequestId,
        command: &Command,
        out: &Effects,
    ) -> Result<Plan, StoreError> {
        let Some(serve) = &self.serve else { return Ok(Plan::NotYet) };
        let read = Overlay { store: ctx.store, batch: &out.batch };
        let planned = match command {
            Command::Send { queue, messages } => self.plan_send(serve, ctx, queue, messages, &read)?,
            Command::Settle { queue, settle, tokens } => {
                self.plan_settle(serve, ctx, id, queue, settle, tokens)
            }
            Command::PutQueue { queue, change, precondition } => {
                plan_put(serve, &self.state, queue, change, precondition)
            }
            Command::DeleteQueue { queue, precondition } => {
                plan_delete_queue(serve, &self.state, queue, precondition)
            }
            Command::Purge { queue } => named(&self.state, queue)
                .map(|(queue, _)| Plan::Append(Body::Purge { queue }, Answer::Purged)),
            Command::DeleteMessage { queue, id } => match self.find_message(ctx, queue, *id, &read)? {
                Err(failure) => Err(failure),
                Ok((msg, _)) => Ok(Plan::Append(Body::Delete { msg }, Answer::MessageDeleted { msg })),
            },
            Command::LookUpKey { queue, key } => {
                let (last, applied_end) = (self.log.end().prev(), self.state.applied_end());
                match applied_end > last {
                    true => Ok(Plan::Answer(self.look_up_key(ctx, queue, key, &read)?)),
                    false => {
                        Ok(Plan::Join(last, Answer::KeyLookedUp { queue: queue.clone(), key: key.clone() }))
                    }
                }
            }
            _ => unreachable!("only writes and key look-ups are planned"),
        };
        Ok(planned.unwrap_or_else(|failure| Plan::Answer(Reply::Failed(failure))))
    }

    fn plan_send(
        &self,
        serve: &Serve,
        ctx: &Context<'_>,
        name: &QueueName,
        messages: &[NewMessage],
        read: &Overlay<'_>,
    ) -> Result<Result<Plan, Failure>, StoreError> {
        let (no, queue) = match named(&self.state, name) {
            Ok(named) => named,
            Err(failure) => return Ok(Err(failure)),
        };
        let log_time = serve.clock.at(ctx.now);
        let position = Position { epoch: self.meta.sealed, seq: self.log.end() };
        let mut new: Vec<Message> = Vec::with_capacity(messages.len());
        let mut sent = Vec::with_capacity(messages.len());
        let mut fresh: BTreeMap<&Bytes, (MessageId, [u8; 16])> = BTreeMap::new();
        let mut latest = Position::ZERO;
        if queue.config.paused_send {
            return Ok(Err(Failure::new(ErrorCode::QueuePaused, "sends to this queue are paused")));
        }
        for (index, message) in messages.iter().enumerate() {
            let mut resolved = match resolve(message, &queue.config, log_time) {
                Ok(resolved) => resolved,
                Err(failure) => return Ok(Err(failure.at(index))),
            };
            let id = MessageId { epoch: position.epoch, seq: position.seq, index: new.len() as u16 };
            if let Some(key) = &message.dedup_key {
                let hash = payload_hash(&message.payload, message.content_type.as_deref());
                let known = match fresh.get(key) {
                    Some(known) => Some(*known),
                    None => self.known_key(serve, no, key, log_time, read)?,
                };
                if let Some((first, first_hash)) = known {
                    let first_position = Position { epoch: first.epoch, seq: first.seq };
                    if first_hash != hash {
                        let failure = Failure::new(
                            ErrorCode::DedupKeyReused,
                            format!("the key was used for message {first}, with other bytes or content type"),
                        );
                        let failure = failure.field("dedupKey").at(index);
                        // Once the first is confirmed; within one batch nothing is sent.
                        return Ok(match first.seq >= self.state.applied_end() && first.seq < position.seq {
                            true => Ok(Plan::Join(first.seq, Answer::Refused(failure))),
                            false => Err(failure),
                        });
                    }
                    latest = latest.max(first_position);
                    sent.push(Sent { id: first, duplicate: true });
                    continue;
                }
                fresh.insert(key, (id, hash));
                let expires = log_time + queue.config.dedup_window;
                resolved.dedup = Some(Dedup { key: key.clone(), hash, expires });
            }
            sent.push(Sent { id, duplicate: false });
            new.push(resolved);
        }
        if new.is_empty() {
            let answer = Answer::Sent { queue: None, messages: sent, latest };
            return Ok(Ok(match latest.seq >= self.state.applied_end() {
                true => Plan::Join(latest.seq, answer),
                false => Plan::Answer(self.sent_reply(answer)),
            }));
        }
        let answer = Answer::Sent { queue: Some(no), messages: sent, latest: position };
        Ok(Ok(Plan::Append(Body::Send { queue: no, messages: new }, answer)))
    }

    /// The message that a key was first accepted for, applied or on its way.
    fn known_key(
        &self,
        serve: &Serve,
        no: QueueNo,
        key: &Bytes,
        log_time: WallMs,
        read: &Overlay<'_>,
    ) -> Result<Option<(MessageId, [u8; 16])>, StoreError> {
        let open = serve.writes.keys.get(&(no, key.clone())).filter(|open| open.expires > log_time);
        if let Some(open) = open {
            return Ok(Some((open.id, open.hash)));
        }
        let Some(bytes) = read.get(&keys::dedup(no, key))? else { return Ok(None) };
        let row = DedupRow::decode(&bytes)?;
        let id = MessageId { epoch: row.epoch, seq: row.seq, index: row.index };
        Ok((row.expires > log_time).then_some((id, row.hash)))
    }

    pub(super) fn sent_reply(&self, answer: Answer) -> Reply {
        let Answer::Sent { messages, latest, .. } = answer else { unreachable!("the answer of a send") };
        let copies = self.copies_holding(latest.seq.next());
        Reply::Sent { messages, written: Written { position: latest, copies } }
    }

    pub(super) fn look_up_key(
        &self,
        ctx: &Context<'_>,
        queue: &QueueName,
        key: &Bytes,
        read: &Overlay<'_>,
    ) -> Result<Reply, StoreError> {
        let Some(serve) = &self.serve else { return Ok(failed(ErrorCode::NoPrimary, "")) };
        match named(&self.state, queue) {
            Err(failure) => Ok(Reply::Failed(failure)),
            Ok((no, _)) => {
                let known = self.known_key(serve, no, key, serve.clock.at(ctx.now), read)?;
                // What is open was accepted after the look-up was ordered.
                let id = known.map(|(id, _)| id).filter(|id| id.seq < self.state.applied_end());
                Ok(Reply::KeyLookedUp { id })
            }
        }
    }

    fn plan_settle(
        &self,
        serve: &Serve,
        ctx: &Context<'_>,
        id: RequestId,
        name: &QueueName,
        settle: &Settle,
        tokens: &[Token],
    ) -> Result<Plan, Failure> {
        let (_, queue) = named(&self.state, name)?;
        let log_time = serve.clock.at(ctx.now);
        let (mut slots, mut items) = (Vec::with_capacity(tokens.len()), Vec::new());
        let mut joined = None;
        for token in tokens {
            let (msg, no) = (msg_of(token), token.lease_no);
            let lease = match serve.lease_in(&self.id.token_key, token, queue) {
                Ok(lease) => lease,
                Err(failure) => {
                    slots.push(match serve.settled_before(token, settle) {
                        Some(written) if failure.code == ErrorCode::StaleToken => {
                            Slot::Known(SettleResult::Done, Some(written))
                        }
                        _ => Slot::Known(SettleResult::Failed(failure), None),
                    });
                    continue;
                }
            };
            slots.push(Slot::Lease(msg, no));
            match &lease.settling {
                Some(settling) if settling.settle != *settle => {
                    let detail =
                        "another settle of the message was asked for before, and is not confirmed yet";
                    slots.pop();
                    slots.push(Slot::Known(
                        SettleResult::Failed(Failure::new(ErrorCode::SettlePending, detail)),
                        None,
                    ));
                }
                Some(settling) => match settling.at {
                    SettlingAt::Open(seq) => joined = joined.max(Some(seq)),
                    SettlingAt::Parked(by) if by == id => items.push((msg, lease.deliveries)),
                    // Its turn comes before this one's.
                    SettlingAt::Parked(_) => return Ok(Plan::NotYet),
                },
                None => items.push((msg, lease.deliveries)),
            }
        }
        items.sort_unstable();
        items.dedup();
        if items.is_empty() {
            return Ok(match joined {
                Some(seq) => Plan::Join(seq, Answer::Settled { slots }),
                None => Plan::Answer(self.settled_reply(slots)),
            });
        }
        let item = |(msg, deliveries)| SettleItem { msg, fate: fate(settle, deliveries, queue, log_time) };
        let items = items.into_iter().map(item).collect();
        Ok(Plan::Append(Body::Settle { items }, Answer::Settled { slots }))
    }

    pub(super) fn settled_reply(&self, slots: Vec<Slot>) -> Reply {
        let mut latest: Option<Position> = None;
        let mut results = Vec::with_capacity(slots.len());
        for slot in slots {
            let (result, written) = match slot {
                Slot::Known(result, written) => (result, written),
                Slot::Lease(msg, no) => {
                    match self.serve.as_ref().and_then(|serve| serve.leases.past(msg, no)) {
                        Some(Past::Settled { written, .. }) => (SettleResult::Done, Some(*written)),
                        _ => {
                            let detail = "the message was gone before it was settled";
                            (SettleResult::Failed(Failure::new(ErrorCode::StaleToken, detail)), None)
                        }
                    }
                }
            };
            latest = latest.max(written.map(|written| written.position));
            results.push(result);
        }
        let written =
            latest.map(|position| Written { position, copies: self.copies_holding(position.seq.next()) });
        Reply::Settled { results, written }
    }
}

impl Serve {
    /// The lease that a token is of, if it still runs.
    pub(super) fn lease_of(&self, key: &TokenKey, token: &Token) -> Result<&Lease, Failure> {
        if !token.is_genuine(key) {
            return Err(Failure::new(ErrorCode::InvalidToken, "not a token of this spool").field("token"));
        }
        if token.tenure != self.tenure {
            return Err(Failure::new(ErrorCode::StaleToken, "the primary changed, and leases end with it"));
        }
        let msg = msg_of(token);
        let lease = self.leases.get(msg).filter(|lease| lease.no == token.lease_no);
        lease.ok_or_else(|| self.leases.why_stale(msg, token.lease_no))
    }

    /// The same, and of a message in this queue.
    pub(super) fn lease_in(&self, key: &TokenKey, token: &Token, queue: &Queue) -> Result<&Lease, Failure> {
        let lease = self.lease_of(key, token)?;
        if lease.content == queue.content {
            Ok(lease)
        } else {
            Err(Failure::new(ErrorCode::StaleToken, "the token is of a message in another queue"))
        }
    }

    /// The same settle with the same token was done before: where it is written.
    fn settled_before(&self, token: &Token, settle: &Settle) -> Option<Written> {
        match self.leases.past(msg_of(token), token.lease_no)? {
            Past::Settled { settle: before, written } if before == settle && token.tenure == self.tenure => {
                Some(*written)
            }
            _ => None,
        }
    }

    /// Remembers what the entry at `seq` is about to hold, so that later requests see it.
    fn note_open(&mut self, command: &Command, body: &Body, seq: Seq, epoch: types::Epoch) {
        match (body, command) {
            (Body::Send { queue, messages }, _) => {
                for (index, message) in messages.iter().enumerate() {
                    if let Some(Dedup { key, hash, expires }) = &message.dedup {
                        let id = MessageId { epoch, seq, index: index as u16 };
                        let open = OpenKey { id, hash: *hash, expires: *expires };
                        self.writes.keys.insert((*queue, key.clone()), open);
                    }
                }
            }
            (Body::Settle { items }, Command::Settle { settle, .. }) => {
                for item in items {
                    self.leases.mark(item.msg, settle, SettlingAt::Open(seq));
                }
            }
            (Body::QueuePut { .. } | Body::QueueDelete { .. }, _) => self.writes.config_open = Some(seq),
            _ => {}
        }
    }
}

pub(super) fn msg_of(token: &Token) -> Msg {
    Msg { seq: token.seq, index: token.index }
}

pub(super) fn named<'a>(state: &'a State, name: &QueueName) -> Result<(QueueNo, &'a Queue), Failure> {
    state
        .named(name)
        .ok_or_else(|| Failure::new(ErrorCode::QueueNotFound, format!("no queue {name} in this spool")))
}

/// Every default filled in, every time made absolute.
fn resolve(message: &NewMessage, config: &QueueConfig, log_time: WallMs) -> Result<Message, Failure> {
    if message.payload.len() > config.message_bytes_max as usize {
        let detail = format!("a message of this queue has {} bytes at most", config.message_bytes_max);
        return Err(Failure::new(ErrorCode::PayloadTooLarge, detail).field("body"));
    }
    if message.group.is_some() {
        let detail = "ordering groups are not offered yet";
        return Err(Failure::new(ErrorCode::InvalidRequest, detail).field("group"));
    }
    if message.dedup_key.is_some() && config.dedup_window.is_zero() {
        let detail = "the queue has no dedupWindowSeconds, so the key would be ignored";
        return Err(Failure::new(ErrorCode::DedupNotEnabled, detail).field("dedupKey"));
    }
    let (due, field) = match message.delay {
        Delay::QueueDefault => (log_time + config.delay, "delaySeconds"),
        Delay::For(delay) => (log_time + delay, "delaySeconds"),
        Delay::Until(at) => (at, "deliverAt"),
    };
    if due > log_time + config.retention {
        let detail = "beyond the queue's retentionSeconds: it would be gone before it is available";
        return Err(Failure::new(ErrorCode::InvalidRequest, detail).field(field));
    }
    Ok(Message {
        priority: message.priority.unwrap_or(limits::PRIORITY_DEFAULT),
        due: if due > log_time { due } else { WallMs(0) },
        expires: message.ttl.map_or(WallMs(0), |ttl| log_time + ttl),
        dedup: None,
        content_type: message.content_type.clone(),
        group: None,
        traceparent: message.traceparent.clone(),
        attributes: message.attributes.clone(),
        payload: message.payload.clone(),
    })
}

/// What a settle does to a message delivered so often.
fn fate(settle: &Settle, deliveries: u32, queue: &Queue, log_time: WallMs) -> Fate {
    match settle {
        Settle::Ack => Fate::Acked,
        Settle::Nack { .. } if is_used_up(queue, deliveries) => {
            dead_letter(queue, DeadLetterReason::Nacked, None, deliveries)
        }
        Settle::Nack { delay } => {
            let delay = delay.unwrap_or_else(|| queue.config.backoff.after(deliveries));
            let due = if delay.is_zero() { WallMs(0) } else { log_time + delay };
            Fate::Returned { deliveries, due }
        }
        Settle::Reject { reason } => {
            dead_letter(queue, DeadLetterReason::Rejected, reason.clone(), deliveries)
        }
    }
}

pub(super) fn is_used_up(queue: &Queue, deliveries: u32) -> bool {
    queue.config.deliveries_max.is_some_and(|max| deliveries >= max)
}

pub(super) fn dead_letter(
    queue: &Queue,
    reason: DeadLetterReason,
    detail: Option<String>,
    deliveries: u32,
) -> Fate {
    let to = queue.config.dead_letter_queue.clone().unwrap_or_else(|| queue.name.dead());
    Fate::DeadLettered { to, reason, detail, deliveries }
}

fn plan_put(
    serve: &Serve,
    state: &State,
    name: &QueueName,
    change: &ConfigChange,
    precondition: &Precondition,
) -> Result<Plan, Failure> {
    if serve.writes.config_open.is_some() {
        return Ok(Plan::NotYet);
    }
    let current = state.named(name).map(|(_, queue)| &queue.config);
    check_precondition(precondition, current)?;
    let config = match (current, change.replace) {
        (None, false) => {
            return Err(named(state, name).err().unwrap_or_else(|| unreachable!("it is not there")));
        }
        _ => change.apply(current),
    };
    // Longer ones belong to dead-letter queues, which nobody creates by hand.
    let too_long =
        |name: &QueueName| name.as_str().len() > limits::NAME_LEN_MAX && state.named(name).is_none();
    let other = change.dead_letter_queue.as_ref().and_then(Option::as_ref);
    for (name, field) in [(Some(name), "queue"), (other, "deadLetterQueue")] {
        if name.is_some_and(too_long) {
            let detail = format!("a queue's name has {} characters at most", limits::NAME_LEN_MAX);
            return Err(Failure::new(ErrorCode::InvalidRequest, detail).field(field));
        }
    }
    if current.is_none() && state.names().len() >= change.plan.queues_max as usize {
        let detail = format!("the plan holds {} queues in a spool", change.plan.queues_max);
        return Err(Failure::new(ErrorCode::LimitExceeded, detail));
    }
    check_config(name, &config)?;
    let answer = Answer::QueuePut { name: name.clone(), created: current.is_none() };
    Ok(Plan::Append(Body::QueuePut { name: name.clone(), config }, answer))
}

fn check_precondition(precondition: &Precondition, current: Option<&QueueConfig>) -> Result<(), Failure> {
    let why = match (precondition, current) {
        (Precondition::None, _) | (Precondition::Exists, Some(_)) | (Precondition::Absent, None) => {
            return Ok(());
        }
        (Precondition::Match(etags), Some(config)) if etags.contains(&config.etag()) => return Ok(()),
        (Precondition::Match(_), Some(_)) => "the configuration is another one by now (its ETag differs)",
        (Precondition::Match(_) | Precondition::Exists, None) => "the queue does not exist",
        (Precondition::Absent, Some(_)) => "the queue exists",
    };
    Err(Failure::new(ErrorCode::PreconditionFailed, why))
}

/// What holds between the fields of a configuration.
fn check_config(name: &QueueName, config: &QueueConfig) -> Result<(), Failure> {
    let wrong = |field, why: &str| Err(Failure::new(ErrorCode::InvalidRequest, why).field(field));
    if config.dead_letter_queue.as_ref() == Some(name) {
        return wrong("deadLetterQueue", "a queue cannot dead-letter into itself");
    }
    if config.delay > config.retention {
        return wrong(
            "delaySeconds",
            "beyond retentionSeconds: messages would be gone before they are available",
        );
    }
    if config.backoff.initial > config.backoff.max {
        return wrong("retryBackoff", "initialSeconds is beyond maxSeconds");
    }
    Ok(())
}

fn plan_delete_queue(
    serve: &Serve,
    state: &State,
    name: &QueueName,
    precondition: &Precondition,
) -> Result<Plan, Failure> {
    if serve.writes.config_open.is_some() {
        return Ok(Plan::NotYet);
    }
    let (no, queue) = named(state, name)?;
    check_precondition(precondition, Some(&queue.config))?;
    let mut users = state.queues().filter(|(_, other)| other.config.dead_letter_queue.as_ref() == Some(name));
    if let Some((_, user)) = users.next() {
        let detail = format!("queue {} dead-letters into it", user.name);
        return Err(Failure::new(ErrorCode::QueueInUse, detail));
    }
    Ok(Plan::Append(Body::QueueDelete { queue: no }, Answer::QueueDeleted))
}
