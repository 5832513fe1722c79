//! Refusals: RFC 9457 `application/problem+json`.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use spool::command::Failure;
use std::borrow::Cow;
use std::time::Duration;
use types::ErrorCode;

const RETRY_AFTER_UNAVAILABLE: Duration = Duration::from_secs(1);
/// What a caller wrote is repeated up to here.
const FIELD_BYTES_MAX: usize = 128;
const DETAIL_BYTES_MAX: usize = 1024;
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub code: ErrorCode,
    pub detail: Cow<'static, str>,
    /// The field, parameter or header that is to blame, as the caller wrote it.
    pub field: Option<Cow<'static, str>>,
    /// The item of a batch that is to blame.
    pub index: Option<usize>,
    pub retry_after: Option<Duration>,
    /// Of a 405: what is allowed.
    pub allow: Option<Cow<'static, str>>,
    /// The `Prefer: wait` that was gone by, in seconds.
    pub preference_applied: Option<u16>,
    /// Of a 429: the plan's requests a second.
    pub rate: Option<u32>,
}

impl Problem {
    pub fn new(code: ErrorCode, detail: impl Into<Cow<'static, str>>) -> Problem {
        let retry_after = (code.http_status() == 503).then_some(RETRY_AFTER_UNAVAILABLE);
        Problem {
            code,
            detail: detail.into(),
            field: None,
            index: None,
            retry_after,
            allow: None,
            preference_applied: None,
            rate: None,
        }
    }

    pub fn invalid(field: impl Into<Cow<'static, str>>, detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem { field: Some(field.into()), ..Problem::new(ErrorCode::InvalidRequest, detail) }
    }

    pub fn malformed(detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem::new(ErrorCode::InvalidRequest, detail)
    }

    pub fn method(allow: impl Into<Cow<'static, str>>) -> Problem {
        let allow = allow.into();
        let detail = format!("here: {allow}");
        Problem { allow: Some(allow), ..Problem::new(ErrorCode::MethodNotAllowed, detail) }
    }

    pub fn rate_limited(rate: u32, wait: Duration) -> Problem {
        let detail = format!("the plan holds {rate} requests a second");
        let problem = Problem::new(ErrorCode::RateLimited, detail);
        Problem { retry_after: Some(wait), rate: Some(rate), ..problem }
    }

    pub fn at(self, index: usize) -> Problem {
        Problem { index: Some(index), ..self }
    }

    /// Status, headers and body of the response.
    pub fn response(&self, request_id: &str) -> http::Response<Bytes> {
        let body = Body {
            r#type: format!("urn:capstan:problem:{}", self.code.as_str()),
            title: self.code.title(),
            status: self.code.http_status(),
            detail: short(&self.detail, DETAIL_BYTES_MAX),
            code: self.code.as_str(),
            request_id,
            field: self.field.as_deref().map(|field| short(field, FIELD_BYTES_MAX)),
            index: self.index,
        };
        let text = serde_json::to_vec(&body).expect("a struct of text and numbers has a JSON form");
        let mut response = http::Response::new(Bytes::from(text));
        *response.status_mut() =
            StatusCode::from_u16(self.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.write_headers(response.headers_mut());
        response
    }

    fn write_headers(&self, headers: &mut HeaderMap) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let seconds = self.retry_after.map(|wait| wait.as_millis().div_ceil(1000).clamp(1, 3600) as u32);
        if let Some(seconds) = seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(Ok(allow)) = self.allow.as_deref().map(HeaderValue::from_str) {
            headers.insert(ALLOW, allow);
        }
        if let Some(seconds) = self.preference_applied {
            put_preference_applied(headers, seconds);
        }
        if self.code == ErrorCode::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let (Some(rate), Some(seconds)) = (self.rate, seconds) {
            let values = [
                (RATE_LIMIT, format!("\"default\";r=0;t={seconds}")),
                (RATE_LIMIT_POLICY, format!("\"default\";q={rate};w=1")),
            ];
            for (name, value) in values {
                headers.insert(name, HeaderValue::try_from(value).expect("digits and ASCII signs"));
            }
        }
    }
}

pub fn put_preference_applied(headers: &mut HeaderMap, seconds: u16) {
    if let Ok(value) = HeaderValue::try_from(format!("wait={seconds}")) {
        headers.insert(PREFERENCE_APPLIED, value);
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        Problem {
            field: failure.field.map(Cow::Borrowed),
            index: failure.index,
            ..Problem::new(failure.code, failure.detail)
        }
    }
}

fn short(text: &str, max: usize) -> Cow<'_, str> {
    match text.len() <= max {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("{}...", &text[..text.floor_char_boundary(max)])),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: Cow<'a, str>,
    code: &'static str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
}
