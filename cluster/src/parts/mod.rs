//! The parts of an installation: what each is called, how it is started, how one knows that it answers.

mod etcd;
pub mod ours;
pub mod postgres;
mod ready;

pub use ready::{Ready, with_causes};

use crate::layout::Layout;
use crate::pki::Pki;
use crate::ports::{NODES_MAX, Ports};
use crate::process::Program;
use crate::state::State;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// As people name them, in `./dev fault kill PART`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PartName {
    Etcd,
    Postgres,
    S3,
    Control,
    Node(u16),
    Console,
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartName::Etcd => f.write_str("etcd"),
            PartName::Postgres => f.write_str("postgres"),
            PartName::S3 => f.write_str("s3"),
            PartName::Control => f.write_str("control"),
            PartName::Node(number) => write!(f, "node-{number}"),
            PartName::Console => f.write_str("console"),
        }
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no part {0:?}; parts are node-1 to node-{NODES_MAX}, etcd, postgres, control, console, s3")]
pub struct UnknownPart(String);

impl FromStr for PartName {
    type Err = UnknownPart;

    fn from_str(text: &str) -> Result<Self, UnknownPart> {
        let known = match text {
            "etcd" => Some(PartName::Etcd),
            "postgres" => Some(PartName::Postgres),
            "s3" => Some(PartName::S3),
            "control" => Some(PartName::Control),
            "console" => Some(PartName::Console),
            _ => text.strip_prefix("node-").and_then(|number| number.parse().ok()).map(PartName::Node),
        };
        known
            .filter(|part| part.to_string() == text)
            .filter(|part| !matches!(part, PartName::Node(number) if !(1..=NODES_MAX).contains(number)))
            .ok_or_else(|| UnknownPart(text.to_owned()))
    }
}

/// What was chosen for this installation.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: u16,
    /// How long a copy's promise runs, `D`.
    pub promise_ms: u32,
    /// How long a primary may be silent, `T_suspect`.
    pub suspect_ms: u32,
}

impl Default for Options {
    /// Wide enough for a busy machine with two cores.
    fn default() -> Self {
        Options { nodes: 3, promise_ms: 1500, suspect_ms: 3000 }
    }
}

impl Options {
    /// The largest plan up to `pro` whose default spool these nodes can hold.
    pub fn plan(&self) -> &'static str {
        match self.nodes {
            0 | 1 => "free",
            2 => "starter",
            _ => "pro",
        }
    }
}

/// Everything from which a part's command line is made.
pub struct Site<'a> {
    pub layout: &'a Layout,
    pub ports: &'a Ports,
    pub pki: &'a Pki,
    pub state: &'a State,
    pub options: &'a Options,
    /// The directory of the product's binaries.
    pub bin: PathBuf,
}

/// How to start it, and how to know that it answers.
#[derive(Clone, Debug)]
pub struct Part {
    pub name: PartName,
    pub program: Program,
    /// It serves, alone.
    pub alive: Ready,
    /// It does its work, for which it may need other parts.
    pub ready: Ready,
}

impl Site<'_> {
    /// In the order in which they need each other.
    pub fn parts(&self) -> anyhow::Result<Vec<Part>> {
        let mut parts = vec![etcd::part(self)?, postgres::part(self)?, ours::s3(self), ours::control(self)];
        parts.extend((1..=self.options.nodes).map(|number| ours::node(self, number)));
        parts.push(ours::console(self));
        Ok(parts)
    }

    pub fn etcd_url(&self) -> String {
        format!("http://{}", self.ports.etcd_client())
    }
    pub fn postgres_url(&self) -> String {
        postgres::url(self.ports.postgres(), &self.state.postgres_password)
    }
    pub fn control_url(&self) -> String {
        format!("https://{}", self.ports.control())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_called_what_it_answers_to() {
        use PartName::*;
        for part in [Etcd, Postgres, S3, Control, Console, Node(1), Node(NODES_MAX)] {
            assert_eq!(part.to_string().parse(), Ok(part));
        }
        for not_a_part in ["", "node", "node-", "node-0", "node-01", "node-+1", "node-99", "Etcd"] {
            assert!(not_a_part.parse::<PartName>().is_err(), "{not_a_part}");
        }
    }
}
