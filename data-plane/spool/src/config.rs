//! A queue's configuration: what its owner chose, the defaults, and what a change does to it.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use types::{QueueName, limits};

/// Complete: each field has its value. Durations are whole milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueConfig {
    pub lease: Duration,
    pub deliveries_max: Option<u32>,
    pub dead_letter_queue: Option<QueueName>,
    /// Zero: off.
    pub dedup_window: Duration,
    pub retention: Duration,
    pub delay: Duration,
    pub backoff: Backoff,
    pub message_bytes_max: u32,
    pub paused_send: bool,
    pub paused_receive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    pub initial: Duration,
    pub max: Duration,
    /// In thousandths: 2000 doubles.
    pub multiplier_milli: u32,
}

impl Backoff {
    /// The delay after this many deliveries (at least one).
    pub fn after(&self, deliveries: u32) -> Duration {
        let mut delay_us = self.initial.as_micros();
        for _ in 1..deliveries.min(64) {
            delay_us = delay_us * u128::from(self.multiplier_milli) / 1000;
            if delay_us >= self.max.as_micros() {
                break;
            }
        }
        Duration::from_micros(u64::try_from(delay_us).unwrap_or(u64::MAX)).min(self.max)
    }
}

impl QueueConfig {
    /// What a field that was left out means, under a plan.
    pub fn defaults(plan: &PlanBounds) -> QueueConfig {
        QueueConfig {
            lease: limits::LEASE_DEFAULT,
            deliveries_max: None,
            dead_letter_queue: None,
            dedup_window: Duration::ZERO,
            retention: limits::RETENTION_MAX.min(plan.retention_max),
            delay: Duration::ZERO,
            backoff: Backoff {
                initial: limits::BACKOFF_INITIAL_DEFAULT,
                max: limits::BACKOFF_MAX_DEFAULT,
                multiplier_milli: 2000,
            },
            message_bytes_max: plan.message_bytes_max,
            paused_send: false,
            paused_receive: false,
        }
    }

    /// A change of the configuration alone changes it; nothing else does.
    pub fn etag(&self) -> u64 {
        let bytes = crate::codec::config_bytes(self);
        let hash = blake3::hash(&bytes);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_be_bytes(first)
    }
}

/// What of the plan a queue's configuration depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanBounds {
    pub queues_max: u32,
    pub message_bytes_max: u32,
    pub retention_max: Duration,
}

/// A put or a patch, already checked field by field; each `None` is "not named".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigChange {
    /// Create the queue if it is not there, and give fields that are not named their default (PUT). Else
    /// the queue must exist, and fields that are not named keep their value (PATCH).
    pub replace: bool,
    pub plan: PlanBounds,
    pub lease: Option<Duration>,
    pub deliveries_max: Option<Option<u32>>,
    pub dead_letter_queue: Option<Option<QueueName>>,
    pub dedup_window: Option<Duration>,
    pub retention: Option<Duration>,
    pub delay: Option<Duration>,
    pub backoff_initial: Option<Duration>,
    pub backoff_max: Option<Duration>,
    pub backoff_multiplier_milli: Option<u32>,
    pub message_bytes_max: Option<u32>,
    pub paused_send: Option<bool>,
    pub paused_receive: Option<bool>,
}

impl ConfigChange {
    pub fn nothing(replace: bool, plan: PlanBounds) -> ConfigChange {
        ConfigChange {
            replace,
            plan,
            lease: None,
            deliveries_max: None,
            dead_letter_queue: None,
            dedup_window: None,
            retention: None,
            delay: None,
            backoff_initial: None,
            backoff_max: None,
            backoff_multiplier_milli: None,
            message_bytes_max: None,
            paused_send: None,
            paused_receive: None,
        }
    }

    /// `current` is the queue's configuration, if it exists. Relations between fields are checked by the
    /// caller on what comes out.
    pub fn apply(&self, current: Option<&QueueConfig>) -> QueueConfig {
        let defaults = QueueConfig::defaults(&self.plan);
        let base = match current {
            Some(current) if !self.replace => current.clone(),
            _ => defaults,
        };
        QueueConfig {
            lease: self.lease.unwrap_or(base.lease),
            deliveries_max: self.deliveries_max.unwrap_or(base.deliveries_max),
            dead_letter_queue: self.dead_letter_queue.clone().unwrap_or(base.dead_letter_queue),
            dedup_window: self.dedup_window.unwrap_or(base.dedup_window),
            retention: self.retention.unwrap_or(base.retention),
            delay: self.delay.unwrap_or(base.delay),
            backoff: Backoff {
                initial: self.backoff_initial.unwrap_or(base.backoff.initial),
                max: self.backoff_max.unwrap_or(base.backoff.max),
                multiplier_milli: self.backoff_multiplier_milli.unwrap_or(base.backoff.multiplier_milli),
            },
            message_bytes_max: self.message_bytes_max.unwrap_or(base.message_bytes_max),
            paused_send: self.paused_send.unwrap_or(base.paused_send),
            paused_receive: self.paused_receive.unwrap_or(base.paused_receive),
        }
    }
}

/// What a look at a queue shows.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueInfo {
    pub name: QueueName,
    pub config: QueueConfig,
    pub created: types::WallMs,
    pub etag: u64,
    pub available: u64,
    pub leased: u64,
    pub delayed: u64,
    pub settling: u64,
    /// Payload bytes of all messages in the queue.
    pub bytes: u64,
    pub oldest_available: Option<Duration>,
    pub totals: Totals,
}

/// Since the queue was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    pub sent: u64,
    pub acked: u64,
    pub dead_lettered: u64,
    pub expired: u64,
}
