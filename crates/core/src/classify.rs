//! The one classifier: what an HTTP status means (B1, B2, B4, B5, B7).

use crate::cause::{Cause, Class};

/// The cause and class of an answer with this status, before any override.
///
/// A status outside 200–599 is not an answer we can trust: HTTP's own rules were broken.
#[expect(clippy::match_overlapping_arm, reason = "named codes first, then what is left of their range")]
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

/// Whether a `Retry-After` on this status is a promise we keep (C4): on 429 and 503 alone.
pub fn heeds_retry_after(code: u16) -> bool {
    matches!(code, 429 | 503)
}

/// What an endpoint's owner may say of chosen status codes, instead of the table above.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(Vec<Override>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Override {
    low: u16,
    high: u16,
    class: Class,
}

/// Why an override cannot be.
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
        // A single code says more than a range, so the narrowest comes first.
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
    fn what_may_pass_is_retried() {
        check(&[408, 429, 500, 501, 502, 503, 504, 505, 511, 599], Class::Retry);
    }

    #[test]
    fn what_cannot_pass_is_never_retried() {
        check(&[400, 401, 402, 403, 404, 405, 406, 407, 409, 411, 412, 414, 415, 418, 422, 425, 451, 499], Class::Dead);
        check(&[300, 301, 302, 303, 304, 307, 308], Class::Dead);
    }

    #[test]
    fn gone_and_too_large_have_classes_of_their_own() {
        check(&[410], Class::Gone);
        check(&[413], Class::TooLarge);
    }

    #[test]
    fn a_status_that_is_no_answer_is_a_broken_protocol() {
        for code in [0, 99, 100, 101, 199, 600, 999, u16::MAX] {
            assert_eq!(status(code), Cause::ProtocolError);
        }
    }

    #[test]
    fn every_status_has_exactly_one_class() {
        for code in 0..=u16::MAX {
            let class = status(code).class();
            assert!(!matches!(class, Class::Decided | Class::Ours | Class::Limited), "status {code}");
        }
    }

    #[test]
    fn a_single_code_overrides_its_range_whatever_the_order() {
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
    fn a_bad_override_says_what_is_wrong_with_it() {
        let mut overrides = Overrides::default();
        for status in ["", "4x", "xx", "1xx", "6xx", "44", "0404", "600", "-1"] {
            assert!(matches!(overrides.add(status, "retry"), Err(BadOverride::Status(_))), "{status}");
        }
        assert!(matches!(overrides.add("404", "maybe"), Err(BadOverride::Class(_))));
    }
}
