//! A private etcd of one member.

use super::{Part, PartName, Ready, Site};
use crate::process::Program;
use anyhow::Context;
use std::os::unix::fs::DirBuilderExt;

pub fn part(site: &Site<'_>) -> anyhow::Result<Part> {
    let data = site.layout.data(PartName::Etcd);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&data)
        .with_context(|| format!("making {}", data.display()))?;
    let client = site.etcd_url();
    let peer = format!("http://{}", site.ports.etcd_peer());
    let program = Program::new("etcd")
        .arg("--data-dir")
        .arg(data)
        .args(["--name", "local", "--logger", "zap", "--log-outputs", "stderr"])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("local={peer}")])
        // Nodes write once a second each; without this every one of those writes stays.
        .args(["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m"]);
    let ready = Ready::Http(format!("{client}/health"));
    Ok(Part { name: PartName::Etcd, program, alive: ready.clone(), ready })
}
