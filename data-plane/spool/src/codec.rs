//! Bytes of what the log and the state hold. Explicit, big-endian, with a version first.

use crate::config::QueueConfig;

const CONFIG_VERSION: u8 = 1;

pub fn config_bytes(config: &QueueConfig) -> Vec<u8> {
    let mut out = vec![CONFIG_VERSION];
    let millis = |span: std::time::Duration| (span.as_millis() as u64).to_be_bytes();
    out.extend(millis(config.lease));
    out.extend(config.deliveries_max.unwrap_or(0).to_be_bytes());
    let dead = config.dead_letter_queue.as_ref().map_or("", |name| name.as_str());
    out.push(dead.len() as u8);
    out.extend(dead.as_bytes());
    for span in [config.dedup_window, config.retention, config.delay, config.backoff.initial, config.backoff.max] {
        out.extend(millis(span));
    }
    out.extend(config.backoff.multiplier_milli.to_be_bytes());
    out.extend(config.message_bytes_max.to_be_bytes());
    out.push(u8::from(config.paused_send) | u8::from(config.paused_receive) << 1);
    out
}
