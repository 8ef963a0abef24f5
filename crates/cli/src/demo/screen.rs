//! The demo's output: a picture that is redrawn in a terminal, lines of progress without a terminal, and nothing with
//! `--json`.

use std::io::{IsTerminal, Write, stdout};

use anyhow::Result;

use super::frame::{View, event, frame, summary};
use super::paint::{Line, Tone};
use super::plan::{SCALE, face};
use crate::say::{self, say};

const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
/// The size to assume for a terminal that does not report one.
const USUAL: (usize, usize) = (80, 24);
/// Without a terminal, one line of progress is printed for this many pictures.
const LOOKS_A_LINE: usize = 20;

/// The demo's output.
#[derive(Debug)]
pub(super) struct Screen {
    kind: Kind,
    colours: bool,
}

#[derive(Debug)]
enum Kind {
    /// A terminal; `lines` of the last picture are above the cursor.
    Drawn {
        lines: usize,
    },
    /// No terminal; `events` were printed, and `looks` pictures came.
    Lines {
        events: usize,
        looks: usize,
    },
    Silent,
}

impl Screen {
    /// Output for people: drawn in a terminal, else lines.
    pub(super) fn open() -> Result<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let drawn = stdout().is_terminal() && set("TERM").is_none_or(|term| term != "dumb");
        if drawn {
            say::part(format_args!("{HIDE_CURSOR}"))?;
            return Ok(Self { kind: Kind::Drawn { lines: 0 }, colours: set("NO_COLOR").is_none() });
        }
        say!("posthaste demo: time runs {SCALE} times as fast, a second here is a minute")?;
        Ok(Self { kind: Kind::Lines { events: 0, looks: 0 }, colours: false })
    }

    /// No output while the demo runs.
    pub(super) fn silent() -> Self {
        Self { kind: Kind::Silent, colours: false }
    }

    /// Shows the state of the demo.
    pub(super) fn show(&mut self, view: &View<'_>) -> Result<()> {
        match &mut self.kind {
            Kind::Drawn { lines } => {
                let (width, height) = size();
                let drawn = frame(view, width, height);
                // The cursor is below the last picture: move it to the first line and draw over it.
                let mut text = if *lines > 0 { format!("\r\x1b[{lines}A") } else { String::new() };
                for line in &drawn {
                    text += &format!("{}\x1b[K\n", line.painted(width, self.colours));
                }
                *lines = drawn.len();
                say::part(format_args!("{text}\x1b[J"))
            }
            Kind::Lines { events, looks } => {
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

    /// Prints lines that are not drawn over.
    pub(super) fn tell(&self, lines: &[Line]) -> Result<()> {
        for line in lines {
            say!("{}", line.painted(usize::MAX, self.colours))?;
        }
        Ok(())
    }

    /// Prints text that is wrapped already.
    pub(super) fn print(&self, text: &str) -> Result<()> {
        self.tell(&text.lines().map(|line| Line::new().and(Tone::Plain, line)).collect::<Vec<_>>())
    }

    /// The width of the terminal; unlimited without one.
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
            // The cursor is shown again, also after an interrupt. An error means that the terminal is gone.
            let mut out = stdout().lock();
            let _ = out.write_all(SHOW_CURSOR.as_bytes()).and_then(|()| out.flush());
        }
    }
}

/// The columns and lines of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => USUAL,
    }
}
