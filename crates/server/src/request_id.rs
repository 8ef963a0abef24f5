//! Request ids: sent in the header `request-id` of each answer, and in the log lines of the request.

use std::fmt;

use tracing::field::{DisplayValue, display};

tokio::task_local! {
    static CURRENT: RequestId;
}

/// The id of a request: unique since the server's start, and with high probability across starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    /// Random, one for each start of the server.
    pub(crate) prefix: u32,
    pub(crate) number: u64,
}

impl RequestId {
    /// Runs a request with this id as the current one. Not an `async fn`: its future would hold the request's future
    /// twice, for every connection.
    pub(crate) fn scope<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, request)
    }
}

/// The id of the request that the current task is answering; `None` outside a request.
pub(crate) fn current() -> Option<RequestId> {
    CURRENT.try_with(|id| *id).ok()
}

pub(crate) fn log_field() -> Option<DisplayValue<RequestId>> {
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
    async fn the_current_request_id_is_set_only_within_its_scope() {
        let text = || current().map(|id| id.to_string());
        assert_eq!(text(), None);
        let id = RequestId { prefix: 0xab, number: 7 };
        assert_eq!(id.scope(async { text() }).await.as_deref(), Some("req_000000ab00000007"));
        assert_eq!(text(), None);
    }
}
