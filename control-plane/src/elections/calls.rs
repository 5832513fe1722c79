//! Carries out what controllers ask for, in etcd and on nodes. Every call runs beside the director and comes
//! back to it as an answer; each ends by itself, so at most one answer waits for each call.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use types::SpoolId;

use super::clients::NodeClients;
use super::{NodeError, wire};
use crate::claims::{ClaimsError, Etcd, Versioned, Written};
use spool::controller::{
    Action, AssignAnswer, CasOutcome, Input, ProbeAnswer, SealAnswer, Settings, StepDownAnswer,
};
use spool::record::Record;

/// etcd transactions of elections on their way at once.
const TXNS_MAX: usize = 64;
/// A primary that steps down drains for at most a second.
const STEP_DOWN_WAIT: Duration = Duration::from_millis(2_500);

pub enum Answer {
    Input(SpoolId, Input),
    Record(SpoolId, Result<Option<Versioned<Record>>, ClaimsError>),
}

pub struct Calls {
    etcd: Etcd,
    clients: NodeClients,
    times: Settings,
    txns: Arc<Semaphore>,
    answers: mpsc::UnboundedSender<Answer>,
}

impl Calls {
    pub fn new(
        etcd: Etcd,
        clients: NodeClients,
        times: Settings,
        answers: mpsc::UnboundedSender<Answer>,
    ) -> Calls {
        Calls { etcd, clients, times, txns: Arc::new(Semaphore::new(TXNS_MAX)), answers }
    }

    pub fn read_record(&self, spool: SpoolId) {
        let (etcd, answers, txns) = (self.etcd.clone(), self.answers.clone(), self.txns.clone());
        tokio::spawn(async move {
            let _permit = txns.acquire().await;
            drop(answers.send(Answer::Record(spool, etcd.record(spool).await)));
        });
    }

    pub fn cas(&self, spool: SpoolId, expected_revision: i64, new: Record) {
        let (etcd, answers, txns) = (self.etcd.clone(), self.answers.clone(), self.txns.clone());
        tokio::spawn(async move {
            let _permit = txns.acquire().await;
            let outcome = match etcd.cas_record(expected_revision, &new).await {
                Ok(Written::Done(Versioned { value: record, revision })) => {
                    let last = record.last.as_ref().map(|last| last.member.node.to_string());
                    tracing::info!(%spool, epoch = %record.epoch, phase = ?record.phase, last, "election");
                    CasOutcome::Done { record, revision }
                }
                Ok(Written::Other(Versioned { value: record, revision })) => {
                    CasOutcome::Other { record, revision }
                }
                Ok(Written::Gone) => CasOutcome::Gone,
                Err(error) => {
                    tracing::warn!(%spool, error = &error as &dyn std::error::Error, "a record may be written or not");
                    CasOutcome::Unknown
                }
            };
            drop(answers.send(Answer::Input(spool, Input::CasResult { expected_revision, outcome })));
        });
    }

    pub fn call(&self, spool: SpoolId, action: Action) {
        let (clients, answers) = (self.clients.clone(), self.answers.clone());
        let (call_wait, seal_wait) = (self.times.call_wait, self.times.seal_wait());
        tokio::spawn(async move {
            let input = match action {
                Action::Probe { to, round } => {
                    let request = wire::probe(spool, &to);
                    let reply = clients.call(&to.node, call_wait, async |mut c| c.probe(request).await).await;
                    let answer =
                        reply.map_or_else(failed("probe", spool, ProbeAnswer::Failed), wire::read_probe);
                    Input::ProbeReply { from: to, round, answer }
                }
                Action::Seal { to, epoch } => {
                    let request = wire::seal(spool, &to, epoch);
                    let reply = clients.call(&to.node, seal_wait, async |mut c| c.seal(request).await).await;
                    let answer =
                        reply.map_or_else(failed("seal", spool, SealAnswer::Failed), wire::read_seal);
                    Input::SealReply { from: to, epoch, answer }
                }
                Action::Assign { to, assign } => {
                    let request = wire::assign(spool, &to, &assign);
                    let reply =
                        clients.call(&to.node, call_wait, async |mut c| c.assign(request).await).await;
                    let answer =
                        reply.map_or_else(failed("assign", spool, AssignAnswer::Failed), wire::read_assign);
                    if let AssignAnswer::Refused(why) = &answer {
                        tracing::warn!(%spool, node = %to.node, epoch = %assign.epoch, why, "does not take over");
                    }
                    Input::AssignReply { from: to, epoch: assign.epoch, answer }
                }
                Action::StepDown { to, epoch, target } => {
                    let request = wire::step_down(spool, epoch, target);
                    let reply = clients
                        .call(&to.node, STEP_DOWN_WAIT, async |mut c| c.step_down(request).await)
                        .await;
                    let failed = failed("step down", spool, StepDownAnswer::Failed);
                    let answer = reply.map_or_else(failed, wire::read_step_down);
                    Input::StepDownReply { from: to, epoch, answer }
                }
                other => unreachable!("{other:?} is no call to a node"),
            };
            // Fails only when the runtime shuts down.
            drop(answers.send(Answer::Input(spool, input)));
        });
    }
}

/// A node that does not answer is the normal case of an election.
fn failed<T>(call: &'static str, spool: SpoolId, answer: T) -> impl FnOnce(NodeError) -> T {
    move |error| {
        tracing::debug!(%spool, call, error = &error as &dyn std::error::Error, "no answer");
        answer
    }
}
