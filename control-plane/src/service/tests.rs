//! The whole program over real mTLS, with a real PostgreSQL, a real etcd, and nodes that speak the real protocol.

use super::*;
use crate::elections::tests::fake::Cluster;
use crate::program;
use crate::settings::Settings;
use crate::store::testing::Database;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use proto::control::console_client::ConsoleClient;
use proto::control::nodes_client::NodesClient;
use sqlx::Row;
use std::path::Path;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use types::NodeName;

const PATIENCE: Duration = Duration::from_secs(30);
const PASSWORD: &str = "correct horse";

struct Site {
    cluster: Cluster,
    database: Database,
    address: String,
    end: oneshot::Sender<()>,
    program: JoinHandle<anyhow::Result<()>>,
    _files: tempfile::TempDir,
}

impl Site {
    async fn start() -> Site {
        let (cluster, database) = tokio::join!(Cluster::start(), Database::create());
        let files = tempfile::tempdir().expect("a directory");
        let settings = settings(&cluster, &database, files.path());
        let address = format!("https://{}", settings.grpc);
        let (end, ended) = oneshot::channel();
        let program = tokio::spawn(program::run(settings, async { ended.await.unwrap_or(()) }));
        let site = Site { cluster, database, address, end, program, _files: files };
        site.until_it_serves().await;
        site
    }

    async fn until_it_serves(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut health = HealthClient::new(self.channel("operator"));
        loop {
            assert!(!self.program.is_finished(), "the program ended");
            let request = HealthCheckRequest { service: String::new() };
            match health.check(request).await {
                Ok(reply) if reply.get_ref().status() == ServingStatus::Serving => return,
                other => assert!(Instant::now() < deadline, "{other:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn channel(&self, certificate: &str) -> Channel {
        let tls = ClientTlsConfig::new()
            .ca_certificate(self.cluster.ca())
            .identity(self.cluster.identity(certificate))
            .domain_name("control-plane");
        let endpoint = Endpoint::from_shared(self.address.clone()).expect("an address");
        endpoint.tls_config(tls).expect("TLS").connect_lazy()
    }

    fn console(&self) -> ConsoleClient<Channel> {
        ConsoleClient::new(self.channel("console-api"))
    }

    fn nodes(&self, node: &str) -> NodesClient<Channel> {
        NodesClient::new(self.channel(node))
    }

    async fn sign_up(&self, email: &str, plan: &str) -> Someone {
        let mut console = self.console();
        let session = console.sign_up(sign_up(email, plan)).await.expect("signed up").into_inner();
        Someone::new(self, session).await
    }

    /// Every row of every table, as text.
    async fn everything(&self) -> String {
        let mut connection = self.database.connect().await;
        let tables: Vec<String> = sqlx::query_scalar(
            "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'",
        )
        .fetch_all(&mut connection)
        .await
        .expect("tables");
        let mut text = String::new();
        for table in tables {
            let rows = sqlx::AssertSqlSafe(format!("SELECT t::text FROM {table} t"));
            for row in sqlx::query(rows).fetch_all(&mut connection).await.expect("rows") {
                text += &row.get::<String, _>(0);
            }
        }
        text
    }
}

fn settings(cluster: &Cluster, database: &Database, dir: &Path) -> Settings {
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let pair = || rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let [ca, cert, key] = cluster.pem("control-plane");
    Settings {
        postgres: database.url.clone(),
        etcd: vec![cluster.etcd_url()],
        grpc: listener.local_addr().expect("bound"),
        ca: write("ca.pem", &ca),
        cert: write("control-plane.pem", &cert),
        key: write("control-plane.key", &key),
        ops_public_key: write("operator.pub", &pair().public_key_pem()),
        session_key: write("session.key", &pair().serialize_pem()),
        default_plan: "pro".to_owned(),
        show_node_names: true,
        promise_ms: 300,
        suspect_ms: 800,
    }
}

fn sign_up(email: &str, plan: &str) -> pb::SignUpRequest {
    let (email, password) = (email.to_owned(), PASSWORD.to_owned());
    let (account_name, address) = ("Acme".to_owned(), "127.0.0.1".to_owned());
    pb::SignUpRequest { email, password, account_name, address, plan: plan.to_owned() }
}

/// A signed-in person, as the console API knows them.
struct Someone {
    console: ConsoleClient<Channel>,
    session: pb::Session,
    person: String,
    account: Uuid,
    sid: String,
}

#[derive(serde::Deserialize)]
struct Claims {
    sub: String,
    account: Uuid,
    sid: String,
}

impl Someone {
    async fn new(site: &Site, session: pb::Session) -> Someone {
        let mut console = site.console();
        let keys = console.session_keys(pb::SessionKeysRequest {}).await.expect("keys").into_inner();
        let key = DecodingKey::from_ed_pem(keys.public_key_pem.as_bytes()).expect("a public key");
        let token = jsonwebtoken::decode::<Claims>(&session.token, &key, &Validation::new(Algorithm::EdDSA));
        let Claims { sub, account, sid } = token.expect("genuine").claims;
        Someone { console, session, person: sub, account, sid }
    }

    fn account_id(&self) -> prost::bytes::Bytes {
        self.account.as_bytes().to_vec().into()
    }

    fn request(&self) -> pb::AccountRequest {
        pb::AccountRequest { account_id: self.account_id() }
    }

    async fn create_key(&mut self) -> Result<pb::CreateKeyReply, Status> {
        let request = pb::CreateKeyRequest {
            account_id: self.account_id(),
            person_id: self.person.clone(),
            name: "shop".to_owned(),
            scopes: vec!["receive".to_owned(), "send".to_owned(), "send".to_owned()],
            spool: "default".to_owned(),
            queue_prefix: "shop.".to_owned(),
            expires_ms: 0,
        };
        self.console.create_key(request).await.map(tonic::Response::into_inner)
    }

    async fn delete_key(&mut self, key_id: &str) -> Result<(), Status> {
        let (account_id, person_id) = (self.account_id(), self.person.clone());
        let request = pb::DeleteKeyRequest { account_id, person_id, key_id: key_id.to_owned() };
        self.console.delete_key(request).await.map(drop)
    }

    async fn create_spool(&mut self, name: &str, numbers: (u32, u32)) -> Result<pb::SpoolDetail, Status> {
        let request = pb::CreateSpoolRequest {
            account_id: self.account_id(),
            person_id: self.person.clone(),
            name: name.to_owned(),
            num_replicas: numbers.0,
            num_sync: numbers.1,
        };
        self.console.create_spool(request).await.map(tonic::Response::into_inner)
    }

    async fn spool(&mut self, name: &str) -> Result<pb::SpoolDetail, Status> {
        let request = pb::GetSpoolRequest { account_id: self.account_id(), name: name.to_owned() };
        self.console.get_spool(request).await.map(tonic::Response::into_inner)
    }
}

/// Code, word and field.
fn refusal<T>(result: Result<T, Status>) -> (Code, String, String) {
    let status = result.err().expect("refused");
    let said =
        |name| status.metadata().get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
    (status.code(), said("spool-code"), said("spool-field"))
}

fn refused_as(code: Code, word: &str, field: &str) -> (Code, String, String) {
    (code, word.to_owned(), field.to_owned())
}

#[tokio::test]
async fn a_person_signs_up_in_and_out() {
    let site = Site::start().await;
    let mut ann = site.sign_up("ann@example.com", "").await;
    let account = ann.console.get_account(ann.request()).await.expect("an account").into_inner();
    let plan = account.account.expect("an account").plan.expect("a plan");
    assert_eq!((plan.name.as_str(), account.spools_used), ("pro", 1), "the default plan, the default spool");
    let spool = ann.spool("default").await.expect("there");
    let numbers = spool.spool.expect("a spool");
    assert_eq!((numbers.num_replicas, numbers.num_sync, spool.state.as_str()), (3, 1, "serving"));
    assert_eq!(spool.copies.len(), 3);

    let mut console = site.console();
    let mut log_in = async |email: &str, password: &str| {
        let (email, password) = (email.to_owned(), password.to_owned());
        let request = pb::LogInRequest { email, password, address: String::new() };
        console.log_in(request).await.map(tonic::Response::into_inner)
    };
    let unauthenticated = refused_as(Code::Unauthenticated, "unauthenticated", "");
    assert_eq!(refusal(log_in("ann@example.com", "wrong horse").await), unauthenticated);
    assert_eq!(refusal(log_in("bob@example.com", PASSWORD).await), unauthenticated, "the same answer");
    let session = log_in("ANN@example.com", PASSWORD).await.expect("logged in");
    let mut again = Someone::new(&site, session).await;
    assert_eq!((again.account, &again.person), (ann.account, &ann.person));
    assert_ne!(again.sid, ann.sid);

    let refresh_token = again.session.refresh_token.clone();
    let refresh = pb::RefreshRequest { refresh_token };
    let next = again.console.refresh(refresh.clone()).await.expect("refreshed").into_inner();
    assert_ne!(next.refresh_token, again.session.refresh_token);
    assert_eq!(refusal(again.console.refresh(refresh).await), unauthenticated, "good once");
    ann.console.log_out(pb::LogOutRequest { session_id: ann.sid.clone() }).await.expect("logged out");
    let keys = ann.console.session_keys(pb::SessionKeysRequest {}).await.expect("keys").into_inner();
    let (mut ended, mut both) = (keys.ended_session_ids, [ann.sid, again.sid]);
    ended.sort();
    both.sort();
    assert_eq!(ended, both);

    for (request, word, field, code) in [
        (sign_up("ann@example.com", ""), "already_exists", "email", Code::AlreadyExists),
        (sign_up("nobody", ""), "invalid_request", "email", Code::InvalidArgument),
        (sign_up("eve@example.com", "gold"), "invalid_request", "plan", Code::InvalidArgument),
    ] {
        assert_eq!(refusal(console.sign_up(request).await), refused_as(code, word, field));
    }
}

#[tokio::test]
async fn each_service_is_for_its_clients_alone() {
    let site = Site::start().await;
    let directory = |node: &str| pb::WatchDirectoryRequest { node: node.to_owned() };
    for stranger in ["node-1", "operator", "control-plane"] {
        let mut console = ConsoleClient::new(site.channel(stranger));
        let plans = console.list_plans(pb::ListPlansRequest {}).await;
        assert_eq!(plans.expect_err(stranger).code(), Code::PermissionDenied);
    }
    for stranger in ["console-api", "operator", "control-plane"] {
        let watch = site.nodes(stranger).watch_directory(directory(stranger)).await;
        assert_eq!(watch.map(drop).expect_err(stranger).code(), Code::PermissionDenied);
    }
    let mut node = site.nodes("node-1");
    let other = node.watch_directory(directory("node-2")).await;
    assert_eq!(other.map(drop).expect_err("another's name").code(), Code::PermissionDenied);
    let suspect = |reporter: &str, suspect: &str, leaving: bool| {
        let (reporter, suspect) = (reporter.to_owned(), suspect.to_owned());
        pb::SuspectRequest { reporter, suspect, refused: false, leaving }
    };
    for lie in [
        suspect("node-2", "node-3", false),
        suspect("node-2", "node-2", true),
        suspect("node-1", "node-2", true),
    ] {
        assert_eq!(node.suspect(lie).await.expect_err("a lie").code(), Code::PermissionDenied);
    }
    node.suspect(suspect("node-1", "node-2", false)).await.expect("its own word");

    // Without a certificate there is no connection.
    let tls = ClientTlsConfig::new().ca_certificate(site.cluster.ca()).domain_name("control-plane");
    let endpoint =
        Endpoint::from_shared(site.address.clone()).expect("an address").tls_config(tls).expect("TLS");
    let mut health = HealthClient::new(endpoint.connect_lazy());
    health.check(HealthCheckRequest { service: String::new() }).await.expect_err("nobody");
}

#[tokio::test]
async fn a_key_is_known_to_nodes_at_once_and_gone_when_it_is_revoked() {
    let site = Site::start().await;
    let mut ann = site.sign_up("ann@example.com", "free").await;
    let mut node = site.nodes("node-1");
    let request = pb::WatchDirectoryRequest { node: "node-1".to_owned() };
    let mut updates = node.watch_directory(request).await.expect("a stream").into_inner();
    let first = updates.message().await.expect("an update").expect("an update");
    assert!(first.complete && first.keys.is_empty());
    assert_eq!((first.accounts.len(), first.spools.len()), (1, 1));

    let made = ann.create_key().await.expect("made");
    let info = made.info.clone().expect("what it is");
    let key = info.key.expect("a key");
    assert_eq!(key.scopes, ["send", "receive"]);
    assert!(made.secret.starts_with(&info.hint) && info.hint.len() < made.secret.len() / 2);
    let told = async |updates: &mut tonic::Streaming<pb::DirectoryUpdate>,
                      good: &dyn Fn(&pb::DirectoryUpdate) -> bool| {
        let wait = async {
            loop {
                let update = updates.message().await.expect("an update").expect("an update");
                assert!(!update.complete);
                if good(&update) {
                    return;
                }
            }
        };
        timeout(Duration::from_secs(5), wait).await.expect("told within 5 s");
    };
    let hash = tokens::hash(&made.secret).to_vec();
    told(&mut updates, &|update| update.keys.iter().any(|k| k.id == key.id && k.hash == hash)).await;

    let look_up = || pb::LookUpKeyRequest { hash: hash.clone().into() };
    let found = node.look_up_key(look_up()).await.expect("an answer").into_inner();
    assert_eq!(found.key.expect("known").queue_prefix, "shop.");
    assert_eq!((found.account.expect("whose").id, found.spools.len()), (ann.account_id(), 1));
    let used = pb::keys_used_request::Use { key_id: key.id.clone(), at_ms: 1_800_000_000_000 };
    node.keys_used(pb::KeysUsedRequest { uses: vec![used] }).await.expect("told");
    let listed = ann.console.list_keys(ann.request()).await.expect("keys").into_inner().keys;
    assert_eq!((listed.len(), listed[0].last_used_ms), (1, 1_800_000_000_000));

    let everything = site.everything().await;
    for secret in [made.secret.as_str(), PASSWORD, &ann.session.refresh_token, &ann.session.token] {
        assert!(!everything.contains(secret), "a secret is in the database");
    }
    ann.delete_key(&key.id).await.expect("deleted");
    told(&mut updates, &|update| update.removed_key_ids.contains(&key.id)).await;
    let found = node.look_up_key(look_up()).await.expect("an answer").into_inner();
    assert_eq!(found.key, None);
    assert_eq!(refusal(ann.delete_key(&key.id).await), refused_as(Code::NotFound, "not_found", ""));
}

#[tokio::test]
async fn one_account_neither_sees_nor_touches_anothers() {
    let site = Site::start().await;
    let mut ann = site.sign_up("ann@example.com", "").await;
    let mut bob = site.sign_up("bob@example.com", "").await;
    let key = ann.create_key().await.expect("made").info.and_then(|info| info.key).expect("a key");
    ann.create_spool("hers", (2, 1)).await.expect("made");

    assert!(bob.console.list_keys(bob.request()).await.expect("keys").into_inner().keys.is_empty());
    assert_eq!(refusal(bob.delete_key(&key.id).await), refused_as(Code::NotFound, "not_found", ""));
    assert_eq!(refusal(bob.spool("hers").await), refused_as(Code::NotFound, "spool_not_found", ""));
    let spools = bob.console.list_spools(bob.request()).await.expect("spools").into_inner().spools;
    assert_eq!(spools.len(), 1, "his default");
    // With a forged account even the console API gets nowhere: the person is no member.
    let own = std::mem::replace(&mut bob.account, ann.account);
    let forbidden = refused_as(Code::PermissionDenied, "forbidden", "");
    assert_eq!(refusal(bob.create_key().await), forbidden);
    assert_eq!(refusal(bob.delete_key(&key.id).await), forbidden);
    assert_eq!(refusal(bob.create_spool("s", (1, 0)).await), forbidden);
    bob.account = own;
    bob.create_spool("hers", (2, 1)).await.expect("a name is the account's own");
    assert_eq!(ann.console.list_keys(ann.request()).await.expect("keys").into_inner().keys.len(), 1);
}

#[tokio::test]
async fn a_spool_that_cannot_be_is_refused_and_nothing_is_left_of_it() {
    let site = Site::start().await;
    let mut ann = site.sign_up("ann@example.com", "").await;
    for (name, numbers, code, word, field) in [
        ("s", (2, 2), Code::InvalidArgument, "invalid_request", "num_sync"),
        ("s", (0, 0), Code::InvalidArgument, "invalid_request", "num_replicas"),
        ("s", (5, 1), Code::ResourceExhausted, "limit_exceeded", "num_replicas"),
        ("default", (1, 0), Code::AlreadyExists, "already_exists", "name"),
        ("", (1, 0), Code::InvalidArgument, "invalid_request", "name"),
        ("no spaces", (1, 0), Code::InvalidArgument, "invalid_request", "name"),
    ] {
        let refused = refusal(ann.create_spool(name, numbers).await);
        assert_eq!(refused, refused_as(code, word, field), "{name} {numbers:?}");
    }
    let gone = NodeName::from("node-3");
    site.cluster.kill(&gone).await;
    let too_few = refusal(ann.create_spool("s", (3, 1)).await);
    assert_eq!(too_few, refused_as(Code::Unavailable, "need_copies", "num_replicas"));
    assert_eq!(refusal(ann.spool("s").await), refused_as(Code::NotFound, "spool_not_found", ""));
    let made = ann.create_spool("s", (2, 1)).await.expect("the name is free at once");
    assert_eq!((made.state.as_str(), made.copies.len()), ("serving", 2));

    // A default spool waits for nodes instead.
    let mut bob = site.sign_up("bob@example.com", "").await;
    let waiting = bob.spool("default").await.expect("there");
    assert_eq!((waiting.state.as_str(), waiting.epoch, waiting.copies.len()), ("placing", 0, 0));
    site.cluster.restart(&gone).await;
    let deadline = Instant::now() + PATIENCE;
    while bob.spool("default").await.expect("there").state != "serving" {
        assert!(Instant::now() < deadline, "it is not placed");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn told_to_end_it_ends_soon_although_a_node_listens() {
    let site = Site::start().await;
    let mut node = site.nodes("node-1");
    let request = pb::WatchDirectoryRequest { node: "node-1".to_owned() };
    let mut updates = node.watch_directory(request).await.expect("a stream").into_inner();
    updates.message().await.expect("an update").expect("everything");
    let began = Instant::now();
    site.end.send(()).expect("it runs");
    site.program.await.expect("no panic").expect("an orderly end");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    loop {
        match updates.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a stream that ends in order would not be asked for again at once"),
            Err(status) => break assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
        }
    }
}
