//! The end of a process whose disk failed it.

use std::fmt::Display;

/// Logs and aborts. Never retried, never cleaned up after: once a write or a sync has failed, the kernel may have
/// dropped the pages and marked them clean, so that a repetition succeeds without a byte having reached the disk.
/// Answers that wait for the write are never given, which is the truth about them. What comes back after a restart
/// is what is on the disk, compared with what this node confirmed.
pub fn fatal_storage_error(what: &'static str, error: &dyn Display) -> ! {
    tracing::error!(what, %error, "the storage failed; this process ends here");
    std::process::abort()
}
