//! The physical limit: a loop that appends the same bytes to a file, with one fdatasync for whatever is pending. Nothing that keeps its
//! promise on this disk can be faster.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// A file that has grown to this is begun anew, outside the measurement.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// Messages a second, with `pending` messages of `bytes` each at every sync.
pub fn appends_per_second(dir: &Path, pending: usize, bytes: usize, time: Duration) -> std::io::Result<f64> {
    let path = dir.join("limit");
    let buffer = vec![0xa5; pending * bytes];
    let mut file = File::create(&path)?;
    let (mut spent, mut rounds, mut length) = (Duration::ZERO, 0u64, 0u64);
    while spent < time {
        if length >= FILE_BYTES_MAX {
            file.set_len(0)?;
            file.rewind()?;
            file.sync_all()?;
            length = 0;
        }
        let begun = Instant::now();
        file.write_all(&buffer)?;
        file.sync_data()?;
        spent += begun.elapsed();
        rounds += 1;
        length += buffer.len() as u64;
    }
    std::fs::remove_file(&path)?;
    Ok((rounds * pending as u64) as f64 / spent.as_secs_f64())
}
