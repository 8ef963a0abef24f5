//! Parsers for single values of a body, and the texts for those that are not valid.
//!
//! Each takes raw JSON and returns the value, or a complaint that follows the field's name ("must be a string").

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::IdKind;
use serde_json::value::RawValue;

use crate::duration;
use posthaste_core::policy::told_nearest;

pub(crate) fn text(raw: &RawValue) -> Result<String, String> {
    serde_json::from_str(raw.get()).map_err(|_| "must be a string".to_owned())
}

pub(crate) fn texts(raw: &RawValue) -> Result<Vec<String>, String> {
    serde_json::from_str(raw.get()).map_err(|_| "must be a list of strings".to_owned())
}

pub(crate) fn whole(raw: &RawValue) -> Result<u64, String> {
    serde_json::from_str(raw.get()).map_err(|_| "must be a whole number".to_owned())
}

pub(crate) fn truth(raw: &RawValue) -> Result<bool, String> {
    serde_json::from_str(raw.get()).map_err(|_| "must be true or false".to_owned())
}

pub(crate) fn number(raw: &RawValue) -> Result<f64, String> {
    serde_json::from_str(raw.get()).map_err(|_| "must be a number".to_owned())
}

pub(crate) fn duration(raw: &RawValue) -> Result<Duration, String> {
    let read = match serde_json::from_str::<u64>(raw.get()) {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => serde_json::from_str::<&str>(raw.get()).ok().and_then(duration::parse),
    };
    read.ok_or_else(|| format!("must be {}", duration::FORM))
}

pub(crate) fn durations(raw: &RawValue) -> Result<Vec<Duration>, String> {
    let list: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| "must be a list of durations".to_owned())?;
    list.into_iter().map(duration).collect()
}

pub(crate) fn ttl(raw: &RawValue) -> Result<Duration, String> {
    duration::bounded_ttl(duration(raw)?)
}

pub(crate) fn time(raw: &RawValue) -> Result<Timestamp, String> {
    let read = serde_json::from_str::<&str>(raw.get()).ok().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let time = read.ok_or_else(|| "must be a time such as \"2026-12-01T08:00:00Z\"".to_owned())?;
    Ok(Timestamp::from_millis(time.as_millisecond()))
}

pub(crate) fn tier(raw: &RawValue) -> Result<Tier, String> {
    let written = raw.get();
    let read = match written.strip_prefix('"') {
        Some(rest) => Tier::ALL.into_iter().find(|tier| rest.strip_suffix('"') == Some(tier.name())),
        // 1.0 is the same number as 1.
        None => Tier::parse(written).or_else(|| Tier::parse(&number(raw).ok()?.to_string())),
    };
    read.ok_or_else(|| {
        let names = Tier::ALL.map(Tier::name);
        let nearest = told_nearest(written.trim_matches('"'), names);
        format!("must be 1, 2, 3 or one of {}{nearest}", names.join(", "))
    })
}

/// Parses one of these words.
pub(crate) fn parse_word<T: Copy>(raw: &RawValue, words: &[(&'static str, T)]) -> Result<T, String> {
    let written = text(raw)?;
    let found = words.iter().find(|(word, _)| *word == written);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let nearest = told_nearest(&written, names.iter().copied());
        format!("must be one of {}{nearest}", names.join(", "))
    })
}

/// The longest name that a caller chooses: names are sent in headers.
const NAME_BYTES_MAX: usize = 128;

/// Parses a name that the caller chooses, such as a correlation id.
pub(crate) fn name(raw: &RawValue) -> Result<String, String> {
    let written = text(raw)?;
    checked_name(&written).map(|()| written)
}

/// Parses a uid: a name that is accepted in place of an id, so it must not look like one.
pub(crate) fn uid(raw: &RawValue) -> Result<String, String> {
    let written = name(raw)?;
    match [IdKind::Endpoint, IdKind::Tenant].map(IdKind::prefix).iter().find(|prefix| written.starts_with(**prefix)) {
        Some(prefix) => Err(format!("must not begin with {prefix}, as an id does")),
        None => Ok(written),
    }
}

/// Checks that a text is a name.
pub(crate) fn checked_name(text: &str) -> Result<(), String> {
    let form = || format!("must be 1 to {NAME_BYTES_MAX} letters, digits, dots, dashes, underscores or tildes");
    if is_name(text) { Ok(()) } else { Err(form()) }
}

fn is_name(text: &str) -> bool {
    let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-'));
    fits && (1..=NAME_BYTES_MAX).contains(&text.len())
}

/// The longest subject: enough for a mail address or another identifier of a person.
const SUBJECT_BYTES_MAX: usize = 256;

/// Parses a subject: the person or thing whose data a message is, or that an endpoint belongs to.
pub(crate) fn subject(raw: &RawValue) -> Result<String, String> {
    let written = text(raw)?;
    checked_subject(&written).map(|()| written)
}

/// Checks that a text is a subject.
pub(crate) fn checked_subject(text: &str) -> Result<(), String> {
    let fits = (1..=SUBJECT_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    let form = || format!("must be 1 to {SUBJECT_BYTES_MAX} bytes without control characters");
    if fits { Ok(()) } else { Err(form()) }
}

/// The most labels of a message, and the longest value: every delivery carries them.
const LABELS_MAX: usize = 16;
const LABEL_BYTES_MAX: usize = 128;

/// Parses labels: values by name.
pub(crate) fn labels(raw: &RawValue) -> Result<Vec<(String, String)>, String> {
    let form =
        || format!("must be an object of at most {LABELS_MAX} names with texts of at most {LABEL_BYTES_MAX} bytes");
    let read: BTreeMap<String, String> = serde_json::from_str(raw.get()).map_err(|_| form())?;
    let fits = |(name, label): (&String, &String)| is_name(name) && label.len() <= LABEL_BYTES_MAX;
    if read.len() <= LABELS_MAX && read.iter().all(fits) { Ok(read.into_iter().collect()) } else { Err(form()) }
}

/// Writes a time as RFC 3339 in UTC with milliseconds.
pub(crate) fn write_time(at: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(at.as_millis()).map(|at| format!("{at:.3}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).expect("JSON")
    }

    #[test]
    fn durations_are_text_or_whole_seconds() {
        assert_eq!(duration(&raw("\"2h\"")), Ok(Duration::from_secs(7_200)));
        assert_eq!(duration(&raw("90")), Ok(Duration::from_secs(90)));
        for bad in ["\"soon\"", "1.5", "-1", "true", "[]"] {
            assert!(duration(&raw(bad)).is_err(), "{bad}");
        }
        assert!(ttl(&raw("\"31d\"")).is_err());
    }

    #[test]
    fn times_are_rfc_3339_and_come_back_as_they_went_in() {
        let at = time(&raw("\"2026-12-01T08:00:00.250Z\"")).expect("a time");
        assert_eq!(write_time(at), "2026-12-01T08:00:00.250Z");
        assert_eq!(write_time(Timestamp::from_millis(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(&raw("\"2026-12-01T10:00:00.25+02:00\"")), Ok(at));
        assert!(time(&raw("\"tomorrow\"")).is_err());
        assert!(time(&raw("1764576000")).is_err());
    }

    #[test]
    fn a_tier_is_a_number_or_a_name() {
        assert_eq!(tier(&raw("1")), Ok(Tier::Transactional));
        assert_eq!(tier(&raw("3.0")), Ok(Tier::Engagement));
        for bad in ["\"1\"", "1.5", "0", "true", "[1]", "\"\""] {
            let complaint = tier(&raw(bad)).expect_err(bad);
            assert_eq!(complaint, "must be 1, 2, 3 or one of transactional, promotional, engagement", "{bad}");
        }
        assert_eq!(tier(&raw("\"engagement\"")), Ok(Tier::Engagement));
        assert_eq!(
            tier(&raw("\"promo\"")).expect_err("not a tier"),
            "must be 1, 2, 3 or one of transactional, promotional, engagement; the nearest is promotional"
        );
    }
}
