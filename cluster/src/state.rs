//! What an installation must find again at its next start.

use crate::layout::Layout;
use crate::pki::replace;
use crate::random;
use anyhow::Context;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// The first port of the block, see [`crate::ports`].
    pub port_base: Option<u16>,
    pub postgres_password: String,
    pub s3_secret: String,
    /// Made once.
    pub account: Option<FirstAccount>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FirstAccount {
    pub account: String,
    pub plan: String,
    pub login: Login,
    pub api_key: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    pub email: String,
    pub password: String,
}

impl State {
    pub fn load(layout: &Layout) -> anyhow::Result<State> {
        let path = layout.state_file();
        let mut state: State = match std::fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        for secret in [&mut state.postgres_password, &mut state.s3_secret] {
            if secret.is_empty() {
                *secret = random::secret();
            }
        }
        Ok(state)
    }

    pub fn save(&self, layout: &Layout) -> anyhow::Result<()> {
        replace(&layout.state_file(), &serde_json::to_vec_pretty(self).context("the state as JSON")?)
    }
}
