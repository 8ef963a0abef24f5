//! Merges the layers of settings, each over the one before. The lowest layer, the embedded defaults, defines the keys
//! and their types.

use std::collections::BTreeMap;

use posthaste_core::policy::told_nearest;
use toml::{Table, Value};

const PREFIX: &str = "POSTHASTE_";
/// Keys refused in a settings file, which is copied, shown and kept in repositories: secrets must not be.
const SECRETS: &[&str] = &["master_key"];
/// Set by `xtask` for the proofs that start the binary; it is not a setting.
const FOREIGN: &str = "POSTHASTE_BIN";

/// A value and where it came from.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    value: Value,
    source: String,
}

impl Setting {
    /// The name of the setting as it was written, and where it was written.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn text(&self) -> &str {
        self.value.as_str().unwrap_or_default()
    }

    pub(super) fn number(&self) -> i64 {
        self.value.as_integer().unwrap_or_default()
    }

    pub(super) fn decimal(&self) -> f64 {
        self.value.as_float().unwrap_or_default()
    }

    pub(super) fn truth(&self) -> bool {
        self.value.as_bool().unwrap_or_default()
    }

    pub(super) fn texts(&self) -> Vec<String> {
        let list = self.value.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    }
}

/// The settings by their dotted keys, and the complaints so far.
#[derive(Debug)]
pub(super) struct Layers {
    settings: BTreeMap<String, Setting>,
    complaints: Vec<String>,
}

impl Layers {
    /// Starts with the lowest layer, which has every key with a value of the right type.
    pub(super) fn new(default: &str) -> Self {
        let table: Table = default.parse().expect("the embedded defaults are TOML: a test parses them");
        let settings = flattened(&table)
            .into_iter()
            .map(|(key, value)| {
                let source = format!("{key} in the defaults");
                (key, Setting { value, source })
            })
            .collect();
        Self { settings, complaints: Vec::new() }
    }

    pub(super) fn file(&mut self, name: &str, text: &str) {
        match text.parse::<Table>() {
            Err(error) => self.complaints.push(format!("{name}: {}", error.to_string().trim_end())),
            Ok(table) => {
                for (key, value) in flattened(&table) {
                    let value = if SECRETS.contains(&key.as_str()) {
                        let (variable, file) = (variable(&key), variable(&format!("{key}_file")));
                        Err(format!("a secret does not belong there; set {variable} or {file} in the environment"))
                    } else {
                        Ok(value)
                    };
                    self.put(&key, &format!("{key} in {name}"), value);
                }
            }
        }
    }

    /// Adds the layer of the environment. A variable that begins with `POSTHASTE_` must be a setting, except those that
    /// Kubernetes sets for a service of that name.
    pub(super) fn environment(&mut self, variables: impl Iterator<Item = (String, String)>) {
        let ours: BTreeMap<String, String> =
            variables.filter(|(name, _)| name.starts_with(PREFIX) && name != FOREIGN).collect();
        for (name, value) in &ours {
            let source = format!("{name} in the environment");
            if let Some(key) = self.key_of(name) {
                let value = self.typed(&key, value);
                self.put(&key, &source, value);
            } else if let Some((plain, key)) =
                name.strip_suffix("_FILE").and_then(|plain| Some((plain, self.key_of(plain)?)))
            {
                if ours.contains_key(plain) {
                    self.complaints.push(format!("{plain} and {name} are both set: keep one"));
                    continue;
                }
                match std::fs::read_to_string(value) {
                    Ok(text) => {
                        let value = self.typed(&key, text.trim_end_matches(['\r', '\n']));
                        self.put(&key, &source, value);
                    }
                    Err(error) => self.complaints.push(format!("{source}: cannot read {value}: {error}")),
                }
            } else if !is_service_link(name, value) {
                let known: Vec<String> = self.settings.keys().map(|key| variable(key)).collect();
                let nearest = told_nearest(name, known.iter().map(String::as_str));
                self.complaints.push(format!("{source}: there is no such setting{nearest}"));
            }
        }
    }

    pub(super) fn flag(&mut self, key: &str, flag: &str, given: &str) {
        let value = self.typed(key, given);
        self.put(key, flag, value);
    }

    /// Parses a setting; a value that cannot be parsed is a complaint.
    pub(super) fn get<T>(&mut self, key: &str, parse: impl FnOnce(&Setting) -> Result<T, String>) -> Option<T> {
        let setting = self.settings.get(key)?;
        match parse(setting) {
            Ok(value) => Some(value),
            Err(detail) => {
                self.complaints.push(format!("{}: {detail}", setting.source));
                None
            }
        }
    }

    pub(super) fn blame(&mut self, key: &str, detail: &str) {
        let source = self.settings.get(key).map_or(key, |setting| &setting.source);
        self.complaints.push(format!("{source}: {detail}"));
    }

    pub(super) fn complain(&mut self, complaint: String) {
        self.complaints.push(complaint);
    }

    pub(super) fn finish(self) -> Result<(), Vec<String>> {
        if self.complaints.is_empty() { Ok(()) } else { Err(self.complaints) }
    }

    fn put(&mut self, key: &str, source: &str, value: Result<Value, String>) {
        // A whole number is accepted where the setting is a fraction: 1 means 1.0.
        let takes_decimals = self.settings.get(key).is_some_and(|known| known.value.is_float());
        let value = value.map(|value| match value {
            Value::Integer(whole) if takes_decimals => Value::Float(whole as f64),
            value => value,
        });
        let wrong = match (self.settings.get(key), &value) {
            (_, Err(detail)) => Some(detail.clone()),
            (None, _) => {
                let nearest = told_nearest(key, self.settings.keys().map(String::as_str));
                Some(format!("there is no such setting{nearest}"))
            }
            (Some(known), Ok(value)) if !is_like(&known.value, value) => {
                Some(format!("must be {}", kind(&known.value)))
            }
            _ => None,
        };
        match (wrong, value) {
            (None, Ok(value)) => {
                self.settings.insert(key.to_owned(), Setting { value, source: source.to_owned() });
            }
            (Some(detail), _) => self.complaints.push(format!("{source}: {detail}")),
            (None, Err(_)) => {}
        }
    }

    fn typed(&self, key: &str, text: &str) -> Result<Value, String> {
        let Some(known) = self.settings.get(key) else { return Ok(Value::String(text.to_owned())) };
        let parsed = match &known.value {
            Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
            Value::Integer(_) => text.parse().ok().map(Value::Integer),
            Value::Float(_) => text.parse().ok().map(Value::Float),
            Value::Array(_) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                Some(Value::Array(parts.map(|part| Value::String(part.to_owned())).collect()))
            }
            _ => Some(Value::String(text.to_owned())),
        };
        parsed.ok_or_else(|| format!("must be {}", kind(&known.value)))
    }

    fn key_of(&self, name: &str) -> Option<String> {
        self.settings.keys().find(|key| variable(key) == name).cloned()
    }
}

/// Whether Kubernetes sets such a variable for a service whose name begins with "posthaste". A `POSTHASTE_PORT` with a
/// plain number is taken for a setting, and so refused as unknown.
fn is_service_link(name: &str, value: &str) -> bool {
    let named_port = name.contains("_SERVICE_PORT_") || name.starts_with("POSTHASTE_PORT_");
    let whole = name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT");
    whole || named_port || (name == "POSTHASTE_PORT" && value.contains("://"))
}

fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace('.', "__"))
}

fn is_like(known: &Value, given: &Value) -> bool {
    known.same_type(given) && given.as_array().is_none_or(|list| list.iter().all(Value::is_str))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Boolean(_) => "true or false",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number such as 0.5",
        Value::Array(_) => "a list of strings",
        _ => "a string",
    }
}

fn flattened(table: &Table) -> Vec<(String, Value)> {
    let mut flat = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                flat.extend(flattened(inner).into_iter().map(|(below, value)| (format!("{key}.{below}"), value)));
            }
            _ => flat.push((key.clone(), value.clone())),
        }
    }
    flat
}
