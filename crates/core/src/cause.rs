//! Why an attempt or a delivery ended the way it did: one closed list (B7).
//!
//! The table in `docs/causes.md` is generated from [`Cause::ALL`]; a code, once released, keeps its meaning.

/// What follows from a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The receiver took it.
    Delivered,
    /// May work later: try again by the policy.
    Retry,
    /// May be a configuration mistake: try again, but at most five times in a row.
    Limited,
    /// Will never work: no further attempt.
    Dead,
    /// The endpoint no longer exists: it is ended, together with every delivery that waits for it.
    Gone,
    /// Too large for the receiver: the compact payload, where there is one, is tried once instead.
    TooLarge,
    /// The credential was refused, not the message: deliveries are held until it is replaced.
    Credential,
    /// Our own fault: no attempt is spent.
    Ours,
    /// Decided by Posthaste or by the owner, not by an attempt.
    Decided,
}

impl Class {
    /// The class's name in the API and the docs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retry => "retry",
            Self::Limited => "retry, at most 5 in a row",
            Self::Dead => "dead",
            Self::Gone => "gone",
            Self::TooLarge => "dead, after a compact variant",
            Self::Credential => "held until the credential is replaced",
            Self::Ours => "not an attempt",
            Self::Decided => "decided",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct CauseEntry {
    pub cause: Cause,
    pub code: &'static str,
    /// Its class, unless an endpoint overrides its status.
    pub class: Class,
    pub meaning: &'static str,
}

macro_rules! causes {
    ($($name:ident $code:literal $class:ident $meaning:literal;)*) => {
        /// Why an attempt or a delivery ended. See the table in `docs/causes.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Cause {
            $(#[doc = $meaning] $name,)*
        }

        impl Cause {
            /// Every cause there is, in the order of the table.
            pub const ALL: &'static [CauseEntry] = &[
                $(CauseEntry { cause: Cause::$name, code: $code, class: Class::$class, meaning: $meaning },)*
            ];
        }
    };
}

causes! {
    Ok "ok" Delivered "the receiver answered 2xx";
    RequestTimeout "request_timeout" Retry "408: the receiver waited too long for our request";
    TooManyRequests "too_many_requests" Retry "429: the receiver limits our rate; Retry-After is obeyed";
    InternalError "internal_error" Retry "500: the receiver failed";
    BadGateway "bad_gateway" Retry "502: something in front of the receiver failed";
    Unavailable "unavailable" Retry "503: the receiver is overloaded or away; Retry-After is obeyed";
    GatewayTimeout "gateway_timeout" Retry "504: something in front of the receiver waited too long";
    ServerError "server_error" Retry "another 5xx";
    ConnectRefused "connect_refused" Retry "nothing listens at the address";
    ConnectReset "connect_reset" Retry "the connection was reset before our request was written";
    ConnectTimeout "connect_timeout" Retry "no connection within the connect timeout";
    TlsHandshake "tls_handshake" Retry "the TLS handshake was cut or failed";
    ClosedEarly "closed_early" Retry "the connection was closed before our request was written";
    Unknown "unknown" Retry "the request was written in full or in part and no answer came: it may have arrived";
    ProtocolError "protocol_error" Retry "the answer was not HTTP, or broke its rules";
    ResponseHeadTooLarge "response_head_too_large" Retry "the answer's head was above our limit";
    AckTimeout "ack_timeout" Retry "sent, but no receipt came within `ack_within`";
    DnsFailed "dns_failed" Retry "the resolver failed or timed out";
    DnsNotFound "dns_not_found" Limited "the name does not exist or has no address";
    TlsCertificate "tls_certificate" Limited "the receiver's certificate is not valid for its name";
    BadRequest "bad_request" Dead "400: the receiver rejects this message";
    Unauthorized "unauthorized" Dead "401: the receiver requires credentials";
    Forbidden "forbidden" Dead "403: the receiver refuses us";
    NotFound "not_found" Dead "404: nothing at this path";
    MethodNotAllowed "method_not_allowed" Dead "405: the path takes no POST";
    NotAcceptable "not_acceptable" Dead "406: the receiver cannot answer in a format we accept";
    Conflict "conflict" Dead "409: the message conflicts with the receiver's current state";
    LengthRequired "length_required" Dead "411: the receiver requires a Content-Length";
    UriTooLong "uri_too_long" Dead "414: the URL is too long for the receiver";
    UnsupportedMediaType "unsupported_media_type" Dead "415: the receiver does not take JSON";
    Unprocessable "unprocessable" Dead "422: the receiver cannot process this message";
    TooEarly "too_early" Dead "425: the receiver refuses early data";
    ClientError "client_error" Dead "another 4xx";
    RedirectNotFollowed "redirect_not_followed" Dead "3xx: redirects are never followed; the endpoint's URL is out of date";
    Aborted "aborted" Dead "the receiver ended this message with the response header `webhook-delivery`";
    DisableAsked "disable_asked" Dead "the receiver disabled this endpoint with the response header `webhook-delivery`";
    Unsendable "unsendable" Dead "no request could be built for it: a fault in Posthaste, please report it";
    AddressRefused "address_refused" Dead "the target is not allowed: private, loopback, metadata or otherwise refused";
    PayloadTooLarge "payload_too_large" TooLarge "413: above the receiver's limit";
    Gone "gone" Gone "410: the endpoint no longer exists";
    CredentialRejected "credential_rejected" Credential "a push service refused our key";
    StoreUnavailable "store_unavailable" Ours "we could not read the message or its endpoint from the store";
    NotStarted "not_started" Ours "we could not start the attempt; it is tried again soon";
    EndpointGone "endpoint_gone" Decided "the receiver answered that the endpoint no longer exists";
    EndpointDeleted "endpoint_deleted" Decided "the endpoint was deleted before this was delivered";
    TtlExpired "ttl_expired" Decided "its TTL was over";
    Cancelled "cancelled" Decided "cancelled by its owner";
    Unsubscribed "unsubscribed" Decided "the endpoint was unsubscribed";
    Superseded "superseded" Decided "a newer message with the same collapse key replaced it";
    Poison "poison" Decided "it was in flight at three crashes: quarantined";
    TokenRejected "token_rejected" Decided "its stored token was forged or altered: quarantined";
    Retention "retention" Decided "it waited longer than the tenant keeps messages";
    Erased "erased" Decided "its payload was erased: nothing was sent";
}

impl Cause {
    pub const fn entry(self) -> &'static CauseEntry {
        &Self::ALL[self as usize]
    }

    pub const fn code(self) -> &'static str {
        self.entry().code
    }

    /// Its class, unless an endpoint overrides the status it came from.
    pub const fn class(self) -> Class {
        self.entry().class
    }
}

/// The cause table as Markdown, for `docs/causes.md`.
pub fn markdown() -> String {
    let mut text = String::from("| code | class | meaning |\n|---|---|---|\n");
    for entry in Cause::ALL {
        text += &format!("| `{}` | {} | {} |\n", entry.code, entry.class.name(), entry.meaning);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_in_table_order_and_have_unique_codes() {
        for (index, entry) in Cause::ALL.iter().enumerate() {
            assert_eq!(entry.cause as usize, index, "{} is out of place", entry.code);
            let is_new = Cause::ALL[..index].iter().all(|earlier| earlier.code != entry.code);
            assert!(is_new, "{} is in the table twice", entry.code);
        }
    }
}
