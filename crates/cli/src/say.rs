//! Speaks to whoever reads our output, and notices when they have left: `posthaste demo | head`.

use std::fmt;
use std::io::{ErrorKind, Write, stdout};

use anyhow::{Context, Result};

/// Nobody reads our output any more. That ends a command, and is no fault.
#[derive(Debug)]
pub(crate) struct NobodyReads;

impl fmt::Display for NobodyReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for NobodyReads {}

/// Writes a line.
pub(crate) fn line(text: fmt::Arguments<'_>) -> Result<()> {
    part(format_args!("{text}\n"))
}

/// Writes something that is no whole line, and shows it at once.
pub(crate) fn part(text: fmt::Arguments<'_>) -> Result<()> {
    let mut out = stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        written => written.context("cannot write the output"),
    }
}

/// A line, written as `println!` would.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::line(format_args!($($text)*)) };
}
pub(crate) use say;
