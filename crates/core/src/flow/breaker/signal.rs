//! What the outcome of an attempt says of the destination's health, as opposed to the message's.

use crate::cause::{Cause, Class};
use crate::delivery::{Verdict, VerdictScope};

/// What an answer says of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It works.
    Success,
    /// It does not.
    Failure,
    /// It works, but is asked for too much: a matter of the limiter, unless it says nothing else.
    Overload,
    /// Nothing: it answered, and the message or we are at fault.
    Neutral,
}

impl Signal {
    /// What an outcome says of everything behind a host: the class decides, so an endpoint's override
    /// of a status is heeded.
    pub fn of(verdict: &Verdict) -> Self {
        match verdict.class {
            Class::Delivered => Self::Success,
            // The provider answered well; one of its endpoints did not.
            _ if verdict.scope == VerdictScope::Endpoint => Self::Neutral,
            Class::Retry => match verdict.cause {
                Cause::TooManyRequests | Cause::Unavailable => Self::Overload,
                // The receiver took it; what is missing is somebody's receipt.
                Cause::AckTimeout => Self::Neutral,
                _ => Self::Failure,
            },
            Class::Limited
            | Class::Dead
            | Class::Gone
            | Class::TooLarge
            | Class::Credential
            | Class::Ours
            | Class::Decided => Self::Neutral,
        }
    }

    /// What an outcome says of its own lane: a name that does not exist and a bad certificate are
    /// failures of the lane, though not of its neighbours at the same host.
    pub fn of_endpoint(verdict: &Verdict) -> Self {
        match verdict.class {
            Class::Limited if verdict.scope != VerdictScope::Endpoint => Self::Failure,
            _ => Self::of(verdict),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify;

    fn answer(status: u16, class: Class) -> Verdict {
        Verdict { class, status: Some(status), ..Verdict::of(classify::status(status)) }
    }

    #[test]
    fn every_cause_has_its_signal() {
        let failures = [
            "request_timeout",
            "internal_error",
            "bad_gateway",
            "gateway_timeout",
            "server_error",
            "connect_refused",
            "connect_reset",
            "connect_timeout",
            "tls_handshake",
            "closed_early",
            "unknown",
            "protocol_error",
            "response_head_too_large",
            "dns_failed",
        ];
        for entry in Cause::ALL {
            let expected = match entry.code {
                "ok" => Signal::Success,
                "too_many_requests" | "unavailable" => Signal::Overload,
                code if failures.contains(&code) => Signal::Failure,
                _ => Signal::Neutral,
            };
            assert_eq!(Signal::of(&Verdict::of(entry.cause)), expected, "{}", entry.code);
        }
    }

    #[test]
    fn a_bad_name_or_certificate_is_the_endpoints_failure_alone() {
        for entry in Cause::ALL {
            let verdict = Verdict::of(entry.cause);
            let expected = match entry.cause {
                Cause::DnsNotFound | Cause::TlsCertificate => Signal::Failure,
                _ => Signal::of(&verdict),
            };
            assert_eq!(Signal::of_endpoint(&verdict), expected, "{}", entry.code);
        }
    }

    #[test]
    fn an_override_of_a_status_decides() {
        assert_eq!(Signal::of(&answer(404, Class::Retry)), Signal::Failure);
        assert_eq!(Signal::of(&answer(500, Class::Delivered)), Signal::Success);
        assert_eq!(Signal::of(&answer(500, Class::Dead)), Signal::Neutral);
        assert_eq!(Signal::of(&answer(200, Class::Retry)), Signal::Failure);
        assert_eq!(Signal::of(&answer(503, Class::Gone)), Signal::Neutral);
    }
}
