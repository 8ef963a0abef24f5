//! The causes of network errors (B1, B3, B7). Pure: an error in, a cause out.
//!
//! Most depends on whether any byte of the request was written. If not, the receiver cannot have
//! the request; if so, it may, and the cause is `unknown`.

use std::io;

use h2::Reason;
use posthaste_core::Cause;

use super::ConnectionFault;
use super::flood::FLOODED;
use crate::Refusal;

impl ConnectionFault {
    pub(super) const fn new(cause: Cause, detail: &'static str) -> Self {
        Self { cause, detail: Some(detail) }
    }

    pub(super) const fn plain(cause: Cause) -> Self {
        Self { cause, detail: None }
    }

    /// Out of time: while waiting for an answer if the request was written, otherwise before it could be.
    pub(super) const fn timeout(written: bool) -> Self {
        let cause = if written { Cause::Unknown } else { Cause::ConnectTimeout };
        Self::new(cause, "attempt_timeout")
    }
}

impl From<Refusal> for ConnectionFault {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::DnsNotFound => Self::plain(Cause::DnsNotFound),
            Refusal::DnsFailed => Self::plain(Cause::DnsFailed),
            refused => Self::new(Cause::AddressRefused, refused.code()),
        }
    }
}

/// No TCP connection.
pub(super) fn connect_fault(error: &io::Error) -> ConnectionFault {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectionFault::plain(Cause::ConnectRefused),
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
            ConnectionFault::plain(Cause::ConnectReset)
        }
        io::ErrorKind::TimedOut => ConnectionFault::plain(Cause::ConnectTimeout),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            ConnectionFault::new(Cause::ConnectRefused, "unreachable")
        }
        // No descriptors or ports left: a fault of this server, counted as a connection that was not made.
        _ => ConnectionFault::new(Cause::ConnectTimeout, "local_resources"),
    }
}

/// No TLS session: nothing of the request was written.
pub(super) fn handshake_fault(error: &io::Error) -> ConnectionFault {
    use rustls::{Error as Tls, InvalidMessage};
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Tls>()) {
        Some(Tls::InvalidCertificate(_) | Tls::NoCertificatesPresented | Tls::UnsupportedNameType) => {
            ConnectionFault::plain(Cause::TlsCertificate)
        }
        // The first byte is not of a TLS record: the port speaks another protocol.
        Some(Tls::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            ConnectionFault::new(Cause::ProtocolError, "not_tls")
        }
        _ => ConnectionFault::plain(Cause::TlsHandshake),
    }
}

/// A read that returned before any byte of a request was written: the connection's end, or bytes without a request.
pub(super) fn before_request(read: io::Result<usize>) -> ConnectionFault {
    match read {
        Ok(1..) => ConnectionFault::new(Cause::ProtocolError, "spoke_first"),
        Err(error) if is_reset(&error) => ConnectionFault::plain(Cause::ConnectReset),
        Ok(0) | Err(_) => ConnectionFault::plain(Cause::ClosedEarly),
    }
}

/// The connection ended after a request was written, in full or in part, and before its answer.
pub(super) fn without_answer(ended: io::Result<usize>) -> ConnectionFault {
    match ended {
        Err(error) if is_reset(&error) => ConnectionFault::new(Cause::Unknown, "connection_reset"),
        Ok(_) | Err(_) => ConnectionFault::new(Cause::Unknown, "connection_closed"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamFault {
    /// The receiver did not process the request, by the rules of HTTP/2.
    NotProcessed(ConnectionFault),
    /// The receiver reset the stream, or violated the protocol.
    Broken(ConnectionFault),
    Lost(ConnectionFault),
}

/// No answer to a request that was begun over HTTP/2.
pub(super) fn stream_fault(error: &h2::Error) -> StreamFault {
    let is_ours = error.is_library();
    match error.reason() {
        Some(Reason::REFUSED_STREAM) if error.is_remote() && error.is_reset() => {
            StreamFault::NotProcessed(ConnectionFault::new(Cause::ClosedEarly, "stream_refused"))
        }
        Some(Reason::HTTP_1_1_REQUIRED) if error.is_remote() => {
            StreamFault::NotProcessed(ConnectionFault::new(Cause::ClosedEarly, "http_1_1_required"))
        }
        // Reported only for streams above the last one that the receiver has seen.
        Some(_) if error.is_remote() && error.is_go_away() => {
            StreamFault::NotProcessed(ConnectionFault::new(Cause::ClosedEarly, "going_away"))
        }
        Some(_) if is_ours => StreamFault::Broken(ConnectionFault::new(Cause::ProtocolError, "http2")),
        Some(_) => StreamFault::Broken(ConnectionFault::new(Cause::Unknown, "stream_reset")),
        None if error.get_io().is_some_and(|error| error.kind() == FLOODED) => {
            StreamFault::Broken(ConnectionFault::new(Cause::ProtocolError, "http2_flood"))
        }
        None => StreamFault::Lost(match error.get_io().map(io::Error::kind) {
            // Not a broken pipe, which the library reports for every end.
            Some(io::ErrorKind::ConnectionReset) => ConnectionFault::new(Cause::Unknown, "connection_reset"),
            _ => ConnectionFault::new(Cause::Unknown, "connection_closed"),
        }),
    }
}

/// A request that the HTTP/2 connection did not take, because it had ended.
pub(super) fn unsent_stream_fault(error: &h2::Error) -> ConnectionFault {
    match stream_fault(error) {
        StreamFault::NotProcessed(fault) => fault,
        StreamFault::Broken(_) | StreamFault::Lost(_) => ConnectionFault::plain(Cause::ClosedEarly),
    }
}

/// The fault of an HTTP/2 connection that ended; `None` unless the receiver violated the protocol.
pub(super) fn connection_fault(error: &h2::Error) -> Option<ConnectionFault> {
    (error.is_library() && error.reason().is_some()).then(|| ConnectionFault::new(Cause::ProtocolError, "http2"))
}

fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_connect_has_the_cause_of_its_error() {
        let check =
            |kind: io::ErrorKind, cause: Cause| assert_eq!(connect_fault(&kind.into()).cause, cause, "{kind:?}");
        check(io::ErrorKind::ConnectionRefused, Cause::ConnectRefused);
        check(io::ErrorKind::HostUnreachable, Cause::ConnectRefused);
        check(io::ErrorKind::ConnectionReset, Cause::ConnectReset);
        check(io::ErrorKind::TimedOut, Cause::ConnectTimeout);
        check(io::ErrorKind::AddrNotAvailable, Cause::ConnectTimeout);
    }

    #[test]
    fn invalid_certificate_and_cut_handshake_have_different_causes() {
        let tls = |error: rustls::Error| handshake_fault(&io::Error::new(io::ErrorKind::InvalidData, error)).cause;
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        assert_eq!(tls(expired), Cause::TlsCertificate);
        assert_eq!(tls(rustls::Error::HandshakeNotComplete), Cause::TlsHandshake);
        assert_eq!(handshake_fault(&io::ErrorKind::UnexpectedEof.into()).cause, Cause::TlsHandshake);
    }

    #[test]
    fn a_refused_address_keeps_its_code_and_a_missing_name_its_cause() {
        assert_eq!(
            ConnectionFault::from(Refusal::IpPrivate),
            ConnectionFault::new(Cause::AddressRefused, "ip_private")
        );
        assert_eq!(ConnectionFault::from(Refusal::DnsNotFound).cause, Cause::DnsNotFound);
        assert_eq!(ConnectionFault::from(Refusal::DnsFailed).cause, Cause::DnsFailed);
    }
}
