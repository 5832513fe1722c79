//! How one knows that a part answers.

use crate::pki::Identity;
use std::path::PathBuf;
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const ANSWER_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub enum Ready {
    /// PostgreSQL writes its state into the eighth line of `postmaster.pid`.
    PostmasterFile(PathBuf),
    /// A GET is answered with 2xx.
    Http(String),
    /// A GET is answered, whatever the answer.
    AnyHttp(String),
    /// The gRPC health service says that it serves; or answers, `whatever` it says.
    GrpcHealth { url: String, name: String, identity: Identity, whatever: bool },
}

impl Ready {
    /// Or what is seen instead.
    pub async fn check(&self) -> Result<(), String> {
        match self {
            Ready::PostmasterFile(path) => postmaster(path),
            Ready::Http(url) => match get(url).await? {
                status if status.is_success() => Ok(()),
                status => Err(format!("{url} answers {status}")),
            },
            Ready::AnyHttp(url) => get(url).await.map(|_| ()),
            Ready::GrpcHealth { url, name, identity, whatever } => match grpc(url, name, identity).await? {
                ServingStatus::Serving => Ok(()),
                _ if *whatever => Ok(()),
                other => Err(format!("{name} says {}", other.as_str_name())),
            },
        }
    }
}

fn postmaster(path: &PathBuf) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match text.lines().nth(7).map(str::trim) {
        Some("ready") => Ok(()),
        other => Err(format!("PostgreSQL is {}", other.unwrap_or("starting"))),
    }
}

async fn get(url: &str) -> Result<reqwest::StatusCode, String> {
    let client =
        reqwest::Client::builder().timeout(ANSWER_WITHIN).build().map_err(|error| error.to_string())?;
    client.get(url).send().await.map(|response| response.status()).map_err(|error| with_causes(&error))
}

async fn grpc(url: &str, name: &str, identity: &Identity) -> Result<ServingStatus, String> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let tls = ClientTlsConfig::new()
        .domain_name(name)
        .ca_certificate(Certificate::from_pem(read(&identity.ca)?))
        .identity(tonic::transport::Identity::from_pem(read(&identity.cert)?, read(&identity.key)?));
    let endpoint = Endpoint::from_shared(url.to_owned()).and_then(|endpoint| endpoint.tls_config(tls));
    let endpoint = endpoint.map_err(|error| with_causes(&error))?;
    let endpoint = endpoint.connect_timeout(ANSWER_WITHIN).timeout(ANSWER_WITHIN);
    let channel = endpoint.connect().await.map_err(|error| with_causes(&error))?;
    let asked = HealthClient::new(channel).check(HealthCheckRequest { service: String::new() }).await;
    Ok(asked.map_err(|status| status.to_string())?.into_inner().status())
}

/// "error sending request" alone helps nobody.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
