//! Over real mTLS, with a real etcd and nodes that speak the real protocol.

use super::*;
use crate::elections::tests::fake::Cluster;
use crate::reconcile::tests::{Rows, new_spool};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use proto::ops::ops_client::OpsClient;
use serde_json::json;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint, Server, ServerTlsConfig};
use types::Epoch;

const SPOOL: SpoolId = SpoolId::from_u128(1);

struct Site {
    cluster: Cluster,
    address: String,
    token: String,
}

impl Site {
    async fn start() -> Site {
        let cluster = Cluster::start().await;
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let operators = Operators::new(pair.public_key_pem().as_bytes()).expect("a public key");
        let key = EncodingKey::from_ed_der(&pair.serialize_der());
        let exp = jsonwebtoken::get_current_timestamp() + 60;
        let claims = json!({"sub": "kim", "aud": "capstan-ops", "exp": exp});
        let token = jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), &claims, &key).expect("a token");
        let rows = Arc::new(Rows::default());
        rows.add(&new_spool(1, 3, 1));
        rows.add(&new_spool(2, 3, 1));
        let inspector = Inspector::new(cluster.etcd.clone(), cluster.clients());
        let ops = Ops::new(operators, inspector, cluster.elections(), rows);
        let tls =
            ServerTlsConfig::new().identity(cluster.identity("control-plane")).client_ca_root(cluster.ca());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = format!("https://{}", listener.local_addr().expect("bound"));
        let server = Server::builder().tls_config(tls).expect("TLS").add_service(OpsServer::new(ops));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        cluster.create(SPOOL, 3, 1).await;
        cluster.until_active(SPOOL, Epoch(1)).await;
        Site { cluster, address, token }
    }

    async fn client(&self, certificate: &str) -> OpsClient<Channel> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(self.cluster.ca())
            .identity(self.cluster.identity(certificate))
            .domain_name("control-plane");
        let endpoint = Endpoint::from_shared(self.address.clone()).expect("an address");
        OpsClient::new(endpoint.tls_config(tls).expect("TLS").connect().await.expect("connected"))
    }

    fn with_token<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let token = format!("Bearer {}", self.token).parse().expect("ASCII");
        request.metadata_mut().insert("authorization", token);
        request
    }
}

#[tokio::test]
async fn certificate_and_token_are_both_needed() {
    let site = Site::start().await;
    let mut node = site.client("node-1").await;
    let refused = node.list_nodes(site.with_token(pb::ListNodesRequest {})).await.expect_err("a node");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let mut operator = site.client("operator").await;
    let refused = operator.list_nodes(pb::ListNodesRequest {}).await.expect_err("no token");
    assert_eq!(refused.code(), Code::Unauthenticated);
    operator.list_nodes(site.with_token(pb::ListNodesRequest {})).await.expect("both");
}

#[tokio::test]
async fn nodes_and_spools_are_listed_and_shown() {
    let site = Site::start().await;
    let mut ops = site.client("operator").await;
    let nodes =
        ops.list_nodes(site.with_token(pb::ListNodesRequest {})).await.expect("nodes").into_inner().nodes;
    assert_eq!(nodes.len(), 3);
    assert!(nodes.iter().all(|node| node.alive && node.copies == 1));
    assert_eq!(nodes.iter().map(|node| node.primaries).sum::<u32>(), 1);

    let all = pb::ListSpoolsRequest::default();
    let spools = ops.list_spools(site.with_token(all)).await.expect("spools").into_inner().spools;
    let states: Vec<&str> = spools.iter().map(|spool| spool.state.as_str()).collect();
    assert_eq!(states, ["serving", "placing"], "a spool without copies is not hidden");
    let next = pb::ListSpoolsRequest { limit: 1, after_id: spools[0].id.clone(), ..Default::default() };
    let page = ops.list_spools(site.with_token(next)).await.expect("spools").into_inner().spools;
    assert_eq!(page, spools[1..]);
    let on_node = pb::ListSpoolsRequest { node: "node-2".to_owned(), ..Default::default() };
    let page = ops.list_spools(site.with_token(on_node)).await.expect("spools").into_inner().spools;
    assert_eq!(page.len(), 1);

    let id = SPOOL.to_string();
    let spool = ops.get_spool(site.with_token(pb::GetSpoolRequest { id })).await.expect("there").into_inner();
    assert_eq!((spool.name.as_str(), spool.account_name.as_str()), ("default", "Acme"));
    assert_eq!((spool.phase.as_str(), spool.num_replicas, spool.num_sync), ("active", 3, 1));
    assert!(spool.copies.iter().all(|copy| copy.answers && !copy.confirmed.is_empty()));
    for (id, code) in [("x", Code::InvalidArgument), (&SpoolId::from_u128(9).to_string(), Code::NotFound)] {
        let request = pb::GetSpoolRequest { id: id.to_owned() };
        assert_eq!(ops.get_spool(site.with_token(request)).await.expect_err("refused").code(), code);
    }
}

#[tokio::test]
async fn a_primary_is_moved_and_who_cannot_be_moved_is_explained() {
    let site = Site::start().await;
    let mut ops = site.client("operator").await;
    let record = site.cluster.until_active(SPOOL, Epoch(1)).await;
    let from = record.last.expect("elected").member.node;
    let to = record.members.iter().map(|m| &m.node).find(|node| **node != from).expect("another");
    let ask = |id: &str, node: &str| {
        site.with_token(pb::MovePrimaryRequest { id: id.to_owned(), target_node: node.to_owned() })
    };
    let id = SPOOL.to_string();
    let moved = ops.move_primary(ask(&id, &to.0)).await.expect("moved").into_inner();
    assert_eq!((moved.from_node, moved.to_node), (from.to_string(), to.to_string()));
    assert!(moved.epoch > record.epoch.0 && moved.took_ms < 30_000);
    let no_copy = ops.move_primary(ask(&id, "node-9")).await.expect_err("no copy there");
    assert_eq!(no_copy.code(), Code::InvalidArgument);
    assert!(no_copy.message().contains("node-9"), "{no_copy:?}");
    let nobody = ops.move_primary(ask(&SpoolId::from_u128(9).to_string(), "")).await.expect_err("no such");
    assert_eq!(nobody.code(), Code::NotFound);
}
