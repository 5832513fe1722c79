//! What no store can beat: the same bytes at the end of a file, and fdatasync.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

pub struct Baseline {
    path: PathBuf,
    file: File,
    bytes: Vec<u8>,
}

impl Baseline {
    pub fn new(dir: &Path) -> std::io::Result<Baseline> {
        let path = dir.join("baseline");
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        Ok(Baseline { path, file, bytes: vec![0x5a; 4 << 20] })
    }

    pub fn append(&mut self, len: usize) -> std::io::Result<()> {
        if self.bytes.len() < len {
            self.bytes.resize(len, 0x5a);
        }
        self.file.write_all(&self.bytes[..len])?;
        self.file.sync_data()
    }

    /// Starts over, so that the file does not fill the disk.
    pub fn reset(&mut self) -> std::io::Result<()> {
        std::fs::remove_file(&self.path)?;
        self.file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        self.file.sync_all()
    }
}
