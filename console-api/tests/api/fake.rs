//! A control plane that exists for these tests: it answers over real gRPC with mutual TLS, and refuses by what
//! it is asked for.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use proto::control::console_server::{Console, ConsoleServer};
use proto::control::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519, SanType};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};
use types::AccountId;

pub const PASSWORD: &str = "correct horse";
pub const ACCOUNT: AccountId = AccountId::from_u128(0x0123_4567);

/// A certificate authority, and what it signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    pub fn issue(&self, name: &str) -> Pair {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Pair { cert, key: key.serialize_pem() }
    }
}

pub struct Fake {
    sessions: Mutex<Sessions>,
    spools: Mutex<Vec<SpoolDetail>>,
    keys: Mutex<Vec<KeyInfo>>,
    signer: EncodingKey,
    public_key: String,
    /// Calls to sign in or up that arrived here.
    pub sign_ins: AtomicUsize,
    pub away: AtomicBool,
}

#[derive(Default)]
struct Sessions {
    count: usize,
    /// Refresh token to session.
    refresh: HashMap<String, String>,
    ended: Vec<String>,
}

impl Fake {
    pub fn new() -> Arc<Self> {
        let pair = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        Arc::new(Fake {
            sessions: Mutex::default(),
            spools: Mutex::new(vec![spool("default", 3, 1)]),
            keys: Mutex::default(),
            signer: EncodingKey::from_ed_pem(pair.serialize_pem().as_bytes()).expect("its private half"),
            public_key: pair.public_key_pem(),
            sign_ins: AtomicUsize::new(0),
            away: AtomicBool::new(false),
        })
    }

    pub async fn serve(self: Arc<Self>, authority: &Authority) -> SocketAddr {
        let pair = authority.issue("control-plane");
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(pair.cert, pair.key))
            .client_ca_root(Certificate::from_pem(&authority.pem));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut server = Server::builder().tls_config(tls).expect("good certificates");
        let serving = server
            .add_service(ConsoleServer::from_arc(self))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(serving);
        address
    }

    fn here(&self) -> Result<(), Status> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(Status::unavailable("away")),
            false => Ok(()),
        }
    }

    fn session(&self, session: String) -> Session {
        let now = console_api::clock::now();
        let claims = serde_json::json!({
            "sub": "person-1", "account": ACCOUNT, "sid": session, "exp": now.as_second() + 300,
        });
        let token =
            jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), &claims, &self.signer).expect("a token");
        let mut sessions = self.sessions.lock();
        sessions.count += 1;
        let refresh_token = format!("refresh-{}", sessions.count);
        sessions.refresh.insert(refresh_token.clone(), session);
        Session {
            token,
            expires_ms: now.as_millisecond() + 300_000,
            refresh_token,
            refresh_expires_ms: now.as_millisecond() + 86_400_000,
        }
    }

    fn open(&self) -> Session {
        let session = format!("session-{}", self.sessions.lock().count);
        self.session(session)
    }

    fn account(&self, plan: &str) -> AccountReply {
        let account = Account {
            id: ACCOUNT.as_bytes().to_vec().into(),
            name: "Acme".into(),
            plan: plans().into_iter().find(|known| known.name == plan),
        };
        AccountReply { account: Some(account), spools_used: self.spools.lock().len() as u32, created_ms: 1 }
    }
}

fn plans() -> Vec<Plan> {
    let plan = |name: &str, replicas| Plan {
        name: name.into(),
        replicas,
        spools: 4,
        queues_per_spool: 100,
        message_bytes: 1 << 18,
        request_bytes: 1 << 20,
        stored_bytes: 1 << 33,
        requests_per_second: 1000,
        retention_seconds: 1_209_600,
    };
    vec![plan("scale", 5), plan("free", 1), plan("pro", 3)]
}

fn spool(name: &str, num_replicas: u32, num_sync: u32) -> SpoolDetail {
    let copies = (1..=num_replicas).map(|n| CopyDetail {
        alias: format!("node-{n}"),
        role: if n == 1 { "primary" } else { "copy" }.into(),
        reachable: true,
        confirmed_position: "2.17".into(),
        behind_entries: 0,
        behind_seconds: 0.0,
    });
    SpoolDetail {
        spool: Some(Spool {
            id: vec![1; 16].into(),
            account_id: ACCOUNT.as_bytes().to_vec().into(),
            name: name.into(),
            num_replicas,
            num_sync,
            created_ms: 1_764_547_200_123,
        }),
        state: "serving".into(),
        epoch: 2,
        waiting_for: vec![],
        waiting_writes: 0,
        copies: copies.collect(),
    }
}

fn refusal(code: Code, word: &str, field: &str) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert("spool-code", word.parse().expect("ASCII"));
    if !field.is_empty() {
        metadata.insert("spool-field", field.parse().expect("ASCII"));
    }
    Status::with_metadata(code, format!("refused: {word}"), metadata)
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Console for Fake {
    async fn sign_up(&self, request: Request<SignUpRequest>) -> Reply<Session> {
        self.here()?;
        self.sign_ins.fetch_add(1, Ordering::SeqCst);
        assert_eq!(request.get_ref().address, "0.0.0.0", "no connection, no address");
        let plan = &request.get_ref().plan;
        if !plan.is_empty() && plans().iter().all(|known| known.name != *plan) {
            return Err(refusal(Code::InvalidArgument, "invalid_request", "plan"));
        }
        match request.get_ref().email.starts_with("taken") {
            true => Err(refusal(Code::AlreadyExists, "already_exists", "email")),
            false => Ok(Response::new(self.open())),
        }
    }

    async fn log_in(&self, request: Request<LogInRequest>) -> Reply<Session> {
        self.here()?;
        self.sign_ins.fetch_add(1, Ordering::SeqCst);
        match request.get_ref().password == PASSWORD {
            true => Ok(Response::new(self.open())),
            false => Err(refusal(Code::Unauthenticated, "unauthenticated", "")),
        }
    }

    async fn refresh(&self, request: Request<RefreshRequest>) -> Reply<Session> {
        self.here()?;
        let session = self.sessions.lock().refresh.remove(&request.get_ref().refresh_token);
        let session = session.ok_or_else(|| Status::unauthenticated("no such session"))?;
        Ok(Response::new(self.session(session)))
    }

    async fn log_out(&self, request: Request<LogOutRequest>) -> Reply<LogOutReply> {
        self.here()?;
        let session = request.into_inner().session_id;
        let mut sessions = self.sessions.lock();
        sessions.refresh.retain(|_, of| *of != session);
        sessions.ended.push(session);
        Ok(Response::new(LogOutReply {}))
    }

    async fn session_keys(&self, _: Request<SessionKeysRequest>) -> Reply<SessionKeysReply> {
        self.here()?;
        let ended_session_ids = self.sessions.lock().ended.clone();
        Ok(Response::new(SessionKeysReply { public_key_pem: self.public_key.clone(), ended_session_ids }))
    }

    async fn get_account(&self, request: Request<AccountRequest>) -> Reply<AccountReply> {
        self.here()?;
        assert_eq!(request.get_ref().account_id, ACCOUNT.as_bytes().to_vec());
        Ok(Response::new(self.account("free")))
    }

    async fn list_plans(&self, _: Request<ListPlansRequest>) -> Reply<ListPlansReply> {
        Ok(Response::new(ListPlansReply { plans: plans() }))
    }

    async fn set_plan(&self, request: Request<SetPlanRequest>) -> Reply<AccountReply> {
        assert_eq!(request.get_ref().person_id, "person-1");
        let reply = self.account(&request.get_ref().plan);
        match reply.account.as_ref().is_some_and(|account| account.plan.is_some()) {
            true => Ok(Response::new(reply)),
            false => Err(refusal(Code::InvalidArgument, "invalid_request", "plan")),
        }
    }

    async fn list_keys(&self, _: Request<AccountRequest>) -> Reply<ListKeysReply> {
        Ok(Response::new(ListKeysReply { keys: self.keys.lock().clone() }))
    }

    async fn create_key(&self, request: Request<CreateKeyRequest>) -> Reply<CreateKeyReply> {
        let request = request.into_inner();
        let mut keys = self.keys.lock();
        let key = ApiKey {
            id: format!("key-{}", keys.len() + 1),
            account_id: request.account_id,
            hash: vec![0; 32].into(),
            scopes: request.scopes,
            spool: request.spool,
            queue_prefix: request.queue_prefix,
            expires_ms: request.expires_ms,
        };
        let info = KeyInfo {
            key: Some(key),
            name: request.name,
            created_ms: 1000 + keys.len() as i64,
            last_used_ms: 0,
            hint: "cap_abcd".into(),
        };
        keys.push(info.clone());
        Ok(Response::new(CreateKeyReply { info: Some(info), secret: "cap_abcdefgh".into() }))
    }

    async fn delete_key(&self, request: Request<DeleteKeyRequest>) -> Reply<DeleteKeyReply> {
        let id = request.into_inner().key_id;
        let mut keys = self.keys.lock();
        let before = keys.len();
        keys.retain(|info| info.key.as_ref().is_none_or(|key| key.id != id));
        match keys.len() < before {
            true => Ok(Response::new(DeleteKeyReply {})),
            false => Err(refusal(Code::NotFound, "not_found", "")),
        }
    }

    async fn list_spools(&self, _: Request<AccountRequest>) -> Reply<ListSpoolsReply> {
        Ok(Response::new(ListSpoolsReply { spools: self.spools.lock().clone() }))
    }

    async fn create_spool(&self, request: Request<CreateSpoolRequest>) -> Reply<SpoolDetail> {
        let request = request.into_inner();
        match request.name.as_str() {
            "default" => return Err(refusal(Code::AlreadyExists, "already_exists", "name")),
            "over-the-plan" => {
                return Err(refusal(Code::ResourceExhausted, "limit_exceeded", "num_replicas"));
            }
            "too-few-nodes" => return Err(refusal(Code::Unavailable, "need_copies", "")),
            "defect" => return Err(Status::internal("relation \"spools\" does not exist")),
            "silent" => return Err(Status::deadline_exceeded("too late")),
            _ => {}
        }
        let made = spool(&request.name, request.num_replicas, request.num_sync);
        self.spools.lock().push(made.clone());
        Ok(Response::new(made))
    }

    async fn get_spool(&self, request: Request<GetSpoolRequest>) -> Reply<SpoolDetail> {
        let name = request.into_inner().name;
        let spools = self.spools.lock();
        let named =
            spools.iter().find(|detail| detail.spool.as_ref().is_some_and(|spool| spool.name == name));
        named.cloned().map(Response::new).ok_or_else(|| refusal(Code::NotFound, "spool_not_found", ""))
    }
}
