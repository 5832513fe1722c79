//! An installation with something in it that bad input must not change, and what is looked at afterwards.

use crate::wire::{Answer, Request, ask};
use anyhow::{Context, ensure};
use cluster::api::Api;
use cluster::console::Console;
use cluster::harness::{Cluster, PATIENCE, number_of, patiently};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

pub const QUEUE: &str = "q";
/// What stands in every message of the first account, and of the other one.
pub const OURS: &str = "ours-9f31";
pub const THEIRS: &str = "theirs-c07d";

pub struct Site {
    pub cluster: Cluster,
    pub api: Api,
    pub foreign: Api,
    /// At the console, the first account's.
    pub owner: Console,
    pub address: String,
    pub key: String,
    pub foreign_key: String,
    /// Of a message in the queue, and of its lease.
    pub id: String,
    pub token: String,
    /// Of a lease of the other account's.
    pub foreign_token: String,
    faults: Mutex<Vec<String>>,
}

impl Site {
    /// Two accounts on the plan `free`. With more than one node, what is asked goes to one that is not the first account's primary.
    pub async fn start(nodes: u16) -> anyhow::Result<Site> {
        let cluster = Cluster::start(nodes).await?;
        let (account, other) = (cluster.new_account("free").await?, cluster.new_account("free").await?);
        let owner = cluster.console().log_in(&account.login).await?;
        let status = cluster.api_with(1, &account.api_key).wait_serving("default", PATIENCE).await?;
        let primary = number_of(status.primary().context("a primary")?)?;
        let node = cluster.others(primary).first().copied().unwrap_or(primary);
        let [api, foreign] = [&account, &other].map(|one| cluster.api_with(node, &one.api_key));
        for api in [&api, &foreign] {
            api.wait_serving("default", PATIENCE).await?;
        }
        let address = api.base().strip_prefix("http://").context("plain HTTP")?.to_owned();
        let config = json!({ "leaseSeconds": 43_200 });
        let mut tokens = Vec::new();
        let mut ids = Vec::new();
        for (api, text) in [(&api, OURS), (&foreign, THEIRS)] {
            patiently("a queue", || api.put_queue(QUEUE, &config)).await?;
            for number in 0..4 {
                ids.push(api.send(QUEUE, &format!("{text} {number}")).await?.id);
            }
            api.send_message(QUEUE, &json!({ "body": text, "delaySeconds": 300_000 })).await?;
            tokens.push(api.receive(QUEUE, &json!({})).await?.pop().context("a message")?.token);
        }
        let [token, foreign_token] = tokens.try_into().ok().context("two tokens")?;
        let id = ids[1].clone();
        Ok(Site {
            cluster,
            api,
            foreign,
            owner,
            address,
            key: account.api_key,
            foreign_key: other.api_key,
            id,
            token,
            foreign_token,
            faults: Mutex::default(),
        })
    }

    /// With the first account's key, unless the request has one.
    pub async fn ask(&self, request: Request) -> anyhow::Result<Answer> {
        let has = request.headers.iter().any(|(name, _)| name == "Authorization");
        let request = match has {
            true => request,
            false => request.header("Authorization", format!("Bearer {}", self.key)),
        };
        ask(&self.address, &request).await
    }

    /// Everything of both accounts that a request can change, and time alone does not.
    pub async fn seen(&self) -> anyhow::Result<Value> {
        Ok(json!({ "ours": everything(&self.api).await?, "theirs": everything(&self.foreign).await? }))
    }

    /// Goes on: the others are to be seen, too.
    pub fn fault(&self, fault: String) {
        eprintln!("{fault}");
        self.faults.lock().push(fault);
    }

    /// What is wrong, as one list.
    pub async fn end(self) {
        self.cluster.stop().await;
        let faults = self.faults.into_inner();
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    }

    /// Nothing has changed, and the service serves: one message more is one message more.
    pub async fn is_as(&self, before: &Value) -> anyhow::Result<()> {
        let now = self.seen().await?;
        ensure!(now == *before, "something changed, from\n{before}\nto\n{now}");
        let sent = || async { self.api.queue(QUEUE).await.map(|queue| queue["totals"]["sent"].as_u64()) };
        let counted = sent().await?.context("a count")?;
        let id = self.api.send(QUEUE, OURS).await.context("a good send")?.id;
        ensure!(sent().await? == Some(counted + 1), "a good send is not counted");
        let found: Value = get(&self.api, &format!("/queues/{QUEUE}/messages/{id}")).await?;
        ensure!(found["body"] == OURS, "{found}");
        Ok(())
    }
}

async fn get(api: &Api, path: &str) -> anyhow::Result<Value> {
    Ok(api.request(Method::GET, &api.path(path), None).await?.json()?)
}

async fn everything(api: &Api) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    let queues: Value = get(api, "/queues?limit=1000").await?;
    let names = queues["queues"].as_array().context("queues")?;
    for name in names.iter().filter_map(|queue| queue["name"].as_str()) {
        let mut queue = api.queue(name).await?;
        queue["oldestAvailableSeconds"].take();
        all.push(queue);
        for state in ["available", "leased", "delayed"] {
            all.push(get(api, &format!("/queues/{name}/messages?limit=1000&state={state}")).await?);
        }
    }
    all.push(queues);
    Ok(all)
}
