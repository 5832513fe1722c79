//! The commands behind `./dev`, as a person or a script calls them.

use cluster::api::Api;
use cluster::dev_file::DevFile;
use cluster::harness::PATIENCE;
use cluster::layout::Layout;
use cluster::parts::PartName;
use cluster::process::Id;
use cluster::wait::wait_until;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// Blocks: nothing else goes on in this test while a command runs.
fn call(var: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cluster"));
    command.args(args).arg("--var").arg(var).output().expect("it starts")
}

fn good(var: &Path, args: &[&str]) -> String {
    let output = call(var, args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}:\n{out}\n{err}");
    out.into_owned()
}

/// It fails, and says why.
fn bad(var: &Path, args: &[&str]) -> String {
    let output = call(var, args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn dev(var: &Path) -> DevFile {
    DevFile::load(&Layout::open(var).expect("a directory")).expect("dev.json")
}

/// Every process of an installation.
fn processes(dev: &DevFile) -> Vec<Id> {
    let nodes = dev.nodes.iter().map(|node| node.pid);
    let others = [dev.console_api.pid, dev.etcd.pid, dev.postgres.pid, dev.s3.pid, dev.control_plane[0].pid];
    nodes.chain(others).map(|pid| pid.and_then(Id::of).expect("it runs")).collect()
}

async fn gone(ids: &[Id]) {
    let none = || async {
        match ids.iter().find(|id| id.is_alive()) {
            Some(id) => Err(format!("{id:?}")),
            None => Ok(()),
        }
    };
    wait_until(Duration::from_secs(20), "every process to be gone", none).await.expect("they go");
}

#[tokio::test(flavor = "multi_thread")]
async fn up_account_fault_down_and_up_again_after_the_launcher_was_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let var = dir.path();
    assert!(bad(var, &["fault", "kill", "node-1"]).contains("nothing is up"));
    let greeting = good(var, &["up", "--detach"]);
    let first = dev(var);
    assert!(greeting.contains(&first.api_key) && greeting.contains(&first.console), "{greeting}");
    assert_eq!((first.api.len(), first.nodes.len(), first.plan.as_str()), (3, 3, "pro"));
    assert!(bad(var, &["up", "--detach"]).contains("already up"));

    account(var, &first).await;
    faults(var);

    // The launcher dies: nothing of it stays, and the next start is not in its way.
    let all = processes(&dev(var));
    let pid = all[0].parent().expect("the launcher");
    pid.signal(Signal::KILL).expect("ours to kill");
    gone(&all).await;
    good(var, &["up", "--detach"]);
    let second = dev(var);
    assert_eq!((&first.api, &first.api_key), (&second.api, &second.api_key));
    let all = processes(&second);
    good(var, &["down"]);
    gone(&all).await;
    assert_eq!(dev(var).etcd.pid, None);
    good(var, &["down"]);
}

async fn account(var: &Path, first: &DevFile) {
    let text = good(var, &["account", "--plan", "pro"]);
    let made: Value = serde_json::from_str(&text).expect("one JSON object");
    for field in ["/account", "/plan", "/login/email", "/login/password", "/apiKey"] {
        assert!(made.pointer(field).is_some_and(Value::is_string), "{field} in {text}");
    }
    let key = made["apiKey"].as_str().expect("a key");
    assert_ne!(key, first.api_key);
    for api in &first.api {
        Api::new(api, key).wait_serving("default", PATIENCE).await.expect("a new key works on every node");
    }
}

fn faults(var: &Path) {
    let node = |var: &Path| dev(var).nodes[1].pid.and_then(Id::of);
    let before = node(var).expect("it runs");
    good(var, &["fault", "pause", "node-2"]);
    assert!(before.is_stopped());
    good(var, &["fault", "resume", "node-2"]);
    assert!(!before.is_stopped());
    good(var, &["fault", "kill", "node-2"]);
    assert!(!before.is_alive());
    assert_eq!(dev(var).nodes[1].pid, None);
    assert!(bad(var, &["fault", "kill", "node-2"]).contains("node-2 does not run"));
    good(var, &["fault", "start", "node-2"]);
    assert!(node(var).is_some_and(|now| now != before && now.is_alive()));
    for part in ["node-4", "nodes", "quantum"] {
        assert!(!bad(var, &["fault", "kill", part]).is_empty());
    }
    let names = dev(var).nodes.into_iter().map(|node| node.name.parse());
    assert!(names.eq((1..=3).map(|number| Ok(PartName::Node(number)))));
}
