//! The switch of the planted bugs. Only the patched copy of the sources has this module; see `planted/README.md` of the
//! simulator.

use std::sync::LazyLock;

static AWAKE: LazyLock<String> = LazyLock::new(|| std::env::var("PLANTED_BUG").unwrap_or_default());

/// Whether this bug is switched on.
pub fn is(bug: &str) -> bool {
    *AWAKE == bug
}
