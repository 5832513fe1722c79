//! Argon2id. Hashing is meant to be expensive, so few run at once and the rest wait in line.

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::Status;

/// 19 MiB and a core each.
const AT_ONCE: usize = 2;
const LINE_WAIT: Duration = Duration::from_secs(8);

#[derive(Clone)]
pub struct Passwords {
    room: Arc<Semaphore>,
    /// What an unknown address is compared with, so that it takes as long as a wrong password.
    nobody: Arc<str>,
}

impl Passwords {
    pub fn new() -> anyhow::Result<Passwords> {
        let random: [u8; 16] = crate::edge::random();
        Ok(Passwords { room: Arc::new(Semaphore::new(AT_ONCE)), nobody: hash(&random)?.into() })
    }

    pub async fn hash(&self, password: String) -> Result<String, Status> {
        let hashed = self.run(move || hash(password.as_bytes())).await?;
        hashed.map_err(|error| {
            tracing::error!(%error, "a password cannot be hashed");
            Status::internal("a password cannot be hashed")
        })
    }

    /// `stored`: nothing for a person who does not exist.
    pub async fn verify(&self, password: String, stored: Option<String>) -> Result<bool, Status> {
        let exists = stored.is_some();
        let stored = stored.unwrap_or_else(|| self.nobody.to_string());
        let verified = self.run(move || {
            let parsed = PasswordHash::new(&stored)?;
            Ok::<_, argon2::password_hash::phc::Error>(
                Argon2::default().verify_password(password.as_bytes(), &parsed).is_ok(),
            )
        });
        match verified.await? {
            Ok(right) => Ok(right && exists),
            Err(error) => {
                tracing::error!(%error, "a stored password hash cannot be read");
                Err(Status::internal("a stored password hash cannot be read"))
            }
        }
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let busy = |_| Status::unavailable("too many people sign in right now");
        let permit =
            tokio::time::timeout(LINE_WAIT, self.room.clone().acquire_owned()).await.map_err(busy)?;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| Status::unavailable("the control plane is shutting down"))
    }
}

fn hash(password: &[u8]) -> Result<String, argon2::password_hash::Error> {
    Ok(Argon2::default().hash_password(password)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_right_password_of_somebody_who_exists_is_right() {
        let passwords = Passwords::new().expect("argon2 works");
        let stored = passwords.hash("correct horse".to_owned()).await.expect("a hash");
        assert!(stored.starts_with("$argon2id$"), "{stored}");
        let verify = |password: &str, stored: Option<String>| passwords.verify(password.to_owned(), stored);
        assert!(verify("correct horse", Some(stored.clone())).await.expect("an answer"));
        assert!(!verify("correct cow", Some(stored)).await.expect("an answer"));
        assert!(!verify("correct horse", None).await.expect("an answer"));
    }
}
