use crate::command::*;
use crate::copy::{Context, SpoolCopy};
use crate::entry::{Body, Entry, Message};
use crate::event::Effects;
use crate::state::{Change, State};
use crate::store::StoreError;
use crate::token::{Tenure, Token};
use std::collections::BTreeMap;
use std::time::Duration;
use types::time::Now;
use types::*;
pub struct Serve { pub last_epoch: Epoch, floor: WallMs, pending: BTreeMap<Seq, (RequestId, Body, Moment)> }
impl Serve {
    pub fn new(_t: Tenure, _now: Now, floor: WallMs) -> Serve { Serve { last_epoch: Epoch(0), floor, pending: BTreeMap::new() } }
    pub fn stamp(&mut self, now: Now) -> WallMs { self.floor = self.floor.max(now.wall); self.floor }
    pub fn appended(&mut self, _e: &Entry, _b: Body) {}
    pub fn take_body(&mut self, _e: &Entry) -> Option<Body> { None }
    pub fn on_applied(&mut self, _e: &Entry, _b: &Body, _c: &[Change], _s: &State) {}
    pub fn check(&self) {}
    pub fn waiting_writes(&self) -> u64 { 0 }
}
impl SpoolCopy {
    pub(crate) fn on_request(&mut self, ctx: &Context<'_>, id: RequestId, command: Command, wait: Duration, out: &mut Effects) -> Result<(), StoreError> {
        let fail = |code, out: &mut Effects| out.replies.push((id, Reply::Failed(Failure::new(code, ""))));
        if !self.in_office() { fail(ErrorCode::NoPrimary, out); return Ok(()); }
        if command.is_write() && (!self.enough_reachable(ctx) || self.is_stepping_down()) { fail(ErrorCode::NotEnoughCopies, out); return Ok(()); }
        if !self.guard_is_valid(ctx) { fail(ErrorCode::ClaimInDoubt, out); return Ok(()); }
        let body = match command {
            Command::PutQueue { queue, change, .. } => Body::QueuePut { name: queue, config: change.apply(None) },
            Command::Send { queue, messages } => {
                let Some(no) = self.state.queue_no(&queue) else { fail(ErrorCode::QueueNotFound, out); return Ok(()) };
                if messages[0].dedup_key.is_some() { fail(ErrorCode::DedupNotEnabled, out); return Ok(()); }
                Body::Send { queue: no, messages: messages.into_iter().map(|m| Message { priority: m.priority.unwrap_or(4), due: WallMs(0), expires: WallMs(0), dedup: None, content_type: None, group: None, traceparent: None, attributes: vec![], payload: m.payload }).collect() }
            }
            Command::Receive { .. } => { out.replies.push((id, Reply::Received { messages: vec![] })); return Ok(()) }
            _ => { fail(ErrorCode::SpoolBusy, out); return Ok(()); }
        };
        let seq = self.append(ctx, body.clone(), out);
        self.serve.as_mut().unwrap().pending.insert(seq, (id, body, ctx.now.mono + wait.max(Duration::from_secs(1))));
        Ok(())
    }
    pub(crate) fn on_cancelled(&mut self, _ctx: &Context<'_>, id: RequestId) { if let Some(s) = &mut self.serve { s.pending.retain(|_, (r, ..)| *r != id) } }
    pub(crate) fn on_handed_back(&mut self, _ctx: &Context<'_>, _tokens: &[Token]) {}
    pub(crate) fn serve_clients(&mut self, ctx: &Context<'_>, out: &mut Effects) -> Result<(), StoreError> {
        let Some(s) = &mut self.serve else { return Ok(()) };
        s.pending.retain(|_, (id, _, until)| { if ctx.now.mono >= *until { out.replies.push((*id, Reply::Failed(Failure::new(ErrorCode::OperationUnconfirmed, "")))); false } else { true } });
        Ok(())
    }
    pub(crate) fn serve_wakeup(&self) -> Option<Moment> { self.serve.as_ref().and_then(|s| s.pending.values().map(|p| p.2).min()) }
    pub(crate) fn dismiss_clients(&mut self, _e: Epoch, out: &mut Effects) {
        if let Some(s) = &mut self.serve { for (_, (id, ..)) in std::mem::take(&mut s.pending) { out.replies.push((id, Reply::Failed(Failure::new(ErrorCode::OperationUnconfirmed, "")))); } }
    }
    pub(crate) fn answer_applied(&mut self, ctx: &Context<'_>, entry: &Entry, _c: &[Change], out: &mut Effects) {
        let Some((id, body, _)) = self.serve.as_mut().and_then(|s| s.pending.remove(&entry.position.seq)) else { return };
        if self.id.k == 0 && !self.guard_is_valid(ctx) { out.replies.push((id, Reply::Failed(Failure::new(ErrorCode::OperationUnconfirmed, "")))); return; }
        let written = Written { position: entry.position, copies: self.copies_holding(entry.position.seq.next()) };
        let reply = match body {
            Body::QueuePut { name, config } => Reply::QueuePut { created: true, written, info: Box::new(crate::config::QueueInfo { name, etag: 0, config, created: WallMs(0), available: 0, leased: 0, delayed: 0, settling: 0, bytes: 0, oldest_available: None, totals: Default::default() }) },
            Body::Send { messages, .. } => Reply::Sent { messages: (0..messages.len()).map(|i| Sent { id: MessageId { epoch: entry.position.epoch, seq: entry.position.seq, index: i as u16 }, duplicate: false }).collect(), written },
            _ => return,
        };
        out.replies.push((id, reply));
    }
}
