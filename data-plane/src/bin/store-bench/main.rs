//! The store alone, under the writes that spools make: how it compares with a file that the same bytes are appended
//! to, what it writes to the disk for a byte of payload, and whether reads stay flat.
//!
//! `store-bench compare --dir DIR` takes turns between the store and the file and prints medians.
//! `store-bench flat --dir DIR` sends and settles millions of messages and prints what a receive costs meanwhile.

mod baseline;
mod compare;
mod flat;
mod measure;
mod work;

use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Compare(compare::Args),
    Flat(flat::Args),
}

/// What both need to know of the load.
#[derive(clap::Args, Clone)]
struct Load {
    /// On the disk to be measured; a directory in it is created, and removed at the end.
    #[arg(long)]
    dir: PathBuf,
    #[arg(long, default_value_t = 1024)]
    payload_bytes: usize,
    #[arg(long, default_value_t = 4)]
    spools: u32,
    /// Messages between a send and its settle.
    #[arg(long, default_value_t = 10_000)]
    backlog: u64,
    /// Leave one in so many messages unsettled for good.
    #[arg(long)]
    keep_every: Option<u64>,
    /// Set an option of the store: log_memtable=MIB, state_memtable=MIB, block_cache=MIB, wal=MIB, recycle=N, jobs=N,
    /// min_blob=BYTES.
    #[arg(long = "set", value_name = "OPTION=NUMBER")]
    sets: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Compare(args) => compare::run(&args),
        Command::Flat(args) => flat::run(&args),
    }
}

impl Load {
    fn new_spools(&self) -> Vec<work::Spool> {
        (1..=self.spools).map(|number| work::Spool::new(number, self.keep_every)).collect()
    }

    fn options(&self) -> anyhow::Result<data_plane::store::Options> {
        let mut options = data_plane::store::Options::default();
        for set in &self.sets {
            let (option, number) = set.split_once('=').ok_or_else(|| anyhow::anyhow!("{set}: no ="))?;
            let number: u32 = number.parse()?;
            let bytes = (number as usize) << 20;
            match option {
                "log_memtable" => options.log_memtable_bytes = bytes,
                "state_memtable" => options.state_memtable_bytes = bytes,
                "block_cache" => options.block_cache_bytes = bytes,
                "wal" => options.wal_bytes_max = bytes as u64,
                "recycle" => options.wal_files_recycled = number as usize,
                "jobs" => options.background_jobs = i32::try_from(number)?,
                "min_blob" => options.blob_bytes_min = u64::from(number),
                _ => anyhow::bail!("{option}: no such option"),
            }
        }
        Ok(options)
    }
}
