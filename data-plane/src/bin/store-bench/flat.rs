//! Whether a receive costs the same after millions of messages have come and gone.

use data_plane::store::{Db, Keeper};
use spool::store::Store;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Load;
use super::measure::{Stretch, quantile_us, resident_bytes};
use super::work::{Noise, Spool, entry_key, ready_key};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    load: Load,
    /// To be sent and settled in all.
    #[arg(long, default_value_t = 2_000_000)]
    messages: u64,
    #[arg(long, default_value_t = 64)]
    batch: u64,
    /// Sync once in so many writes.
    #[arg(long, default_value_t = 16)]
    sync_every: u64,
    #[arg(long, default_value_t = 10)]
    windows: u64,
    /// Also look from the start of the queue's keys, over everything that was deleted, after one in so many writes:
    /// what the core avoids.
    #[arg(long, default_value_t = 100)]
    look_from_start_every: u64,
}

#[derive(Default)]
struct Reads {
    from_head: Vec<Duration>,
    from_start: Vec<Duration>,
    entry: Vec<Duration>,
    absent: Vec<Duration>,
    write: Vec<Duration>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(&args.load.dir)?;
    let db = Arc::new(Db::open(dir.path().join("store"), &args.load.options()?)?);
    let _keeper = Keeper::start(db.clone())?;
    let noise = Noise::new();
    let mut spools: Vec<Spool> = args.load.new_spools();
    let backlog = (args.load.backlog / u64::from(args.load.spools)) as usize;
    println!(
        "microseconds, p50 / p99: a list of up to 16 from the head, the same from the start of the queue's keys,"
    );
    println!("the head's entry, a key that is not there, one write of {} sends or their settle", args.batch);
    println!(
        "{:>10} {:>16} {:>16} {:>16} {:>16} {:>16} | {:>8} {:>8} {:>8} {:>6} {:>6} {:>7}",
        "messages",
        "from head",
        "from start",
        "entry",
        "absent",
        "write",
        "msgs/s",
        "written",
        "device",
        "cpu us",
        "MB",
        "disk MB"
    );
    let mut writes = 0;
    for window in 1..=args.windows {
        let mut reads = Reads::default();
        let payload_before: u64 = spools.iter().map(|spool| spool.payload_bytes).sum();
        let stretch = Stretch::begin();
        let mut sent = 0;
        while sent < args.messages / args.windows {
            for spool in &mut spools {
                let mut batches = vec![spool.send(args.batch, args.load.payload_bytes, &noise)];
                if spool.waiting() > backlog {
                    batches.push(spool.settle(args.batch));
                }
                for batch in batches {
                    let at = Instant::now();
                    db.write(&[(spool.number, &batch)]);
                    reads.write.push(at.elapsed());
                    writes += 1;
                    if writes % args.sync_every == 0 {
                        db.sync();
                    }
                }
                sent += args.batch;
                receive(&db, spool, writes % args.look_from_start_every < 2, &mut reads)?;
            }
        }
        let cost = stretch.end();
        let payload = spools.iter().map(|spool| spool.payload_bytes).sum::<u64>() - payload_before;
        println!(
            "{:>10} {:>16} {:>16} {:>16} {:>16} {:>16} | {:>8.0} {:>8.2} {:>8.2} {:>6.1} {:>6} {:>7}",
            window * sent,
            both(&mut reads.from_head),
            both(&mut reads.from_start),
            both(&mut reads.entry),
            both(&mut reads.absent),
            both(&mut reads.write),
            sent as f64 / cost.wall.as_secs_f64(),
            cost.written_bytes as f64 / payload as f64,
            cost.device_bytes as f64 / payload as f64,
            cost.cpu.as_secs_f64() * 1e6 / sent as f64,
            resident_bytes() >> 20,
            disk_bytes(&dir.path().join("store/rocksdb"))? >> 20,
        );
    }
    Ok(())
}

fn receive(db: &Arc<Db>, spool: &Spool, also_from_start: bool, reads: &mut Reads) -> anyhow::Result<()> {
    let Some(head) = spool.head() else {
        return Ok(());
    };
    let store = db.spool(spool.number);
    let looks = [(head, &mut reads.from_head), (0, &mut reads.from_start)];
    for (from, spans) in looks.into_iter().take(1 + usize::from(also_from_start)) {
        let mut listed = 0;
        let at = Instant::now();
        store.scan(&ready_key(from), &ready_key(u64::MAX), &mut |_, _| {
            listed += 1;
            listed < 16
        })?;
        spans.push(at.elapsed());
        anyhow::ensure!(listed > 0, "the head is not listed");
    }
    let at = Instant::now();
    anyhow::ensure!(store.get(&entry_key(head))?.is_some(), "the head's entry is gone");
    reads.entry.push(at.elapsed());
    let at = Instant::now();
    anyhow::ensure!(store.get(&ready_key(head - 1))?.is_none(), "a settled message is there");
    reads.absent.push(at.elapsed());
    Ok(())
}

fn both(spans: &mut [Duration]) -> String {
    format!("{:.1} / {:.0}", quantile_us(spans, 0.5), quantile_us(spans, 0.99))
}

fn disk_bytes(dir: &std::path::Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for item in std::fs::read_dir(dir)? {
        // A file may be deleted between its listing and the look at it.
        bytes += item?.metadata().map_or(0, |metadata| metadata.len());
    }
    Ok(bytes)
}
