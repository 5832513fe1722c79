//! What the nodes' processes use.

use crate::dev_file::DevFile;
use anyhow::{Context, ensure};
use std::ops::{Div, Mul, Sub};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// All nodes together, in processors.
const IDLE_CORES: f64 = 0.25;
const IDLE_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub cpu_us: f64,
    /// Handed to the disk, or on its way there.
    pub written_bytes: f64,
}

impl Sub for Usage {
    type Output = Usage;
    fn sub(self, before: Usage) -> Usage {
        Usage {
            cpu_us: self.cpu_us - before.cpu_us,
            written_bytes: self.written_bytes - before.written_bytes,
        }
    }
}

impl Mul<f64> for Usage {
    type Output = Usage;
    fn mul(self, by: f64) -> Usage {
        Usage { cpu_us: self.cpu_us * by, written_bytes: self.written_bytes * by }
    }
}

impl Div<f64> for Usage {
    type Output = Usage;
    fn div(self, by: f64) -> Usage {
        Usage { cpu_us: self.cpu_us / by, written_bytes: self.written_bytes / by }
    }
}

/// Of all nodes together, since they started.
pub fn of_nodes(dev: &DevFile) -> anyhow::Result<Usage> {
    let mut sum = Usage::default();
    for node in &dev.nodes {
        let pid = node.pid.with_context(|| format!("{} does not run", node.name))?;
        sum.cpu_us += cpu_us(pid)?;
        sum.written_bytes += number_after(&format!("/proc/{pid}/io"), "write_bytes:")?;
    }
    Ok(sum)
}

/// Until the nodes do nothing but what idle nodes do.
pub async fn wait_idle(dev: &DevFile) -> anyhow::Result<()> {
    let until = Instant::now() + IDLE_WAIT;
    let mut before = of_nodes(dev)?;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = of_nodes(dev)?;
        if (now - before).cpu_us < IDLE_CORES * LOOK_EVERY.as_micros() as f64 {
            return Ok(());
        }
        ensure!(Instant::now() < until, "the nodes are still busy after {IDLE_WAIT:?}");
        before = now;
    }
}

/// The most resident memory that any node had, in bytes.
pub fn peak_memory(dev: &DevFile) -> anyhow::Result<f64> {
    let mut peak: f64 = 0.0;
    for pid in dev.nodes.iter().filter_map(|node| node.pid) {
        peak = peak.max(number_after(&format!("/proc/{pid}/status"), "VmHWM:")? * 1024.0);
    }
    Ok(peak)
}

fn cpu_us(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("a line of stat")?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || -> anyhow::Result<f64> { Ok(fields.next().context("processor time")?.parse()?) };
    let sum = ticks()? + ticks()?;
    Ok(sum * 1e6 / rustix::param::clock_ticks_per_second() as f64)
}

fn number_after(path: &str, label: &str) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(path).with_context(|| path.to_owned())?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(label))
        .with_context(|| format!("{label} in {path}"))?;
    let number = line.split_ascii_whitespace().next().with_context(|| format!("{label} in {path}"))?;
    Ok(number.parse()?)
}
