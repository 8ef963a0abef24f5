//! The documentation of the routes for API keys.

use super::shape::{CURSOR, LIMIT, ORDER, Shape, may, need, null};
use super::{Operation, answer, no_answer};

const SCOPES: Shape =
    Shape::List(&Shape::OneOf(&["send", "read", "manage", "replay", "secrets", "privacy", "operate"]));

const NEW: Shape = Shape::Named(
    "NewKey",
    &[
        may(
            "scopes",
            SCOPES,
            "what the key allows; at most the scopes of the key that creates it, which are the default",
        ),
        may("expires_at", Shape::Time, "no later than that of the key that creates it, which is the default"),
        may("description", Shape::Text, "a note, such as what the key is for"),
    ],
);

const SHOWN: Shape = Shape::Named(
    "Key",
    &[
        need("id", Shape::Text, ""),
        need("prefix", Shape::Text, "the first characters of the key"),
        need("scopes", SCOPES, ""),
        null("description", Shape::Text, ""),
        need("created_at", Shape::Time, ""),
        null("expires_at", Shape::Time, ""),
        may("key", Shape::Text, "the key itself, only in the answer that creates it"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/keys", "Creates an operator key").scope("operate").may_take(&NEW).keyed().answers(&[answer(
        201,
        "The key. This is the only answer that shows it.",
        &SHOWN,
    )]),
    Operation::get("/v1/keys", "Lists operator keys")
        .scope("operate")
        .parameters(&[LIMIT, ORDER, CURSOR])
        .answers(&[answer(200, "A page of keys.", &Shape::Page(&SHOWN))]),
    Operation::new("DELETE", "/v1/keys/{id}", "Revokes an operator key")
        .scope("operate")
        .answers(&[no_answer(204, "The key is revoked.")]),
    Operation::post("/v1/tenants/{t}/keys", "Creates a key of a tenant")
        .scope("secrets")
        .may_take(&NEW)
        .keyed()
        .answers(&[answer(201, "The key. This is the only answer that shows it.", &SHOWN)]),
    Operation::get("/v1/tenants/{t}/keys", "Lists the keys of a tenant")
        .scope("secrets")
        .parameters(&[LIMIT, ORDER, CURSOR])
        .answers(&[answer(200, "A page of keys.", &Shape::Page(&SHOWN))]),
    Operation::new("DELETE", "/v1/tenants/{t}/keys/{id}", "Revokes a key of a tenant")
        .scope("secrets")
        .answers(&[no_answer(204, "The key is revoked.")]),
];
