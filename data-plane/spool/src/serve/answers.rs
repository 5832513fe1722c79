//! What an applied entry means for the primary's memory, and for the requests that wait for it.

use super::leases::Past;
use super::writes::{Answer, Open};
use super::{Place, Serve, failed};
use crate::command::{Failure, Reply, Written};
use crate::copy::{Context, Role, SpoolCopy};
use crate::entry::{Body, Entry};
use crate::event::Effects;
use crate::state::{Change, State};
use crate::store::{Overlay, StoreError};
use types::{ErrorCode, Moment, limits};

impl SpoolCopy {
    pub(crate) fn note_applied(
        &mut self,
        ctx: &Context<'_>,
        entry: &Entry,
        body: &Body,
        changes: &[Change],
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        let written =
            Written { position: entry.position, copies: self.copies_holding(entry.position.seq.next()) };
        let Some(serve) = &mut self.serve else { return Ok(()) };
        serve.on_applied(ctx.now.mono, body, changes, &self.state, written);
        if !matches!(self.role, Role::Primary(_)) {
            return Ok(());
        }
        if let Body::QueueDelete { queue } = body {
            for id in serve.polls.remove_queue(*queue) {
                serve.wait_is_over(id);
                out.replies.push((id, failed(ErrorCode::QueueNotFound, "the queue was deleted")));
            }
        }
        for Open { id, answer } in serve.writes.take_open(entry.position.seq) {
            let reply = self.answer(ctx, answer, written, changes, out)?;
            self.answer_once_sure(ctx, id, reply, out);
        }
        Ok(())
    }

    /// With numSync 0 nothing but the right to serve says that the commit counts. I15
    fn answer_once_sure(
        &mut self,
        ctx: &Context<'_>,
        id: crate::command::RequestId,
        reply: Reply,
        out: &mut Effects,
    ) {
        let asks_only = matches!(reply, Reply::KeyLookedUp { .. } | Reply::Failed(_));
        let sure = (self.id.k > 0 && !asks_only) || self.why_not_read(ctx).is_none();
        let Some(serve) = &mut self.serve else { return };
        serve.wait_is_over(id);
        if sure {
            out.replies.push((id, reply));
        } else {
            serve.wait(id, ctx.now.mono + limits::GUARD_WAIT, Place::Unsure);
            serve.unsure.insert(id, reply);
        }
    }

    fn answer(
        &mut self,
        ctx: &Context<'_>,
        answer: Answer,
        written: Written,
        changes: &[Change],
        out: &Effects,
    ) -> Result<Reply, StoreError> {
        let gone = |code, detail: &str| Reply::Failed(Failure::new(code, detail));
        Ok(match answer {
            Answer::Sent { queue: Some(no), .. } if self.state.queue(no).is_none() => {
                gone(ErrorCode::QueueNotFound, "the queue was deleted before the messages were accepted")
            }
            answer @ Answer::Sent { .. } => self.sent_reply(answer),
            Answer::Settled { slots } => self.settled_reply(slots),
            Answer::QueuePut { name, created } => match self.queue_info(ctx, &name, out)? {
                Ok(info) => Reply::QueuePut { info: Box::new(info), created, written },
                Err(failure) => Reply::Failed(failure),
            },
            Answer::QueueDeleted => Reply::Deleted { written },
            Answer::Purged => {
                let purged = changes.iter().find_map(|change| match change {
                    Change::Purged { messages } => Some(*messages),
                    _ => None,
                });
                match purged {
                    Some(messages) => Reply::Purged { messages, written },
                    None => gone(ErrorCode::QueueNotFound, "the queue was deleted before"),
                }
            }
            Answer::MessageDeleted { msg: deleted } => {
                let left = |change: &Change| matches!(change, Change::Gone { msg, .. } if *msg == deleted);
                match changes.iter().any(left) {
                    true => Reply::Deleted { written },
                    false => gone(ErrorCode::MessageNotFound, "the message was gone before"),
                }
            }
            Answer::KeyLookedUp { queue, key } => {
                let read = Overlay { store: ctx.store, batch: &out.batch };
                self.look_up_key(ctx, &queue, &key, &read)?
            }
            Answer::Refused(failure) => Reply::Failed(failure),
        })
    }
}

impl Serve {
    fn on_applied(&mut self, now: Moment, body: &Body, changes: &[Change], state: &State, written: Written) {
        let seq = written.position.seq;
        self.writes.applied(seq, body);
        let mut listed = false;
        match body {
            Body::Settle { items } => {
                for item in items {
                    self.chores.left(item.msg);
                    let settle = self.leases.get(item.msg).and_then(|lease| lease.settling.as_ref());
                    if let Some(settle) = settle.map(|settling| settling.settle.clone()) {
                        self.leases.end(now, item.msg, Past::Settled { settle, written });
                    }
                    self.leases.forget_count(item.msg);
                }
            }
            Body::Delivered { items } => {
                for (msg, saved) in items {
                    self.leases.count_saved(*msg, *saved);
                }
            }
            Body::Delete { msg } => {
                listed = self.leases.end(now, *msg, Past::Removed).is_none() && !self.chores.is_leaving(*msg);
                self.leases.forget_count(*msg);
                self.chores.left(*msg);
            }
            Body::QueuePut { name, .. } => {
                // It may have been paused until now.
                if let Some(no) = state.queue_no(name) {
                    self.polls.stir(no);
                }
            }
            _ => {}
        }
        for change in changes {
            let taken = match change {
                Change::Ready { content, msg, .. } => {
                    if let Some((no, _)) = state.queue_of(*content) {
                        self.polls.stir(no);
                    }
                    self.leases.holds(*msg) || self.chores.is_leaving(*msg)
                }
                Change::ContentGone { content } => {
                    let held: Vec<_> = self.leases.of_content(*content).map(|(msg, _)| msg).collect();
                    for msg in held {
                        self.leases.end(now, msg, Past::Removed);
                        self.leases.forget_count(msg);
                    }
                    self.chores.forget_content(*content);
                    false
                }
                _ => false,
            };
            self.views.on_change(change, taken, listed);
        }
    }
}
