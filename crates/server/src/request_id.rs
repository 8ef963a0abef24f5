//! The number of a request: its answer says it, and so do the lines that the log has of it.

use std::fmt;

use tracing::field::{DisplayValue, display};

tokio::task_local! {
    static CURRENT: RequestId;
}

/// A request, told from all others since the server was started, and from most before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    /// Of this start of the server.
    pub(crate) prefix: u32,
    pub(crate) number: u64,
}

impl RequestId {
    /// Carries a request out under its number. Not an `async fn`: that would hold the request's future twice, and every
    /// connection has one.
    pub(crate) fn scope<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, request)
    }
}

/// The request that is being carried out; nothing elsewhere.
pub(crate) fn current() -> Option<RequestId> {
    CURRENT.try_with(|id| *id).ok()
}

/// The same for a line of the log.
pub(crate) fn told() -> Option<DisplayValue<RequestId>> {
    current().map(display)
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "req_{:08x}{:08x}", self.prefix, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_known_by_its_number_while_it_is_carried_out() {
        let told = || current().map(|id| id.to_string());
        assert_eq!(told(), None);
        let id = RequestId { prefix: 0xab, number: 7 };
        assert_eq!(id.scope(async { told() }).await.as_deref(), Some("req_000000ab00000007"));
        assert_eq!(told(), None);
    }
}
