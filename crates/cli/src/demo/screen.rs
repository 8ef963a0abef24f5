//! The demo's output: a picture that is redrawn in a terminal, lines of progress without a terminal, and nothing with
//! `--json`.

use std::io::{IsTerminal, Write, stdout};

use anyhow::Result;

use super::frame::{DemoView, event, frame, summary};
use super::paint::{StyledLine, Tone};
use super::plan::{SCALE, minutes_and_seconds};
use crate::say::{self, say};

const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
/// The size to assume for a terminal that does not report one.
const USUAL: (usize, usize) = (80, 24);
/// Without a terminal, one line of progress is printed for this many pictures.
const FRAMES_A_LINE: usize = 20;

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
    /// No terminal; `events` were printed, and `frames` pictures came.
    Lines {
        events: usize,
        frames: usize,
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
        Ok(Self { kind: Kind::Lines { events: 0, frames: 0 }, colours: false })
    }

    pub(super) fn silent() -> Self {
        Self { kind: Kind::Silent, colours: false }
    }

    pub(super) fn show(&mut self, view: &DemoView<'_>) -> Result<()> {
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
            Kind::Lines { events, frames } => {
                for event in view.events.iter().skip(*events).map(event) {
                    say!("{}", event.painted(usize::MAX, false))?;
                }
                *events = view.events.len();
                *frames += 1;
                if frames.is_multiple_of(FRAMES_A_LINE) {
                    say!("  {}  {}", minutes_and_seconds(view.now), summary(view))?;
                }
                Ok(())
            }
            Kind::Silent => Ok(()),
        }
    }

    /// Prints lines that are not drawn over.
    pub(super) fn tell(&self, lines: &[StyledLine]) -> Result<()> {
        for line in lines {
            say!("{}", line.painted(usize::MAX, self.colours))?;
        }
        Ok(())
    }

    pub(super) fn print(&self, text: &str) -> Result<()> {
        self.tell(&text.lines().map(|line| StyledLine::new().and(Tone::Plain, line)).collect::<Vec<_>>())
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

fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => USUAL,
    }
}
