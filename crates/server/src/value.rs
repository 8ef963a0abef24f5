//! The kinds of single values in bodies: their parsers, the complaints about values that are not valid, how they are
//! written, and their JSON Schemas.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::policy::told_nearest;
use posthaste_core::{Phase, Tier, Timestamp, Why};
use posthaste_crypto::api_key::ApiKeyScope;
use posthaste_crypto::public_id::IdKind;
use posthaste_store::StoreState;
use posthaste_store::journal::EntryKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::body_fields::ParseValue;
use crate::duration;
use crate::problem::Code;

/// Gives a type this JSON Schema, or that of another type, written out wherever it is used.
macro_rules! inline_schema {
    ($type:ty, as $other:ty $(, for $($generics:tt)+)?) => {
        inline_schema!(@ $type, generator, generator.subschema_for::<$other>(), [$($($generics)+)?]);
    };
    ($type:ty, $schema:tt $(, for $($generics:tt)+)?) => {
        inline_schema!(@ $type, _generator, schemars::json_schema!($schema), [$($($generics)+)?]);
    };
    (@ $type:ty, $generator:ident, $schema:expr, [$($generics:tt)*]) => {
        impl<$($generics)*> schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}

/// Implements [`ParseValue`] with a function.
macro_rules! parsed {
    ($($kind:ty => $value:ty, $parse:expr;)+) => {$(
        impl crate::body_fields::ParseValue for $kind {
            type Value = $value;

            fn parse(raw: &serde_json::value::RawValue) -> Result<$value, String> {
                $parse(raw)
            }
        }
    )+};
}

/// Declares a kind of value with the type it is parsed to, its parser and its schema.
macro_rules! kinds {
    ($($(#[$doc:meta])* $vis:vis $kind:ident: $value:ty = $parse:expr, $schema:tt $($other:ty)?;)+) => {$(
        $(#[$doc])*
        $vis enum $kind {}
        parsed! { $kind => $value, $parse; }
        inline_schema!($kind, $schema $($other)?);
    )+};
}

/// A time, as RFC 3339 in UTC.
pub(crate) struct ApiTime(pub(crate) Timestamp);

/// A duration, as text.
pub(crate) struct ApiDuration(pub(crate) Duration);

parsed! {
    String => String, text;
    bool => bool, |raw| read(raw, "true or false");
    u64 => u64, whole;
    f64 => f64, |raw| read(raw, "a number");
    ApiTime => Timestamp, time;
    ApiDuration => Duration, duration;
}

kinds! {
    /// A duration within the bound of TTLs.
    pub(crate) Ttl: Duration = |raw| duration::bounded_ttl(duration(raw)?), as ApiDuration;
    /// A name that the caller chooses, such as a correlation id.
    pub(crate) ChosenName: String = name, { "type": "string", "pattern": "^[A-Za-z0-9._~-]{1,128}$" };
    /// A name that is accepted in place of an id, so it must not look like one.
    pub(crate) Uid: String = uid, as ChosenName;
    /// The person or thing whose data a message is, or that an endpoint belongs to.
    pub(crate) Subject: String = subject, as String;
    /// Values by name, stored with a message.
    pub(crate) Labels: Vec<(String, String)> = labels, as BTreeMap<String, String>;
    /// A tier by name or number.
    pub(crate) TierChoice: Tier = tier, { "enum": ["transactional", "promotional", "engagement", 1, 2, 3] };
    /// Any JSON. Its value is a copy of the text: a slice would keep the connection's whole read buffer alive for as
    /// long as a message waits.
    pub(crate) AnyJson: Bytes = |raw: &RawValue| Ok(Bytes::copy_from_slice(raw.get().as_bytes())), {};
}

inline_schema!(ApiTime, { "type": "string", "format": "date-time" });

impl JsonSchema for ApiDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = "^[0-9]+(ms|s|m|h|d)$";
        json_schema!({ "type": ["string", "integer"], "pattern": pattern, "minimum": 0, "description": duration::FORM })
    }
}

impl Serialize for ApiTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&write_time(self.0))
    }
}

impl Serialize for ApiDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&duration::write(self.0))
    }
}

/// A whole number within bounds.
pub(crate) struct Bounded<T, const MIN: u64, const MAX: u64>(PhantomData<T>);

impl<T: TryFrom<u64>, const MIN: u64, const MAX: u64> ParseValue for Bounded<T, MIN, MAX> {
    type Value = T;

    fn parse(raw: &RawValue) -> Result<T, String> {
        let number = Some(whole(raw)?).filter(|number| (MIN..=MAX).contains(number));
        number.and_then(|number| number.try_into().ok()).ok_or_else(|| format!("must be {MIN} to {MAX}"))
    }
}

inline_schema!(
    Bounded<T, MIN, MAX>,
    { "type": "integer", "minimum": MIN, "maximum": MAX },
    for T, const MIN: u64, const MAX: u64
);

/// A rate or burst that a token bucket can count.
pub(crate) type TokenCount = Bounded<u32, 1, 1_000_000>;

/// A text of at most `MAX` bytes.
pub(crate) enum ShortText<const MAX: usize> {}

impl<const MAX: usize> ParseValue for ShortText<MAX> {
    type Value = String;

    fn parse(raw: &RawValue) -> Result<String, String> {
        match text(raw)? {
            long if long.len() > MAX => Err(format!("must be at most {MAX} bytes")),
            text => Ok(text),
        }
    }
}

inline_schema!(ShortText<MAX>, as String, for const MAX: usize);

/// A type whose values have names in the API.
pub(crate) trait Words: Copy + PartialEq + 'static {
    fn words() -> Vec<(&'static str, Self)>;

    fn word(self) -> &'static str {
        Self::words().iter().find(|(_, known)| *known == self).map_or("", |(word, _)| *word)
    }
}

/// Implements [`Words`] with a word for each value.
macro_rules! words {
    ($($type:ty { $($word:literal $value:ident),+ })+) => {$(
        impl crate::value::Words for $type {
            fn words() -> Vec<(&'static str, Self)> {
                vec![$(($word, Self::$value)),+]
            }
        }
    )+};
}

macro_rules! named_words {
    ($($type:ty),+) => {$(
        impl Words for $type {
            fn words() -> Vec<(&'static str, Self)> {
                Self::ALL.iter().map(|one| (one.name(), *one)).collect()
            }

            fn word(self) -> &'static str {
                self.name()
            }
        }
    )+};
}
named_words!(Code, EntryKind, Phase, ApiKeyScope, StoreState, Why);

/// One of the words of a type.
pub(crate) struct ApiWord<T>(pub(crate) T);

impl<T: Words> Serialize for ApiWord<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.word())
    }
}

inline_schema!(
    ApiWord<T>,
    { "type": "string", "enum": T::words().iter().map(|(word, _)| *word).collect::<Vec<_>>() },
    for T: Words
);

impl<T: Words> ParseValue for ApiWord<T> {
    type Value = T;

    fn parse(raw: &RawValue) -> Result<T, String> {
        let written = text(raw)?;
        let words = T::words();
        let found = words.iter().find(|(word, _)| *word == written);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let nearest = told_nearest(&written, names.iter().copied());
            format!("must be one of {}{nearest}", names.join(", "))
        })
    }
}

/// Parses a value, or complains that it must be `form`.
fn read<'a, T: Deserialize<'a>>(raw: &'a RawValue, form: &str) -> Result<T, String> {
    serde_json::from_str(raw.get()).map_err(|_| format!("must be {form}"))
}

pub(crate) fn text(raw: &RawValue) -> Result<String, String> {
    read(raw, "a string")
}

pub(crate) fn texts(raw: &RawValue) -> Result<Vec<String>, String> {
    read(raw, "a list of strings")
}

fn whole(raw: &RawValue) -> Result<u64, String> {
    read(raw, "a whole number")
}

fn duration(raw: &RawValue) -> Result<Duration, String> {
    let read = match serde_json::from_str::<u64>(raw.get()) {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => serde_json::from_str::<&str>(raw.get()).ok().and_then(duration::parse),
    };
    read.ok_or_else(|| format!("must be {}", duration::FORM))
}

pub(crate) fn durations(raw: &RawValue) -> Result<Vec<Duration>, String> {
    read::<Vec<&RawValue>>(raw, "a list of durations")?.into_iter().map(duration).collect()
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
        None => Tier::parse(written).or_else(|| Tier::parse(&f64::parse(raw).ok()?.to_string())),
    };
    read.ok_or_else(|| {
        let names = Tier::ALL.map(Tier::name);
        let nearest = told_nearest(written.trim_matches('"'), names);
        format!("must be 1, 2, 3 or one of {}{nearest}", names.join(", "))
    })
}

/// The longest name that a caller chooses: names are sent in headers.
const NAME_BYTES_MAX: usize = 128;

fn name(raw: &RawValue) -> Result<String, String> {
    let written = text(raw)?;
    checked_name(&written).map(|()| written)
}

fn uid(raw: &RawValue) -> Result<String, String> {
    let written = name(raw)?;
    match [IdKind::Endpoint, IdKind::Tenant].map(IdKind::prefix).iter().find(|prefix| written.starts_with(**prefix)) {
        Some(prefix) => Err(format!("must not begin with {prefix}, as an id does")),
        None => Ok(written),
    }
}

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

fn subject(raw: &RawValue) -> Result<String, String> {
    let written = text(raw)?;
    checked_subject(&written).map(|()| written)
}

pub(crate) fn checked_subject(text: &str) -> Result<(), String> {
    let fits = (1..=SUBJECT_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    let form = || format!("must be 1 to {SUBJECT_BYTES_MAX} bytes without control characters");
    if fits { Ok(()) } else { Err(form()) }
}

/// The most labels of a message, and the longest value: every delivery carries them.
const LABELS_MAX: usize = 16;
const LABEL_BYTES_MAX: usize = 128;

fn labels(raw: &RawValue) -> Result<Vec<(String, String)>, String> {
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
        assert!(Ttl::parse(&raw("\"31d\"")).is_err());
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
