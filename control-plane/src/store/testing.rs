//! A real PostgreSQL for tests: one process on a free port of the loopback for all tests that run at the same time,
//! with a database for each; it ends, and its directory goes, with the last of them.

use parking_lot::Mutex;
use sqlx::{Connection, Executor, PgConnection};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// PostgreSQL refuses to run as root; then it is this user of Debian's package.
const USER: &str = "postgres";
const PATIENCE: Duration = Duration::from_secs(60);

static RUNNING: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(1);

/// Empty at first.
pub struct Database {
    pub url: String,
    _postgres: Arc<Postgres>,
}

impl Database {
    pub async fn create() -> Database {
        let postgres = tokio::task::spawn_blocking(running).await.expect("PostgreSQL starts");
        let name = format!("test_{}", DATABASES.fetch_add(1, Ordering::SeqCst));
        let mut connection = postgres.until_it_answers().await;
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        connection.execute(create).await.expect("a database");
        Database { url: postgres.url(&name), _postgres: postgres }
    }

    /// To look behind the store.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("connected")
    }
}

fn running() -> Arc<Postgres> {
    let mut running = RUNNING.lock();
    running.upgrade().unwrap_or_else(|| {
        let started = Arc::new(Postgres::start());
        *running = Arc::downgrade(&started);
        started
    })
}

struct Postgres {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Postgres {
    fn start() -> Postgres {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let user = is_root().then(ids);
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid)).expect("a directory for its user");
        }
        let data = dir.path().join("data");
        let made = program("initdb", user)
            .arg("-D")
            .arg(&data)
            .args(["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"])
            .output()
            .expect("initdb starts");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let port = free_port();
        let child = program("postgres", user)
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "shared_buffers=16MB"])
            .args(["-c", "max_connections=200", "-c", "dynamic_shared_memory_type=mmap"])
            .spawn()
            .expect("postgres starts");
        Postgres { child, port, _dir: dir }
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    async fn until_it_answers(&self) -> PgConnection {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match PgConnection::connect(&self.url(USER)).await {
                Ok(connection) => return connection,
                Err(error) => {
                    assert!(Instant::now() < deadline, "PostgreSQL does not answer: {error}");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

impl Drop for Postgres {
    /// At once, but so that it cleans up behind itself.
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let told = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        // One that ended by itself is no longer there to be told.
        if told.is_ok() {
            drop(self.child.wait());
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn ids() -> (u32, u32) {
    let id = |flag: &str| {
        let output = Command::new("id").args([flag, USER]).output().expect("id");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        text.parse().unwrap_or_else(|_| panic!("no user {USER}: install Debian's postgresql"))
    };
    (id("-u"), id("-g"))
}

fn program(name: &str, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(binary(name));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Where Debian keeps it, the newest version.
fn binary(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let binaries = versions.map(|version| version.path().join("bin").join(name));
    let newest = binaries.filter(|path| Path::exists(path)).max();
    newest.unwrap_or_else(|| panic!("{name} is missing: install Debian's postgresql"))
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}
