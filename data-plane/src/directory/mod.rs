//! What this node knows of accounts: plans, API keys, spools. Hashes of keys only, never keys.
//!
//! The control plane tells it, as one stream of changes; the last known is kept on disk, so that a node serves
//! known keys while nobody can be asked, after a restart too. What is not known is looked up, once for all who ask.
//!
//! * [`key`]: an API key's text: prefix, checksum, hash
//! * [`known`]: everything that was told
//! * [`disk`]: the file with the last known
//! * [`watch`]: the stream of changes
//! * [`lookups`]: asking for what is not known

mod disk;
pub mod key;
pub mod known;
mod lookups;
mod watch;

pub use disk::DiskError;
pub use known::{Account, ApiKey, Caller, Plan, Scopes, SpoolEntry};

use crate::clock;
use known::Known;
use lookups::Lookups;
use parking_lot::{Mutex, RwLock};
use proto::control as pb;
use proto::control::nodes_client::NodesClient;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use types::{AccountId, NodeName, SpoolName, WallMs};

const CONNECT_WAIT: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const REPORT_EVERY: Duration = Duration::from_secs(10);
const REPORT_WAIT: Duration = Duration::from_secs(5);
/// Keys whose use was not reported yet; more are reported at their next use.
const USED_MAX: usize = 10_000;

#[derive(Clone, Debug)]
pub struct Settings {
    /// `https://host:port`.
    pub control: String,
    /// For connections to `control-plane`.
    pub tls: Option<ClientTlsConfig>,
    pub node: NodeName,
    pub data_dir: PathBuf,
    /// How long known keys work while the control plane is away.
    pub stale_max: Duration,
}

/// The contract's: a day.
pub const STALE_MAX_DEFAULT: Duration = Duration::from_secs(86_400);

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the control plane's address {address} is none")]
    Address { address: String, source: tonic::transport::Error },
    #[error("the directory's file")]
    Disk(#[from] DiskError),
}

/// Why a key does not open anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRefused {
    /// Not a key, unknown, revoked or expired.
    Bad,
    /// Nobody can say.
    Unverified,
}

/// The control plane cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotAsk;

/// Cheap to clone.
#[derive(Clone)]
pub struct Directory {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    client: NodesClient<Channel>,
    known: RwLock<Known>,
    lookups: Lookups,
    /// The stream is open and its first update has come.
    heard: AtomicBool,
    /// When the control plane was last heard, if it is not being heard now.
    heard_at: AtomicI64,
    changed: Notify,
    used: Mutex<HashMap<String, i64>>,
}

impl Directory {
    /// Reads the last known; asks nobody yet.
    pub fn open(settings: Settings) -> Result<Directory, OpenError> {
        let address = |source| OpenError::Address { address: settings.control.clone(), source };
        let mut endpoint = Endpoint::from_shared(settings.control.clone())
            .map_err(address)?
            .connect_timeout(CONNECT_WAIT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        if let Some(tls) = &settings.tls {
            endpoint = endpoint.tls_config(tls.clone()).map_err(address)?;
        }
        let client = NodesClient::new(endpoint.connect_lazy()).max_decoding_message_size(256 << 20);
        let mut known = Known::default();
        let mut heard_at = WallMs(i64::MIN);
        if let Some(saved) = disk::load(&settings.data_dir)? {
            known.apply(saved.update);
            heard_at = saved.heard_at;
        }
        let inner = Inner {
            lookups: Lookups::new(client.clone()),
            settings,
            client,
            known: RwLock::new(known),
            heard: AtomicBool::new(false),
            heard_at: AtomicI64::new(heard_at.0),
            changed: Notify::new(),
            used: Mutex::default(),
        };
        Ok(Directory { inner: Arc::new(inner) })
    }

    /// Follows the control plane, keeps the file, reports which keys were used; until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let work = async {
            tokio::join!(
                watch::follow(&self.inner),
                watch::keep_file(&self.inner),
                watch::report(&self.inner)
            )
        };
        tokio::select! {
            _ = work => {}
            () = stop.cancelled() => {}
        }
    }

    /// Whether anything is known at all, and not too old: then this node can serve.
    pub fn is_usable(&self) -> bool {
        self.inner.known.read().version.is_some() && !self.is_stale()
    }

    /// Whether the control plane is being heard now.
    pub fn is_heard(&self) -> bool {
        self.inner.heard.load(Ordering::Relaxed)
    }

    pub fn version(&self) -> Option<u64> {
        self.inner.known.read().version
    }

    fn is_stale(&self) -> bool {
        let since = clock::wall().0.saturating_sub(self.inner.heard_at.load(Ordering::Relaxed));
        !self.is_heard() && u128::from(since.unsigned_abs()) > self.inner.settings.stale_max.as_millis()
    }

    /// Who this key is, as of now.
    pub async fn caller(&self, secret: &str) -> Result<Caller, KeyRefused> {
        let hash = key::check(secret).ok_or(KeyRefused::Bad)?;
        let known = match self.is_stale() {
            true => None,
            false => self.inner.known.read().caller(&hash),
        };
        let caller = match known {
            Some(caller) => caller,
            None => {
                // Boxed, as the one below: rare, and every request's future would be as large as a look-up's.
                let found = Box::pin(self.inner.lookups.key(hash)).await;
                found.map_err(|CannotAsk| KeyRefused::Unverified)?.ok_or(KeyRefused::Bad)?
            }
        };
        let now = clock::wall();
        if caller.key.expires.is_some_and(|at| at <= now) {
            return Err(KeyRefused::Bad);
        }
        self.note_use(&caller.key.id, now);
        Ok(caller)
    }

    /// A spool of the account; `None`: it has no such spool.
    pub async fn spool(
        &self,
        account: AccountId,
        name: &SpoolName,
    ) -> Result<Option<Arc<SpoolEntry>>, CannotAsk> {
        if let Some(spool) = self.inner.known.read().spool(account, name.as_str()) {
            return Ok(Some(spool));
        }
        Box::pin(self.inner.lookups.spool(account, name.as_str())).await
    }

    /// The account's spools, by name.
    pub fn spools(&self, account: AccountId) -> Vec<Arc<SpoolEntry>> {
        self.inner.known.read().spools(account)
    }

    /// A copy here no longer hears its primary. Advisory.
    pub async fn suspect(
        &self,
        reporter: &NodeName,
        suspect: &NodeName,
        refused: bool,
    ) -> Result<(), tonic::Status> {
        let (reporter, suspect) = (reporter.0.clone(), suspect.0.clone());
        self.tell(pb::SuspectRequest { reporter, suspect, refused, leaving: false }).await
    }

    /// This node is about to end: its primaries are to be handed over.
    pub async fn leaving(&self) -> Result<(), tonic::Status> {
        let node = self.inner.settings.node.0.clone();
        let (reporter, suspect) = (node.clone(), node);
        self.tell(pb::SuspectRequest { reporter, suspect, refused: false, leaving: true }).await
    }

    async fn tell(&self, request: pb::SuspectRequest) -> Result<(), tonic::Status> {
        let mut client = self.inner.client.clone();
        let call = tokio::time::timeout(REPORT_WAIT, client.suspect(request));
        call.await.map_err(|_| tonic::Status::deadline_exceeded("the control plane does not answer"))??;
        Ok(())
    }

    fn note_use(&self, id: &str, now: WallMs) {
        let mut used = self.inner.used.lock();
        if let Some(at) = used.get_mut(id) {
            *at = now.0;
        } else if used.len() < USED_MAX {
            used.insert(id.to_owned(), now.0);
        }
    }
}
