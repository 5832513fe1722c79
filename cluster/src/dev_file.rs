//! `var/dev.json`: an installation, for programs. Written when everything answers, and on every change.

use crate::layout::Layout;
use crate::pki::replace;
use crate::state::Login;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DevFile {
    /// The data plane, one URL a node.
    pub api: Vec<String>,
    /// The same over TLS.
    pub api_tls: Vec<String>,
    pub ca: PathBuf,
    pub console: String,
    pub plan: String,
    pub login: Login,
    pub api_key: String,
    pub nodes: Vec<NodeEntry>,
    pub control_plane: Vec<ControlEntry>,
    pub console_api: ProcessEntry,
    pub etcd: EtcdEntry,
    pub postgres: PostgresEntry,
    pub s3: S3Entry,
}

/// A `pid` is null while the part does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeEntry {
    pub name: String,
    pub pid: Option<u32>,
    pub api: String,
    pub metrics: String,
    pub data_dir: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlEntry {
    pub pid: Option<u32>,
    pub grpc: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEntry {
    pub pid: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdEntry {
    pub pid: Option<u32>,
    pub endpoints: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostgresEntry {
    pub pid: Option<u32>,
    pub url: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Entry {
    pub pid: Option<u32>,
    pub endpoint: String,
    pub bucket: String,
}

impl DevFile {
    pub fn load(layout: &Layout) -> anyhow::Result<DevFile> {
        let path = layout.dev_file();
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))
    }

    /// To a temporary name, then renamed: a reader sees the old one or the new one, whole.
    pub fn save(&self, layout: &Layout) -> anyhow::Result<()> {
        let mut bytes = serde_json::to_vec_pretty(self).context("dev.json")?;
        bytes.push(b'\n');
        replace(&layout.dev_file(), &bytes)
    }
}
