//! The OpenAPI document, made of the routes themselves, and the process's health.

use super::extract::NoQuery;
use super::problem::{Problem, ProblemBody};
use crate::App;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use std::sync::LazyLock;
use std::time::Instant;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{AdditionalProperties, Schema};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, OpenApi as Document, Ref, RefOr, ResponseBuilder};
use utoipa::{OpenApi, PartialSchema, ToSchema};

#[derive(OpenApi)]
#[openapi(info(
    title = "Capstan console API",
    description = "What the console's page does, for scripts too: accounts, API keys, spools. Sign in, and send the \
                   token as `Authorization: Bearer`. Errors are RFC 9457 problems with a stable `code`."
))]
struct Frame;

/// The document before any route is in it.
pub fn frame() -> Document {
    let mut document = Frame::openapi();
    let components = document.components.get_or_insert_default();
    let session = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
    components.add_security_scheme("session", SecurityScheme::Http(session));
    let cookie = ApiKey::Cookie(ApiKeyValue::with_description(
        "capstan_refresh",
        "Set by sign-up, login and refresh; needs an Origin header of the console's own.",
    ));
    components.add_security_scheme("refreshCookie", SecurityScheme::ApiKey(cookie));
    components.schemas.insert(ProblemBody::name().into_owned(), ProblemBody::schema());
    document
}

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let mut document = super::routes().into_openapi();
    for path in document.paths.paths.values_mut() {
        let operations = [&mut path.get, &mut path.put, &mut path.post, &mut path.delete, &mut path.patch];
        operations.into_iter().flatten().for_each(may_be_refused);
    }
    if let Some(components) = &mut document.components {
        let requests = components.schemas.iter_mut().filter(|(name, _)| name.ends_with("Request"));
        requests.for_each(|(_, schema)| is_read_strictly(schema));
    }
    document.to_json().expect("a document of text and numbers has a JSON form")
});

/// Every operation may answer with a problem.
fn may_be_refused(operation: &mut Operation) {
    let schema = Ref::from_schema_name(ProblemBody::name());
    let response = ResponseBuilder::new()
        .description("Refused, or not possible now")
        .content("application/problem+json", Content::new(Some(RefOr::Ref(schema))))
        .build();
    operation.responses.responses.insert("default".into(), RefOr::T(response));
}

fn is_read_strictly(schema: &mut RefOr<Schema>) {
    if let RefOr::T(Schema::Object(object)) = schema {
        object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
    }
}

/// This document.
#[utoipa::path(get, path = "/api/openapi.json", tag = "service", responses((status = 200, description = "OpenAPI")))]
pub async fn document(_: NoQuery) -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// The process runs.
#[utoipa::path(get, path = "/healthz", tag = "service", responses((status = 200, description = "It does")))]
pub async fn healthz(_: NoQuery) -> &'static str {
    "ok\n"
}

/// The process can serve: it hears the control plane.
#[utoipa::path(get, path = "/readyz", tag = "service", responses((status = 200, description = "It can")))]
pub async fn readyz(State(app): State<App>, _: NoQuery) -> Result<&'static str, Problem> {
    app.sessions.require_ready(Instant::now()).map(|()| "ready\n")
}
