//! The process's edges: mutual TLS towards the control plane, and clients on a real socket.

use crate::client::{Options, api, app};
use crate::fake::{Authority, Fake};
use console_api::control::{Control, Tls};
use console_api::{http, serve};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use types::ErrorCode;

async fn account_by(ca: &Authority, issuer: &Authority, name: &str, serving: &Authority) -> ErrorCode {
    let address = Fake::new().serve(serving).await;
    let pair = issuer.issue("console-api");
    let tls = Tls { ca: ca.pem.clone(), cert: pair.cert, key: pair.key, name: name.into() };
    let control = Control::new(format!("https://{address}"), tls).expect("readable certificates");
    let request = proto::control::RefreshRequest { refresh_token: "x".into() };
    control.refresh(request).await.expect_err("there is no such session").code
}

#[tokio::test]
async fn both_sides_of_the_internal_connection_prove_who_they_are() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let met = account_by(&ours, &ours, "control-plane", &ours).await;
    assert_eq!(met, ErrorCode::Unauthenticated, "it was asked, and refused the token");
    for (what, code) in [
        ("a control plane of another authority", account_by(&ours, &ours, "control-plane", &theirs).await),
        ("another part of the cluster in its place", account_by(&ours, &ours, "elsewhere", &ours).await),
        ("a client of another authority", account_by(&ours, &theirs, "control-plane", &ours).await),
    ] {
        assert!(matches!(code, ErrorCode::Unavailable | ErrorCode::OperationUnconfirmed), "{what}: {code:?}");
    }
}

#[tokio::test]
async fn nobody_at_the_control_planes_address_is_certainly_no_effect() {
    let ours = Authority::new();
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = gone.local_addr().expect("an address");
    drop(gone);
    let pair = ours.issue("console-api");
    let tls = Tls { ca: ours.pem.clone(), cert: pair.cert, key: pair.key, name: "control-plane".into() };
    let control = Control::new(format!("https://{address}"), tls).expect("readable certificates");
    let app = app(control, Options::default());
    let request = proto::control::RefreshRequest { refresh_token: "x".into() };
    let problem = app.control.refresh(request).await.expect_err("nobody is there");
    assert_eq!(problem.code, ErrorCode::Unavailable);
}

#[tokio::test]
async fn clients_on_a_socket_are_answered_and_the_server_stops_when_told() {
    let api = api().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(serve::serve(listener, http::router(api.app.clone()), stopped));

    let mut client = TcpStream::connect(address).await.expect("a connection");
    let request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /api/keys HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    client.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\r\ndate: "), "{answer}");
    assert!(
        answer.contains("HTTP/1.1 401 Unauthorized\r\n") && answer.contains("www-authenticate: Bearer"),
        "{answer}"
    );

    // One that says nothing does not keep the server from stopping.
    let silent = TcpStream::connect(address).await.expect("a connection");
    stop.send_replace(true);
    tokio::time::timeout(Duration::from_secs(20), serving).await.expect("it stops").expect("without a panic");
    drop(silent);
}
