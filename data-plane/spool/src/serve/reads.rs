//! Looking without taking: queues, messages, browse. And extending a lease, which is no write either.

use super::receive::look_at;
use super::writes::{msg_of, named};
use super::{Serve, failed};
use crate::command::{BrowseCursor, BrowseState, Command, Delivered, Failure, Reply, RequestId};
use crate::config::QueueInfo;
use crate::copy::{Context, SpoolCopy};
use crate::event::Effects;
use crate::keys::{self, ContentNo, Msg};
use crate::state::Queue;
use crate::state::apply::messages_in_row;
use crate::state::rows::{Block, decode_home};
use crate::store::{Overlay, Store, StoreError};
use crate::token::Token;
use std::time::Duration;
use types::{ErrorCode, MessageId, QueueName, Seq, limits};

/// Rows that one look goes over at most, whatever it finds.
const ROWS_PER_LOOK: usize = 10_000;

impl SpoolCopy {
    /// The caller has made sure of the right to serve. I15
    pub(super) fn read(
        &mut self,
        ctx: &Context<'_>,
        id: RequestId,
        command: Command,
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        let reply = match command {
            Command::Receive { queue, max, wait, lease } => match named(&self.state, &queue) {
                Ok((no, _)) => return self.receive(ctx, id, no, (max, wait, lease), out),
                Err(failure) => Reply::Failed(failure),
            },
            Command::Extend { queue, token, lease } => self.extend(ctx, &queue, &token, lease),
            Command::GetQueue { queue } => match self.queue_info(ctx, &queue, out)? {
                Ok(info) => Reply::Queue { info: Box::new(info) },
                Err(failure) => Reply::Failed(failure),
            },
            Command::ListQueues { prefix, after, limit } => self.list_queues(&prefix, after.as_ref(), limit),
            Command::Browse { queue, state, after, limit } => {
                self.browse(ctx, &queue, state, after.as_ref(), limit, out)?
            }
            Command::GetMessage { queue, id } => self.get_message(ctx, &queue, id, out)?,
            _ => failed(ErrorCode::Internal, "a write was taken for a read"),
        };
        out.replies.push((id, reply));
        Ok(())
    }

    fn extend(&mut self, ctx: &Context<'_>, queue: &QueueName, token: &Token, lease: Duration) -> Reply {
        let Some(serve) = &mut self.serve else { return failed(ErrorCode::NoPrimary, "") };
        let found = named(&self.state, queue)
            .and_then(|(_, queue)| serve.lease_in(&self.id.token_key, token, queue))
            .map(|lease| lease.settling.is_some());
        match found {
            Err(failure) => Reply::Failed(failure),
            Ok(true) => failed(ErrorCode::SettlePending, "a settle of the message is not confirmed yet"),
            Ok(false) => {
                serve.leases.extend(msg_of(token), ctx.now.mono + lease);
                Reply::Extended { lease_expires: ctx.now.wall + lease }
            }
        }
    }

    pub(super) fn queue_info(
        &mut self,
        ctx: &Context<'_>,
        name: &QueueName,
        out: &Effects,
    ) -> Result<Result<QueueInfo, Failure>, StoreError> {
        let queue = match named(&self.state, name) {
            Ok((_, queue)) => queue,
            Err(failure) => return Ok(Err(failure)),
        };
        let Some(serve) = &mut self.serve else {
            return Ok(Err(Failure::new(ErrorCode::NoPrimary, "not the primary")));
        };
        let Serve { views, leases, chores, last_read, clock, .. } = &mut **serve;
        let (content, counts, log_time) = (queue.content, queue.counts, clock.at(ctx.now));
        let read = Overlay { store: ctx.store, batch: &out.batch };
        let taken = |msg| leases.holds(msg) || chores.is_leaving(msg);
        let mut oldest = None;
        for msg in views.open(content).heads(content, &read, &taken)? {
            if let Some(seen) = look_at(&self.log, last_read, &read, msg)? {
                let since = seen.block.moved(msg.index).map_or(seen.accepted, |moved| moved.at);
                oldest = Some(oldest.map_or(since, |oldest: types::WallMs| oldest.min(since)));
            }
        }
        let pulled = views.get(content).map_or(0, |view| view.pulled()) as u64;
        let held = leases.held(content);
        let leaving = chores.leaving_of(content) as u64;
        let (leased, settling) = (held.leased as u64, held.settling as u64 + leaving);
        Ok(Ok(QueueInfo {
            name: queue.name.clone(),
            config: queue.config.clone(),
            created: queue.created,
            etag: queue.config.etag(),
            available: (counts.ready + pulled).saturating_sub(leased + settling),
            leased,
            delayed: counts.delayed.saturating_sub(pulled),
            settling,
            bytes: counts.bytes,
            oldest_available: oldest
                .map(|since| Duration::from_millis(u64::try_from(log_time.0 - since.0).unwrap_or(0))),
            totals: counts.totals,
        }))
    }

    fn list_queues(&self, prefix: &str, after: Option<&QueueName>, limit: u32) -> Reply {
        let mut queues = Vec::new();
        let mut next = None;
        for (name, no) in self.state.names() {
            if !name.as_str().starts_with(prefix) || after.is_some_and(|after| name <= after) {
                continue;
            }
            if queues.len() == limit.min(limits::LIST_LIMIT_MAX) as usize {
                next = queues.last().map(|(name, ..): &(QueueName, _, _)| name.clone());
                break;
            }
            if let Some(queue) = self.state.queue(*no) {
                queues.push((name.clone(), queue.config.clone(), queue.config.etag()));
            }
        }
        Reply::Queues { queues, next }
    }

    /// A message of this queue, by its id.
    pub(super) fn find_message(
        &self,
        _ctx: &Context<'_>,
        name: &QueueName,
        id: MessageId,
        read: &Overlay<'_>,
    ) -> Result<Result<(Msg, ContentNo), Failure>, StoreError> {
        let queue = match named(&self.state, name) {
            Ok((_, queue)) => queue,
            Err(failure) => return Ok(Err(failure)),
        };
        let msg = Msg { seq: id.seq, index: id.index };
        let is_own = id.seq > Seq(0) && id.seq < self.log.end() && self.log.epoch_at(id.seq) == id.epoch;
        if is_own && let Some(bytes) = read.get(&keys::block_of(msg))? {
            let block = Block::decode(&bytes)?;
            if block.slot(id.index).is_some() && block.content_of(id.index) == queue.content {
                return Ok(Ok((msg, queue.content)));
            }
        }
        Ok(Err(Failure::new(ErrorCode::MessageNotFound, format!("no message {id} in queue {name}"))))
    }

    fn get_message(
        &mut self,
        ctx: &Context<'_>,
        name: &QueueName,
        id: MessageId,
        out: &Effects,
    ) -> Result<Reply, StoreError> {
        let read = Overlay { store: ctx.store, batch: &out.batch };
        match self.find_message(ctx, name, id, &read)? {
            Err(failure) => Ok(Reply::Failed(failure)),
            Ok((msg, _)) => {
                let messages = self.show(ctx, name, &[msg], &read)?;
                Ok(match messages.is_empty() {
                    true => failed(ErrorCode::MessageNotFound, "the message is past its time"),
                    false => Reply::Messages { messages, next: None },
                })
            }
        }
    }

    /// Without those that are past their time.
    fn show(
        &mut self,
        ctx: &Context<'_>,
        name: &QueueName,
        msgs: &[Msg],
        read: &Overlay<'_>,
    ) -> Result<Vec<Delivered>, StoreError> {
        let (Some(serve), Ok((_, queue))) = (&mut self.serve, named(&self.state, name)) else {
            return Ok(Vec::new());
        };
        let log_time = serve.clock.at(ctx.now);
        let mut shown = Vec::new();
        for msg in msgs {
            if let Some(seen) = look_at(&self.log, &mut serve.last_read, read, *msg)?
                && !seen.is_past_its_time(queue, log_time)
            {
                let deliveries = serve.leases.deliveries(*msg, seen.block.deliveries(msg.index));
                shown.push(seen.shown(&self.log, deliveries));
            }
        }
        Ok(shown)
    }

    fn browse(
        &mut self,
        ctx: &Context<'_>,
        name: &QueueName,
        state: BrowseState,
        after: Option<&BrowseCursor>,
        limit: u32,
        out: &Effects,
    ) -> Result<Reply, StoreError> {
        let read = Overlay { store: ctx.store, batch: &out.batch };
        let (Some(serve), limit) = (&self.serve, limit.clamp(1, limits::LIST_LIMIT_MAX) as usize) else {
            return Ok(failed(ErrorCode::NoPrimary, ""));
        };
        let queue = match named(&self.state, name) {
            Ok((_, queue)) => queue,
            Err(failure) => return Ok(Reply::Failed(failure)),
        };
        let found = match state {
            BrowseState::Available => serve.browse_available(queue, after, limit, &read)?,
            BrowseState::Delayed => browse_delayed(queue, after, limit, &read)?,
            BrowseState::Leased => serve.browse_leased(queue, after, limit),
        };
        let Some((msgs, next)) = found else {
            let failure = Failure::new(ErrorCode::InvalidRequest, "not a cursor of this list");
            return Ok(Reply::Failed(failure.field("cursor")));
        };
        Ok(Reply::Messages { messages: self.show(ctx, name, &msgs, &read)?, next })
    }
}

/// What a look found, and where the next one goes on. Nothing: the cursor is not one of this list.
type Found = Option<(Vec<Msg>, Option<BrowseCursor>)>;

impl Serve {
    /// The cursor is the key of the last row, and how far into it.
    fn browse_available(
        &self,
        queue: &Queue,
        after: Option<&BrowseCursor>,
        limit: usize,
        read: &Overlay<'_>,
    ) -> Result<Found, StoreError> {
        let (start, end) = keys::ready_content(queue.content);
        let (from, skip) = match after {
            None => (start.clone(), 0),
            Some(BrowseCursor(bytes)) => match bytes.split_last_chunk::<2>() {
                Some((key, skip)) if key >= &start[..] && key < &end[..] => {
                    (key.to_vec(), u16::from_be_bytes(*skip))
                }
                _ => return Ok(None),
            },
        };
        let mut rows = Vec::new();
        read.scan(&from, &end, &mut |key, home| {
            rows.push((key.to_vec(), home.to_vec()));
            rows.len() < ROWS_PER_LOOK.min(limit + self.leases.held(queue.content).leased + 1)
        })?;
        let mut msgs = Vec::new();
        for (key, home) in &rows {
            let Some((content, priority, order)) = keys::order_of_ready(key) else {
                return Err(crate::codec::corrupt("a ready row"));
            };
            let whole = home.is_empty();
            let first = if whole { Msg { seq: order.seq, index: order.index } } else { decode_home(home)? };
            let Some(bytes) = read.get(&keys::block_of(first))? else { continue };
            for index in messages_in_row(&Block::decode(&bytes)?, first, (content, priority), whole) {
                let msg = Msg { seq: first.seq, index };
                let before = *key == from && after.is_some() && index < skip;
                if before || self.leases.holds(msg) || self.chores.is_leaving(msg) {
                    continue;
                }
                if msgs.len() == limit {
                    let cursor = [&key[..], &index.to_be_bytes()].concat();
                    return Ok(Some((msgs, Some(BrowseCursor(cursor)))));
                }
                msgs.push(msg);
            }
        }
        let more = rows.last().filter(|_| rows.len() >= ROWS_PER_LOOK);
        let next = more.map(|(key, _)| BrowseCursor([&key[..], &u16::MAX.to_be_bytes()].concat()));
        Ok(Some((msgs, next)))
    }

    fn browse_leased(&self, queue: &Queue, after: Option<&BrowseCursor>, limit: usize) -> Found {
        let from = match after {
            None => None,
            Some(cursor) => Some(msg_of_cursor(cursor)?),
        };
        let mut msgs: Vec<Msg> = Vec::new();
        for (msg, _) in self.leases.of_content(queue.content) {
            if from.is_some_and(|from| msg <= from) {
                continue;
            }
            if msgs.len() == limit {
                let next = msgs.last().map(|msg| cursor_of(*msg));
                return Some((msgs, next));
            }
            msgs.push(msg);
        }
        Some((msgs, None))
    }
}

fn msg_of_cursor(BrowseCursor(bytes): &BrowseCursor) -> Option<Msg> {
    let (seq, index) = bytes.split_last_chunk::<2>()?;
    Some(Msg { seq: Seq(u64::from_be_bytes(seq.try_into().ok()?)), index: u16::from_be_bytes(*index) })
}

/// In the order in which they become available.
fn browse_delayed(
    queue: &Queue,
    after: Option<&BrowseCursor>,
    limit: usize,
    read: &Overlay<'_>,
) -> Result<Found, StoreError> {
    let from = match after {
        None => keys::due_start(),
        Some(BrowseCursor(key)) if keys::of_due(key).is_some() => [&key[..], &[0]].concat(),
        Some(_) => return Ok(None),
    };
    let mut rows = Vec::new();
    read.scan(&from, &[keys::DUE + 1], &mut |key, _| {
        rows.push(key.to_vec());
        rows.len() < ROWS_PER_LOOK
    })?;
    let mut msgs = Vec::new();
    for key in &rows {
        let Some((_, msg)) = keys::of_due(key) else { return Err(crate::codec::corrupt("a due row")) };
        let Some(bytes) = read.get(&keys::block_of(msg))? else { continue };
        if Block::decode(&bytes)?.content_of(msg.index) == queue.content {
            msgs.push(msg);
        }
        if msgs.len() == limit {
            return Ok(Some((msgs, Some(BrowseCursor(key.clone())))));
        }
    }
    let next = rows.last().filter(|_| rows.len() >= ROWS_PER_LOOK).map(|key| BrowseCursor(key.clone()));
    Ok(Some((msgs, next)))
}

fn cursor_of(msg: Msg) -> BrowseCursor {
    BrowseCursor([&msg.seq.0.to_be_bytes()[..], &msg.index.to_be_bytes()].concat())
}
