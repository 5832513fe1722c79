//! The console API as its callers meet it, on a control plane that speaks real gRPC over mutual TLS.

mod client;
mod contract;
mod fake;
mod resources;
mod sessions;
mod wire;
