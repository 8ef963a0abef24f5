//! Parses `Retry-After` (C4).
//!
//! A value is either plain seconds or one of HTTP's three date formats. Any other value is ignored: a receiver can
//! neither make us panic nor wait for ever (the bound is the policy's `retry_after_max`, applied by
//! `posthaste_core::delivery::settle`). Dates are compared with our clock; the receiver's `Date` header is not used.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use httpdate::HttpDate;
use posthaste_core::Timestamp;

/// The longest wait that any of the header values asks for; `None` if none of them is valid and in the future.
pub fn parse<'a>(values: impl IntoIterator<Item = &'a [u8]>, now: Timestamp) -> Option<Duration> {
    values.into_iter().filter_map(|value| parse_one(value, now)).filter(|wait| !wait.is_zero()).max()
}

fn parse_one(value: &[u8], now: Timestamp) -> Option<Duration> {
    let text = str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More seconds than a number holds are cut like any others.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    // The date parser accepts more kinds of white space than HTTP allows.
    if !text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return None;
    }
    let date: HttpDate = text.parse().ok()?;
    let since_epoch = SystemTime::from(date).duration_since(UNIX_EPOCH).ok()?;
    Some((Timestamp::from_millis(0) + since_epoch).since(now))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const NOW: Timestamp = Timestamp::from_millis(784_111_777_000);

    fn check(values: &[&str], expected_seconds: Option<u64>) {
        let wait = parse(values.iter().map(|value| value.as_bytes()), NOW);
        assert_eq!(wait, expected_seconds.map(Duration::from_secs), "{values:?}");
    }

    #[test]
    fn plain_seconds_are_accepted_with_white_space_around_them() {
        check(&["1"], Some(1));
        check(&["120"], Some(120));
        check(&["0120"], Some(120));
        check(&["2592000"], Some(2_592_000));
        check(&["18446744073709551615"], Some(u64::MAX));
        // `settle` cuts all of these to the policy's bound.
        for beyond in ["18446744073709551616", "99999999999999999999", &"9".repeat(400)] {
            check(&["30", beyond], Some(u64::MAX));
        }
        check(&[&format!("{}5", "0".repeat(400))], Some(5));
        check(&[" 5 "], Some(5));
        check(&["\t5"], Some(5));
    }

    #[test]
    fn all_three_date_formats_are_accepted() {
        check(&["Sun, 06 Nov 1994 08:51:37 GMT"], Some(120));
        check(&["Sunday, 06-Nov-94 08:51:37 GMT"], Some(120));
        check(&["Sun Nov  6 08:51:37 1994"], Some(120));
        check(&["  Sun, 06 Nov 1994 08:49:38 GMT\t"], Some(1));
        check(&["Fri, 31 Dec 9999 23:59:59 GMT"], Some(253_402_300_799 - 784_111_777));
    }

    #[test]
    fn a_date_is_compared_with_our_clock_to_the_millisecond() {
        let value: &[u8] = b"Sun, 06 Nov 1994 08:49:38 GMT";
        for (now_ms, wait_ms) in [(784_111_777_001, 999), (784_111_777_999, 1), (0, 784_111_778_000)] {
            let wait = parse([value], Timestamp::from_millis(now_ms));
            assert_eq!(wait, Some(Duration::from_millis(wait_ms)));
        }
    }

    #[test]
    fn zero_and_past_dates_are_ignored() {
        for value in ["0", "000", "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:36 GMT"] {
            check(&[value], None);
        }
        check(&["Thu, 01 Jan 1970 00:00:00 GMT"], None);
        check(&["Saturday, 06-Nov-93 08:49:37 GMT"], None);
    }

    #[test]
    fn hostile_values_and_invalid_dates_are_ignored() {
        let values = ["", " ", "-5", "+5", "abc", "1e309", "5.0", "5,", "5 6", "0x10", "1_000", "inf", "NaN", "5\0"];
        let odd_characters = ["\x005", "\x0b5", "5\r\n", "٥", "५", "5\u{a0}", "5é"];
        let dates = [
            "Mon, 06 Nov 1994 08:51:37 GMT",
            "Sun, 31 Feb 2094 08:51:37 GMT",
            "Sun, 06 Nov 2094 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:51:37 PST",
            "Sun, 06 Nov 1994 08:51:37",
            "Fri, 31 Dec 10000 23:59:59 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "\nSun, 06 Nov 1994 08:51:37 GMT",
            "1994-11-06T08:51:37Z",
        ];
        for value in values.iter().chain(&odd_characters).chain(&dates) {
            check(&[value], None);
        }
        assert_eq!(parse([&b"\xff5"[..], b"\xc3"], NOW), None);
    }

    #[test]
    fn the_longest_of_several_valid_values_counts() {
        check(&[], None);
        check(&["5", "120", "7"], Some(120));
        check(&["abc", "30", "-5"], Some(30));
        check(&["60", "Sun, 06 Nov 1994 08:51:37 GMT"], Some(120));
        check(&["180", "Sun, 06 Nov 1994 08:51:37 GMT"], Some(180));
        check(&["0", "Sat, 05 Nov 1994 08:51:37 GMT"], None);
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic_or_a_wait_of_zero(values: Vec<Vec<u8>>, now: i64) {
            let wait = parse(values.iter().map(Vec::as_slice), Timestamp::from_millis(now));
            prop_assert_ne!(wait, Some(Duration::ZERO));
        }

        #[test]
        fn values_similar_to_dates_never_cause_a_panic(
            value in "(Mon|Tue|Wednesday|Sun),? [0-9]{2}[- ](Jan|Feb|Dec)[- ][0-9]{2,4} [0-9]{2}:[0-9]{2}:[0-9]{2}( GMT| [0-9]{4})",
            now: i64,
        ) {
            let wait = parse([value.as_bytes()], Timestamp::from_millis(now));
            prop_assert_ne!(wait, Some(Duration::ZERO));
        }

        #[test]
        fn every_future_date_gives_the_exact_wait(ahead in 1..2_300_000_000u64) {
            let seconds = 784_111_777 + ahead;
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            let value = httpdate::fmt_http_date(at);
            prop_assert_eq!(parse([value.as_bytes()], NOW), Some(Duration::from_secs(ahead)));

            // The same time in the format of C's asctime: no comma, the day padded by a space, the year last.
            let (weekday, day, month, year, clock) =
                (&value[..3], value[5..7].trim_start_matches('0'), &value[8..11], &value[12..16], &value[17..25]);
            let asctime = format!("{weekday} {month} {day:>2} {clock} {year}");
            prop_assert_eq!(parse([asctime.as_bytes()], NOW), Some(Duration::from_secs(ahead)));
        }

        #[test]
        fn every_number_of_seconds_gives_the_exact_wait(seconds in 1..=u64::MAX, now: i64) {
            let value = seconds.to_string();
            prop_assert_eq!(parse([value.as_bytes()], Timestamp::from_millis(now)), Some(Duration::from_secs(seconds)));
        }
    }
}
