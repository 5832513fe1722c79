//! What went wrong, and what to do next.

use std::path::PathBuf;
use std::process::ExitCode;
use tonic::{Code, Status};

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("reading {}: {source}", .file.display())]
    File { file: PathBuf, source: std::io::Error },
    #[error("{} does not describe a local installation: {reason}", .file.display())]
    DevFile { file: PathBuf, reason: String },
    #[error("{} is no private Ed25519 key in PEM: {source}", .file.display())]
    SigningKey { file: PathBuf, source: jsonwebtoken::errors::Error },
    #[error("{} holds no token", .file.display())]
    NotAToken { file: PathBuf },
    #[error("{control} is no https:// address")]
    NotHttps { control: String },
    #[error("{control}: {}", whole(source))]
    Connection { control: String, source: tonic::transport::Error },
    #[error("{}", words(.0))]
    Refused(Box<Status>),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Refused(Box::new(status))
    }
}

impl Failure {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        match self {
            Failure::Missing(_) | Failure::NotHttps { .. } => 2,
            Failure::Refused(status) => match status.code() {
                Code::InvalidArgument => 2,
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => 3,
                Code::Unauthenticated | Code::PermissionDenied => 4,
                Code::NotFound => 5,
                Code::FailedPrecondition | Code::Aborted => 6,
                _ => 1,
            },
            _ => 1,
        }
    }

    /// A sentence for whoever reads it.
    pub fn next(&self) -> Option<&'static str> {
        match self {
            Failure::Missing(_) => {
                Some("For a local installation: --dev var/dev.json. All settings: opsctl --help.")
            }
            Failure::File { .. } => {
                Some("Is the path right, and may you read it? Is the installation started?")
            }
            Failure::DevFile { .. } => Some("It is written when everything answers: ./dev up."),
            Failure::NotAToken { .. } => Some("It has one line, the token alone."),
            Failure::SigningKey { .. } => {
                Some("--ops-key takes the private key; the control plane has the public one.")
            }
            Failure::NotHttps { .. } => Some("The control plane speaks TLS only: https://HOST:PORT."),
            Failure::Connection { .. } => {
                Some("Are --control, --ca, --cert and --key those of this installation?")
            }
            Failure::Refused(status) => match status.code() {
                Code::Unavailable => Some("Does the control plane run, and etcd? Is --control its address?"),
                Code::DeadlineExceeded | Code::Cancelled => {
                    Some("It may still happen. Look before you try again: opsctl spools show ID.")
                }
                Code::Unauthenticated => Some("Make a new token, or give --ops-key; the clocks must agree."),
                Code::PermissionDenied => Some("Use the certificate of an operator: --cert, --key."),
                Code::NotFound => Some("opsctl spools list shows all ids."),
                Code::FailedPrecondition => {
                    Some("Look at its copies: opsctl spools show ID. Try again when they answer.")
                }
                Code::Aborted => Some("Try again in a moment."),
                _ => None,
            },
        }
    }
}

/// A connection's failure hides its reason in its sources.
fn words(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => whole(source),
        None if status.message().is_empty() => format!("{:?}", status.code()),
        None => status.message().to_owned(),
    }
}

fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_can_tell_failures_apart_and_people_know_what_to_do() {
        let refused = |code: Code| Failure::from(Status::new(code, "because"));
        for (code, exit) in [
            (Code::InvalidArgument, 2),
            (Code::Unavailable, 3),
            (Code::PermissionDenied, 4),
            (Code::NotFound, 5),
            (Code::FailedPrecondition, 6),
            (Code::Internal, 1),
        ] {
            assert_eq!(refused(code).code(), exit);
            assert_eq!(refused(code).to_string(), "because");
        }
        let timed_out = refused(Code::DeadlineExceeded);
        assert!(timed_out.next().is_some_and(|next| next.contains("spools show")));
        assert_eq!(Failure::Missing("--ca").code(), 2);
    }
}
