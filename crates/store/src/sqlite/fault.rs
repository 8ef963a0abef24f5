//! Classifies errors: whether a request caused it, the disk is full, or the store must stop.

use rusqlite::ErrorCode;

use crate::StoreError;

/// Whether the request caused the error: it is refused, and the store goes on.
pub(super) fn is_callers(error: &StoreError) -> bool {
    match error {
        StoreError::Fenced { .. } | StoreError::TooMany { .. } | StoreError::Damaged { .. } | StoreError::Busy => true,
        _ => matches!(code(error), Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch)),
    }
}

/// Whether a write failed because the disk is full. Then its transaction is not in the file: the page that ends a
/// transaction is written last. The error of a failed sync is never one of these, also on a full disk: after it the
/// state of the file is unknown.
pub(super) fn is_full(error: &StoreError) -> bool {
    code(error) == Some(ErrorCode::DiskFull)
}

/// Whether a read was interrupted to keep the log within its bound: it can be repeated.
pub(super) fn is_interrupted(error: &StoreError) -> bool {
    code(error) == Some(ErrorCode::OperationInterrupted)
}

/// SQLite's error code, if the error came from SQLite.
pub(super) fn code(error: &StoreError) -> Option<ErrorCode> {
    match error {
        StoreError::Database { source, .. } => source.sqlite_error_code(),
        _ => None,
    }
}

/// An error and its sources, in one line.
pub(super) fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(below) = source {
        text += &format!(": {below}");
        source = below.source();
    }
    text
}
