//! Clocks and counters of this process.

use std::time::{Duration, Instant};

/// What a stretch of work cost.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    pub wall: Duration,
    pub cpu: Duration,
    /// Passed to write() by anybody in this process.
    pub written_bytes: u64,
    /// Sent to the block device on behalf of this process.
    pub device_bytes: u64,
}

pub struct Stretch {
    wall: Instant,
    cpu: Duration,
    written_bytes: u64,
    device_bytes: u64,
}

impl Stretch {
    pub fn begin() -> Stretch {
        let (written_bytes, device_bytes) = io_counters();
        Stretch { wall: Instant::now(), cpu: cpu_time(), written_bytes, device_bytes }
    }

    pub fn end(self) -> Cost {
        let (written_bytes, device_bytes) = io_counters();
        Cost {
            wall: self.wall.elapsed(),
            cpu: cpu_time() - self.cpu,
            written_bytes: written_bytes - self.written_bytes,
            device_bytes: device_bytes - self.device_bytes,
        }
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.wall += other.wall;
        self.cpu += other.cpu;
        self.written_bytes += other.written_bytes;
        self.device_bytes += other.device_bytes;
    }
}

/// Of all threads, background work of RocksDB included.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn io_counters() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let field =
        |name| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0);
    (field("wchar:"), field("write_bytes:"))
}

pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Of durations, in microseconds; sorts them.
pub fn quantile_us(spans: &mut [Duration], quantile: f64) -> f64 {
    if spans.is_empty() {
        return 0.0;
    }
    spans.sort_unstable();
    let at = (spans.len() as f64 * quantile) as usize;
    spans[at.min(spans.len() - 1)].as_secs_f64() * 1e6
}

pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}
