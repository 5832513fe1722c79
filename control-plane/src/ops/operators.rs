//! Who may use the ops service: whoever connects with the `operator` certificate AND brings a token that an
//! operator's key signed for this service, of which little time is left. A certificate that leaked, or a
//! token that was logged somewhere, is not enough alone.

use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use tonic::{Request, Status};

/// The DNS name in operators' client certificates.
const CERTIFICATE: &str = "operator";
const AUDIENCE: &str = "capstan-ops";
const TOKEN_BYTES_MAX: usize = 4_096;
/// A token that is good for longer is refused: it was not made for one use.
const TOKEN_SECONDS_MAX: u64 = 15 * 60;
/// Of the clocks of an operator and of the control plane.
const CLOCK_DIFFERENCE_SECONDS: u64 = 30;

pub struct Operators {
    key: DecodingKey,
    validation: Validation,
}

#[derive(Debug, thiserror::Error)]
#[error("not a public Ed25519 key in PEM")]
pub struct BadKey(#[source] jsonwebtoken::errors::Error);

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
}

impl Operators {
    /// `public_key_pem`: what `--ops-public-key` names.
    pub fn new(public_key_pem: &[u8]) -> Result<Operators, BadKey> {
        let key = DecodingKey::from_ed_pem(public_key_pem).map_err(BadKey)?;
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.leeway = CLOCK_DIFFERENCE_SECONDS;
        validation.set_audience(&[AUDIENCE]);
        validation.set_required_spec_claims(&["exp", "sub", "aud"]);
        Ok(Operators { key, validation })
    }

    /// Whose call it is.
    pub fn admit<T>(&self, request: &Request<T>) -> Result<String, Status> {
        if !has_certificate(request) {
            return Err(Status::permission_denied("only with the client certificate `operator`"));
        }
        let header = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer "));
        let token = token.ok_or_else(|| {
            Status::unauthenticated("an operator's token is missing (`authorization: Bearer ...`)")
        })?;
        self.verify(token, jsonwebtoken::get_current_timestamp())
    }

    fn verify(&self, token: &str, now_seconds: u64) -> Result<String, Status> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Status::unauthenticated("the operator's token is too long"));
        }
        let token = jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation)
            .map_err(|error| Status::unauthenticated(format!("the operator's token is refused: {error}")))?;
        let Claims { sub, exp } = token.claims;
        if exp > now_seconds + TOKEN_SECONDS_MAX + CLOCK_DIFFERENCE_SECONDS {
            let minutes = TOKEN_SECONDS_MAX / 60;
            return Err(Status::unauthenticated(format!(
                "the operator's token is good for more than {minutes} minutes; make a shorter one"
            )));
        }
        Ok(sub)
    }
}

/// That the certificate is one of the cluster's CA was verified in the handshake.
fn has_certificate<T>(request: &Request<T>) -> bool {
    let Some(certificates) = request.peer_certs() else { return false };
    let Some(certificate) = certificates.first() else { return false };
    webpki::EndEntityCert::try_from(certificate)
        .is_ok_and(|certificate| certificate.valid_dns_names().any(|name| name == CERTIFICATE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header};
    use serde_json::{Value, json};

    struct Signer {
        key: EncodingKey,
        operators: Operators,
    }

    fn signer() -> Signer {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let key = EncodingKey::from_ed_der(&pair.serialize_der());
        let operators = Operators::new(pair.public_key_pem().as_bytes()).expect("a public key");
        Signer { key, operators }
    }

    fn now() -> u64 {
        jsonwebtoken::get_current_timestamp()
    }

    impl Signer {
        fn verify(&self, claims: &Value) -> Result<String, String> {
            let token =
                jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), claims, &self.key).expect("a token");
            self.operators.verify(&token, now()).map_err(|status| status.message().to_owned())
        }
    }

    #[test]
    fn a_short_token_for_this_service_says_who_calls() {
        let claims = json!({"sub": "kim", "aud": AUDIENCE, "exp": now() + 60});
        assert_eq!(signer().verify(&claims), Ok("kim".to_owned()));
    }

    #[test]
    fn anything_else_is_refused() {
        let signer = signer();
        let refused = |claims: &Value| signer.verify(claims).expect_err("refused");
        refused(&json!({"sub": "kim", "aud": AUDIENCE}));
        refused(&json!({"aud": AUDIENCE, "exp": now() + 60}));
        refused(&json!({"sub": "kim", "exp": now() + 60}));
        refused(&json!({"sub": "kim", "aud": "console", "exp": now() + 60}));
        let expired = refused(&json!({"sub": "kim", "aud": AUDIENCE, "exp": now() - 60}));
        assert!(expired.contains("Expired"), "{expired}");
        let long = refused(&json!({"sub": "kim", "aud": AUDIENCE, "exp": now() + 3_600}));
        assert!(long.contains("15 minutes"), "{long}");
    }

    #[test]
    fn only_the_operators_key_and_its_algorithm_count() {
        let (signer, other) = (signer(), self::signer());
        let claims = json!({"sub": "kim", "aud": AUDIENCE, "exp": now() + 60});
        let foreign =
            jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), &claims, &other.key).expect("a token");
        assert!(signer.operators.verify(&foreign, now()).is_err());
        let hmac = EncodingKey::from_secret(b"public keys are no secrets").expect("a key");
        let forged = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &hmac).expect("a token");
        assert!(signer.operators.verify(&forged, now()).is_err());
        assert!(signer.operators.verify(&"x".repeat(TOKEN_BYTES_MAX + 1), now()).is_err());
    }

    #[test]
    fn without_a_certificate_a_token_is_worth_nothing() {
        let status = signer().operators.admit(&Request::new(())).expect_err("refused");
        assert_eq!(status.code(), tonic::Code::PermissionDenied);
    }
}
