//! Maps the outcome of an attempt to a signal about the destination's health, as opposed to a fault of the message.

use crate::{Cause, Class, Verdict, VerdictScope};

/// What an outcome means for the destination's health. All but the last are also indexes of the window's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It works.
    Success,
    /// It does not work.
    Failure,
    /// It works but has too much load (429, 503). Concurrency and pace follow; a breaker opens only if nearly every
    /// answer is this.
    Overload,
    /// Nothing: the fault is the message's or ours.
    Neutral,
}

// The window has a count for each signal but the last.
const _: () = assert!(Signal::Success as usize == 0 && Signal::Failure as usize == 1 && Signal::Overload as usize == 2);

impl Signal {
    /// The signal for gates that lanes share. The class decides, so an endpoint's override of a status applies.
    pub fn of(verdict: &Verdict) -> Self {
        use Class::{Credential, Dead, Decided, Delivered, Gone, Limited, Ours, Retry, TooLarge};
        match verdict.class {
            Delivered => Self::Success,
            // The provider is healthy; one of its endpoints, or what one credential may send, is not.
            _ if verdict.scope != VerdictScope::Lane => Self::Neutral,
            Retry => match verdict.cause {
                Cause::TooManyRequests | Cause::Unavailable => Self::Overload,
                // The receiver accepted the request; only the receipt is missing.
                Cause::AckTimeout => Self::Neutral,
                _ => Self::Failure,
            },
            Limited | Dead | Gone | TooLarge | Credential | Ours | Decided => Self::Neutral,
        }
    }

    /// The signal for the lane's own breaker: a name that does not exist and an invalid certificate are
    /// failures of the lane, but not of other lanes at the same host. So is what concerns the lane's credential.
    pub fn for_endpoint(verdict: &Verdict) -> Self {
        match (verdict.class, verdict.scope) {
            (_, VerdictScope::Endpoint) => Self::of(verdict),
            (Class::Limited, _) => Self::Failure,
            _ => Self::of(&Verdict { scope: VerdictScope::Lane, ..*verdict }),
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
            ["request_timeout", "internal_error", "bad_gateway", "gateway_timeout", "server_error", "connect_refused"],
            ["connect_reset", "connect_timeout", "tls_handshake", "closed_early", "unknown", "protocol_error"],
        ];
        let failures = [&failures.concat()[..], &["response_head_too_large", "dns_failed"]].concat();
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
    fn a_bad_name_or_certificate_is_a_failure_of_the_endpoint_alone() {
        for entry in Cause::ALL {
            let verdict = Verdict::of(entry.cause);
            let expected = match entry.cause {
                Cause::DnsNotFound | Cause::TlsCertificate => Signal::Failure,
                _ => Signal::of(&verdict),
            };
            assert_eq!(Signal::for_endpoint(&verdict), expected, "{}", entry.code);
        }
    }

    #[test]
    fn an_overridden_class_decides_the_signal() {
        assert_eq!(Signal::of(&answer(404, Class::Retry)), Signal::Failure);
        assert_eq!(Signal::of(&answer(500, Class::Delivered)), Signal::Success);
        assert_eq!(Signal::of(&answer(500, Class::Dead)), Signal::Neutral);
        assert_eq!(Signal::of(&answer(200, Class::Retry)), Signal::Failure);
        assert_eq!(Signal::of(&answer(503, Class::Gone)), Signal::Neutral);
    }
}
