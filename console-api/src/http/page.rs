//! Lists in pages. A cursor names the last item seen by what the list is ordered by, so it stays good while the
//! list changes; it carries a mark of the list that it came from, and is refused anywhere else.

use super::extract::{parameters, unknown_parameter};
use super::problem::Problem;
use crate::App;
use axum::extract::FromRequestParts;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::request::Parts;
use sha2::{Digest, Sha256};
use types::limits::{LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX};

const MARK_LEN: usize = 8;

/// `?limit=&cursor=`
#[derive(Debug)]
pub struct Page {
    limit: usize,
    cursor: Option<String>,
}

impl FromRequestParts<App> for Page {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        Page::read(parts.uri.query().unwrap_or_default())
    }
}

impl Page {
    fn read(query: &str) -> Result<Page, Problem> {
        let (mut limit, mut cursor) = (None, None);
        for (name, value) in parameters(query)? {
            let place = match name.as_str() {
                "limit" => &mut limit,
                "cursor" => &mut cursor,
                _ => return Err(unknown_parameter(&name)),
            };
            if place.replace(value).is_some() {
                return Err(Problem::invalid(name, "The query parameter is there more than once."));
            }
        }
        let limit = match limit.map(|limit| limit.parse::<u32>()) {
            None => LIST_LIMIT_DEFAULT,
            Some(Ok(limit)) if (1..=LIST_LIMIT_MAX).contains(&limit) => limit,
            Some(_) => {
                let detail =
                    format!("The query parameter must be a whole number from 1 to {LIST_LIMIT_MAX}.");
                return Err(Problem::invalid("limit", detail));
            }
        };
        Ok(Page { limit: limit as usize, cursor })
    }

    /// This page of the items, and the cursor for the next. `list` tells this list from every other.
    pub fn of<T>(
        &self,
        list: &[&[u8]],
        mut items: Vec<T>,
        order: impl Fn(&T) -> String,
    ) -> Result<(Vec<T>, Option<String>), Problem> {
        items.sort_by_cached_key(&order);
        if let Some(cursor) = &self.cursor {
            let after =
                open(list, cursor).ok_or_else(|| Problem::invalid("cursor", "Not a cursor of this list."))?;
            items.retain(|item| order(item) > after);
        }
        let more = items.len() > self.limit;
        items.truncate(self.limit);
        let next = items.last().filter(|_| more).map(|last| seal(list, &order(last)));
        Ok((items, next))
    }
}

fn mark(list: &[&[u8]]) -> [u8; MARK_LEN] {
    let mut hash = Sha256::new();
    for part in list {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut mark = [0; MARK_LEN];
    mark.copy_from_slice(&hash.finalize()[..MARK_LEN]);
    mark
}

fn seal(list: &[&[u8]], last: &str) -> String {
    URL_SAFE_NO_PAD.encode([&mark(list), last.as_bytes()].concat())
}

fn open(list: &[&[u8]], cursor: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (mark_of, last) = bytes.split_at_checked(MARK_LEN)?;
    if mark_of != mark(list) {
        return None;
    }
    String::from_utf8(last.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str) -> Page {
        Page::read(query).expect("a page")
    }

    #[test]
    fn pages_follow_each_other_while_the_list_changes() {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let list: &[&[u8]] = &[b"spools", b"account"];
        let (first, next) =
            page("limit=2").of(list, names(&["d", "a", "c", "b"]), String::clone).expect("a page");
        assert_eq!(first, ["a", "b"]);
        let query = format!("limit=2&cursor={}", next.expect("there is more"));
        let (second, next) = page(&query).of(list, names(&["d", "c", "aa"]), String::clone).expect("a page");
        assert_eq!((second, next), (names(&["c", "d"]), None));
        let elsewhere = page(&query).of(&[b"spools", b"other"], names(&["a"]), String::clone);
        assert_eq!(elsewhere.expect_err("another list").field.as_deref(), Some("cursor"));
    }

    #[test]
    fn parameters_are_refused_by_name() {
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("limit=1&limit=2", "limit"),
            ("Limit=1", "Limit"),
            ("cursor=a&%63ursor=b", "cursor"),
            ("a%ffb=1", "a%ffb"),
        ] {
            assert_eq!(Page::read(query).expect_err(query).field.as_deref(), Some(field), "{query}");
        }
    }
}
