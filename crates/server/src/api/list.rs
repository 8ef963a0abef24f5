//! Lists: their parameters, cursors and pages.

use std::fmt;

use axum::response::Response;
use http::header::{HeaderValue, LINK};
use posthaste_core::policy::nearest;
use posthaste_core::{Cause, Key, Tier, Timestamp};
use posthaste_engine::lists::ListId;
use posthaste_store::ListOrder;

use super::parameters;
use super::prelude::*;
use crate::value::Bounded;

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 250;

/// The parameters that every list takes: the page size, the order, and the place at which the page begins.
pub(crate) const LIMIT: Parameter =
    parameter::<Bounded<u32, 1, { LIMIT_MAX as u64 }>>("limit", "entries in a page, 1 to 250; 50 by default");
pub(crate) const ORDER: Parameter =
    parameter::<ApiWord<ListOrder>>("order", "desc: newest first (default); asc: oldest first");
pub(crate) const CURSOR: Parameter = parameter::<String>("cursor", "the next_cursor of the previous page");

words! { ListOrder { "desc" NewestFirst, "asc" OldestFirst } }

/// The query parameters of a list.
#[derive(Debug)]
pub(super) struct ListQuery {
    pub(super) limit: u32,
    pub(super) order: ListOrder,
    cursor: Option<String>,
    /// The filters by name, as they were given.
    filters: Vec<(String, String)>,
}

impl ListQuery {
    /// Reads the parameters that every list takes, and these filters.
    pub(super) fn of(uri: &Uri, filters: &[Parameter]) -> Result<Self> {
        let known: Vec<&'static str> = [LIMIT, ORDER, CURSOR].iter().chain(filters).map(|one| one.name).collect();
        let mut query = Self { limit: LIMIT_DEFAULT, order: ListOrder::NewestFirst, cursor: None, filters: Vec::new() };
        for (name, given) in parameters(uri, &known)? {
            match (name.as_str(), given.as_str()) {
                ("limit", _) => {
                    let limit = given.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    query.limit = limit.ok_or_else(|| bad(format!("limit must be 1 to {LIMIT_MAX}")))?;
                }
                ("order", "asc") => query.order = ListOrder::OldestFirst,
                ("order", "desc") => query.order = ListOrder::NewestFirst,
                ("order", _) => return Err(bad("order must be asc or desc".to_owned())),
                ("cursor", _) => query.cursor = Some(given),
                _ => query.filters.push((name, given)),
            }
        }
        Ok(query)
    }

    /// A filter as it was given.
    pub(super) fn filter(&self, name: &str) -> Option<&str> {
        self.filters.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn tier(&self) -> Result<Option<Tier>> {
        let parse = |name: &str| {
            let names = Tier::ALL.map(Tier::name).join(", ");
            Tier::parse(name).ok_or_else(|| bad(format!("tier must be 1, 2, 3 or one of {names}")))
        };
        self.filter("tier").map(parse).transpose()
    }

    pub(super) fn cause(&self) -> Result<Option<Cause>> {
        self.filter("cause").map(|code| cause(code).map_err(|detail| bad(format!("cause {detail}")))).transpose()
    }

    pub(super) fn time(&self, name: &'static str) -> Result<Option<Timestamp>> {
        let parse = |text: &str| {
            let read = text.parse::<jiff::Timestamp>().ok().map(|at| Timestamp::from_millis(at.as_millisecond()));
            read.ok_or_else(|| bad(format!("{name} must be a time such as 2026-12-01T08:00:00Z")))
        };
        self.filter(name).map(parse).transpose()
    }

    /// Identifies the list for its cursors: a cursor is valid only for the same visibility, filters and order.
    pub(super) fn list<S: Store, C: Clock>(
        &self,
        api: &Api<S, C>,
        visibility: Visibility,
        filters: &impl fmt::Debug,
    ) -> ListId {
        api.engine.list_id(visibility, &format!("{filters:?} {:?}", self.order))
    }

    /// Cuts the page from rows of which one more than fits was read. Returns its last row if another page follows.
    pub(super) fn cut<'a, T>(&self, found: &'a mut Vec<T>) -> Option<&'a T> {
        let more = found.len() > self.limit as usize;
        found.truncate(self.limit as usize);
        found.last().filter(|_| more)
    }

    /// The key after which the page begins, in a list ordered by keys.
    pub(super) fn behind<S: Store, C: Clock>(&self, api: &Api<S, C>, list: ListId) -> Result<Option<Key>> {
        self.opened(|cursor| api.engine.open_cursor_behind(list, cursor))
    }

    /// The time and number at which the page begins, in a list with cursors of its own.
    pub(super) fn place<S: Store, C: Clock>(&self, api: &Api<S, C>, list: ListId) -> Result<Option<(Timestamp, u64)>> {
        self.opened(|cursor| api.engine.open_cursor(list, cursor))
    }

    fn opened<T>(&self, open: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
        let not_ours = "cursor does not belong to this list and its filters; begin without one";
        self.cursor.as_deref().map(|cursor| open(cursor).ok_or_else(|| bad(not_ours.to_owned()))).transpose()
    }
}

pub(super) fn cause(code: &str) -> Result<Cause, String> {
    let known = Cause::ALL.iter().find(|entry| entry.code == code).map(|entry| entry.cause);
    known.ok_or_else(|| match nearest(code, Cause::ALL.iter().map(|entry| entry.code)) {
        Some(nearest) => format!("is not a cause; the nearest is {nearest}"),
        None => "is not a cause; docs/causes.md lists them".to_owned(),
    })
}

fn bad(detail: String) -> Problem {
    Problem::new(Code::InvalidParameter, detail)
}

/// A page of a list.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ListPage<T> {
    data: Vec<T>,
    /// The cursor of the next page, null on the last; even an empty page can have one.
    next_cursor: Option<String>,
}

/// A page of a list, with `next_cursor` and the header `Link` for the next page.
pub(super) fn page<T: Serialize>(uri: &Uri, data: Vec<T>, next_cursor: Option<String>) -> Response {
    let link = next_cursor.as_ref().and_then(|cursor| HeaderValue::try_from(next(uri, cursor)).ok());
    let mut response = json(StatusCode::OK, &ListPage { data, next_cursor });
    response.headers_mut().extend(link.map(|link| (LINK, link)));
    response
}

/// The `Link` of the next page: the same request with this cursor.
fn next(uri: &Uri, cursor: &str) -> String {
    let given = uri.query().unwrap_or_default().split('&');
    let rest: Vec<&str> = given.filter(|pair| !pair.is_empty() && !pair.starts_with("cursor=")).collect();
    let and = if rest.is_empty() { "" } else { "&" };
    format!("<{}?{}{and}cursor={cursor}>; rel=\"next\"", uri.path(), rest.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIER: [Parameter; 1] = [parameter::<String>("tier", "only this tier")];

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
    fn list_parameters_are_parsed_and_bad_ones_are_refused() {
        let query = ListQuery::of(&Uri::from_static("/v1/x?limit=7&order=asc&cursor=c&tier=1"), &TIER).expect("known");
        assert_eq!((query.limit, query.order, query.cursor.as_deref()), (7, ListOrder::OldestFirst, Some("c")));
        assert_eq!((query.filter("tier"), query.filter("cause")), (Some("1"), None));
        for (uri, code) in [
            ("/v1/x?limit=0", Code::InvalidParameter),
            ("/v1/x?limit=251", Code::InvalidParameter),
            ("/v1/x?order=up", Code::InvalidParameter),
            ("/v1/x?teir=1", Code::UnknownParameter),
            ("/v1/x?limit=1&limit=2", Code::InvalidParameter),
        ] {
            assert_eq!(ListQuery::of(&Uri::from_static(uri), &TIER).expect_err(uri).code(), code, "{uri}");
        }
    }
}
