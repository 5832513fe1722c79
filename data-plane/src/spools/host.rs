//! Copies come into being and are opened here.

use super::engine::Input;
use super::{Place, Spools};
use crate::clock;
use crate::store::{CopyFacts, CreateCopyError, Db, NewCopy, SpoolNumber};
use spool::copy::{Identity, OpenError, SpoolCopy};
use spool::keys;
use spool::store::Store;
use std::sync::Arc;
use tokio::sync::oneshot;
use types::{CopyId, SpoolId};

#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error(transparent)]
    Refused(#[from] CreateCopyError),
    #[error("the new copy cannot be opened")]
    Open(#[from] OpenError),
    #[error("this node is shutting down")]
    ShuttingDown,
}

impl Spools {
    /// A copy of a new spool on this disk, durable when this returns. The same spool again: the same copy.
    pub async fn create_copy(&self, new: NewCopy) -> Result<CopyId, CreateError> {
        let _one = self.inner.creating.lock().await;
        let db = self.inner.db.clone();
        let facts = tokio::task::spawn_blocking(move || db.create_copy(&new))
            .await
            .map_err(|_ended| CreateError::ShuttingDown)??;
        let (spool, copy) = (facts.spool, facts.copy);
        if self.place(spool).is_some() {
            return Ok(copy);
        }
        let spools = self.clone();
        let ready = tokio::task::spawn_blocking(move || spools.host(&facts))
            .await
            .map_err(|_ended| CreateError::ShuttingDown)??;
        ready.await.map_err(|_ended| CreateError::ShuttingDown)?;
        Ok(copy)
    }

    /// At start. A copy that cannot be opened is left out: others are asked in its place, and people are told.
    pub(super) fn open_all(&self) {
        for facts in self.inner.db.copies() {
            if let Err(error) = self.host(&facts) {
                tracing::error!(spool = %facts.spool, copy = %facts.copy, %error, "a copy cannot be opened");
            }
        }
    }

    /// Opens a copy and gives it to its engine. Blocks.
    fn host(&self, facts: &CopyFacts) -> Result<oneshot::Receiver<()>, OpenError> {
        let inner = &self.inner;
        let identity = Identity {
            spool: facts.spool,
            copy: facts.copy,
            node: inner.node.clone(),
            n: facts.n,
            k: facts.k,
            token_key: facts.token_key.clone(),
            created: facts.created,
        };
        prepare(&inner.db, facts.number, &identity)?;
        let store = inner.db.spool(facts.number);
        let copy = SpoolCopy::open(identity, inner.facts, inner.settings, clock::now(), &store)?;
        let engine = engine_of(facts.spool, inner.inboxes.len());
        let (told, ready) = oneshot::channel();
        let own = Input::Own { number: facts.number, copy: Box::new(copy), ready: told };
        inner.inboxes[engine].urgent(own);
        let (number, copy, replicated) = (facts.number, facts.copy, facts.n > 1);
        inner.places.write().insert(facts.spool, Place { engine, number, copy, replicated });
        Ok(ready)
    }
}

/// The first rows of a copy, durable, unless they are there: a crash may have come between.
fn prepare(db: &Arc<Db>, number: SpoolNumber, identity: &Identity) -> Result<(), OpenError> {
    if db.spool(number).get(keys::META)?.is_none() {
        db.write(&[(number, &spool::create(identity))]);
        db.sync();
    }
    Ok(())
}

fn engine_of(spool: SpoolId, engines: usize) -> usize {
    usize::from(spool.as_bytes()[15]) % engines
}
