//! What a copy does with a primary's entries: compare, append, sync, confirm. Where the logs differ, the
//! primary's counts; but nothing that this copy knows to be committed is ever cut. I4 I10

use crate::copy::{Context, Role, SpoolCopy};
use crate::entry::Entry;
use crate::event::{Append, Confirm, Effects, Note, PeerMessage, Reject, RejectReason};
use crate::keys;
use crate::record::Member;
use crate::store::{Overlay, StoreError};
use types::{Epoch, Seq};

/// The primary that this copy follows.
pub(crate) struct Following {
    pub epoch: Epoch,
    pub primary: Member,
    /// Of the last message taken; echoed.
    number: u64,
    /// Exclusive end of what is known to be identical to the primary's log.
    match_end: Seq,
    /// Said in the last confirmation.
    confirmed_end: Seq,
    /// An answer is owed for the last message.
    owed: bool,
    /// Beats of the primary renew a promise.
    pub promising: bool,
    /// The primary gave up its role for good.
    pub released: bool,
    version: u64,
}

impl SpoolCopy {
    pub(crate) fn on_append(
        &mut self,
        ctx: &Context<'_>,
        from: Member,
        append: Append,
        out: &mut Effects,
    ) -> Result<(), StoreError> {
        let reject = |reason, out: &mut Effects| {
            let reject = Reject { epoch: append.epoch, number: append.number, reason };
            out.peers.push((from.clone(), PeerMessage::Reject(reject)));
        };
        if append.epoch < self.meta.sealed {
            reject(RejectReason::StaleEpoch { sealed: self.meta.sealed }, out);
            return Ok(());
        }
        if let Role::Primary(primary) = &self.role {
            if primary.epoch >= append.epoch {
                return Ok(()); // Not from a primary: each epoch has one. I1
            }
            self.drop_role("another copy is primary of a later epoch", out);
        }
        self.follow(ctx, &from, append.epoch, out);
        let read = Overlay { store: ctx.store, batch: &out.batch };
        if self.log.chain_at(append.prev.seq, &read)? != Some(append.prev_chain) {
            let epochs = self.log.epochs().to_vec();
            reject(RejectReason::NoMatch { epochs, end: self.log.end() }, out);
            return Ok(());
        }
        let Some(match_end) = self.take_entries(ctx, &append, out)? else { return Ok(()) };
        let Some(following) = &mut self.following else { return Ok(()) };
        following.match_end = following.match_end.max(match_end);
        following.number = following.number.max(append.number);
        following.owed = true;
        self.commit_end = self.commit_end.max(append.commit_end.min(following.match_end));
        self.trim_hint = self.trim_hint.max(append.trim_end);
        self.confirm(ctx, out);
        Ok(())
    }

    fn follow(&mut self, ctx: &Context<'_>, from: &Member, epoch: Epoch, out: &mut Effects) {
        let current = self.following.as_ref().is_some_and(|f| f.epoch == epoch && f.primary == *from);
        if !current {
            self.hold_promises(ctx);
            // Another primary's entries come: what this one remembers of its own reign is over.
            self.serve = None;
            if epoch > self.meta.sealed {
                // Durable with the entries, before the first confirmation. I2
                self.meta.sealed = epoch;
                out.batch.put(keys::META, self.meta.encode());
                self.want_sync = true;
            }
            self.following = Some(Following {
                epoch,
                primary: from.clone(),
                number: 0,
                match_end: Seq(0),
                confirmed_end: Seq(0),
                owed: false,
                promising: false,
                released: false,
                version: u64::MAX,
            });
        }
        let seal_waits = self.pending_seal().is_some_and(|pending| pending > epoch);
        let Some(following) = &mut self.following else { return };
        // The waiting Seal wins: nothing more is promised below it. I27
        if seal_waits || following.released {
            following.version = u64::MAX;
        } else {
            following.version = ctx.pairs.follow(&from.node, self.id.spool, epoch);
            following.promising = true;
        }
    }

    /// Appends what is new of the entries. Returns the exclusive end up to which the logs are identical;
    /// nothing if the entries are not what they claim to be, or must not be taken.
    fn take_entries(
        &mut self,
        ctx: &Context<'_>,
        append: &Append,
        out: &mut Effects,
    ) -> Result<Option<Seq>, StoreError> {
        let mut end = append.prev.seq.next();
        let mut chain = append.prev_chain;
        for bytes in &append.entries {
            // Damaged on the way or by the sender: it will be asked for again.
            let Ok(entry) = Entry::decode(bytes.clone()) else { return Ok(None) };
            if entry.position.seq != end || entry.position.epoch > append.epoch || !entry.follows(&chain) {
                return Ok(None);
            }
            (end, chain) = (entry.position.seq.next(), entry.chain);
            if entry.position.seq < self.log.end() {
                let read = Overlay { store: ctx.store, batch: &out.batch };
                match self.log.chain_at(entry.position.seq, &read)? {
                    Some(own) if own == entry.chain => continue,
                    // Below the trim point: applied, hence identical.
                    None => continue,
                    Some(_) => {
                        if !self.cut_suffix(ctx, entry.position.seq, out)? {
                            return Ok(None);
                        }
                    }
                }
            }
            // Of entries that were committed long ago their log time says nothing about now.
            let (now, time, fresh) = (ctx.now.mono, entry.log_time, end > append.commit_end);
            if fresh && self.heard_time.is_none_or(|(at, heard)| heard + now.since(at) < time) {
                self.heard_time = Some((now, time));
            }
            self.log.append(entry, &mut out.batch);
            self.want_sync = true;
        }
        Ok(Some(end))
    }

    fn cut_suffix(&mut self, ctx: &Context<'_>, from: Seq, out: &mut Effects) -> Result<bool, StoreError> {
        if from < self.commit_end {
            // Never truncate what is committed: one of the two logs lies.
            let (known, primary) = (self.commit_end, self.following.as_ref().map(|f| &f.primary.node));
            self.halt(
                format!("the log of primary {primary:?} differs at {from}, below the commit at {known}"),
                out,
            );
            return Ok(false);
        }
        let read = Overlay { store: ctx.store, batch: &out.batch };
        let chain = self
            .log
            .chain_at(from.prev(), &read)?
            .ok_or_else(|| crate::codec::corrupt("the log before a cut"))?;
        out.notes.push(Note::CutSuffix { from, to: self.log.end() });
        self.log.cut(from, chain, &mut out.batch);
        self.forget_syncs_beyond(from);
        if let Some(following) = &mut self.following {
            following.confirmed_end = following.confirmed_end.min(from);
        }
        Ok(true)
    }

    /// "My log is identical to yours, synced, before this." Only once it is so. I6
    pub(crate) fn confirm(&mut self, ctx: &Context<'_>, out: &mut Effects) {
        let pending_seal = self.pending_seal();
        let durable_end = self.log.durable_end();
        if !self.seal_is_durable() {
            return;
        }
        let Some(following) = &mut self.following else { return };
        let end = following.match_end.min(durable_end);
        // A confirmation without news is an answer to a message; one that waits for a sync comes with it.
        let news = end > following.confirmed_end;
        if end == Seq(0) || !(news || following.owed && end == following.match_end) {
            return;
        }
        let read = Overlay { store: ctx.store, batch: &out.batch };
        // Below the trim point the primary knows already that the logs agree.
        let Ok(Some(chain)) = self.log.chain_at(end.prev(), &read) else { return };
        following.confirmed_end = end;
        following.owed = false;
        let confirm = Confirm {
            process: self.facts.process,
            epoch: following.epoch,
            number: following.number,
            end,
            chain,
            follows_version: following.version,
            pending_seal: pending_seal.filter(|pending| *pending > following.epoch),
        };
        out.peers.push((following.primary.clone(), PeerMessage::Confirm(confirm)));
    }
}
