//! The product's own programs, and the S3 server.

use super::{Part, PartName, Ready, Site};
use crate::pki::Identity;
use crate::process::Program;
use std::net::SocketAddr;

pub const S3_BUCKET: &str = "capstan";
pub const S3_ACCESS_KEY: &str = "capstan";

pub fn s3(site: &Site<'_>) -> Part {
    let address = site.ports.s3();
    let program = ours(site, "cluster")
        .arg("s3")
        .args(["--http", &address.to_string(), "--bucket", S3_BUCKET])
        .arg("--data-dir")
        .arg(site.layout.data(PartName::S3))
        .env("CAPSTAN_S3_ACCESS_KEY", S3_ACCESS_KEY)
        .env("CAPSTAN_S3_SECRET_KEY", &site.state.s3_secret);
    let ready = Ready::AnyHttp(format!("http://{address}/"));
    Part { name: PartName::S3, program, alive: ready.clone(), ready }
}

pub fn control(site: &Site<'_>) -> Part {
    let identity = site.pki.identity("control-plane");
    let program = with_identity(ours(site, "control-plane"), &identity)
        .env("CAPSTAN_POSTGRES", site.postgres_url())
        .args(["--etcd", &site.etcd_url(), "--grpc", &site.ports.control().to_string()])
        .arg("--ops-public-key")
        .arg(site.pki.operator_token_public_key())
        .arg("--session-key")
        .arg(site.pki.session_key())
        .args(["--default-plan", site.options.plan()]);
    let health = |whatever| Ready::GrpcHealth {
        url: site.control_url(),
        name: "control-plane".to_owned(),
        identity: site.pki.identity("operator"),
        whatever,
    };
    let (alive, ready) = (health(true), health(false));
    Part { name: PartName::Control, program: with_times(program, site), alive, ready }
}

pub fn node(site: &Site<'_>, number: u16) -> Part {
    let name = PartName::Node(number);
    let ports = site.ports.node(number);
    let program = with_identity(ours(site, "data-plane"), &site.pki.identity(&name.to_string()))
        .args(["--name", &name.to_string()])
        .arg("--data-dir")
        .arg(site.layout.data(name))
        .args(address("--http", ports.http))
        .args(address("--internal", ports.internal))
        .args(address("--forward", ports.forward))
        .args(address("--advertise-internal", ports.internal))
        .args(address("--advertise-forward", ports.forward))
        .args(address("--metrics", ports.metrics))
        .args(["--etcd", &site.etcd_url(), "--control", &site.control_url()]);
    Part {
        name,
        program: with_times(program, site),
        alive: Ready::Http(format!("http://{}/healthz", ports.metrics)),
        ready: Ready::Http(format!("http://{}/readyz", ports.metrics)),
    }
}

pub fn console(site: &Site<'_>) -> Part {
    let program = with_identity(ours(site, "console-api"), &site.pki.identity("console-api"))
        .args(address("--http", site.ports.console()))
        .args(["--control", &site.control_url()]);
    let ready = Ready::Http(format!("http://{}/healthz", site.ports.console()));
    Part { name: PartName::Console, program, alive: ready.clone(), ready }
}

fn ours(site: &Site<'_>, name: &str) -> Program {
    Program::new(site.bin.join(name))
}

fn address(flag: &str, address: SocketAddr) -> [String; 2] {
    [flag.to_owned(), address.to_string()]
}

fn with_identity(program: Program, identity: &Identity) -> Program {
    let flags = [("--ca", &identity.ca), ("--cert", &identity.cert), ("--key", &identity.key)];
    flags.into_iter().fold(program, |program, (flag, file)| program.arg(flag).arg(file))
}

fn with_times(program: Program, site: &Site<'_>) -> Program {
    let (promise, suspect) = (site.options.promise_ms.to_string(), site.options.suspect_ms.to_string());
    program.args(["--promise-ms", &promise, "--suspect-ms", &suspect])
}
