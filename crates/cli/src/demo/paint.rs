//! Coloured lines, cut to the width of a terminal: a line that wraps cannot be drawn over.

/// The role of a piece of text, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Quiet,
    Good,
    Slow,
    Bad,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Strong => "\x1b[1m",
            Self::Quiet => "\x1b[2m",
            Self::Good => "\x1b[32m",
            Self::Slow => "\x1b[33m",
            Self::Bad => "\x1b[31m",
        }
    }
}

/// A line of coloured pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StyledLine(Vec<(Tone, String)>);

impl StyledLine {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn and(mut self, tone: Tone, text: impl Into<String>) -> Self {
        self.0.push((tone, text.into()));
        self
    }

    /// The line as text of at most `width` characters, each of which must be one column wide.
    pub(super) fn painted(&self, width: usize, colours: bool) -> String {
        let mut left = width;
        let mut printed = String::new();
        for (tone, text) in &self.0 {
            let piece = cut(text, left);
            left -= piece.chars().count();
            if colours && *tone != Tone::Plain {
                printed += &format!("{}{piece}\x1b[0m", tone.code());
            } else {
                printed += &piece;
            }
        }
        printed.truncate(printed.trim_end_matches(' ').len());
        printed
    }
}

/// The text, cut with an ellipsis if it is longer than `width`.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.extend((width > 0).then_some('…'));
    short
}

/// Wraps words into lines of at most `width` characters; a longer word gets a line of its own.
pub(super) fn wrap(words: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_never_wider_than_the_terminal() {
        let line =
            StyledLine::new().and(Tone::Strong, "posthaste").and(Tone::Plain, " × 60 ").and(Tone::Bad, "is down");
        for width in 0..40 {
            assert!(line.painted(width, false).chars().count() <= width);
        }
        assert_eq!(line.painted(12, false), "posthaste ×…");
        assert_eq!(line.painted(80, false), "posthaste × 60 is down");
    }

    #[test]
    fn words_are_kept_whole() {
        assert_eq!(wrap("what the receivers say", 10), ["what the", "receivers", "say"]);
        assert_eq!(wrap("unbreakable", 4), ["unbreakable"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn colours_can_be_left_out() {
        let line = StyledLine::new().and(Tone::Good, "well").and(Tone::Plain, ".");
        assert_eq!(line.painted(80, true), "\x1b[32mwell\x1b[0m.");
        assert_eq!(line.painted(80, false), "well.");
    }
}
