use super::node::*;
use proto::replication as pb;
use proto::replication::replication_client::ReplicationClient;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use types::ProcessId;

use super::super::Tls;
use super::super::wire::{beat, peer};
use spool::promise::Beat;

async fn client(tls: &Tls, node: &Node) -> Result<ReplicationClient<Channel>, tonic::transport::Error> {
    let endpoint =
        Endpoint::from_shared(format!("https://{}", node.address))?.tls_config(tls.client(node.name))?;
    endpoint.connect().await.map(ReplicationClient::new)
}

fn id(bytes: &[u8; 16]) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(bytes)
}

fn seal(node: &str) -> pb::SealRequest {
    let copy = copy_of(node).copy;
    pb::SealRequest { spool_id: id(SPOOL.as_bytes()), copy_id: id(copy.as_bytes()), epoch: 4 }
}

async fn open_as(client: &mut ReplicationClient<Channel>, name: &str) -> Result<pb::PeerMessage, Status> {
    let hello = peer::Hello { node: name.into(), process: ProcessId::from_u128(1) };
    let messages = tokio_stream::iter([peer::hello(&hello)]);
    let mut answers = client.stream(messages).await?.into_inner();
    Ok(answers.message().await?.expect("hello"))
}

async fn beat_as(client: &mut ReplicationClient<Channel>, name: &str) -> Result<pb::BeatReply, Status> {
    let beat_1 = Beat { process: ProcessId::from_u128(1), number: 1, seen: None, healthy: true };
    let beats = tokio_stream::iter([beat::beat(&name.into(), &beat_1)]);
    let mut answers = client.heartbeats(beats).await?.into_inner();
    Ok(answers.message().await?.expect("an answer"))
}

#[test]
fn a_node_speaks_for_itself_alone() {
    let authority = Authority::new();
    let node = Node::start(&authority, "node-1");
    let test = tokio::runtime::Runtime::new().unwrap();
    test.block_on(async {
        let mut node_2 = client(&authority.issue("node-2"), &node).await.unwrap();
        assert!(open_as(&mut node_2, "node-2").await.is_ok());
        assert!(beat_as(&mut node_2, "node-2").await.is_ok());
        assert_eq!(open_as(&mut node_2, "node-3").await.unwrap_err().code(), Code::PermissionDenied);
        assert_eq!(beat_as(&mut node_2, "node-3").await.unwrap_err().code(), Code::PermissionDenied);
        assert_eq!(node_2.seal(seal("node-1")).await.unwrap_err().code(), Code::PermissionDenied);
        let all = pb::StatusRequest::default();
        assert_eq!(node_2.status(all).await.unwrap_err().code(), Code::PermissionDenied);
        let mut control = client(&authority.issue("control-plane"), &node).await.unwrap();
        assert_eq!(open_as(&mut control, "control-plane").await.unwrap_err().code(), Code::PermissionDenied);
        assert_eq!(beat_as(&mut control, "node-2").await.unwrap_err().code(), Code::PermissionDenied);
    });
    let silent =
        |name: &str| spool::promise::Pairs::silent(&*node.pairs, &name.into(), crate::clock::moment());
    assert!(silent("node-2").is_some());
    assert!(silent("node-3").is_none());
}

#[test]
fn operators_look_and_controllers_act() {
    let authority = Authority::new();
    let node = Node::start(&authority, "node-1");
    let test = tokio::runtime::Runtime::new().unwrap();
    test.block_on(async {
        let mut operator = client(&authority.issue("operator"), &node).await.unwrap();
        assert!(operator.status(pb::StatusRequest::default()).await.is_ok());
        assert_eq!(operator.seal(seal("node-1")).await.unwrap_err().code(), Code::PermissionDenied);
        let mut control = client(&authority.issue("control-plane"), &node).await.unwrap();
        assert!(control.status(pb::StatusRequest::default()).await.is_ok());
        let unknown = control.seal(seal("node-9")).await.unwrap().into_inner();
        assert_eq!(unknown.outcome, Some(pb::seal_reply::Outcome::UnknownCopy(true)));
    });
}

#[test]
fn a_seal_is_held_open_and_ends_with_its_callers_deadline() {
    let authority = Authority::new();
    let node = Node::start(&authority, "node-1");
    let test = tokio::runtime::Runtime::new().unwrap();
    test.block_on(async {
        let control = client(&authority.issue("control-plane"), &node).await.unwrap();
        let held = tokio::spawn({
            let mut control = control.clone();
            async move { control.seal(seal("node-1")).await }
        });
        let copies = node.copies.clone();
        let called = move || copies.wait("the seal", |notes| (notes.calls.len() == 1).then_some(()));
        tokio::task::spawn_blocking(called).await.unwrap();
        let mut late = Request::new(seal("node-1"));
        late.set_timeout(Duration::from_millis(50));
        let late = control.clone().seal(late).await.unwrap_err();
        assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
        assert!(!held.is_finished());
        node.copies.answers.add_permits(2);
        let answer = held.await.unwrap().unwrap().into_inner();
        assert_eq!(answer.outcome, Some(pb::seal_reply::Outcome::StaleEpoch(9)));
    });
}

#[test]
fn strangers_do_not_get_in() {
    let (authority, other) = (Authority::new(), Authority::new());
    let node = Node::start(&authority, "node-1");
    let test = tokio::runtime::Runtime::new().unwrap();
    test.block_on(async {
        // Of another installation: neither side trusts the other.
        assert!(client(&other.issue("node-2"), &node).await.is_err());
        // Without a certificate; in TLS 1.3 the client learns of it with its first read.
        let anonymous = tonic::transport::ClientTlsConfig::new()
            .ca_certificate(authority.certificate())
            .domain_name("node-1");
        let endpoint = Endpoint::from_shared(format!("https://{}", node.address)).unwrap();
        if let Ok(channel) = endpoint.tls_config(anonymous).unwrap().connect().await {
            assert!(ReplicationClient::new(channel).seal(seal("node-1")).await.is_err());
        }
        assert!(node.copies.notes.lock().calls.is_empty());
    });
}

/// A node with the right certificate at the wrong address is not taken for another.
#[test]
fn a_node_is_only_itself() {
    let authority = Authority::new();
    let (a, b) = (Node::start(&authority, "node-1"), Node::start(&authority, "node-2"));
    let c = Arc::new(Node::start(&authority, "node-3"));
    let wrong = std::collections::HashMap::from([
        ("node-2".into(), c.address.to_string()),
        ("node-3".into(), c.address.to_string()),
    ]);
    a.peers.set_nodes(wrong);
    a.copies.wait_disconnected("node-3", 0);
    assert_eq!(a.copies.disconnects("node-2"), 0);
    assert!(spool::promise::Pairs::heard(&*a.pairs, &"node-2".into()).is_none());
    a.knows(&[&b]);
    a.copies.wait_disconnected("node-2", 0);
}
