//! A primary and its clients: requests that wait, leases, what is handed out, what is written on their behalf.
//!
//! All of it is memory, and may be lost: what must not be is in the log. A request waits in exactly one place,
//! and each place says what its end may be:
//!
//! | place | waits for | if it ends otherwise |
//! |---|---|---|
//! | [`Place::Held`] | the right to serve (reads) | 503: nothing happened |
//! | [`Place::Parked`] | its turn to enter the log | 503: it is not in the log and never will be |
//! | [`Place::Open`] | its entry's commit and application | 504: nobody knows yet |
//! | [`Place::Polling`] | a message | an empty answer |
//! | [`Place::Unsure`] | the right to tell an answer (numSync 0) | 504 |
//!
//! Parked and open writes are two types, [`writes::Parked`] and [`writes::Open`]: only the first can be refused. I17
//!
//! * [`writes`]: admission, parking, what each command appends
//! * [`answers`]: what applied entries mean for leases and waiting requests
//! * [`receive`]: handing out messages, long polls; [`window`]: what is available, in order
//! * [`leases`]: who holds what, until when; old tokens
//! * [`reads`]: looking without taking
//! * [`chores`]: what the primary writes by itself

mod answers;
mod chores;
mod leases;
mod reads;
mod receive;
mod window;
mod writes;

use crate::command::{Command, Failure, Reply, RequestId};
use crate::copy::{Context, Role, SpoolCopy};
use crate::entry::{Body, Entry};
use crate::event::Effects;
use crate::keys::QueueNo;
use crate::store::StoreError;
use crate::token::{Tenure, Token};
use chores::Chores;
use leases::Leases;
use receive::Polls;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use types::time::Now;
use types::{Epoch, ErrorCode, Moment, Seq, WallMs, limits};
use window::Views;
use writes::Writes;

/// How often a primary looks again whether what it waits for is there: beats come and go without an event.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(crate) struct Serve {
    /// The last epoch of this tenure.
    pub last_epoch: Epoch,
    tenure: Tenure,
    clock: LogClock,
    /// Entries appended and not applied, with their bytes, so that they need not be decoded again.
    bodies: VecDeque<(Seq, Body, usize)>,
    unapplied_bytes: usize,
    writes: Writes,
    leases: Leases,
    views: Views,
    polls: Polls,
    chores: Chores,
    held: BTreeMap<RequestId, (Command, Duration)>,
    unsure: BTreeMap<RequestId, Reply>,
    waiting: BTreeMap<RequestId, (Moment, Place)>,
    deadlines: BTreeSet<(Moment, RequestId)>,
    looked_at: Moment,
    /// The last entry read for a payload: neighbours of a batch come from the same one.
    last_read: Option<Entry>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Held,
    Parked(u64),
    Open(Seq),
    Polling(QueueNo),
    Unsure,
}

/// Log time, from where a tenure begins on only as fast as the monotonic clock. I19
struct LogClock {
    base: WallMs,
    from: Moment,
    last: WallMs,
}

impl LogClock {
    fn at(&self, now: Now) -> WallMs {
        (self.base + now.mono.since(self.from)).max(self.last)
    }
}

impl Serve {
    pub fn new(tenure: Tenure, now: Moment, log_time: WallMs) -> Serve {
        Serve {
            last_epoch: tenure.epoch,
            tenure,
            clock: LogClock { base: log_time, from: now, last: log_time },
            bodies: VecDeque::new(),
            unapplied_bytes: 0,
            writes: Writes::default(),
            leases: Leases::default(),
            views: Views::default(),
            polls: Polls::default(),
            chores: Chores::default(),
            held: BTreeMap::new(),
            unsure: BTreeMap::new(),
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            looked_at: now,
            last_read: None,
        }
    }

    /// The log time of the next entry.
    pub fn stamp(&mut self, now: Now) -> WallMs {
        self.clock.last = self.clock.at(now);
        self.clock.last
    }

    pub fn appended(&mut self, entry: &Entry, body: Body) {
        self.unapplied_bytes += entry.bytes.len();
        self.bodies.push_back((entry.position.seq, body, entry.bytes.len()));
    }

    pub fn take_body(&mut self, entry: &Entry) -> Option<Body> {
        let (_, body, bytes) = self.bodies.pop_front_if(|(seq, ..)| *seq == entry.position.seq)?;
        self.unapplied_bytes -= bytes;
        Some(body)
    }

    /// Writes that have no answer yet.
    pub fn waiting_writes(&self) -> u64 {
        self.writes.len() as u64
    }

    fn wait(&mut self, id: RequestId, until: Moment, place: Place) {
        if let Some((before, _)) = self.waiting.insert(id, (until, place)) {
            self.deadlines.remove(&(before, id));
        }
        self.deadlines.insert((until, id));
    }

    fn wait_is_over(&mut self, id: RequestId) -> Option<Place> {
        let (until, place) = self.waiting.remove(&id)?;
        self.deadlines.remove(&(until, id));
        Some(place)
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= limits::WAITING_REQUESTS_MAX
    }

    /// Asserts what must be true between steps.
    pub fn check(&self) {
        assert_eq!(self.waiting.len(), self.deadlines.len());
        for (id, (_, place)) in &self.waiting {
            match place {
                Place::Held => assert!(self.held.contains_key(id)),
                Place::Parked(no) => assert!(self.writes.is_parked(*no, *id)),
                Place::Open(seq) => assert!(self.writes.is_open(*seq, *id)),
                Place::Polling(queue) => assert!(self.polls.is_polling(*queue, *id)),
                Place::Unsure => assert!(self.unsure.contains_key(id)),
            }
        }
        assert_eq!(
            self.waiting.len(),
            self.held.len() + self.unsure.len() + self.polls.len() + self.writes.len(),
            "a request waits in exactly one place"
        );
        self.leases.check();
        self.views.check(|msg| self.leases.holds(msg) || self.chores.is_leaving(msg));
    }
}

fn failed(code: ErrorCode, detail: &str) -> Reply {
    Reply::Failed(Failure::new(code, detail))
}

impl SpoolCopy {
    pub(crate) fn on_request(
        &mut self,
        ctx: &Context<'_>,
        id: RequestId,
        command: Command,
        wait: Duration,
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        let Role::Primary(_) = &self.role else {
            out.replies.push((id, failed(ErrorCode::NoPrimary, "this node is not the spool's primary")));
            return Ok(());
        };
        self.lapse_leases(ctx);
        let Some(serve) = &mut self.serve else { return Ok(()) };
        if serve.is_full() {
            out.replies.push((id, failed(ErrorCode::SpoolBusy, "too many requests wait in this spool")));
            return Ok(());
        }
        if command.is_write() || matches!(command, Command::LookUpKey { .. }) {
            return self.admit(ctx, id, command, wait, out);
        }
        if self.why_not_read(ctx).is_some() {
            if let Some(serve) = &mut self.serve {
                serve.wait(id, ctx.now.mono + limits::GUARD_WAIT, Place::Held);
                serve.held.insert(id, (command, wait));
            }
            return Ok(());
        }
        self.read(ctx, id, command, out)
    }

    /// Why answers from memory cannot be given now.
    fn why_not_read(&self, ctx: &Context<'_>) -> Option<Failure> {
        if !self.in_office() {
            return Some(Failure::new(ErrorCode::NoPrimary, "the primary is taking over"));
        }
        if !self.guard_is_valid(ctx) {
            // I15
            return Some(Failure::new(
                ErrorCode::ClaimInDoubt,
                "too few copies renew their promise to this primary",
            ));
        }
        None
    }

    /// The client is gone: what is not in the log will not get there, what was in the log stays. I17
    pub(crate) fn on_cancelled(&mut self, ctx: &Context<'_>, id: RequestId) {
        let Some(serve) = &mut self.serve else { return };
        match serve.wait_is_over(id) {
            None => {}
            Some(Place::Held) => drop(serve.held.remove(&id)),
            Some(Place::Parked(no)) => drop(self.forget_parked(ctx, no)),
            Some(Place::Open(seq)) => serve.writes.stop_waiting(seq, id),
            Some(Place::Polling(queue)) => serve.polls.remove(queue, id),
            Some(Place::Unsure) => drop(serve.unsure.remove(&id)),
        }
    }

    pub(crate) fn on_handed_back(&mut self, ctx: &Context<'_>, tokens: &[Token]) {
        for token in tokens {
            self.hand_back(ctx, token);
        }
    }

    /// One look at everything that waits.
    pub(crate) fn serve_clients(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let Role::Primary(_) = &self.role else { return Ok(()) };
        self.lapse_leases(ctx);
        self.end_waits(ctx, out);
        if self.in_office() {
            self.retry_held(ctx, out)?;
            self.unpark(ctx, out)?;
            self.feed_polls(ctx, out)?;
            self.do_chores(ctx, out)?;
        }
        if let Some(serve) = &mut self.serve {
            serve.looked_at = ctx.now.mono;
        }
        Ok(())
    }

    fn end_waits(&mut self, ctx: &Context<'_>, out: &mut Effects) {
        loop {
            let Some(serve) = &mut self.serve else { return };
            let Some((until, id)) = serve.deadlines.first().copied() else { return };
            if until > ctx.now.mono {
                return;
            }
            let Some(place) = serve.wait_is_over(id) else { return };
            let reply = match place {
                Place::Held => {
                    serve.held.remove(&id);
                    self.why_not_read(ctx)
                        .map_or_else(|| failed(ErrorCode::ClaimInDoubt, "it was, until now"), Reply::Failed)
                }
                Place::Parked(no) => {
                    self.forget_parked(ctx, no);
                    Reply::Failed(self.why_not_write(ctx).unwrap_or_else(|| {
                        Failure::new(ErrorCode::SpoolBusy, "other writes were before this one")
                    }))
                }
                Place::Open(seq) if serve.writes.is_look_up(seq, id) => {
                    serve.writes.stop_waiting(seq, id);
                    failed(ErrorCode::NotEnoughCopies, "writes before it are not confirmed yet")
                }
                Place::Open(seq) => {
                    serve.writes.stop_waiting(seq, id);
                    failed(ErrorCode::OperationUnconfirmed, "in the primary's log, and not confirmed in time")
                }
                Place::Polling(queue) => {
                    serve.polls.remove(queue, id);
                    match self.why_not_read(ctx) {
                        None => Reply::Received { messages: Vec::new() },
                        Some(failure) => Reply::Failed(failure),
                    }
                }
                Place::Unsure => {
                    serve.unsure.remove(&id);
                    failed(ErrorCode::OperationUnconfirmed, "the primary's right to serve is in doubt")
                }
            };
            out.replies.push((id, reply));
        }
    }

    fn retry_held(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let waits =
            self.serve.as_ref().is_some_and(|serve| !serve.held.is_empty() || !serve.unsure.is_empty());
        if !waits || self.why_not_read(ctx).is_some() {
            return Ok(());
        }
        while let Some(serve) = &mut self.serve {
            if let Some((id, reply)) = serve.unsure.pop_first() {
                serve.wait_is_over(id);
                out.replies.push((id, reply));
            } else if let Some((id, (command, _))) = serve.held.pop_first() {
                serve.wait_is_over(id);
                self.read(ctx, id, command, out)?;
            } else {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn serve_wakeup(&self) -> Option<Moment> {
        let (Role::Primary(_), Some(serve)) = (&self.role, &self.serve) else { return None };
        let deadline = serve.deadlines.first().map(|(until, _)| *until);
        let look = !serve.held.is_empty()
            || !serve.unsure.is_empty()
            || serve.writes.has_parked()
            || serve.chores.is_behind()
            || serve.polls.has_stirred();
        let again = look.then(|| serve.looked_at + LOOK_AGAIN);
        let due = self.chores_wakeup();
        [deadline, serve.leases.next_lapse(), again, due].into_iter().flatten().min()
    }

    /// The role is lost. What is in the log may yet be confirmed by the next primary; everything else certainly
    /// has no effect. Leases stay: the same process may be elected again.
    pub(crate) fn dismiss_clients(&mut self, _epoch: Epoch, out: &mut Effects) {
        let Some(serve) = &mut self.serve else { return };
        for (id, (_, place)) in std::mem::take(&mut serve.waiting) {
            let reply = match place {
                Place::Open(seq) if serve.writes.is_look_up(seq, id) => {
                    failed(ErrorCode::NoPrimary, "the primary lost its place")
                }
                Place::Open(_) | Place::Unsure => failed(
                    ErrorCode::OperationUnconfirmed,
                    "the primary lost its place before it was confirmed",
                ),
                Place::Held | Place::Parked(_) | Place::Polling(_) => {
                    failed(ErrorCode::NoPrimary, "the primary lost its place")
                }
            };
            out.replies.push((id, reply));
        }
        serve.deadlines.clear();
        serve.held.clear();
        serve.unsure.clear();
        serve.polls = Polls::default();
        for (id, tokens) in serve.writes.dismiss() {
            serve.leases.unmark(id, tokens.iter().map(writes::msg_of));
        }
    }
}
