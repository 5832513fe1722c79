//! The settings of the process: flags, or `CAPSTAN_*` in the environment.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

#[derive(Debug, clap::Parser)]
#[command(name = "console-api", version, about = "The JSON API of Capstan's web console")]
pub struct Settings {
    /// Where to serve, in clear text; a proxy in front of it does TLS.
    #[arg(long, env = "CAPSTAN_CONSOLE_HTTP", default_value = "127.0.0.1:8090")]
    pub http: SocketAddr,
    /// The control plane's gRPC address, https://HOST:PORT.
    #[arg(long, env = "CAPSTAN_CONTROL")]
    pub control: String,
    /// PEM file: the cluster's certificate authority.
    #[arg(long, env = "CAPSTAN_CA")]
    pub ca: PathBuf,
    /// PEM file: this part's certificate, for the control plane.
    #[arg(long, env = "CAPSTAN_CERT")]
    pub cert: PathBuf,
    /// PEM file: the certificate's private key.
    #[arg(long, env = "CAPSTAN_KEY")]
    pub key: PathBuf,
    /// The DNS name in the control plane's certificate.
    #[arg(long, env = "CAPSTAN_CONTROL_NAME", default_value = "control-plane")]
    pub control_name: String,
    /// Where browsers reach the console, such as https://console.example.com. With https, cookies are Secure.
    /// Left out, a request's own Host is taken.
    #[arg(long, env = "CAPSTAN_CONSOLE_ORIGIN", value_parser = origin)]
    pub origin: Option<String>,
    /// Attempts to sign in or up, a minute and address.
    #[arg(long, env = "CAPSTAN_ATTEMPTS_PER_ADDRESS", default_value = "1200")]
    pub attempts_per_address: NonZeroU32,
    /// Attempts to sign in or up, a minute and e-mail address.
    #[arg(long, env = "CAPSTAN_ATTEMPTS_PER_EMAIL", default_value = "120")]
    pub attempts_per_email: NonZeroU32,
}

/// As browsers write it: scheme, host, and the port where it is not the scheme's own.
fn origin(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match host {
        Some(host) if !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']) => {
            Ok(text.to_lowercase())
        }
        _ => Err("an origin is http://HOST[:PORT] or https://HOST[:PORT], with nothing after it".into()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        assert_eq!(super::origin("https://Console.example.com"), Ok("https://console.example.com".into()));
        for bad in ["console.example.com", "https://", "https://x/", "ftp://x"] {
            assert!(super::origin(bad).is_err(), "{bad}");
        }
    }
}
