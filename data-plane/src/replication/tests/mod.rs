//! Real servers on loopback, with real certificates.

mod authority;
mod beats;
mod messages;
mod node;
