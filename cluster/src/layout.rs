//! Where an installation keeps what, under its `var/`:
//!
//! | path | what |
//! |---|---|
//! | `dev.json` | for programs: every address and process, see [`crate::dev_file`] |
//! | `state.json` | what the next start needs: ports, secrets, the first account (readable by its owner alone) |
//! | `lock`, `launcher.sock` | held and served by the running launcher |
//! | `bin/` | the binaries that this installation was started with |
//! | `run/PART.pid` | process id and start time of each running part |
//! | `log/PART.log` | what each part wrote |
//! | `pki/` | the certificate authority, a certificate a part, signing keys |
//! | `postgres/`, `etcd/`, `s3/`, `node-N/` | data |

use crate::parts::PartName;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub struct Layout {
    /// Absolute.
    root: PathBuf,
}

impl Layout {
    /// Makes the directory if need be.
    pub fn create(root: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(root)?;
        Self::open(root)
    }

    pub fn open(root: &Path) -> std::io::Result<Self> {
        Ok(Layout { root: root.canonicalize()? })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }
    pub fn dev_file(&self) -> PathBuf {
        self.root.join("dev.json")
    }
    pub fn state_file(&self) -> PathBuf {
        self.root.join("state.json")
    }
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }
    pub fn pid_file(&self, part: PartName) -> PathBuf {
        self.run().join(format!("{part}.pid"))
    }
    pub fn logs(&self) -> PathBuf {
        self.root.join("log")
    }
    pub fn log(&self, part: PartName) -> PathBuf {
        self.logs().join(format!("{part}.log"))
    }
    pub fn launcher_log(&self) -> PathBuf {
        self.logs().join("launcher.log")
    }
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }
    /// Where a part keeps its data.
    pub fn data(&self, part: PartName) -> PathBuf {
        self.root.join(part.to_string())
    }
}
