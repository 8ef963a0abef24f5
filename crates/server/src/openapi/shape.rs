//! The shapes of bodies and parameters, and the JSON Schema of each.

use serde_json::{Map, Value, json};

use crate::duration;

/// The form of a value.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Any text.
    Text,
    /// A name that the caller chooses: 1 to 128 of `A-Za-z0-9._~-`.
    Name,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A whole number from 0.
    Whole,
    /// A number.
    Number,
    /// True or false.
    Truth,
    /// A duration such as `30s`, or whole seconds.
    Duration,
    /// A time in RFC 3339.
    Time,
    /// A tier by name or number.
    Tier,
    /// Any JSON.
    Json,
    /// A list.
    List(&'static Shape),
    /// An object whose field names the caller chooses, with values of this shape.
    Map(&'static Shape),
    /// An object with these fields, and no others.
    Object(&'static [Field]),
    /// Such an object under a name: a schema of the document's components, to which others refer.
    Named(&'static str, &'static [Field]),
    /// One of these shapes.
    Either(&'static [Shape]),
    /// A page of a list with entries of this shape.
    Page(&'static Shape),
}

/// A field of an object, or a parameter.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The name in JSON, or of the parameter.
    pub name: &'static str,
    /// The form of its value.
    pub shape: Shape,
    /// Whether it may be `null` or left out.
    pub presence: Presence,
    /// What it means, in one line; empty where the name says it.
    pub says: &'static str,
}

/// Whether a field may be `null` or left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Always present, never `null`.
    Always,
    /// Always present, may be `null`.
    Null,
    /// May be left out, or be `null`.
    Perhaps,
}

/// A field that is always present and never `null`.
pub const fn need(name: &'static str, shape: Shape, says: &'static str) -> Field {
    Field { name, shape, presence: Presence::Always, says }
}

/// A field that is always present and may be `null`.
pub const fn null(name: &'static str, shape: Shape, says: &'static str) -> Field {
    Field { name, shape, presence: Presence::Null, says }
}

/// A field that may be left out.
pub const fn may(name: &'static str, shape: Shape, says: &'static str) -> Field {
    Field { name, shape, presence: Presence::Perhaps, says }
}

/// The page size of a list.
pub const LIMIT: Field = may("limit", Shape::Whole, "entries in a page, 1 to 250; 50 by default");
/// The order of a list.
pub const ORDER: Field =
    may("order", Shape::OneOf(&["desc", "asc"]), "desc: newest first (default); asc: oldest first");
/// The place in a list at which a page begins.
pub const CURSOR: Field = may("cursor", Shape::Text, "the next_cursor of the previous page");

/// The tenant that a row belongs to, in lists that may cover several tenants.
pub const TENANT: Field = null("tenant", Shape::Text, "the id of the tenant that owns it; null once that is erased");

impl Shape {
    /// Calls `visit` with every field of the shape, at every depth.
    pub fn each_field(&self, visit: &mut dyn FnMut(&Field)) {
        match self {
            Self::Object(fields) | Self::Named(_, fields) => {
                for field in *fields {
                    visit(field);
                    field.shape.each_field(visit);
                }
            }
            Self::List(inner) | Self::Map(inner) | Self::Page(inner) => inner.each_field(visit),
            Self::Either(shapes) => shapes.iter().for_each(|shape| shape.each_field(visit)),
            _ => {}
        }
    }

    /// Calls `visit` with every [`Shape::Named`] in the shape, at every depth.
    pub(super) fn each_named(&self, visit: &mut dyn FnMut(&'static str, &'static [Field])) {
        match self {
            Self::Named(name, fields) => {
                visit(name, fields);
                fields.iter().for_each(|field| field.shape.each_named(visit));
            }
            Self::Object(fields) => fields.iter().for_each(|field| field.shape.each_named(visit)),
            Self::List(inner) | Self::Map(inner) | Self::Page(inner) => inner.each_named(visit),
            Self::Either(shapes) => shapes.iter().for_each(|shape| shape.each_named(visit)),
            _ => {}
        }
    }

    /// The JSON Schema of the shape.
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
                        "description": "the cursor of the next page, null on the last; even an empty page can have one",
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
