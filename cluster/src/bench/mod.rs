//! Benchmarks: `./dev bench [name]`. Each starts an installation of its own on the disk of `var/`, prints a table for a person and a line of
//! JSON a result for a program. Numbers are ratios where a ratio can be had: to what this disk can do in the same minute.
//!
//! * [`send`]: closed-loop producers against the physical limit
//! * [`million`]: what a queue is like after a million messages went through it
//! * [`limit`]: the physical limit
//! * [`wire`]: a client that costs next to nothing, so that a small machine measures the server
//! * [`usage`]: processor time, memory and disk bytes of the server's processes

mod limit;
mod million;
mod send;
mod usage;
mod wire;

use crate::harness::Cluster;
use crate::parts::Options;
use anyhow::Context;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Settings {
    /// Which.
    #[arg(default_value = "send")]
    name: Name,
    /// How many times each measurement is made; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// How long one takes, and the physical limit before it.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Of `send`: how many producers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    producers: Vec<usize>,
    /// Of `send`: how many messages a request.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100])]
    batches: Vec<usize>,
    /// Of `send`: numReplicas/numSync.
    #[arg(long, value_delimiter = ',', default_values_t = [String::from("1/0"), String::from("3/1")])]
    spools: Vec<String>,
    /// Of `million`: how many messages.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    Send,
    Million,
}

/// Bytes of payload of every message.
const PAYLOAD: usize = 1024;

pub async fn run(var: &Path, settings: Settings) -> anyhow::Result<()> {
    let site = Site::make(var)?;
    if settings.name == Name::Million {
        return on_a_cluster(&site.dir.join("var"), async |cluster| million::run(cluster, &settings).await)
            .await;
    }
    // Each kind of spool on nodes of its own: what the millions of one leave to be tidied up, the next would pay for.
    for spool in &settings.spools {
        let dir = site.dir.join(spool.replace('/', "-"));
        on_a_cluster(&dir, async |cluster| send::run(cluster, &site, &settings, spool).await).await?;
    }
    Ok(())
}

async fn on_a_cluster(
    dir: &Path,
    measure: impl AsyncFnOnce(&Cluster) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let cluster = Cluster::start_in(dir, Options::default()).await?;
    // Interrupted or not, what was started stops and what was written goes.
    let measured = tokio::select! {
        measured = measure(&cluster) => measured,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    cluster.stop().await;
    measured
}

/// A directory on the disk that is measured, removed at the end.
struct Site {
    dir: PathBuf,
    _removed: tempfile::TempDir,
}

impl Site {
    fn make(var: &Path) -> anyhow::Result<Site> {
        std::fs::create_dir_all(var).with_context(|| format!("making {}", var.display()))?;
        let dir = tempfile::Builder::new().prefix("bench-").tempdir_in(var).context("a directory")?;
        Ok(Site { dir: dir.path().to_owned(), _removed: dir })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_is_the_one_in_the_middle() {
        assert_eq!(super::median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(super::median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
