//! The one cookie: the refresh token, out of reach of scripts, sent to this API only and by our own page only.

use crate::App;
use http::header::{COOKIE, HeaderMap, HeaderValue};

const NAME: &str = "capstan_refresh";
const VALUE_BYTES_MAX: usize = 1024;

pub fn read(headers: &HeaderMap) -> Option<&str> {
    let pairs =
        headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(';'));
    let mut named = pairs.filter_map(|pair| pair.trim().split_once('=')).filter(|(name, _)| *name == NAME);
    let value = named.next()?.1;
    fit(value).then_some(value)
}

/// None: the value is not fit for a cookie.
pub fn set(app: &App, value: &str, seconds: i64) -> Option<HeaderValue> {
    fit(value).then(|| header(app, value, seconds.max(0)))
}

pub fn clear(app: &App) -> HeaderValue {
    header(app, "", 0)
}

fn header(app: &App, value: &str, seconds: i64) -> HeaderValue {
    let secure = if app.over_tls() { "; Secure" } else { "" };
    let text = format!("{NAME}={value}; Max-Age={seconds}; Path=/api; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(text).expect("a checked value, and text of ours")
}

fn fit(value: &str) -> bool {
    let allowed =
        |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'~' | b'+' | b'/' | b'=');
    (1..=VALUE_BYTES_MAX).contains(&value.len()) && value.bytes().all(allowed)
}
