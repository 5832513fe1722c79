//! What happened, for people: printed as it happens, or the last lines kept, or nothing at all.

use std::collections::VecDeque;

use crate::clock::Time;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Off,
    /// Keeps the last lines.
    Keep(usize),
    Print,
}

#[derive(Debug)]
pub struct Trace {
    mode: Mode,
    lines: VecDeque<String>,
}

impl Trace {
    pub fn new(mode: Mode) -> Trace {
        Trace { mode, lines: VecDeque::new() }
    }

    /// `text` is only called if somebody reads it.
    pub fn line(&mut self, now: Time, text: impl FnOnce() -> String) {
        match self.mode {
            Mode::Off => {}
            Mode::Keep(max) => {
                if self.lines.len() == max {
                    self.lines.pop_front();
                }
                self.lines.push_back(format!("{now} {}", text()));
            }
            Mode::Print => println!("{now} {}", text()),
        }
    }

    pub fn lines(&self) -> impl Iterator<Item = &String> {
        self.lines.iter()
    }
}

/// Words for what is long. Lists of bytes tell nobody anything.
pub mod say {
    use spool::command::{Command, NewMessage};
    use spool::event::{Event, PeerMessage};
    use std::fmt::Debug;

    const MAX: usize = 300;

    pub fn debug(what: &impl Debug) -> String {
        let text = format!("{what:?}");
        match text.char_indices().nth(MAX) {
            Some((at, _)) => format!("{}...", &text[..at]),
            None => text,
        }
    }

    pub fn event(event: &Event) -> String {
        match event {
            Event::Peer { from, message } => format!("{}: {}", from.node, peer(message)),
            Event::Request { id, command: asked, wait } => {
                format!("op {}: {} wait {wait:?}", id.0, command(asked))
            }
            other => debug(other),
        }
    }

    pub fn peer(message: &PeerMessage) -> String {
        match message {
            PeerMessage::Append(append) => {
                let (epoch, number, prev, commit) =
                    (append.epoch, append.number, append.prev, append.commit_end);
                format!("Append {epoch:?} #{number} after {prev} +{} commit {commit:?}", append.entries.len())
            }
            PeerMessage::Confirm(confirm) => {
                let (epoch, number, end, seal) =
                    (confirm.epoch, confirm.number, confirm.end, confirm.pending_seal);
                format!("Confirm {epoch:?} #{number} end {end:?} seal waits {seal:?}")
            }
            other => debug(other),
        }
    }

    pub fn command(command: &Command) -> String {
        match command {
            Command::Send { queue, messages } => {
                let text = |message: &NewMessage| String::from_utf8_lossy(&message.payload).into_owned();
                let payloads: Vec<String> = messages.iter().map(text).collect();
                format!("Send {queue} {payloads:?}")
            }
            Command::Settle { queue, settle, tokens } => {
                let nos: Vec<_> = tokens.iter().map(|t| (t.tenure, t.lease_no, t.seq, t.index)).collect();
                format!("Settle {queue} {settle:?} {nos:?}")
            }
            Command::Extend { queue, token, lease } => {
                format!("Extend {queue} {} by {lease:?}", token.lease_no)
            }
            Command::PutQueue { queue, .. } => format!("PutQueue {queue}"),
            other => debug(other),
        }
    }
}
