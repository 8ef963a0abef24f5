//! The fields of request bodies: [`body!`] declares each once, with its description, presence and kind of value. From
//! that come the parser, which reports every fault, and the JSON Schema in the OpenAPI document.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::object::BodyObject;

/// A kind of value that a field can have.
pub(crate) trait FieldKind: JsonSchema {
    type Value;

    /// Reads the field of this name; `None` if it is left out, `null` or not valid.
    fn read_field(object: &mut BodyObject<'_>, name: &'static str) -> Option<Self::Value>;
}

/// A kind of value that is parsed by itself, as a field or as an entry of a list.
pub(crate) trait ParseValue: JsonSchema {
    type Value;

    /// Parses the value, or complains in words that follow the field's name ("must be a string").
    fn parse(raw: &RawValue) -> Result<Self::Value, String>;
}

impl<K: ParseValue> FieldKind for K {
    type Value = K::Value;

    fn read_field(object: &mut BodyObject<'_>, name: &'static str) -> Option<K::Value> {
        object.get(name, K::parse)
    }
}

impl<K: ParseValue> FieldKind for Vec<K> {
    type Value = Vec<K::Value>;

    fn read_field(object: &mut BodyObject<'_>, name: &'static str) -> Option<Vec<K::Value>> {
        object.list(name, K::parse)
    }
}

/// Texts under names that the caller chooses. `K` only describes the texts.
impl<K: JsonSchema> FieldKind for BTreeMap<String, K> {
    type Value = Vec<(String, String)>;

    fn read_field(object: &mut BodyObject<'_>, name: &'static str) -> Option<Self::Value> {
        object.texts(name)
    }
}

pub(crate) struct SomeOf<K, const MOST: usize>(PhantomData<K>);

inline_schema!(SomeOf<K, MOST>, as Vec<K>, for K: JsonSchema, const MOST: usize);

impl<K: ParseValue, const MOST: usize> FieldKind for SomeOf<K, MOST> {
    type Value = Vec<K::Value>;

    fn read_field(object: &mut BodyObject<'_>, name: &'static str) -> Option<Vec<K::Value>> {
        object.some(name, MOST, K::parse)
    }
}

/// A body, or an object within one, as [`body!`] declares it.
pub(crate) trait Body: Sized {
    /// Reads all of its fields. Complaints are collected in `object`.
    fn read(object: &mut BodyObject<'_>) -> Self;

    fn describe(schema: &mut BodySchema, generator: &mut SchemaGenerator);
}

/// The JSON Schema of a body being made.
#[derive(Default)]
pub(crate) struct BodySchema {
    properties: Map<String, Value>,
    required: Vec<&'static str>,
}

impl BodySchema {
    /// Adds a field that may be left out or be `null`.
    pub(crate) fn optional<K: FieldKind>(&mut self, generator: &mut SchemaGenerator, name: &'static str, says: &str) {
        self.add(generator.subschema_for::<Option<K>>(), name, says);
    }

    /// Adds a field that must be present and not `null`.
    pub(crate) fn required<K: FieldKind>(&mut self, generator: &mut SchemaGenerator, name: &'static str, says: &str) {
        self.required.push(name);
        self.add(generator.subschema_for::<K>(), name, says);
    }

    fn add(&mut self, mut schema: Schema, name: &str, says: &str) {
        if !says.is_empty() {
            schema.insert("description".to_owned(), says.trim().into());
        }
        self.properties.insert(name.to_owned(), schema.into());
    }

    /// The schema of an object with these fields and no others.
    pub(crate) fn object<B: Body>(generator: &mut SchemaGenerator) -> Schema {
        let mut body = Self::default();
        B::describe(&mut body, generator);
        let schema = json!({ "type": "object", "properties": body.properties, "required": body.required });
        schema.try_into().expect("an object is a schema")
    }
}

/// Declares bodies: each field as `name: presence kind`, with its description as a doc comment. The name in quotes is
/// that of the body's schema. The presences:
///
/// - `required`: it must be present and not `null`; the value is `None` if it is not, which is a complaint.
/// - `optional`: `None` if it is left out or `null`.
/// - `change`: `None` if it is left out, which keeps a value; `Some(None)` if it is `null`, which clears it.
/// - `all`: every field of another body.
macro_rules! body {
    ($($(#[doc = $about:literal])* $vis:vis struct $name:ident as $schema:literal { $($field:tt)* })+) => {
        $(body!(@one $(#[doc = $about])* $vis struct $name as $schema { $($field)* });)+
    };
    (@one $(#[doc = $about:literal])* $vis:vis struct $name:ident as $schema:literal {
        $($(#[doc = $says:literal])* $field:ident: $presence:ident $kind:ty,)*
    }) => {
        $(#[doc = $about])*
        $vis struct $name { $($vis $field: body!(@value $presence $kind),)* }

        impl crate::body_fields::Body for $name {
            fn read(object: &mut crate::object::BodyObject<'_>) -> Self {
                Self { $($field: body!(@read object $field $presence $kind),)* }
            }

            fn describe(schema: &mut crate::body_fields::BodySchema, generator: &mut schemars::SchemaGenerator) {
                $(body!(@describe schema generator $field $presence $kind, concat!($($says),*));)*
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $schema.into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                crate::body_fields::BodySchema::object::<Self>(generator)
            }
        }

        impl crate::body_fields::FieldKind for $name {
            type Value = Self;

            fn read_field(object: &mut crate::object::BodyObject<'_>, name: &'static str) -> Option<Self> {
                object.object(name)
            }
        }
    };
    (@value all $body:ty) => { $body };
    (@value change $kind:ty) => { Option<Option<<$kind as crate::body_fields::FieldKind>::Value>> };
    (@value $presence:ident $kind:ty) => { Option<<$kind as crate::body_fields::FieldKind>::Value> };
    (@read $object:ident $field:ident all $body:ty) => { <$body as crate::body_fields::Body>::read($object) };
    (@read $object:ident $field:ident $presence:ident $kind:ty) => { $object.$presence::<$kind>(stringify!($field)) };
    (@describe $schema:ident $generator:ident $field:ident all $body:ty, $says:expr) => {
        <$body as crate::body_fields::Body>::describe($schema, $generator)
    };
    (@describe $schema:ident $generator:ident $field:ident required $kind:ty, $says:expr) => {
        $schema.required::<$kind>($generator, stringify!($field), $says)
    };
    (@describe $schema:ident $generator:ident $field:ident $presence:ident $kind:ty, $says:expr) => {
        $schema.optional::<$kind>($generator, stringify!($field), $says)
    };
}
