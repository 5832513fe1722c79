//! Where the control plane is, and who asks. Nothing secret is a flag: keys and tokens are files.

use serde::Deserialize;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Connection")]
pub struct Settings {
    /// A local installation's var/dev.json; it stands for everything below.
    #[arg(long, global = true, env = "CAPSTAN_DEV", value_name = "FILE")]
    #[arg(conflicts_with_all = ["control", "ca", "cert", "key", "token_file", "ops_key"])]
    pub dev: Option<PathBuf>,
    /// The control plane, https://HOST:PORT.
    #[arg(long, global = true, env = "CAPSTAN_CONTROL", value_name = "URL")]
    pub control: Option<String>,
    /// The cluster's certificate authority, PEM.
    #[arg(long, global = true, env = "CAPSTAN_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The `operator` client certificate, PEM.
    #[arg(long, global = true, env = "CAPSTAN_CERT", value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, global = true, env = "CAPSTAN_KEY", value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// A file with an operator's token.
    #[arg(long, global = true, env = "CAPSTAN_TOKEN_FILE", value_name = "FILE", conflicts_with = "ops_key")]
    pub token_file: Option<PathBuf>,
    /// An operators' private key (Ed25519, PEM): a token for this call is made with it.
    #[arg(long, global = true, env = "CAPSTAN_OPS_KEY", value_name = "FILE")]
    pub ops_key: Option<PathBuf>,
}

/// Complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    pub control: String,
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
    pub token: TokenSource,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenSource {
    File(PathBuf),
    Key(PathBuf),
}

/// What is read of a local installation's file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DevFile {
    ca: PathBuf,
    control_plane: Vec<ControlPlane>,
}

#[derive(Deserialize)]
struct ControlPlane {
    grpc: String,
}

impl Settings {
    pub fn resolve(&self) -> Result<Resolved, Failure> {
        if let Some(file) = &self.dev {
            return of_installation(file);
        }
        let token = match (&self.token_file, &self.ops_key) {
            (Some(file), _) => TokenSource::File(file.clone()),
            (None, Some(file)) => TokenSource::Key(file.clone()),
            (None, None) => return Err(Failure::Missing("--token-file or --ops-key")),
        };
        Ok(Resolved {
            control: self.control.clone().ok_or(Failure::Missing("--control"))?,
            ca: self.ca.clone().ok_or(Failure::Missing("--ca"))?,
            cert: self.cert.clone().ok_or(Failure::Missing("--cert"))?,
            key: self.key.clone().ok_or(Failure::Missing("--key"))?,
            token,
        })
    }
}

/// Operators' credentials lie beside the authority's certificate.
fn of_installation(file: &Path) -> Result<Resolved, Failure> {
    let dev: DevFile = serde_json::from_slice(&read(file)?)
        .map_err(|source| Failure::DevFile { file: file.to_owned(), reason: source.to_string() })?;
    let reason = |reason: &str| Failure::DevFile { file: file.to_owned(), reason: reason.to_owned() };
    let control = dev.control_plane.first().ok_or_else(|| reason("it names no control plane"))?;
    let pki = dev.ca.parent().ok_or_else(|| reason("`ca` is in no directory"))?;
    Ok(Resolved {
        control: match control.grpc.contains("://") {
            true => control.grpc.clone(),
            false => format!("https://{}", control.grpc),
        },
        cert: pki.join("operator.pem"),
        key: pki.join("operator.key"),
        token: TokenSource::Key(pki.join("operator-token.key")),
        ca: dev.ca,
    })
}

pub fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|source| Failure::File { file: file.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_installation_needs_no_more_than_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("dev.json");
        let dev = r#"{"api": [], "ca": "/v/pki/ca.pem", "controlPlane": [{"pid": 1, "grpc": "https://127.0.0.1:7"}]}"#;
        std::fs::write(&file, dev).expect("written");
        let resolved = Settings { dev: Some(file), ..Settings::default() }.resolve().expect("complete");
        assert_eq!(resolved.control, "https://127.0.0.1:7");
        assert_eq!(resolved.cert, Path::new("/v/pki/operator.pem"));
        assert_eq!(resolved.token, TokenSource::Key("/v/pki/operator-token.key".into()));
    }

    #[test]
    fn what_is_missing_is_named() {
        let settings = Settings { ops_key: Some("k".into()), ..Settings::default() };
        let failure = settings.resolve().expect_err("incomplete");
        assert!(failure.to_string().contains("--control"), "{failure}");
        let none = Settings { dev: Some("/nowhere/dev.json".into()), ..Settings::default() };
        let failure = none.resolve().expect_err("no such file");
        assert!(failure.to_string().contains("/nowhere/dev.json"), "{failure}");
    }
}
