//! What is said of API keys.

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
            "what it may do, within what the key that makes it may; the same as that where nothing is said",
        ),
        may("expires_at", Shape::Time, "no later than the key that makes it, which it is where nothing is said"),
        may("description", Shape::Text, "what it is for"),
    ],
);

const SHOWN: Shape = Shape::Named(
    "Key",
    &[
        need("id", Shape::Text, ""),
        need("prefix", Shape::Text, "what it begins with"),
        need("scopes", SCOPES, ""),
        null("description", Shape::Text, ""),
        need("created_at", Shape::Time, ""),
        null("expires_at", Shape::Time, ""),
        may("key", Shape::Text, "the key itself: only where it was just made"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/keys", "Makes an operator key").scope("operate").may_take(&NEW).keyed().answers(&[answer(
        201,
        "The key, shown here alone.",
        &SHOWN,
    )]),
    Operation::get("/v1/keys", "Lists operator keys")
        .scope("operate")
        .parameters(&[LIMIT, ORDER, CURSOR])
        .answers(&[answer(200, "A page of them.", &Shape::Page(&SHOWN))]),
    Operation::new("DELETE", "/v1/keys/{id}", "Revokes an operator key")
        .scope("operate")
        .answers(&[no_answer(204, "It admits nobody.")]),
    Operation::post("/v1/tenants/{t}/keys", "Makes a tenant's key")
        .scope("secrets")
        .may_take(&NEW)
        .keyed()
        .answers(&[answer(201, "The key, shown here alone.", &SHOWN)]),
    Operation::get("/v1/tenants/{t}/keys", "Lists a tenant's keys")
        .scope("secrets")
        .parameters(&[LIMIT, ORDER, CURSOR])
        .answers(&[answer(200, "A page of them.", &Shape::Page(&SHOWN))]),
    Operation::new("DELETE", "/v1/tenants/{t}/keys/{id}", "Revokes a tenant's key")
        .scope("secrets")
        .answers(&[no_answer(204, "It admits nobody.")]),
];
