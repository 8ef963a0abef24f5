//! Lists: how much of one is asked for, from where, and how a part of it is answered.

use std::fmt;

use axum::response::Response;
use http::Uri;
use http::header::{HeaderValue, LINK};
use http::{HeaderMap, StatusCode};
use posthaste_core::cause::Cause;
use posthaste_core::id::Key;
use posthaste_core::policy::nearest;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::Sees;
use posthaste_engine::lists::ListId;
use posthaste_store::{ListOrder, Store};
use serde::Serialize;

use super::{Api, json, parameters};
use crate::problem::{Code, Problem};

const LIMIT: u32 = 50;
const LIMIT_MAX: u32 = 250;

/// The parameters that every list takes.
const COMMON: [&str; 3] = ["limit", "order", "cursor"];

/// What is asked of a list.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) limit: u32,
    pub(super) order: ListOrder,
    pub(super) cursor: Option<String>,
    /// The other parameters, by name.
    filters: Vec<(String, String)>,
}

impl Asked {
    /// Reads a list's parameters: those of every list, and its own filters.
    pub(super) fn of(uri: &Uri, filters: &[&'static str]) -> Result<Self, Problem> {
        let known: Vec<&'static str> = COMMON.iter().chain(filters).copied().collect();
        let mut asked = Self { limit: LIMIT, order: ListOrder::NewestFirst, cursor: None, filters: Vec::new() };
        for (name, given) in parameters(uri, &known)? {
            match (name.as_str(), given.as_str()) {
                ("limit", _) => {
                    let limit = given.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    asked.limit = limit.ok_or_else(|| bad(format!("limit must be 1 to {LIMIT_MAX}")))?;
                }
                ("order", "asc") => asked.order = ListOrder::OldestFirst,
                ("order", "desc") => asked.order = ListOrder::NewestFirst,
                ("order", _) => return Err(bad("order must be asc or desc".to_owned())),
                ("cursor", _) => asked.cursor = Some(given),
                _ => asked.filters.push((name, given)),
            }
        }
        Ok(asked)
    }

    /// A filter as it was given.
    pub(super) fn filter(&self, name: &str) -> Option<&str> {
        self.filters.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// A filter by tier.
    pub(super) fn tier(&self) -> Result<Option<Tier>, Problem> {
        let parse = |name: &str| {
            let names = Tier::ALL.map(Tier::name).join(", ");
            Tier::parse(name).ok_or_else(|| bad(format!("tier must be 1, 2, 3 or one of {names}")))
        };
        self.filter("tier").map(parse).transpose()
    }

    /// A filter by cause.
    pub(super) fn cause(&self) -> Result<Option<Cause>, Problem> {
        self.filter("cause").map(|code| cause(code).map_err(|detail| bad(format!("cause {detail}")))).transpose()
    }

    /// A filter by time.
    pub(super) fn time(&self, name: &'static str) -> Result<Option<Timestamp>, Problem> {
        let parse = |text: &str| {
            let read = text.parse::<jiff::Timestamp>().ok().map(|at| Timestamp::from_millis(at.as_millisecond()));
            read.ok_or_else(|| bad(format!("{name} must be a time such as 2026-12-01T08:00:00Z")))
        };
        self.filter(name).map(parse).transpose()
    }

    /// Which list it is, for its cursors: of what somebody sees, with these filters.
    pub(super) fn list<S: Store, C: Clock>(&self, api: &Api<S, C>, whose: Sees, filters: &impl fmt::Debug) -> ListId {
        api.engine.list_id(whose, &format!("{filters:?} {:?}", self.order))
    }

    /// The key to go on behind, in a list that is ordered by keys.
    pub(super) fn behind<S: Store, C: Clock>(&self, api: &Api<S, C>, list: ListId) -> Result<Option<Key>, Problem> {
        let open = |cursor: &String| api.engine.open_cursor_behind(list, cursor).ok_or_else(not_ours);
        self.cursor.as_ref().map(open).transpose()
    }
}

/// The cause of this code.
pub(super) fn cause(code: &str) -> Result<Cause, String> {
    let known = Cause::ALL.iter().find(|entry| entry.code == code).map(|entry| entry.cause);
    known.ok_or_else(|| match nearest(code, Cause::ALL.iter().map(|entry| entry.code)) {
        Some(nearest) => format!("is not one; the nearest is {nearest}"),
        None => "is not one; docs/causes.md lists them".to_owned(),
    })
}

/// What is told of a cursor that no page of this list has given.
pub(super) fn not_ours() -> Problem {
    bad("cursor is not one of this list; begin without one".to_owned())
}

fn bad(detail: String) -> Problem {
    Problem::new(Code::InvalidParameter, detail)
}

#[derive(Serialize)]
struct Page<T> {
    data: Vec<T>,
    next_cursor: Option<String>,
}

/// A part of a list. The rest is where `next_cursor` says, and at the `Link` for whoever follows those.
pub(super) fn page<T: Serialize>(uri: &Uri, data: Vec<T>, next_cursor: Option<String>) -> Response {
    let link = next_cursor.as_ref().map(|cursor| next(uri, cursor));
    let mut response = json(StatusCode::OK, &Page { data, next_cursor });
    put_link(response.headers_mut(), link);
    response
}

fn put_link(headers: &mut HeaderMap, link: Option<String>) {
    if let Some(link) = link.and_then(|link| HeaderValue::try_from(link).ok()) {
        headers.insert(LINK, link);
    }
}

/// The same request for what comes next.
fn next(uri: &Uri, cursor: &str) -> String {
    let given = uri.query().unwrap_or_default().split('&');
    let rest: Vec<&str> = given.filter(|pair| !pair.is_empty() && !pair.starts_with("cursor=")).collect();
    let and = if rest.is_empty() { "" } else { "&" };
    format!("<{}?{}{and}cursor={cursor}>; rel=\"next\"", uri.path(), rest.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_to_the_next_page_keeps_the_filters() {
        let next = |uri: &'static str| next(&Uri::from_static(uri), "msg_1");
        assert_eq!(next("/v1/messages"), "</v1/messages?cursor=msg_1>; rel=\"next\"");
        assert_eq!(
            next("/v1/messages?limit=2&cursor=msg_0&tier=1"),
            "</v1/messages?limit=2&tier=1&cursor=msg_1>; rel=\"next\""
        );
    }

    #[test]
    fn a_list_s_parameters_are_read_and_others_are_named() {
        let asked = Asked::of(&Uri::from_static("/v1/x?limit=7&order=asc&cursor=c&tier=1"), &["tier"]).expect("known");
        assert_eq!((asked.limit, asked.order, asked.cursor.as_deref()), (7, ListOrder::OldestFirst, Some("c")));
        assert_eq!((asked.filter("tier"), asked.filter("cause")), (Some("1"), None));
        for (uri, code) in [
            ("/v1/x?limit=0", Code::InvalidParameter),
            ("/v1/x?limit=251", Code::InvalidParameter),
            ("/v1/x?order=up", Code::InvalidParameter),
            ("/v1/x?teir=1", Code::UnknownParameter),
            ("/v1/x?limit=1&limit=2", Code::InvalidParameter),
        ] {
            assert_eq!(Asked::of(&Uri::from_static(uri), &["tier"]).expect_err(uri).code(), code, "{uri}");
        }
    }
}
