//! The public HTTP API: from a request's bytes to a command, from a reply to a response.
//!
//! * [`routes`]: the table, and the OpenAPI document made of it
//! * [`api`]: a request from its arrival to its response
//! * [`parse`]: requests to commands; [`respond`] and [`spool_view`]: replies to responses
//! * [`forward`]: one hop to the primary; [`serve`], [`patience`] and [`tls`]: connections
//! * [`body`]: responses, and what becomes of those that nobody takes
//! * [`problem`]: refusals, RFC 9457; [`json`]: JSON bodies, read strictly

pub mod api;
pub mod body;
pub mod forward;
pub mod json;
pub mod parse;
pub mod patience;
pub mod problem;
pub mod respond;
pub mod routes;
pub mod serve;
pub mod spool_view;
pub mod tls;
