//! Handing out messages under a lease, and long polls.

use super::chores::Why;
use super::leases::{Lease as Leased, Past};
use super::writes::is_used_up;
use super::{Place, Serve};
use crate::command::{Delivered, Lease, Reply, RequestId};
use crate::copy::{Context, SpoolCopy};
use crate::entry::{Entry, Message};
use crate::event::Effects;
use crate::keys::{self, Msg, QueueNo};
use crate::log::Log;
use crate::state::Queue;
use crate::state::rows::Block;
use crate::store::{Overlay, Store, StoreError};
use crate::token::Token;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use types::{MessageId, WallMs, limits};

/// Messages that one receive looks at and must not hand out, at most: the rest is looked at by the next.
const PASSED_OVER_MAX: usize = 1_000;

struct Poll {
    id: RequestId,
    max: u32,
    lease: Option<Duration>,
}

/// Long polls, served in the order in which they came.
#[derive(Default)]
pub(super) struct Polls {
    by_queue: BTreeMap<QueueNo, VecDeque<Poll>>,
    len: usize,
    /// Something may have become available.
    stirred: BTreeSet<QueueNo>,
}

impl Polls {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn stir(&mut self, queue: QueueNo) {
        if self.by_queue.contains_key(&queue) {
            self.stirred.insert(queue);
        }
    }

    pub fn has_stirred(&self) -> bool {
        !self.stirred.is_empty()
    }

    pub fn is_polling(&self, queue: QueueNo, id: RequestId) -> bool {
        self.by_queue.get(&queue).is_some_and(|polls| polls.iter().any(|poll| poll.id == id))
    }

    fn push(&mut self, queue: QueueNo, poll: Poll) {
        self.by_queue.entry(queue).or_default().push_back(poll);
        self.len += 1;
    }

    pub fn remove(&mut self, queue: QueueNo, id: RequestId) {
        let Some(polls) = self.by_queue.get_mut(&queue) else { return };
        let before = polls.len();
        polls.retain(|poll| poll.id != id);
        self.len -= before - polls.len();
        if polls.is_empty() {
            self.by_queue.remove(&queue);
            self.stirred.remove(&queue);
        }
    }

    pub fn remove_queue(&mut self, queue: QueueNo) -> Vec<RequestId> {
        self.stirred.remove(&queue);
        let polls = self.by_queue.remove(&queue).unwrap_or_default();
        self.len -= polls.len();
        polls.into_iter().map(|poll| poll.id).collect()
    }
}

impl SpoolCopy {
    pub(super) fn receive(
        &mut self,
        ctx: &Context<'_>,
        id: RequestId,
        no: QueueNo,
        (max, wait, lease): (u32, Duration, Option<Duration>),
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        let messages = self.hand_out(ctx, no, max, lease, out)?;
        let Some(serve) = &mut self.serve else { return Ok(()) };
        if messages.is_empty() && !wait.is_zero() {
            serve.polls.push(no, Poll { id, max, lease });
            serve.wait(id, ctx.now.mono + wait, Place::Polling(no));
        } else {
            out.replies.push((id, Reply::Received { messages }));
        }
        Ok(())
    }

    /// Serves long polls where something may have become available.
    pub(super) fn feed_polls(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let stirred = self.serve.as_ref().is_some_and(|serve| serve.polls.has_stirred());
        if !stirred || self.why_not_read(ctx).is_some() {
            return Ok(());
        }
        while let Some(serve) = &mut self.serve
            && let Some(no) = serve.polls.stirred.first().copied()
        {
            let Some(poll) = serve.polls.by_queue.get(&no).and_then(VecDeque::front) else {
                serve.polls.stirred.remove(&no);
                continue;
            };
            let (id, max, lease) = (poll.id, poll.max, poll.lease);
            let messages = self.hand_out(ctx, no, max, lease, out)?;
            let Some(serve) = &mut self.serve else { break };
            if messages.is_empty() {
                serve.polls.stirred.remove(&no);
                continue;
            }
            serve.polls.remove(no, id);
            serve.wait_is_over(id);
            out.replies.push((id, Reply::Received { messages }));
        }
        Ok(())
    }

    /// Leases up to `max` messages, in order.
    fn hand_out(
        &mut self,
        ctx: &Context<'_>,
        no: QueueNo,
        max: u32,
        lease: Option<Duration>,
        out: &Effects,
    ) -> Result<Vec<Delivered>, StoreError> {
        let (Some(serve), Some(queue)) = (&mut self.serve, self.state.queue(no)) else {
            return Ok(Vec::new());
        };
        if queue.config.paused_receive {
            return Ok(Vec::new());
        }
        let Serve { views, leases, chores, last_read, clock, tenure, .. } = &mut **serve;
        let read = Overlay { store: ctx.store, batch: &out.batch };
        let (content, log_time) = (queue.content, clock.at(ctx.now));
        let lease = lease.unwrap_or(queue.config.lease);
        let (mut delivered, mut bytes, mut passed_over) = (Vec::new(), 0, 0);
        while delivered.len() < max as usize && passed_over < PASSED_OVER_MAX {
            let held = leases.held(content);
            if held.leased + held.settling >= limits::LEASES_PER_QUEUE_MAX {
                break;
            }
            let taken = |msg| leases.holds(msg) || chores.is_leaving(msg);
            let Some((priority, order, msg)) = views.open(content).pop(content, &read, &taken)? else {
                break;
            };
            let seen = look_at(&self.log, last_read, &read, msg)?;
            let Some(seen) = seen.filter(|seen| seen.block.content_of(msg.index) == content) else {
                return Err(crate::codec::corrupt("a message that is available"));
            };
            let before = leases.deliveries(msg, seen.block.deliveries(msg.index));
            if seen.is_past_its_time(queue, log_time) {
                chores.leave(msg, content, Why::PastItsTime);
                passed_over += 1;
                continue;
            }
            if is_used_up(queue, before) {
                chores.leave(msg, content, Why::UsedUp { deliveries: before });
                passed_over += 1;
                continue;
            }
            bytes += seen.message.payload.len();
            if bytes > limits::RECEIVE_BYTES_MAX && !delivered.is_empty() {
                views.offer(content, priority, order, msg);
                break;
            }
            let expires = ctx.now.mono + lease;
            let leased =
                Leased { no: 0, content, priority, order, expires, deliveries: before + 1, settling: None };
            let lease_no = leases.give(ctx.now.mono, msg, leased);
            let token = Token::mint(&self.id.token_key, *tenure, lease_no, msg.seq, msg.index);
            let mut one = seen.shown(&self.log, before + 1);
            one.lease = Some(Lease { token, expires: ctx.now.wall + lease });
            delivered.push(one);
        }
        Ok(delivered)
    }

    /// Leases whose time is over: the message is available again, at its place, or used up.
    pub(super) fn lapse_leases(&mut self, ctx: &Context<'_>) {
        let Some(serve) = &mut self.serve else { return };
        while let Some(msg) = serve.leases.lapsed(ctx.now.mono) {
            let Some(lease) = serve.leases.end(ctx.now.mono, msg, Past::Expired) else { return };
            let Some((no, queue)) = self.state.queue_of(lease.content) else { continue };
            if is_used_up(queue, lease.deliveries) {
                let why = Why::UsedUp { deliveries: lease.deliveries };
                serve.chores.leave(msg, lease.content, why);
            } else {
                serve.views.offer(lease.content, lease.priority, lease.order, msg);
                serve.polls.stir(no);
            }
        }
    }

    /// It did not reach its client: available again at once, and not counted.
    pub(super) fn hand_back(&mut self, ctx: &Context<'_>, token: &Token) {
        let Some(serve) = &mut self.serve else { return };
        let msg = super::writes::msg_of(token);
        let free = serve.lease_of(&self.id.token_key, token).is_ok_and(|lease| lease.settling.is_none());
        if free && let Some(lease) = serve.leases.end(ctx.now.mono, msg, Past::HandedBack) {
            serve.leases.uncount(msg, lease.deliveries);
            serve.views.offer(lease.content, lease.priority, lease.order, msg);
            if let Some((no, _)) = self.state.queue_of(lease.content) {
                serve.polls.stir(no);
            }
        }
    }
}

/// A message as the state and the log have it.
pub(super) struct Seen {
    pub msg: Msg,
    pub block: Block,
    pub message: Message,
    pub accepted: WallMs,
}

/// Nothing if the message is gone.
pub(super) fn look_at(
    log: &Log,
    last_read: &mut Option<Entry>,
    read: &Overlay<'_>,
    msg: Msg,
) -> Result<Option<Seen>, StoreError> {
    let Some(bytes) = read.get(&keys::block_of(msg))? else { return Ok(None) };
    let block = Block::decode(&bytes)?;
    if block.slot(msg.index).is_none() {
        return Ok(None);
    }
    let entry = match last_read {
        Some(entry) if entry.position.seq == msg.seq => entry,
        _ => last_read.insert(log.entry(msg.seq, read)?),
    };
    let (message, accepted) = (entry.message(msg.index)?, entry.log_time);
    Ok(Some(Seen { msg, block, message, accepted }))
}

impl Seen {
    /// A dead letter's age starts again where it was moved to.
    pub fn is_past_its_time(&self, queue: &Queue, log_time: WallMs) -> bool {
        let moved = self.block.moved(self.msg.index);
        let since = moved.map_or(self.accepted, |moved| moved.at);
        let own = moved.is_none() && self.message.expires > WallMs(0) && self.message.expires <= log_time;
        own || since + queue.config.retention <= log_time
    }

    pub fn shown(self, log: &Log, deliveries: u32) -> Delivered {
        let Seen { msg, block, message, accepted } = self;
        let due = block.extra(msg.index).map(|extra| extra.due).filter(|due| *due > WallMs(0));
        Delivered {
            id: MessageId { epoch: log.epoch_at(msg.seq), seq: msg.seq, index: msg.index },
            lease: None,
            payload: message.payload,
            content_type: message.content_type,
            attributes: message.attributes,
            deliveries,
            sent_at: accepted,
            available_at: due,
            group: message.group,
            priority: message.priority,
            traceparent: message.traceparent,
            dead_letter: block.moved(msg.index).map(|moved| moved.why.clone()),
        }
    }
}
