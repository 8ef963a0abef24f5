//! Durations as people write them in requests and settings: `500ms`, `30s`, `2h`, `7d`.

use std::time::Duration;

/// Each unit with its milliseconds, longest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Describes the form of a duration, for complaints ("must be …").
pub const FORM: &str = "a duration such as \"500ms\", \"30s\", \"5m\", \"2h\" or \"7d\", or whole seconds";

/// The longest TTL of a webhook.
const TTL_MAX: Duration = Duration::from_secs(30 * 86_400);

/// Parses a whole number with one unit, such as `30s`; `None` for any other text and on overflow.
pub fn parse(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(*ms)?))
}

/// Parses a TTL typed on the command line: a duration or whole seconds, at most 30 days.
pub fn parse_ttl(text: &str) -> Result<Duration, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let read = if is_plain { parse(&format!("{text}s")) } else { parse(text) };
    bounded_ttl(read.ok_or_else(|| format!("must be {FORM}"))?)
}

pub(crate) fn bounded_ttl(ttl: Duration) -> Result<Duration, String> {
    if ttl > TTL_MAX {
        return Err(format!("must be at most {}, the bound of webhooks", write(TTL_MAX)));
    }
    Ok(ttl)
}

/// Writes a duration exactly, in the longest unit that needs no fraction.
pub fn write(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".to_owned();
    }
    let (unit, size) = UNITS.iter().find(|(_, size)| ms.is_multiple_of(*size)).unwrap_or(&("ms", 1));
    format!("{}{unit}", ms / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_durations_parse_back_to_themselves() {
        for (ms, text) in
            [(0, "0s"), (500, "500ms"), (30_000, "30s"), (90_000, "90s"), (7_200_000, "2h"), (604_800_000, "7d")]
        {
            assert_eq!(write(Duration::from_millis(ms)), text);
            assert_eq!(parse(text), Some(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_durations() {
        for text in ["", "s", "30", "30 s", "-1s", "1.5h", "2w", "1h30m", "99999999999999999999s", "300000000000d"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_ttl_is_a_duration_or_whole_seconds_up_to_its_bound() {
        for (text, seconds) in
            [("0", 0), ("0s", 0), ("90", 90), ("2h", 7_200), ("30d", 2_592_000), ("2592000", 2_592_000)]
        {
            assert_eq!(parse_ttl(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for (text, part) in [
            ("31d", "at most 30d"),
            ("2592001", "at most 30d"),
            ("soon", "a duration"),
            ("+1", "a duration"),
            ("", "a duration"),
        ] {
            assert!(parse_ttl(text).is_err_and(|complaint| complaint.contains(part)), "{text}");
        }
    }
}
