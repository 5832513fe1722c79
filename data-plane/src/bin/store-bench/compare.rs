//! The store and the file in turns, so that a disk whose mood changes treats both alike.

use data_plane::store::{Db, Syncer};
use spool::event::SyncNo;
use spool::store::Batch;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::Load;
use super::baseline::Baseline;
use super::measure::{Cost, Stretch, median, quantile_us, resident_bytes};
use super::work::{Noise, Spool, bytes_of};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    load: Load,
    /// Messages of one write.
    #[arg(long, default_values_t = [1, 16, 64])]
    batch: Vec<u64>,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Of each round and contender.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Let the syncer's thread do the syncs, with so many writes under way, instead of the writer itself.
    #[arg(long)]
    syncer: Option<u64>,
}

/// One contender's turn.
#[derive(Default)]
struct Turn {
    messages: u64,
    syncs: Vec<Duration>,
    cost: Cost,
    payload_bytes: u64,
    resident_bytes: u64,
}

impl Turn {
    fn rate(&self) -> f64 {
        self.messages as f64 / self.cost.wall.as_secs_f64()
    }
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(&args.load.dir)?;
    println!(
        "payload {} B, {} spools, backlog {}, rounds of {} s in turns; ratio: messages/s of the store to the file's",
        args.load.payload_bytes, args.load.spools, args.load.backlog, args.seconds
    );
    println!(
        "{:>5} {:>9} {:>9} {:>6} | {:>8} {:>8} {:>8} {:>8} | {:>8} {:>8} {:>8} | {:>7} {:>8} {:>6}",
        "batch",
        "store/s",
        "file/s",
        "ratio",
        "sync p50",
        "p99",
        "file p50",
        "p99",
        "written",
        "device",
        "file dev",
        "cpu us",
        "file cpu",
        "MB"
    );
    for batch in &args.batch {
        one_size(args, *batch, dir.path())?;
    }
    Ok(())
}

fn one_size(args: &Args, batch: u64, dir: &std::path::Path) -> anyhow::Result<()> {
    let store_dir = dir.join(format!("store-{batch}"));
    let mut load = Cycle::new(&args.load, batch);
    let db = Db::open(&store_dir, &args.load.options()?)?;
    load.fill(|changes| db.write(changes));
    drop(db);
    // Opened again, memtables are empty: what is measured pays for itself alone.
    let db = Arc::new(Db::open(&store_dir, &args.load.options()?)?);
    let mut mirror = Cycle::new(&args.load, batch);
    mirror.fill(|_| ());
    let mut file = Baseline::new(dir)?;

    let span = Duration::from_secs_f64(args.seconds);
    let (mut stores, mut files) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        file.reset()?;
        files.push(file_turn(&mut file, &mut mirror, span)?);
        stores.push(match args.syncer {
            None => store_turn(&db, &mut load, span),
            Some(under_way) => syncer_turn(&db, &mut load, span, under_way)?,
        });
    }
    // What is still in memtables has its way to the disk before it: it belongs to the bill.
    let settle = Stretch::begin();
    drop(db);
    drop(Db::open(&store_dir, &args.load.options()?)?);
    report(batch, stores, files, settle.end());
    std::fs::remove_dir_all(&store_dir)?;
    Ok(())
}

/// Sends and settles, spool after spool.
struct Cycle {
    spools: Vec<Spool>,
    noise: Noise,
    batch: u64,
    payload_bytes: usize,
    backlog: u64,
    turn: usize,
}

impl Cycle {
    fn new(load: &Load, batch: u64) -> Cycle {
        Cycle {
            spools: load.new_spools(),
            noise: Noise::new(),
            batch,
            payload_bytes: load.payload_bytes,
            backlog: load.backlog / u64::from(load.spools),
            turn: 0,
        }
    }

    fn fill(&mut self, write: impl Fn(&[(data_plane::store::SpoolNumber, &Batch)])) {
        for spool in &mut self.spools {
            while (spool.waiting() as u64) < self.backlog {
                let sent = spool.send(64, self.payload_bytes, &self.noise);
                write(&[(spool.number, &sent)]);
            }
            spool.payload_bytes = 0;
        }
    }

    fn payload_bytes(&self) -> u64 {
        self.spools.iter().map(|spool| spool.payload_bytes).sum()
    }

    /// The next spool's send and settle, each a write of its own.
    fn next(&mut self) -> (data_plane::store::SpoolNumber, [Batch; 2]) {
        self.turn = (self.turn + 1) % self.spools.len();
        let spool = &mut self.spools[self.turn];
        let sent = spool.send(self.batch, self.payload_bytes, &self.noise);
        (spool.number, [sent, spool.settle(self.batch)])
    }
}

fn store_turn(db: &Db, load: &mut Cycle, span: Duration) -> Turn {
    let payload_before = load.payload_bytes();
    let mut turn = Turn::default();
    let stretch = Stretch::begin();
    let begun = Instant::now();
    while begun.elapsed() < span {
        let (spool, writes) = load.next();
        for batch in writes {
            let at = Instant::now();
            db.write(&[(spool, &batch)]);
            db.sync();
            turn.syncs.push(at.elapsed());
        }
        turn.messages += load.batch;
    }
    turn.cost = stretch.end();
    turn.resident_bytes = resident_bytes();
    turn.payload_bytes = load.payload_bytes() - payload_before;
    turn
}

/// As the node works: the writer goes on while the syncer syncs, up to so many writes ahead.
fn syncer_turn(db: &Arc<Db>, load: &mut Cycle, span: Duration, under_way: u64) -> anyhow::Result<Turn> {
    let syncer = Syncer::start(db.clone())?;
    let (done, completed) = channel();
    let handle = syncer.engine(move |synced| drop(done.send(synced)));
    let payload_before = load.payload_bytes();
    let mut turn = Turn::default();
    let mut written_at: std::collections::VecDeque<(u64, Instant)> = Default::default();
    let (mut written, mut durable) = (0u64, 0u64);
    let stretch = Stretch::begin();
    let begun = Instant::now();
    while begun.elapsed() < span {
        let (spool, writes) = load.next();
        for batch in writes {
            while written - durable >= under_way {
                let synced = completed.recv()?;
                durable = synced.iter().map(|(_, number)| number.0).max().unwrap_or(durable).max(durable);
                while let Some((_, at)) = written_at.pop_front_if(|(number, _)| *number <= durable) {
                    turn.syncs.push(at.elapsed());
                }
            }
            written += 1;
            written_at.push_back((written, Instant::now()));
            db.write(&[(spool, &batch)]);
            handle.request([(spool, SyncNo(written))]);
        }
        turn.messages += load.batch;
    }
    drop(syncer);
    turn.cost = stretch.end();
    turn.resident_bytes = resident_bytes();
    turn.payload_bytes = load.payload_bytes() - payload_before;
    Ok(turn)
}

fn file_turn(file: &mut Baseline, mirror: &mut Cycle, span: Duration) -> anyhow::Result<Turn> {
    let payload_before = mirror.payload_bytes();
    let mut turn = Turn::default();
    let stretch = Stretch::begin();
    let begun = Instant::now();
    while begun.elapsed() < span {
        let (_, writes) = mirror.next();
        for batch in writes {
            let at = Instant::now();
            file.append(bytes_of(&batch))?;
            turn.syncs.push(at.elapsed());
        }
        turn.messages += mirror.batch;
    }
    turn.cost = stretch.end();
    turn.resident_bytes = resident_bytes();
    turn.payload_bytes = mirror.payload_bytes() - payload_before;
    Ok(turn)
}

fn report(batch: u64, stores: Vec<Turn>, files: Vec<Turn>, settle: Cost) {
    let ratio = median(stores.iter().zip(&files).map(|(store, file)| store.rate() / file.rate()).collect());
    let rate = |turns: &[Turn]| median(turns.iter().map(Turn::rate).collect());
    let (store_rate, file_rate) = (rate(&stores), rate(&files));
    let (mut store_all, mut file_all) = (sum(stores), sum(files));
    store_all.cost += settle;
    let per_payload = |bytes: u64, turn: &Turn| bytes as f64 / turn.payload_bytes as f64;
    println!(
        "{batch:>5} {store_rate:>9.0} {file_rate:>9.0} {ratio:>6.2} | {:>8.0} {:>8.0} {:>8.0} {:>8.0} | {:>8.2} {:>8.2} {:>8.2} | {:>7.1} {:>8.1} {:>6}",
        quantile_us(&mut store_all.syncs, 0.5),
        quantile_us(&mut store_all.syncs, 0.99),
        quantile_us(&mut file_all.syncs, 0.5),
        quantile_us(&mut file_all.syncs, 0.99),
        per_payload(store_all.cost.written_bytes, &store_all),
        per_payload(store_all.cost.device_bytes, &store_all),
        per_payload(file_all.cost.device_bytes, &file_all),
        store_all.cost.cpu.as_secs_f64() * 1e6 / store_all.messages as f64,
        file_all.cost.cpu.as_secs_f64() * 1e6 / file_all.messages as f64,
        store_all.resident_bytes >> 20,
    );
}

fn sum(turns: Vec<Turn>) -> Turn {
    let mut all = Turn::default();
    for turn in turns {
        all.messages += turn.messages;
        all.payload_bytes += turn.payload_bytes;
        all.resident_bytes = all.resident_bytes.max(turn.resident_bytes);
        all.syncs.extend(turn.syncs);
        all.cost += turn.cost;
    }
    all
}
