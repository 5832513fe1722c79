//! A real etcd for tests: a process of its own on free ports of the loopback, in a directory that goes with it.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep};

use super::{Alive, Etcd, keys, values};
use types::NodeName;

const BINARY: &str = "/usr/bin/etcd";

pub struct EtcdProcess {
    child: Child,
    pub url: String,
    peer_url: String,
    dir: tempfile::TempDir,
}

impl EtcdProcess {
    pub async fn start() -> EtcdProcess {
        assert!(Path::new(BINARY).exists(), "{BINARY} is missing: install Debian's etcd-server");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (url, peer_url) = (free_url(), free_url());
        let child = spawn(dir.path(), &url, &peer_url);
        let etcd = EtcdProcess { child, url, peer_url, dir };
        etcd.until_it_answers().await;
        etcd
    }

    pub async fn connect(&self) -> Etcd {
        Etcd::connect(std::slice::from_ref(&self.url)).await.expect("etcd's address")
    }

    /// Killed, and started again on the same data.
    pub async fn restart(&mut self) {
        self.stop();
        self.child = spawn(self.dir.path(), &self.url, &self.peer_url);
        self.until_it_answers().await;
    }

    pub fn stop(&mut self) {
        self.child.kill().expect("etcd runs");
        self.child.wait().expect("etcd ends");
    }

    async fn until_it_answers(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(error) = self.connect().await.nodes().await {
            assert!(Instant::now() < deadline, "etcd at {} does not answer: {error:?}", self.url);
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What nodes write.
impl Etcd {
    pub async fn put(&self, key: String, value: Vec<u8>) -> i64 {
        let answer = self.client.clone().put(key, value, None).await.expect("put");
        answer.header().expect("a header").revision()
    }

    pub async fn delete(&self, key: String) {
        self.client.clone().delete(key, None).await.expect("delete");
    }

    pub async fn put_alive(&self, node: &NodeName, alive: &Alive) {
        self.put(format!("{}{node}/alive", keys::NODES), values::to_json(alive)).await;
    }

    pub async fn delete_alive(&self, node: &NodeName) {
        self.delete(format!("{}{node}/alive", keys::NODES)).await;
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn free_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("http://{}", listener.local_addr().expect("bound"))
}

fn spawn(dir: &Path, url: &str, peer_url: &str) -> Child {
    let mut command = Command::new(BINARY);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    command
        .args(["--name", "test", "--data-dir"])
        .arg(dir)
        .args(["--listen-client-urls", url, "--advertise-client-urls", url])
        .args(["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url])
        .args(["--initial-cluster", &format!("test={peer_url}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{BINARY} does not start: {error}"))
}
