//! The names of fields in log lines, so that each thing has one name in every log line. None of them
//! ever holds a payload, a secret, a subject, a uid or a whole URL (L7).

/// A delivery's key, as the journal has it; not its public id.
pub const DELIVERY: &str = "delivery";
/// The cause of an attempt's end: a code of `docs/causes.md`.
pub const CAUSE: &str = "cause";
/// The class of a result.
pub const CLASS: &str = "class";
/// An HTTP status: a receiver's, or that of an API answer.
pub const STATUS: &str = "status";
/// The stable code of a fault's details.
pub const DETAIL: &str = "detail";
/// A duration, in milliseconds.
pub const TOOK_MS: &str = "took_ms";
/// A request: the `request-id` of its answer.
pub const REQUEST: &str = "request";
/// A request's method.
pub const METHOD: &str = "method";
/// A request's route: the pattern, never the path.
pub const ROUTE: &str = "route";
