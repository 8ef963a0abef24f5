//! What is in a body: the few shapes there are, each of which knows its JSON Schema.

use serde_json::{Map, Value, json};

use crate::duration;

/// What a value looks like.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Any text.
    Text,
    /// A name of the caller's own.
    Name,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A whole number from 0.
    Whole,
    /// A number.
    Number,
    /// True or false.
    Truth,
    /// A duration such as `30s`; whole seconds are taken too.
    Duration,
    /// A time in RFC 3339.
    Time,
    /// A tier by name or number.
    Tier,
    /// Any JSON.
    Json,
    /// A list.
    List(&'static Shape),
    /// An object whose fields are the caller's own.
    Map(&'static Shape),
    /// An object with these fields.
    Object(&'static [Field]),
    /// The same under a name, told of once.
    Named(&'static str, &'static [Field]),
    /// One of these.
    Either(&'static [Shape]),
    /// A page of a list.
    Page(&'static Shape),
}

/// A field of an object, or a parameter.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub shape: Shape,
    /// Whether it is there.
    pub presence: Presence,
    /// What it means, in a line.
    pub says: &'static str,
}

/// Whether a field is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is, with a value.
    Always,
    /// It is, perhaps as `null`.
    Null,
    /// It may be left out, or be `null`.
    Perhaps,
}

/// A field that is there.
pub const fn need(name: &'static str, shape: Shape, says: &'static str) -> Field {
    Field { name, shape, presence: Presence::Always, says }
}

/// A field that is there, and may be `null`.
pub const fn null(name: &'static str, shape: Shape, says: &'static str) -> Field {
    Field { name, shape, presence: Presence::Null, says }
}

/// A field that may be left out.
pub const fn may(name: &'static str, shape: Shape, says: &'static str) -> Field {
    Field { name, shape, presence: Presence::Perhaps, says }
}

/// The parameters of every list.
pub const LIMIT: Field = may("limit", Shape::Whole, "how many, 1 to 250; 50 where nothing is said");
/// Which end first.
pub const ORDER: Field = may("order", Shape::OneOf(&["desc", "asc"]), "newest first, or oldest first");
/// Where to go on.
pub const CURSOR: Field = may("cursor", Shape::Text, "the next_cursor of the page before");

/// Whose a row is, in lists that may be of many.
pub const TENANT: Field = null("tenant", Shape::Text, "whose it is: the tenant's id, while there is such a tenant");

impl Shape {
    /// Tells of every field in it, and in what is in it.
    pub fn each_field(&self, tell: &mut dyn FnMut(&Field)) {
        match self {
            Self::Object(fields) | Self::Named(_, fields) => {
                for field in *fields {
                    tell(field);
                    field.shape.each_field(tell);
                }
            }
            Self::List(inner) | Self::Map(inner) | Self::Page(inner) => inner.each_field(tell),
            Self::Either(shapes) => shapes.iter().for_each(|shape| shape.each_field(tell)),
            _ => {}
        }
    }

    /// Tells of every named one in it.
    pub(super) fn each_named(&self, tell: &mut dyn FnMut(&'static str, &'static [Field])) {
        match self {
            Self::Named(name, fields) => {
                tell(name, fields);
                fields.iter().for_each(|field| field.shape.each_named(tell));
            }
            Self::Object(fields) => fields.iter().for_each(|field| field.shape.each_named(tell)),
            Self::List(inner) | Self::Map(inner) | Self::Page(inner) => inner.each_named(tell),
            Self::Either(shapes) => shapes.iter().for_each(|shape| shape.each_named(tell)),
            _ => {}
        }
    }

    /// Its JSON Schema.
    pub(super) fn schema(&self) -> Value {
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::Name => json!({ "type": "string", "pattern": "^[A-Za-z0-9._~-]{1,128}$" }),
            Self::OneOf(words) => json!({ "type": "string", "enum": words }),
            Self::Whole => json!({ "type": "integer", "minimum": 0 }),
            Self::Number => json!({ "type": "number" }),
            Self::Truth => json!({ "type": "boolean" }),
            Self::Duration => {
                json!({ "type": ["string", "integer"], "pattern": "^[0-9]+(ms|s|m|h|d)$", "minimum": 0, "description": duration::FORM })
            }
            Self::Time => json!({ "type": "string", "format": "date-time" }),
            Self::Tier => {
                json!({ "enum": ["transactional", "promotional", "engagement", 1, 2, 3] })
            }
            Self::Json => json!({}),
            Self::List(inner) => json!({ "type": "array", "items": inner.schema() }),
            Self::Map(inner) => json!({ "type": "object", "additionalProperties": inner.schema() }),
            Self::Object(fields) => object(fields),
            Self::Named(name, _) => json!({ "$ref": format!("#/components/schemas/{name}") }),
            Self::Either(shapes) => json!({ "anyOf": shapes.iter().map(Self::schema).collect::<Vec<_>>() }),
            Self::Page(inner) => json!({
                "type": "object",
                "properties": {
                    "data": { "type": "array", "items": inner.schema() },
                    "next_cursor": {
                        "type": ["string", "null"],
                        "description": "where the next page begins; a page may be short, or empty, and still have one",
                    },
                },
                "required": ["data", "next_cursor"],
                "additionalProperties": false,
            }),
        }
    }
}

/// The JSON Schema of an object with these fields and no others.
pub(super) fn object(fields: &[Field]) -> Value {
    let properties: Map<String, Value> = fields.iter().map(|field| (field.name.to_owned(), field.schema())).collect();
    let required: Vec<&str> =
        fields.iter().filter(|field| field.presence != Presence::Perhaps).map(|field| field.name).collect();
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

impl Field {
    fn schema(&self) -> Value {
        let schema = self.shape.schema();
        let mut schema = match self.presence {
            Presence::Always => schema,
            Presence::Null | Presence::Perhaps if matches!(self.shape, Shape::Json) => schema,
            Presence::Null | Presence::Perhaps => json!({ "anyOf": [schema, { "type": "null" }] }),
        };
        if !self.says.is_empty() {
            schema["description"] = json!(self.says);
        }
        schema
    }
}
