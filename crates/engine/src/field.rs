//! The names of fields in log lines, so that each thing has one name in every log line. None of them
//! ever holds a payload, a secret, a subject, a uid or a whole URL (L7).

/// A delivery's public id, `dlv_…`.
pub const DELIVERY: &str = "delivery";
/// A message's public id, `msg_…`. The field `message` is the text of a log line.
pub const MESSAGE: &str = "message_id";
/// An endpoint's public id, `ep_…`.
pub const ENDPOINT: &str = "endpoint";
/// A replay's public id, `rpl_…`.
pub const REPLAY: &str = "replay";
/// The cause of an attempt's end: a code of `docs/causes.md`.
pub const CAUSE: &str = "cause";
pub const CLASS: &str = "class";
/// An HTTP status: a receiver's, or that of an API answer.
pub const STATUS: &str = "status";
/// The stable code of a fault's details.
pub const DETAIL: &str = "detail";
/// A duration, in milliseconds.
pub const TOOK_MS: &str = "took_ms";
/// A request: the `request-id` of its answer.
pub const REQUEST: &str = "request";
pub const METHOD: &str = "method";
/// A request's route: the pattern, never the path.
pub const ROUTE: &str = "route";
