//! Refusals: RFC 9457 `application/problem+json`. A [`Problem`] says what is wrong; the edge adds the
//! request's id and writes it (see [`super::edge`]).

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use std::borrow::Cow;
use std::time::Duration;
use types::ErrorCode;

/// After a 503.
const RETRY_AFTER_UNAVAILABLE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Problem {
    pub code: ErrorCode,
    pub detail: Cow<'static, str>,
    /// Which field, parameter or header is to blame, as the caller wrote it.
    pub field: Option<String>,
    pub retry_after: Option<Duration>,
}

impl Problem {
    pub fn new(code: ErrorCode, detail: impl Into<Cow<'static, str>>) -> Self {
        let retry_after = (code.http_status() == 503).then_some(RETRY_AFTER_UNAVAILABLE);
        Problem { code, detail: detail.into(), field: None, retry_after }
    }

    pub fn invalid(field: impl Into<String>, detail: impl Into<Cow<'static, str>>) -> Self {
        Problem::new(ErrorCode::InvalidRequest, detail).field(field)
    }

    pub fn malformed(detail: impl Into<Cow<'static, str>>) -> Self {
        Problem::new(ErrorCode::InvalidRequest, detail)
    }

    /// A defect of ours, whose cause was logged where it was met.
    pub fn internal() -> Self {
        Problem::new(
            ErrorCode::Internal,
            "Something is wrong on our side; the request's id finds it in the log.",
        )
    }

    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The shared titles speak of API keys; here it is a session.
    fn title(&self) -> &'static str {
        match self.code {
            ErrorCode::Unauthenticated => "A valid session is needed",
            ErrorCode::Forbidden => "Not allowed",
            code => code.title(),
        }
    }

    /// Writes the body, and the headers that belong to it, into the response that stands for it.
    pub fn write(&self, request_id: &str, response: &mut Response) {
        let body = ProblemBody {
            r#type: format!("urn:capstan:problem:{}", self.code.as_str()),
            title: self.title().into(),
            status: self.code.http_status(),
            detail: self.detail.to_string(),
            code: self.code.as_str().into(),
            request_id: request_id.into(),
            field: self.field.clone(),
        };
        let text = serde_json::to_vec(&body).expect("a struct of text and numbers has a JSON form");
        *response.body_mut() = text.into();
        let headers = response.headers_mut();
        headers.remove(http::header::CONTENT_LENGTH);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_millis().div_ceil(1000).max(1).min(u128::from(u32::MAX)) as u32;
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == ErrorCode::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// What is wrong with a request, or why it cannot be served now.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
#[serde(rename_all = "camelCase")]
pub struct ProblemBody {
    /// The kind of problem, one for each code.
    pub r#type: String,
    /// A few words, the same for every occurrence.
    pub title: String,
    pub status: u16,
    /// What is wrong with this request.
    pub detail: String,
    /// Stable, snake_case: what a program may build on.
    pub code: String,
    pub request_id: String,
    /// The field or parameter to blame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}
