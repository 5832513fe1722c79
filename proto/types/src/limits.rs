//! Every bound of the product. Relations between them are checked by the compiler, at the end.

use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

// Names and keys.
pub const NAME_LEN_MAX: usize = 128;
pub const DEDUP_KEY_LEN_MAX: usize = 128;
pub const GROUP_LEN_MAX: usize = 128;
pub const REQUEST_ID_LEN_MAX: usize = 128;
pub const REASON_LEN_MAX: usize = 1024;
pub const CONTENT_TYPE_LEN_MAX: usize = 256;
pub const TRACEPARENT_LEN_MAX: usize = 128;
pub const ATTRIBUTES_MAX: usize = 32;
pub const ATTRIBUTES_BYTES_MAX: usize = 8 * KIB;

// Requests.
/// Messages of one send, tokens of one settle.
pub const BATCH_MAX: usize = 1_000;
pub const RECEIVE_MAX: u32 = 100;
pub const RECEIVE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Payload bytes that one receive hands out at most, beyond its first message.
pub const RECEIVE_BYTES_MAX: usize = 4 * MIB;
/// No plan allows more than these.
pub const MESSAGE_BYTES_MAX: usize = MIB;
pub const REQUEST_BYTES_MAX: usize = 4 * MIB;
/// Of one account at one node, long polls among them.
pub const REQUESTS_AT_ONCE_MAX: usize = 5_000;
/// Bodies of requests that are being read or answered, at one node: of all accounts, and of one.
pub const BODY_BYTES_AT_ONCE_MAX: usize = 256 * MIB;
pub const BODY_BYTES_AT_ONCE_OF_ACCOUNT_MAX: usize = BODY_BYTES_AT_ONCE_MAX / 2;
pub const LIST_LIMIT_DEFAULT: u32 = 100;
pub const LIST_LIMIT_MAX: u32 = 1_000;

// Waits.
/// `Prefer: wait`.
pub const CONFIRM_WAIT_DEFAULT: Duration = Duration::from_secs(30);
pub const CONFIRM_WAIT_MAX: Duration = Duration::from_secs(300);
/// An appended write of a caller who does not want to wait still waits this long for its confirmation.
pub const CONFIRM_WAIT_MIN: Duration = Duration::from_secs(1);
/// How long an answer waits for the right to serve to be renewed.
pub const GUARD_WAIT: Duration = Duration::from_secs(1);

// Queues.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(30);
pub const LEASE_MIN: Duration = Duration::from_millis(100);
pub const LEASE_MAX: Duration = Duration::from_secs(43_200);
pub const DELIVERIES_MAX: u32 = 1_000;
pub const PRIORITY_DEFAULT: u8 = 4;
pub const PRIORITY_MAX: u8 = 9;
pub const DEDUP_WINDOW_MAX: Duration = Duration::from_secs(7 * 86_400);
pub const RETENTION_MAX: Duration = Duration::from_secs(14 * 86_400);
pub const BACKOFF_INITIAL_DEFAULT: Duration = Duration::from_secs(1);
pub const BACKOFF_MAX_DEFAULT: Duration = Duration::from_secs(300);
/// Live leases of one queue. Beyond it a receive answers with none.
pub const LEASES_PER_QUEUE_MAX: usize = 100_000;
/// Available messages of one queue and priority that are held ready in memory.
pub const WINDOW_MAX: usize = 4_096;
/// Settles remembered for a repetition of the same settle, per spool.
pub const SETTLED_REMEMBERED_MAX: usize = 100_000;
pub const SETTLED_REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Delivery counts are written at the latest so long after a delivery, unless writes wait.
pub const DELIVERED_EVERY: Duration = Duration::from_secs(1);
/// Expired dedup keys that one entry's application removes at most.
pub const DEDUP_SWEEP_PER_ENTRY: usize = 8;

// A spool's writes.
pub const PARKED_WRITES_MAX: usize = 10_000;
pub const PARKED_BYTES_MAX: usize = 32 * MIB;
pub const UNCOMMITTED_ENTRIES_MAX: u64 = 10_000;
pub const UNCOMMITTED_BYTES_MAX: usize = 64 * MIB;
/// Requests that wait for something else in a spool: long polls, look-ups, writes in the log.
pub const WAITING_REQUESTS_MAX: usize = 50_000;
/// Recent entries that a copy keeps in memory for its peers, by bytes.
pub const TAIL_BYTES_MAX: usize = 8 * MIB;

// Replication.
/// Entries of one Append, by payload bytes (at least one entry) and by count.
pub const APPEND_BYTES_MAX: usize = MIB;
pub const APPEND_ENTRIES_MAX: usize = 1_024;
/// Appended to a copy and not yet confirmed by it, beyond which nothing more is sent to it.
pub const APPEND_INFLIGHT_BYTES_MAX: usize = 8 * MIB;
/// A copy that said nothing for so long does not count as reachable for writes.
pub const REACHABLE_WITHIN: Duration = Duration::from_secs(1);
/// The log is trimmed once so many entries can go.
pub const TRIM_STRIDE: u64 = 4_096;

// Spools.
pub const REPLICAS_MAX: u8 = 5;

const _: () = {
    assert!(MESSAGE_BYTES_MAX < REQUEST_BYTES_MAX);
    assert!(APPEND_INFLIGHT_BYTES_MAX >= APPEND_BYTES_MAX + REQUEST_BYTES_MAX);
    assert!(UNCOMMITTED_BYTES_MAX > APPEND_INFLIGHT_BYTES_MAX);
    assert!(LIST_LIMIT_DEFAULT <= LIST_LIMIT_MAX);
    assert!(CONFIRM_WAIT_DEFAULT.as_secs() <= CONFIRM_WAIT_MAX.as_secs());
    assert!(BATCH_MAX <= u16::MAX as usize);
    assert!(PRIORITY_DEFAULT <= PRIORITY_MAX);
};
