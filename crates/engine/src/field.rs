//! The names of fields in log lines, so that one thing has one name for whoever searches them. None of them
//! ever holds a payload, a secret, a subject, a uid or a whole URL (L7).

/// A delivery: its key, as the journal has it.
pub const DELIVERY: &str = "delivery";
/// How an attempt ended: a code of `docs/causes.md`.
pub const CAUSE: &str = "cause";
/// The class of a result.
pub const CLASS: &str = "class";
/// An HTTP status: a receiver's, or ours.
pub const STATUS: &str = "status";
/// What of a fault can be told.
pub const DETAIL: &str = "detail";
/// How long it took, in milliseconds.
pub const TOOK_MS: &str = "took_ms";
/// A request: the `request-id` of its answer.
pub const REQUEST: &str = "request";
/// A request's method.
pub const METHOD: &str = "method";
/// A request's route: the pattern, never the path.
pub const ROUTE: &str = "route";
