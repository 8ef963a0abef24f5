//! Writes to stdout, and ends the command without an error when the reader closes the pipe: `posthaste demo | head`.

use std::fmt;
use std::io::{ErrorKind, Write, stdout};

use anyhow::{Context, Error, Result};

/// The reader of stdout has closed the pipe. That ends a command without an error.
#[derive(Debug)]
pub(crate) struct OutputClosed;

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the output was closed by its reader")
    }
}

pub(crate) fn line(text: fmt::Arguments<'_>) -> Result<()> {
    part(format_args!("{text}\n"))
}

/// Writes a text without a line end, and flushes it.
pub(crate) fn part(text: fmt::Arguments<'_>) -> Result<()> {
    let mut out = stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Error::msg(OutputClosed)),
        written => written.context("cannot write the output"),
    }
}

/// Writes a formatted line, like `println!`, and returns whether that worked.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::line(format_args!($($text)*)) };
}
pub(crate) use say;
