//! Reads a JSON object field by field and collects every fault for one answer.
//!
//! A body is scanned once; a field's text is parsed only when a handler reads the field, so a payload is never parsed.
//! A field that no handler has read by the end is unknown: the complaint names the nearest known field. Handlers
//! declare their fields with [`body!`](crate::body_fields); parsers of single values are in [`value`](crate::value).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::body_fields::{Body, FieldKind};
use crate::problem::{Code, Complaint, Complaints, Problem};
use posthaste_core::policy::nearest;

/// The deepest nesting of a body. Receivers parse it too, some recursively.
const DEPTH_MAX: usize = 64;
/// The capacity for names of fields: a message's fit without growing the list.
const FIELDS_USUAL: usize = 24;

pub(crate) struct BodyObject<'a> {
    /// The place of the object in the body, as a JSON pointer.
    pointer: String,
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
    known: Vec<&'static str>,
    not_built: Vec<&'static str>,
    complaints: Complaints,
    /// Whether a field was refused because this version does not support it yet.
    needs_later_version: bool,
}

impl<'a> BodyObject<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, Problem> {
        if body.trim_ascii_start().is_empty() {
            return Err(Problem::new(Code::InvalidJson, "the body is empty; send a JSON object"));
        }
        if is_too_deep(body) {
            let detail = format!("the body nests deeper than {DEPTH_MAX} levels; flatten it");
            return Err(Problem::new(Code::InvalidBody, detail));
        }
        match serde_json::from_slice::<Fields<'a>>(body) {
            Ok(fields) => Ok(Self::new(String::new(), fields.0)),
            Err(error) if error.is_data() => Err(Problem::new(Code::InvalidBody, "the body must be a JSON object")),
            Err(error) => Err(Problem::new(Code::InvalidJson, error.to_string())),
        }
    }

    /// Like [`BodyObject::read`], but an empty body is an empty object.
    pub(crate) fn read_optional(body: &'a [u8]) -> Result<Self, Problem> {
        if body.is_empty() { Ok(Self::new(String::new(), Vec::new())) } else { Self::read(body) }
    }

    /// Parses a whole body without checks across its fields; an empty one has no fields.
    pub(crate) fn parse<B: Body>(body: &'a [u8]) -> Result<B, Problem> {
        let mut object = Self::read_optional(body)?;
        let body = B::read(&mut object);
        object.finish().map(|()| body)
    }

    /// Reads a field that is an object; `None` if it is left out or `null`.
    pub(crate) fn object<B: Body>(&mut self, name: &'static str) -> Option<B> {
        let is_given = self.has(name) && !self.is_null(name);
        let pointer = format!("{}/{name}", self.pointer);
        let fields = self
            .get(name, |raw| serde_json::from_str::<Fields<'a>>(raw.get()).map_err(|_| "must be an object".to_owned()));
        let mut inner = BodyObject::new(pointer, fields.map(|fields| fields.0).unwrap_or_default());
        let body = is_given.then(|| B::read(&mut inner));
        self.absorb(inner);
        body
    }

    pub(crate) fn absorb(&mut self, inner: BodyObject<'a>) {
        self.needs_later_version |= inner.needs_later_version;
        self.complaints.absorb(inner.into_complaints());
    }

    fn new(pointer: String, fields: Vec<(Cow<'a, str>, &'a RawValue)>) -> Self {
        Self {
            pointer,
            fields,
            known: Vec::with_capacity(FIELDS_USUAL),
            not_built: Vec::new(),
            complaints: Complaints::default(),
            needs_later_version: false,
        }
    }

    /// Parses a field. Returns `None` if it is left out, `null` or not valid; a value that is not valid is a complaint.
    pub(crate) fn get<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&'a RawValue) -> Result<T, String>,
    ) -> Option<T> {
        self.known.push(name);
        let at = self.fields.iter().position(|(written, _)| written == name)?;
        let (_, raw) = self.fields.remove(at);
        if raw.get() == "null" {
            return None;
        }
        parse(raw).map_err(|detail| self.complain(name, detail)).ok()
    }

    /// Parses a field that is a list. Returns `None` if any entry is not valid; each such entry is a complaint of its
    /// own.
    pub(crate) fn list<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&'a RawValue) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let read = |raw: &'a RawValue| serde_json::from_str(raw.get()).map_err(|_| "must be a list".to_owned());
        let list: Vec<&'a RawValue> = self.get(name, read)?;
        let mut entries = Vec::with_capacity(list.len());
        for (index, raw) in list.iter().enumerate() {
            match parse(raw) {
                Ok(entry) => entries.push(entry),
                Err(detail) => self.complain(&format!("{name}/{index}"), detail),
            }
        }
        (entries.len() == list.len()).then_some(entries)
    }

    /// Like [`BodyObject::list`] for a list of 1 to `most` entries.
    pub(crate) fn some<T>(
        &mut self,
        name: &'static str,
        most: usize,
        parse: impl Fn(&'a RawValue) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let entries = self.list(name, parse)?;
        match entries.len() {
            0 => self.complain(name, "must name at least one; leave it out to ask for nothing".to_owned()),
            many if many > most => self.complain(name, format!("must name at most {most}")),
            _ => return Some(entries),
        }
        None
    }

    /// Parses a field that is an object of texts under names that the caller chooses. Each bad entry is a complaint of
    /// its own.
    pub(crate) fn texts(&mut self, name: &'static str) -> Option<Vec<(String, String)>> {
        let read = |raw: &'a RawValue| {
            let fields = serde_json::from_str::<Fields<'a>>(raw.get());
            fields.map_err(|_| "must be an object whose values are strings".to_owned())
        };
        let fields = self.get(name, read)?.0;
        let count = fields.len();
        let mut texts: BTreeMap<String, String> = BTreeMap::new();
        for (member, raw) in fields {
            let at = || format!("{name}/{}", escaped(&member));
            match serde_json::from_str(raw.get()) {
                Err(_) => self.complain(&at(), "must be a string".to_owned()),
                Ok(_) if texts.contains_key(member.as_ref()) => self.complain(&at(), "is written twice".to_owned()),
                Ok(text) => drop(texts.insert(member.into_owned(), text)),
            }
        }
        (texts.len() == count).then(|| texts.into_iter().collect())
    }

    pub(crate) fn check<T, U>(
        &mut self,
        name: &str,
        value: Option<T>,
        check: impl FnOnce(T) -> Result<U, String>,
    ) -> Option<U> {
        check(value?).map_err(|detail| self.complain(name, detail)).ok()
    }

    /// Whether the field is present, also as `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(written, _)| written == name)
    }

    /// Whether the field is present and `null`, which in a change clears it.
    pub(crate) fn is_null(&self, name: &str) -> bool {
        self.fields.iter().any(|(written, raw)| written == name && raw.get() == "null")
    }

    pub(crate) fn optional<K: FieldKind>(&mut self, name: &'static str) -> Option<K::Value> {
        K::read_field(self, name)
    }

    pub(crate) fn required<K: FieldKind>(&mut self, name: &'static str) -> Option<K::Value> {
        let (before, is_null) = (self.complaints.count(), self.is_null(name));
        let value = K::read_field(self, name);
        if value.is_none() && self.complaints.count() == before {
            let detail = if is_null { "is needed and must not be null" } else { "is needed" };
            self.complain(name, detail.to_owned());
        }
        value
    }

    /// Reads a field of a change: `None` if it is left out, `Some(None)` if it is `null` or not valid.
    pub(crate) fn change<K: FieldKind>(&mut self, name: &'static str) -> Option<Option<K::Value>> {
        let is_given = self.has(name);
        let value = K::read_field(self, name);
        is_given.then_some(value)
    }

    pub(crate) fn is_text(&self, name: &str) -> bool {
        self.fields.iter().any(|(written, raw)| written == name && raw.get().starts_with('"'))
    }

    /// Refuses planned fields that this version does not support. `null` and `false` request nothing and pass.
    pub(crate) fn not_built(&mut self, names: &[&'static str]) {
        for name in names {
            let is_requested = self.get(name, |raw| Ok(raw.get() != "false")).unwrap_or(false);
            if is_requested {
                self.cannot_yet(name, "this version cannot do that yet; leave it out".to_owned());
            }
        }
        // These are not suggested for a misspelt field: they would be refused as well.
        self.not_built.extend_from_slice(names);
    }

    /// Adds a complaint about a value that only a later version supports; the refusal's code is then `not_built_yet`.
    pub(crate) fn cannot_yet(&mut self, name: &str, detail: String) {
        self.complain(name, detail);
        self.needs_later_version = true;
    }

    pub(crate) fn complain(&mut self, name: &str, detail: String) {
        self.complaints.add(|| Complaint { pointer: format!("{}/{name}", self.pointer), detail });
    }

    /// Ends the reading: fails with all complaints, those about unknown fields included.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        let needs_later_version = self.needs_later_version;
        let complaints = self.into_complaints();
        if complaints.listed.is_empty() {
            return Ok(());
        }
        let code = if needs_later_version { Code::NotBuiltYet } else { Code::InvalidBody };
        Err(Problem::with_complaints(code, complaints))
    }

    fn into_complaints(self) -> Complaints {
        let Self { pointer, fields, known, not_built, mut complaints, .. } = self;
        for (name, _) in fields {
            complaints.add(|| {
                let usable = known.iter().copied().filter(|known| !not_built.contains(known));
                let detail = match nearest(&name, usable) {
                    _ if known.contains(&name.as_ref()) => "is written twice".to_owned(),
                    Some(nearest) => format!("there is no such field; the nearest is {nearest}"),
                    None => "there is no such field".to_owned(),
                };
                Complaint { pointer: format!("{pointer}/{}", escaped(&name)), detail }
            });
        }
        complaints
    }
}

/// A name escaped for a JSON pointer, cut to 64 characters.
pub(crate) fn escaped(name: &str) -> String {
    name.chars().take(64).collect::<String>().replace('~', "~0").replace('/', "~1")
}

/// Whether brackets nest deeper than [`DEPTH_MAX`]. Brackets within strings do not count.
fn is_too_deep(json: &[u8]) -> bool {
    // Mostly there are too few brackets for that, and counting them is cheap.
    opening(json) > DEPTH_MAX && nests_too_deep(json)
}

/// The number of opening brackets, also within strings. Summed in bytes, which vectorises.
fn opening(json: &[u8]) -> usize {
    let count = |part: &[u8]| part.iter().map(|byte| u8::from(matches!(byte, b'{' | b'['))).sum::<u8>();
    json.chunks(usize::from(u8::MAX)).map(|part| usize::from(count(part))).sum()
}

fn nests_too_deep(json: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(within) = bytes.next() {
                    match within {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            b'{' | b'[' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The fields of an object in their order, each value as raw JSON text.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(Vec::with_capacity(8)))
    }
}

impl<'de> Visitor<'de> for Fields<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((name, value)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
            self.0.push((name.0, value));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body_fields::ParseValue;
    use crate::value;

    body! {
        struct Inner as "Inner" {
            /// How long it is tried.
            ttl: optional value::ApiDuration,
        }
    }

    body! {
        struct Outer as "Outer" {
            name: required String,
            inner: optional Inner,
        }
    }

    fn complaints(body: &str) -> Vec<String> {
        let mut object = BodyObject::read(body.as_bytes()).expect("an object");
        let Outer { name: _name, inner } = Outer::read(&mut object);
        let _ttl = inner.map(|Inner { ttl }| ttl);
        object.not_built(&["later"]);
        object.into_complaints().listed.iter().map(|one| format!("{} {}", one.pointer, one.detail)).collect()
    }

    #[test]
    fn every_fault_is_listed_with_its_pointer() {
        let complaints = complaints(r#"{"nane": 1, "inner": {"ttl": "soon", "tll": "1s"}, "later": 1, "inner": {}}"#);
        assert_eq!(
            complaints,
            [
                "/name is needed",
                "/inner/ttl must be a duration such as \"500ms\", \"30s\", \"5m\", \"2h\" or \"7d\", or whole seconds",
                "/inner/tll there is no such field; the nearest is ttl",
                "/later this version cannot do that yet; leave it out",
                "/nane there is no such field; the nearest is name",
                "/inner is written twice",
            ]
        );
    }

    #[test]
    fn the_schema_of_a_body_has_its_fields_with_description_and_presence() {
        let outer = serde_json::to_value(schemars::schema_for!(Outer)).expect("a schema");
        assert_eq!(outer["required"], serde_json::json!(["name"]));
        assert_eq!(outer["properties"]["name"], serde_json::json!({ "type": "string" }));
        let inner = &outer["properties"]["inner"]["anyOf"];
        assert_eq!(inner, &serde_json::json!([{ "$ref": "#/$defs/Inner" }, { "type": "null" }]));
        assert_eq!(outer["$defs"]["Inner"]["properties"]["ttl"]["description"], "How long it is tried.");
    }

    #[test]
    fn faults_in_lists_and_maps_have_the_pointer_of_their_entry() {
        let body = r#"{"tags": ["a", 1, "b", {}], "headers": {"x": 1, "a/b": true, "y": "z", "y": "z"}}"#;
        let mut fields = BodyObject::read(body.as_bytes()).expect("an object");
        assert_eq!(fields.list("tags", String::parse), None);
        assert_eq!(fields.texts("headers"), None);
        let complaints = fields.into_complaints();
        let pointers: Vec<&str> = complaints.listed.iter().map(|one| one.pointer.as_str()).collect();
        assert_eq!(pointers, ["/tags/1", "/tags/3", "/headers/x", "/headers/a~1b", "/headers/y"]);
    }

    #[test]
    fn null_is_the_same_as_leaving_it_out() {
        assert_eq!(complaints(r#"{"name": "a", "inner": null, "later": false}"#), Vec::<String>::new());
        assert_eq!(complaints(r#"{"name": null}"#), ["/name is needed and must not be null"]);
    }

    #[test]
    fn depth_counts_only_brackets_outside_strings() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(!is_too_deep(nested(64).as_bytes()));
        assert!(is_too_deep(nested(65).as_bytes()));
        assert!(!is_too_deep(format!(r#"["{} \" {}"]"#, "[".repeat(99), "{".repeat(99)).as_bytes()));
        assert!(!is_too_deep("[],".repeat(100).as_bytes()));
    }

    #[test]
    fn a_body_that_is_no_object_and_one_that_is_no_json_have_different_codes() {
        let code = |body: &str| BodyObject::read(body.as_bytes()).err().expect("refused").code();
        assert_eq!(code("[1]"), Code::InvalidBody);
        assert_eq!(code("{\"a\": }"), Code::InvalidJson);
        assert_eq!(code(""), Code::InvalidJson);
    }
}
