//! Whose request it is: a session's token is a JWT, verified here with the control plane's public key.
//!
//! The key and the sessions that were ended before their tokens ran out are asked for each 5 s. A token is
//! honoured only while the last answer is at most 10 s old, so an ended session is refused within 10 s
//! whatever happens to the connection; a session that was ended through this process is refused at once.

use crate::control::Control;
use crate::http::problem::Problem;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use types::{AccountId, ErrorCode};

/// How often the control plane is asked; sooner after a failure.
const POLL_EVERY: Duration = Duration::from_secs(5);
const RETRY_EVERY: Duration = Duration::from_secs(1);
const POLL_WAIT: Duration = Duration::from_secs(2);
/// What is known is not acted on when it is older than this.
const KNOWN_FOR: Duration = Duration::from_secs(10);
const TOKEN_BYTES_MAX: usize = 4096;

/// The person behind a request, and their session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    pub id: String,
    pub account: AccountId,
    pub session: String,
    /// When the token runs out, in seconds since 1970.
    token_end: u64,
}

impl Person {
    /// As the internal messages carry it.
    pub fn account_bytes(&self) -> bytes::Bytes {
        bytes::Bytes::copy_from_slice(self.account.as_bytes())
    }
}

/// What the control plane signs.
#[derive(serde::Deserialize)]
struct Claims {
    sub: String,
    account: AccountId,
    sid: String,
    exp: u64,
}

#[derive(Default)]
struct Known {
    key: Option<DecodingKey>,
    ended: HashSet<String>,
    /// When the question was sent whose answer this is.
    asked: Option<Instant>,
    /// Ended through this process, until their last token runs out: the list may not show them yet.
    ended_here: HashMap<String, u64>,
}

#[derive(Default)]
pub struct Sessions {
    known: RwLock<Known>,
}

#[derive(Debug, thiserror::Error)]
#[error("the control plane's key is not a public key in PEM")]
pub struct BadKey(#[source] jsonwebtoken::errors::Error);

impl Sessions {
    /// Takes in an answer of the control plane to a question sent at `asked`.
    pub fn learn(&self, asked: Instant, public_key_pem: &str, ended: Vec<String>) -> Result<(), BadKey> {
        let key = DecodingKey::from_ed_pem(public_key_pem.as_bytes()).map_err(BadKey)?;
        let now = now_seconds();
        let mut known = self.known.write();
        known.key = Some(key);
        known.ended = ended.into_iter().collect();
        known.asked = Some(asked);
        known.ended_here.retain(|_, token_end| *token_end >= now);
        Ok(())
    }

    /// The control plane has ended it; its tokens are refused from now on.
    pub fn end(&self, person: &Person) {
        self.known.write().ended_here.insert(person.session.clone(), person.token_end);
    }

    /// Can tokens be verified at this moment?
    pub fn ready(&self, now: Instant) -> bool {
        let asked = self.known.read().asked;
        asked.is_some_and(|asked| now.saturating_duration_since(asked) <= KNOWN_FOR)
    }

    pub fn require_ready(&self, now: Instant) -> Result<(), Problem> {
        match self.ready(now) {
            true => Ok(()),
            false => Err(Problem::new(ErrorCode::Unavailable, "Sessions cannot be verified now.")),
        }
    }

    pub fn verify(&self, now: Instant, token: &str) -> Result<Person, Problem> {
        self.require_ready(now)?;
        let refused =
            || Problem::new(ErrorCode::Unauthenticated, "The session is not valid, or has ended; sign in.");
        if token.len() > TOKEN_BYTES_MAX {
            return Err(refused());
        }
        let known = self.known.read();
        let key = known.key.as_ref().ok_or_else(refused)?;
        let claims = jsonwebtoken::decode::<Claims>(token, key, &validation()).map_err(|_| refused())?.claims;
        if known.ended.contains(&claims.sid) || known.ended_here.contains_key(&claims.sid) {
            return Err(refused());
        }
        Ok(Person { id: claims.sub, account: claims.account, session: claims.sid, token_end: claims.exp })
    }
}

fn validation() -> Validation {
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.leeway = 0;
    validation.set_required_spec_claims(&["exp", "sub"]);
    validation
}

fn now_seconds() -> u64 {
    u64::try_from(crate::clock::now().as_second()).unwrap_or(0)
}

/// Asks for ever. Says once that the control plane is away, and once that it is back.
pub async fn poll(sessions: &Sessions, control: &Control) {
    let mut away = false;
    loop {
        let asked = Instant::now();
        let failure = match tokio::time::timeout(POLL_WAIT, control.session_keys(POLL_WAIT)).await {
            Ok(Ok(reply)) => sessions
                .learn(asked, &reply.public_key_pem, reply.ended_session_ids)
                .err()
                .map(|error| error.to_string()),
            Ok(Err(status)) => Some(status.message().to_owned()),
            Err(_) => Some("no answer in time".to_owned()),
        };
        match &failure {
            Some(why) if !away => {
                tracing::warn!(why, "the session keys cannot be had from the control plane")
            }
            None if away => tracing::info!("the session keys are up to date again"),
            _ => {}
        }
        away = failure.is_some();
        let next = asked + if away { RETRY_EVERY } else { POLL_EVERY };
        tokio::time::sleep_until(next.into()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header};

    struct Signer {
        key: EncodingKey,
        public: String,
    }

    fn signer() -> Signer {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key pair");
        let key = EncodingKey::from_ed_pem(pair.serialize_pem().as_bytes()).expect("its private half");
        Signer { key, public: pair.public_key_pem() }
    }

    impl Signer {
        fn token(&self, session: &str, lasts: i64) -> String {
            let exp = crate::clock::now().as_second() + lasts;
            let claims = serde_json::json!({"sub": "p1", "account": AccountId::from_u128(7), "sid": session, "exp": exp});
            jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), &claims, &self.key).expect("a token")
        }
    }

    fn code(result: Result<Person, Problem>) -> ErrorCode {
        result.expect_err("a refusal").code
    }

    #[test]
    fn a_genuine_token_says_who_and_a_forged_or_old_one_nothing() {
        let (ours, theirs) = (signer(), signer());
        let (sessions, now) = (Sessions::default(), Instant::now());
        assert_eq!(code(sessions.verify(now, &ours.token("s", 60))), ErrorCode::Unavailable);
        sessions.learn(now, &ours.public, vec![]).expect("a key");
        let person = sessions.verify(now, &ours.token("s", 60)).expect("genuine");
        assert_eq!((person.id.as_str(), person.account), ("p1", AccountId::from_u128(7)));
        let mut tampered = ours.token("s", 60).into_bytes();
        tampered[40] ^= 1;
        let tampered = String::from_utf8_lossy(&tampered).into_owned();
        for bad in [
            theirs.token("s", 60),
            ours.token("s", -2),
            tampered,
            "x".into(),
            String::new(),
            "x".repeat(9999),
        ] {
            assert_eq!(code(sessions.verify(now, &bad)), ErrorCode::Unauthenticated, "{bad}");
        }
    }

    #[test]
    fn a_token_of_another_algorithm_is_refused() {
        let ours = signer();
        let (sessions, now) = (Sessions::default(), Instant::now());
        sessions.learn(now, &ours.public, vec![]).expect("a key");
        let claims = serde_json::json!({"sub": "p", "account": AccountId::from_u128(7), "sid": "s", "exp": 4_000_000_000u64});
        let hmac = EncodingKey::from_secret(ours.public.as_bytes()).expect("a key");
        let forged = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &hmac).expect("a token");
        assert_eq!(code(sessions.verify(now, &forged)), ErrorCode::Unauthenticated);
    }

    #[test]
    fn an_ended_session_is_refused_at_once_here_and_by_the_list_elsewhere() {
        let ours = signer();
        let (here, elsewhere, now) = (Sessions::default(), Sessions::default(), Instant::now());
        here.learn(now, &ours.public, vec![]).expect("a key");
        elsewhere.learn(now, &ours.public, vec!["s".into()]).expect("a key");
        let token = ours.token("s", 60);
        let person = here.verify(now, &token).expect("not ended yet");
        here.end(&person);
        assert_eq!(code(here.verify(now, &token)), ErrorCode::Unauthenticated);
        here.learn(now, &ours.public, vec![]).expect("an answer from before it ended");
        assert_eq!(code(here.verify(now, &token)), ErrorCode::Unauthenticated);
        assert_eq!(code(elsewhere.verify(now, &token)), ErrorCode::Unauthenticated);
        assert!(elsewhere.verify(now, &ours.token("t", 60)).is_ok());
    }

    #[test]
    fn what_was_learned_too_long_ago_is_not_acted_on() {
        let ours = signer();
        let (sessions, now) = (Sessions::default(), Instant::now());
        sessions.learn(now, &ours.public, vec![]).expect("a key");
        let token = ours.token("s", 60);
        assert!(sessions.verify(now + KNOWN_FOR, &token).is_ok());
        let late = now + KNOWN_FOR + Duration::from_millis(1);
        assert_eq!(code(sessions.verify(late, &token)), ErrorCode::Unavailable);
    }
}
