//! The UTC offsets of a time zone, now and for years ahead, which the core's `off_peak` uses.
//!
//! A zone is a name of the IANA database, such as `Europe/Berlin`. The machine's own database is
//! used if there is one, so that its updates take effect; otherwise the one built into this
//! program. Either is in memory after the first use.

use jiff::tz::{self, TimeZoneDatabase};
use posthaste_core::Timestamp;
use posthaste_core::off_peak::Offsets;
use posthaste_core::policy::nearest;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("time zone {name:?} is not known: write a name such as Europe/Berlin or UTC{nearest}")]
pub struct UnknownZone {
    pub name: String,
    /// A hint with the most similar known name; empty if there is none.
    pub nearest: String,
}

/// The offsets of a zone between two instants. The last one holds for all time after `until`, so the caller must
/// look them up again before then.
pub fn offsets(name: &str, from: Timestamp, until: Timestamp) -> Result<Offsets, UnknownZone> {
    offsets_by(tz::db(), name, from, until)
}

fn offsets_by(db: &TimeZoneDatabase, name: &str, from: Timestamp, until: Timestamp) -> Result<Offsets, UnknownZone> {
    let found = db.get(name).ok().filter(|zone| !zone.is_unknown());
    let zone = found.ok_or_else(|| unknown(db, name))?;
    let start = instant(from);
    let later = zone
        .following(start)
        .map(|change| (Timestamp::from_millis(change.timestamp().as_millisecond()), change.offset().seconds()))
        .take_while(|(at, _)| *at < until);
    let changes = std::iter::once((from, zone.to_offset(start).seconds())).chain(later).collect();
    Ok(Offsets::new(changes).expect("a zone has one offset at a time, less than 26 hours"))
}

/// The instant, or the nearest that the calendar has.
fn instant(at: Timestamp) -> jiff::Timestamp {
    let nearest = if at < Timestamp::default() { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
    jiff::Timestamp::from_millisecond(at.as_millis()).unwrap_or(nearest)
}

fn unknown(db: &TimeZoneDatabase, name: &str) -> UnknownZone {
    let mut known: Vec<String> = db.available().map(|known| known.as_str().to_owned()).collect();
    // `Etc/GMT+2` is two hours west of UTC, which is the opposite of what `GMT+2` usually means.
    known.retain(|known| !known.contains(|letter: char| letter.is_ascii_digit()));
    // A city alone is a common mistake.
    let city = known.iter().find(|known| known.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name)));
    let nearest = city.map(String::as_str).or_else(|| nearest(name, known.iter().map(String::as_str)));
    let nearest = nearest.map(|nearest| format!("; the nearest to it is {nearest}")).unwrap_or_default();
    UnknownZone { name: name.to_owned(), nearest }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::tz::TimeZone;
    use posthaste_core::off_peak::OffPeak;
    use proptest::prelude::*;

    use super::*;

    const HOUR: i32 = 3_600;
    const MINUTE_MS: i64 = 60_000;

    fn utc(written: &str) -> Timestamp {
        let read = written.parse::<jiff::Timestamp>().expect("an instant");
        Timestamp::from_millis(read.as_millisecond())
    }

    /// Checks what a zone changes to between two instants, with the machine's database and ours.
    #[track_caller]
    fn check(name: &str, from: &str, until: &str, changes: &[(&str, i32)]) {
        let changes = changes.iter().map(|(at, seconds)| (utc(at), *seconds)).collect();
        let expected = Offsets::new(changes).expect("valid offsets");
        for database in [tz::db(), &TimeZoneDatabase::bundled()] {
            assert_eq!(offsets_by(database, name, utc(from), utc(until)).as_ref(), Ok(&expected), "{name}");
        }
    }

    #[test]
    fn berlin_changes_on_the_last_sundays_of_march_and_october() {
        check(
            "Europe/Berlin",
            "2026-01-01T00:00:00Z",
            "2028-01-01T00:00:00Z",
            &[
                ("2026-01-01T00:00:00Z", HOUR),
                ("2026-03-29T01:00:00Z", 2 * HOUR),
                ("2026-10-25T01:00:00Z", HOUR),
                ("2027-03-28T01:00:00Z", 2 * HOUR),
                ("2027-10-31T01:00:00Z", HOUR),
            ],
        );
    }

    #[test]
    fn places_far_apart_change_by_their_own_rules() {
        let (from, until) = ("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z");
        let new_york = [(from, -5 * HOUR), ("2026-03-08T07:00:00Z", -4 * HOUR), ("2026-11-01T06:00:00Z", -5 * HOUR)];
        check("America/New_York", from, until, &new_york);
        let half = 21 * HOUR / 2;
        let lord_howe = [(from, 11 * HOUR), ("2026-04-04T15:00:00Z", half), ("2026-10-03T15:30:00Z", 11 * HOUR)];
        check("Australia/Lord_Howe", from, until, &lord_howe);
        check("Asia/Kolkata", from, until, &[(from, 11 * HOUR / 2)]);
        check("UTC", from, until, &[(from, 0)]);
    }

    #[test]
    fn a_change_belongs_to_the_instant_it_comes_and_the_end_is_excluded() {
        let change = "2026-03-29T01:00:00Z";
        check("Europe/Berlin", change, "2026-06-01T00:00:00Z", &[(change, 2 * HOUR)]);
        let before = "2026-03-29T00:59:59Z";
        check("Europe/Berlin", before, change, &[(before, HOUR)]);
        check("Europe/Berlin", change, before, &[(change, 2 * HOUR)]);
    }

    #[test]
    fn an_unknown_zone_is_answered_with_what_to_write() {
        let ours = TimeZoneDatabase::bundled();
        let complaint = |name: &str| {
            offsets_by(&ours, name, utc("2026-01-01T00:00:00Z"), Timestamp::MAX).map_err(|e| e.to_string())
        };
        assert_eq!(
            complaint("Europe/Berln").expect_err("a misspelt name"),
            "time zone \"Europe/Berln\" is not known: write a name such as Europe/Berlin or UTC; \
             the nearest to it is Europe/Berlin"
        );
        for (written, meant) in [("tokyo", "Asia/Tokyo"), ("America/NewYork", "America/New_York"), ("GMT+2", "GMT")] {
            let text = complaint(written).expect_err("no zone");
            assert!(text.ends_with(&format!("the nearest to it is {meant}")), "{text}");
        }
        for odd in ["", "Etc/Unknown", "../../etc/passwd", "/etc/localtime", "+02:00", "\0", &"x".repeat(100_000)] {
            assert!(complaint(odd).is_err() && offsets(odd, Timestamp::default(), Timestamp::MAX).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn no_instant_is_too_early_or_too_late() {
        let ends = [Timestamp::from_millis(i64::MIN), Timestamp::default(), Timestamp::MAX];
        for from in ends {
            for until in ends {
                assert!(offsets("Europe/Berlin", from, until).is_ok(), "{from} to {until}");
            }
        }
    }

    fn any_zone() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "Africa/Casablanca",
            "Asia/Kolkata",
            "America/St_Johns",
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn a_window_opens_when_the_local_clock_says_so(
            name in any_zone(),
            day in 20_454_i64..20_454 + 730,
            minute in 0_i64..1_440,
            from in 0_u16..1_440,
            to in 0_u16..1_440,
        ) {
            prop_assume!(from != to);
            let zone = TimeZone::get(name).expect("a known zone");
            let inside = |minute: &i64| {
                let local = zone.to_datetime(instant(Timestamp::from_millis(minute * MINUTE_MS)));
                let read = u16::try_from(local.hour()).unwrap_or(0) * 60 + u16::try_from(local.minute()).unwrap_or(0);
                if from < to { from <= read && read < to } else { from <= read || read < to }
            };
            let start = day * 1_440 + minute;
            let opens = (start..).find(inside).expect("it opens some day");
            let known = offsets(name, utc("2026-01-01T00:00:00Z"), utc("2029-01-01T00:00:00Z")).expect("a known zone");
            let window = OffPeak::new(from, to, Arc::new(known)).expect("a valid window");
            let at = |minute: i64| Timestamp::from_millis(minute * MINUTE_MS);
            prop_assert_eq!(window.opens_at(at(start)), (opens > start).then(|| at(opens)));
        }
    }
}
