//! What the primary writes by itself: messages that leave (used up, past their time), delivery counts, and ticks
//! that let time act on the state. None of it is urgent: while nothing can be written it waits, and what
//! may not be seen meanwhile is held back.

use super::writes::dead_letter;
use crate::command::DeadLetterReason;
use crate::copy::{Context, Role, SpoolCopy};
use crate::entry::{Body, Fate, SettleItem};
use crate::event::Effects;
use crate::keys::{self, ContentNo, Msg, Order};
use crate::state::rows::Block;
use crate::store::{Overlay, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use types::{Moment, Seq, limits};

#[derive(Default)]
pub(super) struct Chores {
    /// Messages that nobody may receive any more, until an entry says what became of them.
    leaving: BTreeMap<Msg, (ContentNo, Why)>,
    /// Of these, the ones that no entry is on its way for.
    unwritten: BTreeSet<Msg>,
    tick_open: Option<Seq>,
    pulled_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Past its time to live, or its queue's retention.
    PastItsTime,
    /// Delivered as often as its queue allows, and its last lease expired.
    UsedUp { deliveries: u32 },
}

impl Chores {
    pub fn leave(&mut self, msg: Msg, content: ContentNo, why: Why) {
        self.leaving.insert(msg, (content, why));
        self.unwritten.insert(msg);
    }

    pub fn is_leaving(&self, msg: Msg) -> bool {
        self.leaving.contains_key(&msg)
    }

    /// An entry said what became of it.
    pub fn left(&mut self, msg: Msg) {
        self.leaving.remove(&msg);
        self.unwritten.remove(&msg);
    }

    pub fn forget_content(&mut self, content: ContentNo) {
        self.leaving.retain(|_, (of, _)| *of != content);
        self.unwritten.retain(|msg| self.leaving.contains_key(msg));
    }

    pub fn leaving_of(&self, content: ContentNo) -> usize {
        self.leaving.values().filter(|(of, _)| *of == content).count()
    }

    pub fn is_behind(&self) -> bool {
        !self.unwritten.is_empty()
    }
}

impl SpoolCopy {
    pub(super) fn do_chores(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let applied_end = self.state.applied_end();
        let Some(serve) = &mut self.serve else { return Ok(()) };
        if serve.chores.tick_open.is_some_and(|seq| seq < applied_end) {
            serve.chores.tick_open = None;
        }
        let time_acts = self.state.has_chores(serve.clock.at(ctx.now));
        let saved_until = ctx.now.mono.minus(limits::DELIVERED_EVERY);
        let unsaved = serve.leases.oldest_unsaved().is_some_and(|at| at <= saved_until);
        if !(time_acts || unsaved || serve.chores.is_behind()) {
            return Ok(());
        }
        if self.why_not_write(ctx).is_some() {
            return self.pull_due(ctx, out);
        }
        self.write_leaving(ctx, out);
        if unsaved {
            self.write_counts(ctx, saved_until, out);
        }
        if time_acts && self.serve.as_ref().is_some_and(|serve| serve.chores.tick_open.is_none()) {
            let seq = self.append(ctx, Body::Tick, out);
            if let Some(serve) = &mut self.serve {
                serve.chores.tick_open = Some(seq);
            }
        }
        Ok(())
    }

    fn write_leaving(&mut self, ctx: &Context<'_>, out: &mut Effects) {
        let Some(serve) = &mut self.serve else { return };
        let mut items = Vec::new();
        while items.len() < limits::BATCH_MAX
            && let Some(msg) = serve.chores.unwritten.pop_first()
        {
            let Some((content, why)) = serve.chores.leaving.get(&msg) else { continue };
            let Some((_, queue)) = self.state.queue_of(*content) else { continue };
            let fate = match why {
                Why::PastItsTime => Fate::Expired,
                Why::UsedUp { deliveries } => {
                    dead_letter(queue, DeadLetterReason::Expired, None, *deliveries)
                }
            };
            items.push(SettleItem { msg, fate });
        }
        if !items.is_empty() {
            self.append(ctx, Body::Settle { items }, out);
        }
    }

    fn write_counts(&mut self, ctx: &Context<'_>, until: Moment, out: &mut Effects) {
        let Some(serve) = &mut self.serve else { return };
        let items = serve.leases.take_unsaved(until, limits::BATCH_MAX);
        if !items.is_empty() {
            self.append(ctx, Body::Delivered { items }, out);
        }
    }

    /// Delayed messages whose time has come can be received although no entry can say so now.
    fn pull_due(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let Some(serve) = &mut self.serve else { return Ok(()) };
        let (log_time, now) = (serve.clock.at(ctx.now), ctx.now.mono);
        let Some(first) = self.state.next_due().filter(|due| *due <= log_time) else { return Ok(()) };
        if now.since(serve.chores.pulled_at) < super::LOOK_AGAIN {
            return Ok(());
        }
        serve.chores.pulled_at = now;
        let read = Overlay { store: ctx.store, batch: &out.batch };
        let mut due = Vec::new();
        let from = keys::due(first, Msg { seq: Seq(0), index: 0 });
        read.scan(&from, &keys::due_until(log_time), &mut |key, _| {
            due.extend(keys::of_due(key));
            due.len() < limits::WINDOW_MAX
        })?;
        for (_, msg) in due {
            let Some(bytes) = read.get(&keys::block_of(msg))? else { continue };
            let block = Block::decode(&bytes)?;
            let content = block.content_of(msg.index);
            let (Some(slot), Some((no, _))) = (block.slot(msg.index), self.state.queue_of(content)) else {
                continue;
            };
            if serve.leases.holds(msg) || serve.chores.is_leaving(msg) {
                continue;
            }
            let own = Order { seq: msg.seq, index: msg.index };
            let order = block.moved(msg.index).map_or(own, |moved| moved.order);
            if serve.views.open(content).pull(slot.priority, order, msg) {
                serve.polls.stir(no);
            }
        }
        Ok(())
    }

    /// When time acts next. Never in the past: what cannot be done now is looked at again a little later.
    pub(super) fn chores_wakeup(&self) -> Option<Moment> {
        let (Role::Primary(_), Some(serve)) = (&self.role, &self.serve) else { return None };
        let unsaved = serve.leases.oldest_unsaved().map(|at| at + limits::DELIVERED_EVERY);
        let due = self.state.next_due().map(|due| {
            let ahead = due.0.saturating_sub(serve.clock.base.0);
            serve.clock.from + std::time::Duration::from_millis(u64::try_from(ahead).unwrap_or(0))
        });
        let sweep = self.state.is_sweeping().then_some(serve.looked_at);
        let at = [unsaved, due, sweep].into_iter().flatten().min()?;
        Some(if at <= serve.looked_at { serve.looked_at + super::LOOK_AGAIN } else { at })
    }
}
