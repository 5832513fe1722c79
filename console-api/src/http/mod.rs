//! The routes. Each is one line here, which also puts it into the OpenAPI document; a handler takes checked
//! arguments, asks the control plane one thing, and shapes the answer.
//!
//! * [`session`], [`account`], [`keys`], [`spools`]: the routes
//! * [`openapi`]: the document, and the process's health
//! * [`extract`], [`fields`], [`page`]: what handlers take, and how strictly it is read
//! * [`edge`], [`origin`], [`cookie`]: what every request passes; browsers
//! * [`mod@problem`]: refusals, all of one shape

pub mod account;
pub mod cookie;
pub mod edge;
pub mod extract;
pub mod fields;
pub mod keys;
pub mod openapi;
pub mod origin;
pub mod page;
pub mod problem;
pub mod session;
pub mod spools;

use crate::App;
use axum::{Router, middleware};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(session::sign_up))
        .routes(routes!(session::log_in))
        .routes(routes!(session::refresh))
        .routes(routes!(session::log_out))
        .routes(routes!(account::get_account))
        .routes(routes!(account::list_plans))
        .routes(routes!(account::set_plan))
        .routes(routes!(keys::list_keys, keys::create_key))
        .routes(routes!(keys::delete_key))
        .routes(routes!(spools::list_spools, spools::create_spool))
        .routes(routes!(spools::get_spool))
        .routes(routes!(openapi::document))
        .routes(routes!(openapi::healthz))
        .routes(routes!(openapi::readyz))
}

pub fn router(app: App) -> Router {
    Router::from(routes())
        .method_not_allowed_fallback(edge::method_not_allowed)
        .fallback(edge::not_found)
        .layer(middleware::from_fn_with_state(app.clone(), edge::edge))
        .with_state(app)
}
