//! One connection over mTLS; every call on it brings an operator's token.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use proto::ops::ops_client::OpsClient;
use serde::Serialize;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

use crate::failure::Failure;
use crate::settings::{Resolved, Settings, TokenSource, read};

/// The DNS name in the control plane's certificate.
const SERVER: &str = "control-plane";
const AUDIENCE: &str = "capstan-ops";
/// Enough for this one run.
const TOKEN_SECONDS: u64 = 5 * 60;
const CONNECT_WAIT: Duration = Duration::from_secs(3);
/// A move waits for an election.
const CALL_WAIT: Duration = Duration::from_secs(30);

pub type Ops = OpsClient<InterceptedService<Channel, Token>>;

/// Connects with the first call.
pub fn open(settings: &Settings) -> Result<Ops, Failure> {
    let resolved = settings.resolve()?;
    let token = Token::new(&resolved.token)?;
    let bad = |source| Failure::Connection { control: resolved.control.clone(), source };
    let endpoint = endpoint(&resolved)?.tls_config(tls(&resolved)?).map_err(bad)?;
    Ok(OpsClient::with_interceptor(endpoint.connect_lazy(), token).max_decoding_message_size(64 << 20))
}

fn endpoint(resolved: &Resolved) -> Result<Endpoint, Failure> {
    let bad = |source| Failure::Connection { control: resolved.control.clone(), source };
    let endpoint = Endpoint::from_shared(resolved.control.clone()).map_err(bad)?;
    if endpoint.uri().scheme_str() != Some("https") {
        return Err(Failure::NotHttps { control: resolved.control.clone() });
    }
    Ok(endpoint.connect_timeout(CONNECT_WAIT).timeout(CALL_WAIT))
}

fn tls(resolved: &Resolved) -> Result<ClientTlsConfig, Failure> {
    let (ca, cert, key) = (read(&resolved.ca)?, read(&resolved.cert)?, read(&resolved.key)?);
    Ok(ClientTlsConfig::new()
        .domain_name(SERVER)
        .ca_certificate(Certificate::from_pem(ca))
        .identity(Identity::from_pem(cert, key)))
}

#[derive(Clone)]
pub struct Token(MetadataValue<Ascii>);

#[derive(Serialize)]
struct Claims {
    sub: String,
    aud: &'static str,
    exp: u64,
}

impl Token {
    fn new(source: &TokenSource) -> Result<Token, Failure> {
        let (file, token) = match source {
            TokenSource::File(file) => (file, String::from_utf8_lossy(&read(file)?).trim().to_owned()),
            TokenSource::Key(file) => {
                let key = EncodingKey::from_ed_pem(&read(file)?)
                    .map_err(|source| Failure::SigningKey { file: file.clone(), source })?;
                let exp = jsonwebtoken::get_current_timestamp() + TOKEN_SECONDS;
                let claims = Claims { sub: operator(), aud: AUDIENCE, exp };
                let token = jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), &claims, &key)
                    .map_err(|source| Failure::SigningKey { file: file.clone(), source })?;
                (file, token)
            }
        };
        let value = format!("Bearer {token}").parse();
        let mut value: MetadataValue<Ascii> = value.map_err(|_| Failure::NotAToken { file: file.clone() })?;
        value.set_sensitive(true);
        Ok(Token(value))
    }
}

/// For the control plane's log: who it was, as far as this machine knows.
fn operator() -> String {
    let user = std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).unwrap_or_default();
    if user.is_empty() { "operator".to_owned() } else { user }
}

impl tonic::service::Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{DecodingKey, Validation};

    /// RFC 8410, section 10.
    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        file
    }

    #[test]
    fn a_token_is_made_for_this_service_and_a_few_minutes() {
        let key = file(PRIVATE);
        let Token(value) = Token::new(&TokenSource::Key(key.path().to_owned())).expect("a token");
        assert_eq!(format!("{value:?}"), "Sensitive", "it is in no log");
        let token = value.to_str().expect("ASCII").strip_prefix("Bearer ").expect("a bearer").to_owned();
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.set_audience(&[AUDIENCE]);
        let public = DecodingKey::from_ed_pem(PUBLIC.as_bytes()).expect("a public key");
        let claims =
            jsonwebtoken::decode::<serde_json::Value>(&token, &public, &validation).expect("valid").claims;
        let left = claims["exp"].as_u64().expect("exp") - jsonwebtoken::get_current_timestamp();
        assert!((1..=TOKEN_SECONDS).contains(&left), "{left}");
    }

    #[test]
    fn a_token_is_read_as_it_stands_and_anything_else_refused() {
        let token = file("abc.def.ghi\n");
        let Token(value) = Token::new(&TokenSource::File(token.path().to_owned())).expect("a token");
        assert_eq!(value.to_str().expect("ASCII"), "Bearer abc.def.ghi");
        let two = file("abc\ndef\n");
        assert!(matches!(
            Token::new(&TokenSource::File(two.path().to_owned())),
            Err(Failure::NotAToken { .. })
        ));
        let public = file(PUBLIC);
        let refused = Token::new(&TokenSource::Key(public.path().to_owned()));
        assert!(matches!(refused, Err(Failure::SigningKey { .. })));
    }
}
