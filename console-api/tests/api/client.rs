//! The API as a caller has it: the whole router, on a fake control plane.

use crate::fake::{Authority, Fake, PASSWORD};
use axum::Router;
use axum::body::Body;
use console_api::attempts::Attempts;
use console_api::control::{Control, Tls};
use console_api::sessions::{self, Sessions};
use console_api::{App, http as api};
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, HeaderMap, ORIGIN, SET_COOKIE};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::ServiceExt;

pub struct Api {
    pub app: App,
    pub fake: Arc<Fake>,
    pub router: Router,
}

pub struct Options {
    pub per_email: u32,
    pub origin: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Options { per_email: 1000, origin: None }
    }
}

pub async fn api() -> Api {
    api_with(Options::default()).await
}

pub async fn api_with(options: Options) -> Api {
    let (fake, authority) = (Fake::new(), Authority::new());
    let address = fake.clone().serve(&authority).await;
    let pair = authority.issue("console-api");
    let tls = Tls { ca: authority.pem, cert: pair.cert, key: pair.key, name: "control-plane".into() };
    let app = app(Control::new(format!("https://{address}"), tls).expect("good certificates"), options);
    let polled = app.clone();
    tokio::spawn(async move { sessions::poll(&polled.sessions, &polled.control).await });
    let deadline = Instant::now() + Duration::from_secs(20);
    while !app.sessions.ready(Instant::now()) {
        assert!(Instant::now() < deadline, "the session keys never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Api { router: api::router(app.clone()), app, fake }
}

pub fn app(control: Control, options: Options) -> App {
    let some = |n| NonZeroU32::new(n).expect("not zero");
    App {
        control,
        sessions: Arc::new(Sessions::default()),
        attempts: Arc::new(Attempts::new(some(1000), some(options.per_email))),
        origin: options.origin.map(Arc::from),
    }
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The refresh cookie's name and value.
    pub fn cookie(&self) -> String {
        let cookie = self.headers.get(SET_COOKIE).expect("a cookie").to_str().expect("ASCII");
        cookie.split(';').next().unwrap_or_default().to_owned()
    }

    /// Requires a problem in every particular; returns its code and field.
    pub fn problem(&self) -> (String, Option<String>) {
        let json = self.json();
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(json["status"], self.status.as_u16());
        assert_eq!(json["requestId"], self.header("x-request-id"));
        for text in ["type", "title", "detail", "code"] {
            assert!(json[text].as_str().is_some_and(|text| !text.is_empty()), "{text}: {json}");
        }
        assert_eq!(self.status == 503, self.headers.contains_key("retry-after") && self.status != 429);
        assert_eq!(self.status == 401, self.headers.contains_key("www-authenticate"));
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        (text("code").unwrap_or_default(), text("field"))
    }

    /// A refusal with this status and code, blaming this field; "" for none.
    pub fn refuses(&self, status: u16, code: &str, field: &str) {
        let (given, blamed) = self.problem();
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(
            (self.status.as_u16(), given.as_str(), blamed.as_deref().unwrap_or_default()),
            (status, code, field),
            "{text}"
        );
    }
}

/// A request in the making.
pub struct Ask {
    request: http::request::Builder,
    body: Body,
}

pub fn ask(method: &str, path: &str) -> Ask {
    Ask {
        request: Request::builder().method(method).uri(path).header(HOST, "console.test"),
        body: Body::empty(),
    }
}

impl Ask {
    pub fn header(mut self, name: impl AsRef<str>, value: &str) -> Self {
        self.request = self.request.header(name.as_ref(), value);
        self
    }
    pub fn bearer(self, token: &str) -> Self {
        self.header(AUTHORIZATION, &format!("Bearer {token}"))
    }
    pub fn cookie(self, cookie: &str) -> Self {
        self.header(COOKIE, &format!("other=1; {cookie}"))
    }
    pub fn origin(self, origin: &str) -> Self {
        self.header(ORIGIN, origin)
    }
    pub fn json(self, body: Value) -> Self {
        self.text(&body.to_string())
    }
    pub fn text(mut self, body: &str) -> Self {
        self.body = Body::from(body.to_owned());
        self.header(CONTENT_TYPE, "application/json")
    }
}

impl Api {
    pub async fn send(&self, ask: Ask) -> Answer {
        let request = ask.request.body(ask.body).expect("a request");
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a body").to_bytes().to_vec();
        let answer = Answer { status: parts.status, headers: parts.headers, body };
        for name in ["x-request-id", "content-security-policy", "x-content-type-options", "cache-control"] {
            assert!(!answer.header(name).is_empty(), "{name} is missing");
        }
        answer
    }

    pub async fn log_in(&self) -> Answer {
        let body = serde_json::json!({"email": "ann@example.com", "password": PASSWORD});
        let answer = self.send(ask("POST", "/api/login").json(body)).await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        answer
    }

    /// A session's token.
    pub async fn token(&self) -> String {
        self.log_in().await.json()["token"].as_str().expect("a token").to_owned()
    }
}
