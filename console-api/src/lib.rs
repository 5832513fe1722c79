//! The JSON API of the web console.
//!
//! It serves the people who own an account: the page in a browser, and scripts that do what the page does.
//! It keeps nothing: what it says of accounts, keys and spools it asks of the control plane, over gRPC with
//! mutual TLS. There is no SQL here, and no password or key is ever compared here; the one thing that is
//! decided locally is whether a session's token is genuine, by the control plane's public key.
//!
//! * [`http`]: the routes, each a typed request, one call, a shaped answer
//! * [`sessions`]: whose request it is
//! * [`attempts`]: how often one may try to sign in
//! * [`control`]: the control plane, and what its refusals mean to a caller
//! * [`promise`]: what a spool's two numbers mean, in words
//! * [`settings`], [`serve`]: the process around it

pub mod attempts;
pub mod clock;
pub mod control;
pub mod http;
pub mod promise;
pub mod serve;
pub mod sessions;
pub mod settings;

use attempts::Attempts;
use control::Control;
use sessions::Sessions;
use std::sync::Arc;

/// What every request may use.
#[derive(Clone)]
pub struct App {
    pub control: Control,
    pub sessions: Arc<Sessions>,
    pub attempts: Arc<Attempts>,
    /// Where browsers find the page, `https://console.example.com`; none: wherever the request went.
    pub origin: Option<Arc<str>>,
}

impl App {
    /// Cookies and browsers are held to TLS where people reach the console by it.
    pub fn over_tls(&self) -> bool {
        self.origin.as_deref().is_some_and(|origin| origin.starts_with("https://"))
    }
}
