//! The file with the last known directory: `directory.v1` in the data directory.
//!
//! magic 8 | when the control plane was last heard, ms 8 | SHA-256 of both and the rest 32 | a complete
//! `DirectoryUpdate`. Replaced whole. A file that cannot be read is not used: the node then asks.

use bytes::Bytes;
use prost::Message;
use proto::control::DirectoryUpdate;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use types::WallMs;

const NAME: &str = "directory.v1";
const MAGIC: &[u8; 8] = b"CAPDIR\0\x01";
const HEAD: usize = 8 + 8 + 32;

#[derive(Debug, thiserror::Error)]
#[error("{what} {}", path.display())]
pub struct DiskError {
    what: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

pub(super) struct Saved {
    pub heard_at: WallMs,
    pub update: DirectoryUpdate,
}

pub(super) fn load(dir: &Path) -> Result<Option<Saved>, DiskError> {
    let path = dir.join(NAME);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DiskError { what: "reading", path, source }),
    };
    let saved = decode(bytes);
    if saved.is_none() {
        tracing::error!(path = %path.display(), "the directory's file is damaged; the control plane will be asked");
    }
    Ok(saved)
}

fn decode(bytes: Vec<u8>) -> Option<Saved> {
    let head = bytes.get(..HEAD)?;
    if &head[..8] != MAGIC || head[16..] != hash(&head[8..16], &bytes[HEAD..]) {
        return None;
    }
    let heard_at = i64::from_be_bytes(head[8..16].try_into().ok()?);
    let update = DirectoryUpdate::decode(Bytes::from(bytes).slice(HEAD..)).ok()?;
    Some(Saved { heard_at: WallMs(heard_at), update })
}

fn hash(heard: &[u8], body: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(MAGIC).chain_update(heard).chain_update(body).finalize().into()
}

pub(super) fn save(dir: &Path, saved: &Saved) -> Result<(), DiskError> {
    let path = dir.join(NAME);
    let fresh = dir.join(format!("{NAME}.new"));
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| DiskError { what, path, source }
    };
    let body = saved.update.encode_to_vec();
    let heard = saved.heard_at.0.to_be_bytes();
    let write = || {
        let mut file = File::create(&fresh)?;
        for part in [&MAGIC[..], &heard, &hash(&heard, &body), &body] {
            file.write_all(part)?;
        }
        file.sync_all()
    };
    write().map_err(failed("writing", &fresh))?;
    std::fs::rename(&fresh, &path).map_err(failed("replacing", &path))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("syncing", dir))
}
