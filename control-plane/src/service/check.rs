//! What people may call things, and what a key may be good for. Each refusal names the field to blame.

use super::refused;
use crate::edge::now_ms;
use tonic::Status;
use types::{ErrorCode, SpoolName};

const PASSWORD_LEN: std::ops::RangeInclusive<usize> = 8..=1024;
const EMAIL_LEN_MAX: usize = 254;
const NAME_LEN_MAX: usize = 512;
const SCOPES: [&str; 4] = ["send", "receive", "read", "manage"];

/// Whether anybody can have these; then it is worth to look, and to hash.
pub fn possible(email: &str, password: &str) -> bool {
    email.len() <= EMAIL_LEN_MAX && password.len() <= *PASSWORD_LEN.end()
}

/// In bytes; the console API counts characters, so that the text for people is its.
pub fn password(password: &str) -> Result<(), Status> {
    match PASSWORD_LEN.contains(&password.len()) {
        true => Ok(()),
        false => {
            let (least, most) = (PASSWORD_LEN.start(), PASSWORD_LEN.end());
            Err(invalid("password", format!("a password has {least} to {most} bytes")))
        }
    }
}

pub fn email(email: &str) -> Result<&str, Status> {
    let email = email.trim();
    let parts = email.split_once('@').filter(|(user, host)| !user.is_empty() && !host.is_empty());
    let clean = email.len() <= EMAIL_LEN_MAX && !email.chars().any(|c| c.is_control() || c.is_whitespace());
    match parts.is_some() && clean {
        true => Ok(email),
        false => Err(invalid("email", "not an e-mail address")),
    }
}

pub fn name<'a>(field: &'static str, name: &'a str) -> Result<&'a str, Status> {
    let name = name.trim();
    match !name.is_empty() && name.len() <= NAME_LEN_MAX && !name.chars().any(char::is_control) {
        true => Ok(name),
        false => Err(invalid(
            field,
            format!("a name has 1 to {NAME_LEN_MAX} bytes, none of them a control character"),
        )),
    }
}

/// In one order, each once.
pub fn scopes(scopes: &[String]) -> Result<Vec<String>, Status> {
    let known = |scope: &String| SCOPES.contains(&scope.as_str());
    match !scopes.is_empty() && scopes.iter().all(known) {
        true => Ok(SCOPES.map(str::to_owned).into_iter().filter(|scope| scopes.contains(scope)).collect()),
        false => Err(invalid("scopes", format!("one or more of {}", SCOPES.join(", ")))),
    }
}

pub fn spool(field: &'static str, name: String) -> Result<String, Status> {
    match name.is_empty() || name.parse::<SpoolName>().is_ok() {
        true => Ok(name),
        false => Err(invalid(field, types::names::BadName.to_string())),
    }
}

pub fn prefix(prefix: String) -> Result<String, Status> {
    match prefix.is_empty() || prefix.parse::<types::QueueName>().is_ok() {
        true => Ok(prefix),
        false => Err(invalid("queue_prefix", types::names::BadName.to_string())),
    }
}

pub fn expiry(expires_ms: i64) -> Result<i64, Status> {
    match expires_ms == 0 || expires_ms > now_ms() {
        true => Ok(expires_ms),
        false => Err(invalid("expires_ms", "in the past")),
    }
}

fn invalid(field: &'static str, detail: impl Into<String>) -> Status {
    refused(ErrorCode::InvalidRequest, Some(field), detail)
}
