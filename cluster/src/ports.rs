//! Ports on loopback. An installation takes a block of them and keeps it across restarts, so that addresses
//! written down yesterday are good today.
//!
//! Blocks lie below the range from which the kernel takes the ports of outgoing connections, so a port of a
//! part that is down for a while is not lost to one of those. A lock file for each block, shared by the
//! installations of a user, keeps two that start at the same moment apart.

use crate::random;
use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

const FIRST: u16 = 20_000;
const BLOCK: u16 = 64;
const BLOCKS: u16 = 190;
/// Ports below this offset are those of the parts that exist once.
const NODES_AT: u16 = 16;
const PORTS_A_NODE: u16 = 4;
/// How many nodes fit.
pub const NODES_MAX: u16 = (BLOCK - NODES_AT) / PORTS_A_NODE;

const _: () = assert!(FIRST + BLOCK * BLOCKS < 32_768);

/// A block, as long as this lives.
#[derive(Debug)]
pub struct Ports {
    base: u16,
    _lock: File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePorts {
    pub http: SocketAddr,
    pub internal: SocketAddr,
    pub forward: SocketAddr,
    pub metrics: SocketAddr,
}

impl Ports {
    /// The block had before, if it is still free; else another.
    pub fn take(before: Option<u16>) -> anyhow::Result<Ports> {
        // Not where TMPDIR says: every installation must look in the same place.
        let dir = PathBuf::from(format!("/tmp/capstan-ports-{}", rustix::process::getuid().as_raw()));
        std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let start = random::below(BLOCKS);
        let others = (0..BLOCKS).map(|i| FIRST + BLOCK * ((start + i) % BLOCKS));
        for base in before.into_iter().filter(is_a_block).chain(others) {
            let path = dir.join(base.to_string());
            let lock = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() && is_free(base) {
                return Ok(Ports { base, _lock: lock });
            }
        }
        bail!("no block of {BLOCK} free ports between {FIRST} and {}", FIRST + BLOCK * BLOCKS)
    }

    pub fn base(&self) -> u16 {
        self.base
    }
    pub fn postgres(&self) -> SocketAddr {
        self.at(0)
    }
    pub fn etcd_client(&self) -> SocketAddr {
        self.at(1)
    }
    pub fn etcd_peer(&self) -> SocketAddr {
        self.at(2)
    }
    pub fn s3(&self) -> SocketAddr {
        self.at(3)
    }
    pub fn control(&self) -> SocketAddr {
        self.at(4)
    }
    pub fn console(&self) -> SocketAddr {
        self.at(5)
    }
    /// Of `node-<number>`, from 1 to [`NODES_MAX`].
    pub fn node(&self, number: u16) -> NodePorts {
        assert!((1..=NODES_MAX).contains(&number), "there is no node {number}");
        let first = NODES_AT + PORTS_A_NODE * (number - 1);
        NodePorts {
            http: self.at(first),
            internal: self.at(first + 1),
            forward: self.at(first + 2),
            metrics: self.at(first + 3),
        }
    }

    fn at(&self, offset: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.base + offset))
    }
}

fn is_a_block(base: &u16) -> bool {
    (FIRST..FIRST + BLOCK * BLOCKS).contains(base) && (base - FIRST).is_multiple_of(BLOCK)
}

fn is_free(base: u16) -> bool {
    (base..base + BLOCK).all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_installations_never_share_a_block_and_one_gets_its_own_again() {
        let first = Ports::take(None).expect("a block");
        let second = Ports::take(Some(first.base())).expect("another block");
        assert_ne!(first.base(), second.base());
        let base = first.base();
        drop(first);
        assert_eq!(Ports::take(Some(base)).expect("the same block").base(), base);
    }

    #[test]
    fn a_block_with_a_port_in_use_is_left_alone() {
        let ports = Ports::take(None).expect("a block");
        let base = ports.base();
        let _used = TcpListener::bind(ports.console()).expect("free a moment ago");
        drop(ports);
        assert_ne!(Ports::take(Some(base)).expect("another block").base(), base);
    }

    #[test]
    fn ports_of_an_unknown_range_are_not_taken_from_a_state_file() {
        assert!(!is_a_block(&80) && !is_a_block(&(FIRST + 1)) && is_a_block(&FIRST));
    }
}
