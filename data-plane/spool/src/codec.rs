//! Bytes of what the log and the state hold. Explicit and big-endian; each value begins with a version.

use crate::config::{Backoff, QueueConfig};
use crate::store::StoreError;
use bytes::Bytes;
use std::time::Duration;
use types::{CopyId, Epoch, QueueName, Seq, SpoolId, WallMs};

/// What was read back is not what this program writes: the disk, or a newer version, put it there.
pub fn corrupt(what: &str) -> StoreError {
    StoreError(format!("{what} is damaged or of an unknown version"))
}

#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn version(version: u8) -> Writer {
        Writer(vec![version])
    }
    pub fn u8(&mut self, n: u8) -> &mut Self {
        self.0.push(n);
        self
    }
    pub fn u16(&mut self, n: u16) -> &mut Self {
        self.raw(&n.to_be_bytes())
    }
    pub fn u32(&mut self, n: u32) -> &mut Self {
        self.raw(&n.to_be_bytes())
    }
    pub fn u64(&mut self, n: u64) -> &mut Self {
        self.raw(&n.to_be_bytes())
    }
    pub fn i64(&mut self, n: i64) -> &mut Self {
        self.raw(&n.to_be_bytes())
    }
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
    /// Length (32 bits), then the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u32::try_from(bytes.len()).expect("limits keep values far below 4 GiB");
        self.u32(len).raw(bytes)
    }
    pub fn str(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }
    pub fn opt<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) -> &mut Self {
        match value {
            None => self.u8(0),
            Some(value) => {
                self.u8(1);
                write(self, value);
                self
            }
        }
    }
    pub fn millis(&mut self, span: Duration) -> &mut Self {
        self.u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }
    pub fn finish(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.0))
    }
}

pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Reader { rest: bytes, what }
    }
    pub fn versioned(bytes: &'a [u8], version: u8, what: &'static str) -> Result<Self, StoreError> {
        let mut reader = Reader::new(bytes, what);
        if reader.u8()? == version { Ok(reader) } else { Err(corrupt(what)) }
    }
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], StoreError> {
        if self.rest.len() < len {
            return Err(corrupt(self.what));
        }
        let (head, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(head)
    }
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N)?);
        Ok(array)
    }
    pub fn u8(&mut self) -> Result<u8, StoreError> {
        Ok(self.array::<1>()?[0])
    }
    pub fn u16(&mut self) -> Result<u16, StoreError> {
        self.array().map(u16::from_be_bytes)
    }
    pub fn u32(&mut self) -> Result<u32, StoreError> {
        self.array().map(u32::from_be_bytes)
    }
    pub fn u64(&mut self) -> Result<u64, StoreError> {
        self.array().map(u64::from_be_bytes)
    }
    pub fn i64(&mut self) -> Result<i64, StoreError> {
        self.array().map(i64::from_be_bytes)
    }
    pub fn bytes(&mut self) -> Result<&'a [u8], StoreError> {
        let len = self.u32()? as usize;
        self.raw(len)
    }
    pub fn str(&mut self) -> Result<&'a str, StoreError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| corrupt(self.what))
    }
    pub fn opt<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(corrupt(self.what)),
        }
    }
    pub fn millis(&mut self) -> Result<Duration, StoreError> {
        self.u64().map(Duration::from_millis)
    }
    pub fn epoch(&mut self) -> Result<Epoch, StoreError> {
        self.u64().map(Epoch)
    }
    pub fn seq(&mut self) -> Result<Seq, StoreError> {
        self.u64().map(Seq)
    }
    pub fn wall(&mut self) -> Result<WallMs, StoreError> {
        self.i64().map(WallMs)
    }
    pub fn queue_name(&mut self) -> Result<QueueName, StoreError> {
        let what = self.what;
        QueueName::from_stored(self.str()?).map_err(|_| corrupt(what))
    }
    pub fn copy_id(&mut self) -> Result<CopyId, StoreError> {
        let what = self.what;
        CopyId::from_slice(self.raw(16)?).ok_or_else(|| corrupt(what))
    }
    pub fn spool_id(&mut self) -> Result<SpoolId, StoreError> {
        let what = self.what;
        SpoolId::from_slice(self.raw(16)?).ok_or_else(|| corrupt(what))
    }
    pub fn corrupt(&self) -> StoreError {
        corrupt(self.what)
    }
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    pub fn rest_len(&self) -> usize {
        self.rest.len()
    }
    /// Everything was read: what is left over was not written by us.
    pub fn end(self) -> Result<(), StoreError> {
        if self.rest.is_empty() { Ok(()) } else { Err(corrupt(self.what)) }
    }
}

pub fn write_config(out: &mut Writer, config: &QueueConfig) {
    out.millis(config.lease)
        .opt(config.deliveries_max, |out, max| {
            out.u32(max);
        })
        .opt(config.dead_letter_queue.as_ref(), |out, name| {
            out.str(name.as_str());
        })
        .millis(config.dedup_window)
        .millis(config.retention)
        .millis(config.delay)
        .millis(config.backoff.initial)
        .millis(config.backoff.max)
        .u32(config.backoff.multiplier_milli)
        .u32(config.message_bytes_max)
        .u8(u8::from(config.paused_send) | u8::from(config.paused_receive) << 1);
}

pub fn read_config(reader: &mut Reader<'_>) -> Result<QueueConfig, StoreError> {
    Ok(QueueConfig {
        lease: reader.millis()?,
        deliveries_max: reader.opt(Reader::u32)?,
        dead_letter_queue: reader.opt(Reader::queue_name)?,
        dedup_window: reader.millis()?,
        retention: reader.millis()?,
        delay: reader.millis()?,
        backoff: Backoff {
            initial: reader.millis()?,
            max: reader.millis()?,
            multiplier_milli: reader.u32()?,
        },
        message_bytes_max: reader.u32()?,
        paused_send: false,
        paused_receive: false,
    })
    .and_then(|config| {
        let paused = reader.u8()?;
        Ok(QueueConfig { paused_send: paused & 1 != 0, paused_receive: paused & 2 != 0, ..config })
    })
}

pub fn config_bytes(config: &QueueConfig) -> Vec<u8> {
    let mut out = Writer::default();
    write_config(&mut out, config);
    out.0
}
