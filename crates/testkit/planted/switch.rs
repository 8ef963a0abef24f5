//! Which planted bug is awake. Only a copy of the sources has this module, see `planted/README.md` of
//! the testkit.

use std::sync::LazyLock;

static AWAKE: LazyLock<String> = LazyLock::new(|| std::env::var("PLANTED_BUG").unwrap_or_default());

/// Whether it is this one.
pub fn is(bug: &str) -> bool {
    *AWAKE == bug
}
