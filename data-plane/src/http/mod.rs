//! The public HTTP API: from a request's bytes to a command, from a reply to a response.
//!
//! * [`problem`]: refusals, RFC 9457
//! * [`json`]: JSON bodies, read strictly

pub mod json;
pub mod problem;
