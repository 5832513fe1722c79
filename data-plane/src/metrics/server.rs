//! The listener for those who look after the node. Not for clients, and not for the outside.

use super::{Metrics, Sources};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What is still missing before this node can serve; empty: nothing.
pub type Missing = Arc<dyn Fn() -> Vec<&'static str> + Send + Sync>;

#[derive(Clone)]
pub struct Server {
    pub metrics: Metrics,
    pub sources: Sources,
    pub missing: Missing,
}

impl Server {
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
        let router = Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self);
        axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
    }
}

async fn ready(State(server): State<Server>) -> Response {
    let missing = (server.missing)();
    let status = if missing.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(serde_json::json!({ "ready": missing.is_empty(), "missing": missing }))).into_response()
}

async fn metrics(State(server): State<Server>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match server.metrics.render(&server.sources).await {
        Ok(text) => ([(header::CONTENT_TYPE, TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written down");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
