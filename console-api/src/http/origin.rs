//! Which page a browser's request comes from. Another site's page could make a browser send requests here, with
//! the cookie; browsers say in `Origin` whose page it is, and pages cannot change that.
//!
//! * A request that changes something and names a foreign origin is refused, however it is authenticated.
//! * One that is authenticated by the cookie must name ours: no browser leaves it out.

use super::problem::Problem;
use crate::App;
use http::header::{HOST, HeaderMap, ORIGIN};
use http::{Method, Uri};
use types::ErrorCode;

pub fn refuse_foreign(app: &App, headers: &HeaderMap, uri: &Uri, method: &Method) -> Result<(), Problem> {
    if method.is_safe() || !headers.contains_key(ORIGIN) {
        return Ok(());
    }
    require_own(app, headers, uri)
}

pub fn require_own(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    let mut origins = headers.get_all(ORIGIN).iter();
    let own = match (origins.next(), origins.next()) {
        (Some(origin), None) => origin.to_str().is_ok_and(|origin| is_own(app, headers, uri, origin)),
        _ => false,
    };
    if own {
        return Ok(());
    }
    let detail = "This request must come from the console's own page: its Origin header is missing or names another site.";
    Err(Problem::new(ErrorCode::Forbidden, detail))
}

fn is_own(app: &App, headers: &HeaderMap, uri: &Uri, origin: &str) -> bool {
    if let Some(own) = &app.origin {
        return origin.eq_ignore_ascii_case(own);
    }
    let named = origin.split_once("://").map(|(_, host)| host);
    let asked = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()),
    };
    matches!((named, asked), (Some(named), Some(asked)) if !named.is_empty() && named.eq_ignore_ascii_case(asked))
}
