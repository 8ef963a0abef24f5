//! Maps an HTTP status to its cause, and to its class after an endpoint's overrides (B1, B2, B4, B5, B7).

use crate::{Cause, Class};

/// The cause of an answer with this status.
///
/// A status outside 200–599 violates HTTP and is [`Cause::ProtocolError`].
#[expect(clippy::match_overlapping_arm, reason = "named codes first, then the rest of their range")]
pub fn status(code: u16) -> Cause {
    match code {
        200..=299 => Cause::Ok,
        300..=399 => Cause::RedirectNotFollowed,
        400 => Cause::BadRequest,
        401 => Cause::Unauthorized,
        403 => Cause::Forbidden,
        404 => Cause::NotFound,
        405 => Cause::MethodNotAllowed,
        406 => Cause::NotAcceptable,
        408 => Cause::RequestTimeout,
        409 => Cause::Conflict,
        410 => Cause::Gone,
        411 => Cause::LengthRequired,
        413 => Cause::PayloadTooLarge,
        414 => Cause::UriTooLong,
        415 => Cause::UnsupportedMediaType,
        422 => Cause::Unprocessable,
        425 => Cause::TooEarly,
        429 => Cause::TooManyRequests,
        400..=499 => Cause::ClientError,
        500 => Cause::InternalError,
        502 => Cause::BadGateway,
        503 => Cause::Unavailable,
        504 => Cause::GatewayTimeout,
        500..=599 => Cause::ServerError,
        _ => Cause::ProtocolError,
    }
}

/// Whether a `Retry-After` on this status is obeyed: only on 429 and 503 (C4).
pub fn heeds_retry_after(code: u16) -> bool {
    matches!(code, 429 | 503)
}

/// Classes that an endpoint's owner has set for status codes, in place of [`status`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(Vec<Override>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Override {
    low: u16,
    high: u16,
    class: Class,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadOverride {
    /// The left side is neither a code (`404`) nor a range (`4xx`).
    Status(String),
    /// The right side is none of `retry`, `dead`, `gone`, `delivered`.
    Class(String),
}

impl std::fmt::Display for BadOverride {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(text) => {
                write!(f, "status {text:?} is neither a code from 200 to 599 nor a range such as 4xx")
            }
            Self::Class(text) => write!(f, "class {text:?} is none of retry, dead, gone, delivered"),
        }
    }
}

impl std::error::Error for BadOverride {}

impl Overrides {
    /// Adds one: `404` or `4xx`, and `retry`, `dead`, `gone` or `delivered`.
    pub fn add(&mut self, status: &str, class: &str) -> Result<(), BadOverride> {
        let (low, high) = parse_status(status).ok_or_else(|| BadOverride::Status(status.to_owned()))?;
        let class = match class {
            "retry" => Class::Retry,
            "dead" => Class::Dead,
            "gone" => Class::Gone,
            "delivered" => Class::Delivered,
            _ => return Err(BadOverride::Class(class.to_owned())),
        };
        self.0.push(Override { low, high, class });
        // The narrowest comes first: a single code takes precedence over a range.
        self.0.sort_by_key(|entry| (entry.high - entry.low, entry.low));
        Ok(())
    }

    /// The class of an answer with this status at this endpoint.
    pub fn class(&self, code: u16) -> Class {
        self.0
            .iter()
            .find(|entry| (entry.low..=entry.high).contains(&code))
            .map_or_else(|| status(code).class(), |entry| entry.class)
    }
}

fn parse_status(text: &str) -> Option<(u16, u16)> {
    if let Some(hundred) = text.strip_suffix("xx") {
        let low = hundred.parse::<u16>().ok().filter(|n| (2..=5).contains(n))? * 100;
        return Some((low, low + 99));
    }
    let code = text.parse::<u16>().ok().filter(|code| (200..=599).contains(code) && text.len() == 3)?;
    Some((code, code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(codes: &[u16], class: Class) {
        for code in codes {
            assert_eq!(status(*code).class(), class, "status {code}");
        }
    }

    #[test]
    fn transient_statuses_are_retried_and_other_client_errors_and_redirects_are_not() {
        check(&[408, 429, 500, 501, 502, 503, 504, 505, 511, 599], Class::Retry);
        check(&[400, 401, 402, 403, 404, 405, 406, 407, 409, 411, 412, 414, 415, 418, 422, 425, 451, 499], Class::Dead);
        check(&[300, 301, 302, 303, 304, 307, 308], Class::Dead);
        check(&[410], Class::Gone);
        check(&[413], Class::TooLarge);
    }

    #[test]
    fn statuses_outside_200_to_599_are_protocol_errors_and_all_have_a_class_of_an_attempt() {
        for code in 0..=u16::MAX {
            let cause = status(code);
            assert!(!matches!(cause.class(), Class::Decided | Class::Ours | Class::Limited), "status {code}");
            assert_eq!(cause == Cause::ProtocolError, !(200..=599).contains(&code), "status {code}");
        }
    }

    #[test]
    fn a_single_code_takes_precedence_over_its_range_in_any_order() {
        for reverse in [false, true] {
            let mut lines = [("4xx", "retry"), ("404", "gone"), ("200", "dead")];
            if reverse {
                lines.reverse();
            }
            let mut overrides = Overrides::default();
            for (status, class) in lines {
                overrides.add(status, class).expect("a valid override");
            }
            assert_eq!(overrides.class(404), Class::Gone);
            assert_eq!(overrides.class(400), Class::Retry);
            assert_eq!(overrides.class(200), Class::Dead);
            assert_eq!(overrides.class(201), Class::Delivered);
            assert_eq!(overrides.class(500), Class::Retry);
        }
    }

    #[test]
    fn an_invalid_override_reports_the_invalid_side() {
        let mut overrides = Overrides::default();
        for status in ["", "4x", "xx", "1xx", "6xx", "44", "0404", "600", "-1"] {
            assert!(matches!(overrides.add(status, "retry"), Err(BadOverride::Status(_))), "{status}");
        }
        assert!(matches!(overrides.add("404", "maybe"), Err(BadOverride::Class(_))));
    }
}
