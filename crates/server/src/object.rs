//! Reads a JSON object field by field and complains of everything at once.
//!
//! A body is scanned once; a field's text is parsed when it is asked for, so that a payload is
//! never parsed at all. What was not asked for by the end is unknown, and the nearest field that
//! was is named.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::problem::{Code, Complaint, Complaints, Problem};
use posthaste_core::policy::nearest;

/// Deeper JSON is an attack on somebody's parser.
const DEPTH_MAX: usize = 64;
/// A message's fields, all that there are: their names are noted without growing the list.
const FIELDS_USUAL: usize = 24;

/// An object being read.
pub(crate) struct Object<'a> {
    /// Where it is, as a JSON pointer.
    pointer: String,
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
    known: Vec<&'static str>,
    not_built: Vec<&'static str>,
    complaints: Complaints,
    /// Whether something was refused only because it is not there yet.
    asks_too_much: bool,
}

impl<'a> Object<'a> {
    /// The object a whole body is.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, Problem> {
        if body.trim_ascii_start().is_empty() {
            return Err(Problem::new(Code::InvalidJson, "the body is empty; send a JSON object"));
        }
        if is_too_deep(body) {
            let detail = format!("the body nests deeper than {DEPTH_MAX} levels; flatten it");
            return Err(Problem::new(Code::InvalidBody, detail));
        }
        let fields: Fields<'a> = serde_json::from_slice(body).map_err(|error| not_an_object(&error))?;
        Ok(Self::new(String::new(), fields.0))
    }

    /// The object a body is, or an empty one where there is no body.
    pub(crate) fn read_optional(body: &'a [u8]) -> Result<Self, Problem> {
        if body.is_empty() { Ok(Self::new(String::new(), Vec::new())) } else { Self::read(body) }
    }

    /// The same object as a part of a larger body, found there at `pointer`.
    pub(crate) fn within(mut self, pointer: &str) -> Self {
        self.pointer = pointer.to_owned();
        self
    }

    /// An object within another; the outer one must be told its complaints by [`Object::absorb`].
    pub(crate) fn object(&mut self, name: &'static str) -> Object<'a> {
        let pointer = format!("{}/{name}", self.pointer);
        let fields = self
            .get(name, |raw| serde_json::from_str::<Fields<'a>>(raw.get()).map_err(|_| "must be an object".to_owned()));
        Object::new(pointer, fields.map(|fields| fields.0).unwrap_or_default())
    }

    /// Takes over what was wrong with an inner object.
    pub(crate) fn absorb(&mut self, inner: Object<'a>) {
        self.asks_too_much |= inner.asks_too_much;
        self.complaints.absorb(inner.into_complaints());
    }

    fn new(pointer: String, fields: Vec<(Cow<'a, str>, &'a RawValue)>) -> Self {
        Self {
            pointer,
            fields,
            known: Vec::with_capacity(FIELDS_USUAL),
            not_built: Vec::new(),
            complaints: Complaints::default(),
            asks_too_much: false,
        }
    }

    /// A field's value, if it is there and makes sense. `null` is the same as leaving it out.
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

    /// The entries of a list, each told of at its own place; nothing where one of them makes no sense.
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

    /// The same of a list that asks for something: at least one, and no more than this.
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

    /// An object of texts whose names are the caller's own, each told of at its own place.
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

    /// Whether a field is there at all.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(written, _)| written == name)
    }

    /// Whether it takes a field back.
    pub(crate) fn is_null(&self, name: &str) -> bool {
        self.fields.iter().any(|(written, raw)| written == name && raw.get() == "null")
    }

    /// The same for a field that must be there.
    pub(crate) fn need<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&'a RawValue) -> Result<T, String>,
    ) -> Option<T> {
        let (before, is_null) = (self.complaints.count(), self.is_null(name));
        let value = self.get(name, parse);
        if value.is_none() && self.complaints.count() == before {
            let detail =
                if is_null { "must not be null, which is as if it were left out; it is needed" } else { "is needed" };
            self.complain(name, detail.to_owned());
        }
        value
    }

    /// Fields of the API that this version does not know what to do with. `null` and `false` ask
    /// for nothing and pass.
    pub(crate) fn not_built(&mut self, names: &[&'static str]) {
        for name in names {
            let asked = self.get(name, |raw| Ok(raw.get() != "false")).unwrap_or(false);
            if asked {
                self.cannot_yet(name, "this version cannot do that yet; leave it out".to_owned());
            }
        }
        // Not to be suggested for a slip of the finger: it would be refused as well.
        self.not_built.extend_from_slice(names);
    }

    /// Adds a complaint about a field whose value will mean something in a later version.
    pub(crate) fn cannot_yet(&mut self, name: &str, detail: String) {
        self.complain(name, detail);
        self.asks_too_much = true;
    }

    /// Adds a complaint about a field.
    pub(crate) fn complain(&mut self, name: &str, detail: String) {
        self.complaints.add(|| Complaint { pointer: format!("{}/{name}", self.pointer), detail });
    }

    /// Ends the reading: everything was fine, or everything that was not.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        let asks_too_much = self.asks_too_much;
        let complaints = self.into_complaints();
        if complaints.is_empty() {
            return Ok(());
        }
        let code = if asks_too_much { Code::NotBuiltYet } else { Code::InvalidBody };
        Err(Problem::of_body(code, complaints))
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

/// A name as a JSON pointer has it, and no longer than a person reads.
pub(crate) fn escaped(name: &str) -> String {
    name.chars().take(64).collect::<String>().replace('~', "~0").replace('/', "~1")
}

fn not_an_object(error: &serde_json::Error) -> Problem {
    if error.is_data() {
        return Problem::new(Code::InvalidBody, "the body must be a JSON object");
    }
    Problem::new(Code::InvalidJson, error.to_string())
}

/// Whether brackets nest deeper than allowed. Brackets within strings do not count.
fn is_too_deep(json: &[u8]) -> bool {
    // Nearly always there are too few for that, and many bytes are counted at once.
    opening(json) > DEPTH_MAX && nests_too_deep(json)
}

/// How many brackets open, also within strings. Counted in bytes, of which a processor adds many at a time.
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

/// An object's fields as they were written, each value as its text.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Vec::with_capacity(8);
        while let Some((name, value)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
            fields.push((name.0, value));
        }
        Ok(Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;

    fn complaints(body: &str) -> Vec<String> {
        let mut object = Object::read(body.as_bytes()).expect("an object");
        object.need("name", value::text);
        let mut inner = object.object("inner");
        inner.get("ttl", value::duration);
        object.absorb(inner);
        object.not_built(&["later"]);
        object.into_complaints().told().iter().map(|one| format!("{} {}", one.pointer, one.detail)).collect()
    }

    #[test]
    fn everything_wrong_is_told_at_once_with_its_place() {
        let told = complaints(r#"{"nane": 1, "inner": {"ttl": "soon", "tll": "1s"}, "later": 1, "inner": {}}"#);
        assert_eq!(
            told,
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
    fn what_is_wrong_in_a_list_or_with_a_name_of_the_caller_s_own_is_told_at_its_place() {
        let body = r#"{"tags": ["a", 1, "b", {}], "headers": {"x": 1, "a/b": true, "y": "z", "y": "z"}}"#;
        let mut fields = Object::read(body.as_bytes()).expect("an object");
        assert_eq!(fields.list("tags", crate::value::text), None);
        assert_eq!(fields.texts("headers"), None);
        let complaints = fields.into_complaints();
        let pointers: Vec<&str> = complaints.told().iter().map(|one| one.pointer.as_str()).collect();
        assert_eq!(pointers, ["/tags/1", "/tags/3", "/headers/x", "/headers/a~1b", "/headers/y"]);
    }

    #[test]
    fn null_is_the_same_as_leaving_it_out() {
        assert_eq!(complaints(r#"{"name": "a", "inner": null, "later": false}"#), Vec::<String>::new());
        assert_eq!(
            complaints(r#"{"name": null}"#),
            ["/name must not be null, which is as if it were left out; it is needed"]
        );
    }

    #[test]
    fn depth_counts_brackets_outside_strings_alone() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(!is_too_deep(nested(64).as_bytes()));
        assert!(is_too_deep(nested(65).as_bytes()));
        assert!(!is_too_deep(format!(r#"["{} \" {}"]"#, "[".repeat(99), "{".repeat(99)).as_bytes()));
        assert!(!is_too_deep("[],".repeat(100).as_bytes()));
    }

    #[test]
    fn what_is_no_object_is_told_from_what_is_no_json() {
        let code = |body: &str| Object::read(body.as_bytes()).err().expect("refused").code();
        assert_eq!(code("[1]"), Code::InvalidBody);
        assert_eq!(code("{\"a\": }"), Code::InvalidJson);
        assert_eq!(code(""), Code::InvalidJson);
    }
}
