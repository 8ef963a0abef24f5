//! What an error of the database means for the store: whose fault it is, and whether it goes on.

use rusqlite::ErrorCode;

use crate::StoreError;

/// Whether the request is at fault, and the store is well.
pub(super) fn is_callers(error: &StoreError) -> bool {
    match error {
        StoreError::Fenced { .. } | StoreError::TooMany { .. } | StoreError::Damaged { .. } | StoreError::Busy => true,
        _ => matches!(code(error), Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch)),
    }
}

/// Whether a write found no room. Nothing of its transaction is on the disk: the page that ends a
/// transaction is the last one written. A sync is never in here, whatever its reason: after a
/// failed one nobody knows what is on the disk.
pub(super) fn is_full(error: &StoreError) -> bool {
    code(error) == Some(ErrorCode::DiskFull)
}

/// Whether a read was ended for the log's sake: it may be made again.
pub(super) fn is_interrupted(error: &StoreError) -> bool {
    code(error) == Some(ErrorCode::OperationInterrupted)
}

/// What SQLite calls it.
pub(super) fn code(error: &StoreError) -> Option<ErrorCode> {
    match error {
        StoreError::Database { source, .. } => source.sqlite_error_code(),
        _ => None,
    }
}

/// An error and everything under it, in one line.
pub(super) fn chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(below) = source {
        text += &format!(": {below}");
        source = below.source();
    }
    text
}
