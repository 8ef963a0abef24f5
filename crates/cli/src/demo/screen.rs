//! Where the demo shows itself: a picture drawn over and over in a terminal, lines of progress elsewhere, and nothing
//! where a program reads.

use std::io::{IsTerminal, Write, stdout};

use anyhow::Result;

use super::frame::{View, event, frame, summary};
use super::paint::{Line, Tone};
use super::plan::{SCALE, face};
use crate::say::{self, say};

const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
/// A terminal that does not tell its size.
const USUAL: (usize, usize) = (80, 24);
/// Where nothing is drawn over, so many looks make one line.
const LOOKS_A_LINE: usize = 20;

/// The demo's output.
#[derive(Debug)]
pub(super) struct Screen {
    kind: Kind,
    colours: bool,
}

#[derive(Debug)]
enum Kind {
    /// So many lines of the last picture stand above the cursor.
    Drawn {
        lines: usize,
    },
    /// So many events were told, and so often was looked.
    Told {
        events: usize,
        looks: usize,
    },
    Silent,
}

impl Screen {
    /// For people: drawn where that is possible.
    pub(super) fn open() -> Result<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let drawn = stdout().is_terminal() && set("TERM").is_none_or(|term| term != "dumb");
        if drawn {
            say::part(format_args!("{HIDE_CURSOR}"))?;
            return Ok(Self { kind: Kind::Drawn { lines: 0 }, colours: set("NO_COLOR").is_none() });
        }
        say!("posthaste demo: time runs {SCALE} times as fast, a second here is a minute")?;
        Ok(Self { kind: Kind::Told { events: 0, looks: 0 }, colours: false })
    }

    /// For programs: they wait for the end.
    pub(super) fn silent() -> Self {
        Self { kind: Kind::Silent, colours: false }
    }

    /// Shows what is new.
    pub(super) fn show(&mut self, view: &View<'_>) -> Result<()> {
        match &mut self.kind {
            Kind::Drawn { lines } => {
                let (width, height) = size();
                let drawn = frame(view, width, height);
                // The cursor stands below the picture: back to its first line, then everything anew.
                let mut text = if *lines > 0 { format!("\r\x1b[{lines}A") } else { String::new() };
                for line in &drawn {
                    text += &format!("{}\x1b[K\n", line.painted(width, self.colours));
                }
                *lines = drawn.len();
                say::part(format_args!("{text}\x1b[J"))
            }
            Kind::Told { events, looks } => {
                for event in view.events.iter().skip(*events).map(event) {
                    say!("{}", event.painted(usize::MAX, false))?;
                }
                *events = view.events.len();
                *looks += 1;
                if looks.is_multiple_of(LOOKS_A_LINE) {
                    say!("  {}  {}", face(view.now), summary(view))?;
                }
                Ok(())
            }
            Kind::Silent => Ok(()),
        }
    }

    /// Lines that stay.
    pub(super) fn tell(&self, lines: &[Line]) -> Result<()> {
        for line in lines {
            say!("{}", line.painted(usize::MAX, self.colours))?;
        }
        Ok(())
    }

    /// Text that is as wide as it should be.
    pub(super) fn print(&self, text: &str) -> Result<()> {
        self.tell(&text.lines().map(|line| Line::new().and(Tone::Plain, line)).collect::<Vec<_>>())
    }

    /// How wide it is; as wide as anybody likes where it is no terminal.
    pub(super) fn width(&self) -> usize {
        match self.kind {
            Kind::Drawn { .. } => size().0,
            _ => usize::MAX,
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Kind::Drawn { .. } = self.kind {
            // Whoever ends us early must get the cursor back; a terminal that is gone needs none.
            let mut out = stdout().lock();
            let _ = out.write_all(SHOW_CURSOR.as_bytes()).and_then(|()| out.flush());
        }
    }
}

/// Columns and lines of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => USUAL,
    }
}
