//! One copy: what it is, how events reach its parts, sealing, syncing, applying.
//!
//! * [`crate::follower`]: what it does with a primary's entries
//! * [`crate::primary`]: what it does as primary, towards the other copies
//! * [`crate::serve`]: what it does as primary, towards clients

use crate::event::{Call, CallId, CallReply, Effects, Event, Note, PeerMessage, Probed, Sealed, SyncNo};
use crate::follower::Following;
use crate::keys;
use crate::log::{Log, Meta};
use crate::primary::Primary;
use crate::promise::Pairs;
use crate::record::Member;
use crate::serve::Serve;
use crate::state::{Rw, State};
use crate::store::{Batch, Store, StoreError};
use crate::token::TokenKey;
use std::collections::VecDeque;
use std::time::Duration;
use types::time::Now;
use types::{CopyId, Epoch, Moment, NodeName, ProcessId, Seq, SpoolId, WallMs};

/// Fixed when the copy is created.
#[derive(Clone, Debug)]
pub struct Identity {
    pub spool: SpoolId,
    pub copy: CopyId,
    pub node: NodeName,
    /// numReplicas.
    pub n: u8,
    /// numSync.
    pub k: u8,
    pub token_key: TokenKey,
    pub created: WallMs,
}

impl Identity {
    pub fn member(&self) -> Member {
        Member { node: self.node.clone(), copy: self.copy }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ProcessFacts {
    pub process: ProcessId,
    pub boot_no: u64,
    pub started: Moment,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// D: how long a promise runs.
    pub promise: Duration,
    /// delta: what a primary takes off, for clocks that run at different rates.
    pub promise_skew: Duration,
    /// The log is trimmed once so many entries can go.
    pub trim_stride: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            promise: Duration::from_millis(400),
            promise_skew: Duration::from_millis(20),
            trim_stride: types::limits::TRIM_STRIDE,
        }
    }
}

/// What surrounds one step.
pub struct Context<'a> {
    /// Read before the step; what the step answers is linearized here.
    pub now: Now,
    pub store: &'a dyn Store,
    pub pairs: &'a dyn Pairs,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("this disk holds no copy of spool {0}")]
    NoCopy(SpoolId),
    #[error("this disk holds copy {found} of the spool, not {expected}")]
    OtherCopy { expected: CopyId, found: CopyId },
}

/// The first batch of a new copy. Synced before anybody hears of the copy.
pub fn create(identity: &Identity) -> Batch {
    let mut batch = Batch::default();
    let meta = Meta { spool: identity.spool, copy: identity.copy, lineage: 0, sealed: Epoch(0) };
    batch.put(keys::META, meta.encode());
    batch
}

pub struct SpoolCopy {
    pub(crate) id: Identity,
    pub(crate) facts: ProcessFacts,
    pub(crate) settings: Settings,
    pub(crate) meta: Meta,
    pub(crate) log: Log,
    pub(crate) state: State,
    /// Exclusive end of what this copy knows to be committed.
    pub(crate) commit_end: Seq,
    /// No voter needs the log before this any more.
    pub(crate) trim_hint: Seq,
    /// When an entry last came from a primary, and its log time.
    pub(crate) heard_time: Option<(Moment, WallMs)>,
    pub(crate) role: Role,
    /// A primary's memory of its clients. Outlives the role: the same process may be elected again.
    pub(crate) serve: Option<Box<Serve>>,
    pub(crate) following: Option<Following>,
    /// Nothing is sealed before: promises that this process gave to older primaries, or has forgotten. I27
    hold_until: Moment,
    seal: Option<PendingSeal>,
    /// Seals on their way to disk.
    sealing: Vec<(Epoch, CallId)>,
    durable_seal: Epoch,
    next_sync: SyncNo,
    syncs: VecDeque<SyncFact>,
    pub(crate) want_sync: bool,
    halted: Option<String>,
}

pub(crate) enum Role {
    Follower,
    Primary(Box<Primary>),
}

/// A Seal that waits for promises to end.
struct PendingSeal {
    epoch: Epoch,
    until: Moment,
    calls: Vec<CallId>,
}

/// What a sync makes durable.
struct SyncFact {
    no: SyncNo,
    log_end: Seq,
    sealed: Epoch,
}

impl SpoolCopy {
    pub fn open(
        id: Identity,
        facts: ProcessFacts,
        settings: Settings,
        _now: Now,
        store: &dyn Store,
    ) -> Result<SpoolCopy, OpenError> {
        let bytes = store.get(keys::META)?.ok_or(OpenError::NoCopy(id.spool))?;
        let meta = Meta::decode(&bytes)?;
        if meta.copy != id.copy || meta.spool != id.spool {
            return Err(OpenError::OtherCopy { expected: id.copy, found: meta.copy });
        }
        let log = Log::open(id.spool, store)?;
        let state = State::open(store)?;
        let commit_end = state.applied_end();
        if commit_end > log.end() || log.trim_end() > commit_end {
            return Err(crate::codec::corrupt("the log's ends").into()); // I10
        }
        Ok(SpoolCopy {
            // The process has forgotten what it promised. I27
            hold_until: if id.n > 1 { facts.started + settings.promise } else { Moment::ZERO },
            durable_seal: meta.sealed,
            id,
            facts,
            settings,
            meta,
            log,
            state,
            commit_end,
            trim_hint: Seq(1),
            heard_time: None,
            role: Role::Follower,
            serve: None,
            following: None,
            seal: None,
            sealing: Vec::new(),
            next_sync: SyncNo(0),
            syncs: VecDeque::new(),
            want_sync: false,
            halted: None,
        })
    }

    /// One step. On an error the disk could not be read: the copy must not be used any more.
    pub fn handle(&mut self, ctx: &Context<'_>, event: Event, out: &mut Effects) -> Result<(), StoreError> {
        match event {
            Event::Tick => {}
            Event::Synced(no) => self.on_synced(ctx, no, out),
            Event::Peer { from, message } => self.on_peer(ctx, from, message, out)?,
            Event::PeerDisconnected { node } => self.on_disconnected(ctx, &node),
            Event::Call { id, call } => self.on_call(ctx, id, call, out)?,
            Event::Activated { epoch, ok } => self.on_activated(epoch, ok, out),
            Event::PrevCleared { epoch, ok } => self.on_prev_cleared(epoch, ok),
            Event::Request { id, command, wait } => self.on_request(ctx, id, command, wait, out)?,
            Event::Cancelled { id } => self.on_cancelled(ctx, id),
            Event::HandedBack { tokens } => self.on_handed_back(ctx, &tokens),
            Event::GiveUpRole => self.drop_role("this node is going away", out),
        }
        if let Some(why) = &self.halted {
            let why = why.clone();
            self.drop_role("this copy must not count any more", out);
            self.seal = None;
            debug_assert!(!why.is_empty());
            return Ok(());
        }
        self.try_seal(ctx, out);
        self.lead(ctx, out)?;
        self.apply_committed(ctx, out)?;
        self.serve_clients(ctx, out)?;
        self.lead_on(ctx, out)?;
        self.finish_step_down(ctx, out);
        self.trim(ctx, out)?;
        self.ask_for_sync(out);
        Ok(())
    }

    fn on_peer(
        &mut self,
        ctx: &Context<'_>,
        from: Member,
        message: PeerMessage,
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        match message {
            PeerMessage::Append(append) => self.on_append(ctx, from, append, out),
            PeerMessage::Confirm(confirm) => self.on_confirm(ctx, from, confirm, out),
            PeerMessage::Reject(reject) => self.on_reject(ctx, from, reject, out),
            PeerMessage::Release { epoch } => {
                self.on_release(ctx, epoch);
                Ok(())
            }
        }
    }

    fn on_call(
        &mut self,
        ctx: &Context<'_>,
        id: CallId,
        call: Call,
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        match call {
            Call::Seal { epoch } => self.on_seal(ctx, id, epoch, out),
            Call::Assign(assign) => {
                let reply = self.on_assign(ctx, assign, out)?;
                out.calls.push((id, reply));
            }
            Call::Probe => out.calls.push((id, CallReply::Probed(self.probed(ctx)))),
            Call::StepDown { epoch, target } => self.on_step_down(ctx, id, epoch, target, out),
            Call::Status => out.calls.push((id, CallReply::Status(Box::new(self.status(ctx))))),
        }
        Ok(())
    }

    fn probed(&self, ctx: &Context<'_>) -> Probed {
        let primary = self.following.as_ref().map(|following| &following.primary.node);
        Probed {
            copy: self.id.copy,
            sealed: self.meta.sealed,
            serving: self.serving_epoch(ctx),
            leading: self.primary_epoch(),
            heard: primary.and_then(|node| ctx.pairs.silent(node, ctx.now.mono)),
            primary_refused: primary.is_some_and(|node| ctx.pairs.refused(node)),
            position: self.log.last(),
        }
    }

    // ---- sealing

    fn on_seal(&mut self, ctx: &Context<'_>, id: CallId, epoch: Epoch, out: &mut Effects) {
        let follows = self.following.as_ref().is_some_and(|following| following.epoch == epoch);
        if epoch < self.meta.sealed
            || (epoch == self.meta.sealed && (follows || matches!(self.role, Role::Primary(_))))
            || self.seal.as_ref().is_some_and(|pending| pending.epoch > epoch)
        {
            let sealed = self.seal.as_ref().map_or(self.meta.sealed, |pending| pending.epoch);
            out.calls.push((id, CallReply::StaleEpoch { sealed: sealed.max(self.meta.sealed) }));
            return;
        }
        if epoch == self.meta.sealed {
            self.sealing.push((epoch, id));
            self.answer_seals(out);
            return;
        }
        if matches!(self.role, Role::Primary(_)) {
            // It sealed its epoch after its promises had ended, so it has nothing to wait for. S4
            self.drop_role("a later epoch is being elected", out);
        }
        let until = self.stop_promising(ctx);
        let calls = self.seal.take().map(|pending| pending.calls).unwrap_or_default();
        self.seal = Some(PendingSeal { epoch, until, calls: [calls, vec![id]].concat() });
    }

    /// Promises nothing more to the primary it followed; says when the last promise ends. I27
    fn stop_promising(&mut self, ctx: &Context<'_>) -> Moment {
        let last_beat = ctx.pairs.leave(self.id.spool);
        if self.following.as_ref().is_some_and(|following| following.promising) {
            if let Some(at) = last_beat {
                self.hold_until = self.hold_until.max(at + self.settings.promise);
            }
            if let Some(following) = &mut self.following {
                following.promising = false;
            }
        }
        self.hold_until
    }

    /// A planned change of primary: the promise to that epoch, and no other, ends at once. S5
    fn on_release(&mut self, ctx: &Context<'_>, epoch: Epoch) {
        let Some(following) = &mut self.following else { return };
        if following.epoch == epoch && following.promising {
            following.promising = false;
            following.released = true;
            ctx.pairs.leave(self.id.spool);
        }
    }

    fn try_seal(&mut self, ctx: &Context<'_>, out: &mut Effects) {
        let Some(pending) = &self.seal else { return };
        let sealed = self.meta.sealed;
        if pending.epoch <= sealed {
            // An assigned primary of that epoch, or of a later one, was there first.
            for id in self.seal.take().map(|pending| pending.calls).unwrap_or_default() {
                out.calls.push((id, CallReply::StaleEpoch { sealed }));
            }
            return;
        }
        if ctx.now.mono < pending.until {
            return;
        }
        let Some(PendingSeal { epoch, calls, .. }) = self.seal.take() else { return };
        self.put_seal(epoch, out);
        self.sealing.extend(calls.into_iter().map(|id| (epoch, id)));
    }

    pub(crate) fn put_seal(&mut self, epoch: Epoch, out: &mut Effects) {
        assert!(epoch > self.meta.sealed, "a seal never goes back"); // I2
        self.meta.sealed = epoch;
        self.following = None;
        out.batch.put(keys::META, self.meta.encode());
        self.want_sync = true;
        out.notes.push(Note::Sealed { epoch, position: self.log.last() });
    }

    fn answer_seals(&mut self, out: &mut Effects) {
        let sealed = self.meta.sealed;
        // A primary of this epoch was there before the seal was on disk.
        let taken_up = self.following.as_ref().is_some_and(|following| following.epoch == sealed);
        // What was appended under lower epochs is durable with the seal; what this copy appended as primary of this
        // epoch, before it gave up the role, may not be. I11
        if self.durable_seal < sealed || (!taken_up && self.log.durable_end() < self.log.end()) {
            return;
        }
        for (epoch, id) in std::mem::take(&mut self.sealing) {
            if epoch < sealed || taken_up {
                out.calls.push((id, CallReply::StaleEpoch { sealed }));
                continue;
            }
            out.calls.push((
                id,
                CallReply::Sealed(Sealed {
                    epoch,
                    copy: self.id.copy,
                    process: self.facts.process,
                    authoritative: true,
                    position: self.log.last(),
                    chain: *self.log.end_chain(),
                    commit_end: self.commit_end,
                    lineage: self.meta.lineage,
                }),
            ));
        }
    }

    pub(crate) fn pending_seal(&self) -> Option<Epoch> {
        self.seal.as_ref().map(|pending| pending.epoch)
    }

    /// What still runs of promises to an older primary bounds later seals. I27
    pub(crate) fn hold_promises(&mut self, ctx: &Context<'_>) {
        self.stop_promising(ctx);
    }

    // ---- disk

    fn on_synced(&mut self, ctx: &Context<'_>, no: SyncNo, out: &mut Effects) {
        while let Some(fact) = self.syncs.pop_front_if(|fact| fact.no <= no) {
            self.log.synced(fact.log_end);
            self.durable_seal = self.durable_seal.max(fact.sealed);
        }
        self.answer_seals(out);
        self.confirm(ctx, out);
    }

    fn ask_for_sync(&mut self, out: &mut Effects) {
        if std::mem::take(&mut self.want_sync) {
            self.next_sync.0 += 1;
            self.syncs.push_back(SyncFact {
                no: self.next_sync,
                log_end: self.log.end(),
                sealed: self.meta.sealed,
            });
            out.sync = Some(self.next_sync);
        }
    }

    /// The log was cut: syncs on their way say nothing about what comes in its place.
    pub(crate) fn forget_syncs_beyond(&mut self, end: Seq) {
        for fact in &mut self.syncs {
            fact.log_end = fact.log_end.min(end);
        }
    }

    pub(crate) fn seal_is_durable(&self) -> bool {
        self.durable_seal == self.meta.sealed
    }

    fn apply_committed(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let until = self.commit_end.min(self.log.durable_end()); // I10
        if self.state.applied_end() >= until {
            return Ok(());
        }
        let mut changes = Vec::new();
        while self.state.applied_end() < until {
            let seq = self.state.applied_end();
            let mut rw = Rw { store: ctx.store, batch: &mut out.batch };
            let entry = self.log.entry(seq, &rw.read())?;
            let body = match self.serve.as_mut().and_then(|serve| serve.take_body(&entry)) {
                Some(body) => body,
                None => entry.body()?,
            };
            changes.clear();
            self.state.apply(&entry, &body, self.log.trim_end(), &mut rw, &mut changes)?;
            self.note_applied(ctx, &entry, &body, &changes, out)?;
        }
        self.state.flush(&mut out.batch);
        Ok(())
    }

    fn trim(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let stride = self.settings.trim_stride;
        let to = self.trim_hint.min(self.state.applied_end());
        let to = to.min(Seq(self.log.trim_end().0 + 4 * stride));
        if to.0 < self.log.trim_end().0 + stride {
            return Ok(());
        }
        self.log.trim(to, ctx.store, &mut out.batch)
    }

    // ---- what others may know

    pub(crate) fn halt(&mut self, why: String, out: &mut Effects) {
        out.notes.push(Note::Halted { why: why.clone() });
        self.halted = Some(why);
    }

    pub fn halted(&self) -> Option<&str> {
        self.halted.as_deref()
    }
    pub fn identity(&self) -> &Identity {
        &self.id
    }
    pub fn sealed(&self) -> Epoch {
        self.meta.sealed
    }
    pub fn lineage(&self) -> u64 {
        self.meta.lineage
    }
    pub fn log(&self) -> &Log {
        &self.log
    }
    pub fn state(&self) -> &State {
        &self.state
    }
    pub fn commit_end(&self) -> Seq {
        self.commit_end
    }
    /// The epoch that this copy was assigned, serving or not.
    pub fn primary_epoch(&self) -> Option<Epoch> {
        match &self.role {
            Role::Primary(primary) => Some(primary.epoch),
            Role::Follower => None,
        }
    }
    /// Whom it follows.
    pub fn primary_member(&self) -> Option<&Member> {
        self.following.as_ref().map(|following| &following.primary)
    }

    /// Feed [`Event::Tick`] at this moment at the latest.
    pub fn next_wakeup(&self) -> Option<Moment> {
        let seal = self.seal.as_ref().map(|pending| pending.until);
        [seal, self.lead_wakeup(), self.serve_wakeup()].into_iter().flatten().min()
    }

    /// Asserts what must be true between steps.
    pub fn check(&self) {
        let log = &self.log;
        assert!(log.trim_end() <= self.state.applied_end(), "trimmed beyond what is applied"); // I22
        assert!(self.state.applied_end() <= self.commit_end, "applied beyond the commit"); // I10
        assert!(self.state.applied_end() <= log.durable_end(), "applied beyond what is durable"); // I10
        assert!(log.durable_end() <= log.end());
        assert!(self.durable_seal <= self.meta.sealed); // I2
        assert!(log.last().epoch <= self.meta.sealed, "an entry above the sealed epoch"); // I3
        if let Role::Primary(primary) = &self.role {
            assert_eq!(primary.epoch, self.meta.sealed, "a primary whose copy sealed another epoch"); // I1
            assert!(self.commit_end <= log.durable_end());
        }
        if let Some(serve) = &self.serve {
            serve.check();
        }
    }
}
