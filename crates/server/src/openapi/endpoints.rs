//! What is said of endpoints.

use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, may, need, null};
use super::{Operation, answer};

const ORDERS: Shape = Shape::OneOf(&["fifo", "newest_first", "strict"]);
const ON_DEAD: Shape = Shape::OneOf(&["skip", "hold"]);

const NEW_SIGNING: Shape = Shape::Object(&[
    may("scheme", Shape::OneOf(&["v1"]), "HMAC-SHA256"),
    may("secret", Shape::Text, "an imported secret, whsec_…; one is made where nothing is said"),
]);

const NEW: Shape = Shape::Named(
    "NewEndpoint",
    &[
        need("url", Shape::Text, "where to: https, and no address of a network that is not public"),
        may("channel", Shape::OneOf(&["webhook"]), ""),
        may(
            "event_types",
            Shape::List(&Shape::Text),
            "which events it wants, such as invoice.*; all where none is said",
        ),
        may("policy", Shape::Text, "its retry policy, by name"),
        may("ttl", Shape::Duration, "how long its messages are worth sending"),
        may("max_in_flight", Shape::Whole, "attempts under way at once, 1 to 1000"),
        may("order", ORDERS, ""),
        may("on_dead", ON_DEAD, "for a strict order: what a dead delivery does to those behind it"),
        may("signing", NEW_SIGNING, ""),
    ],
);

const SIGNING: Shape =
    Shape::Object(&[need("scheme", Shape::Text, ""), need("secret", Shape::Text, "what its receiver verifies with")]);

const SHOWN: Shape = Shape::Named(
    "Endpoint",
    &[
        need("id", Shape::Text, ""),
        need("channel", Shape::Text, ""),
        need("url", Shape::Text, ""),
        need("event_types", Shape::List(&Shape::Text), ""),
        need("policy", Shape::Text, ""),
        null("ttl", Shape::Duration, ""),
        need("max_in_flight", Shape::Whole, ""),
        need("order", ORDERS, ""),
        need("on_dead", ON_DEAD, ""),
        need("status", Shape::Text, ""),
        need("created_at", Shape::Time, ""),
        may("signing", SIGNING, "only where it was just made"),
    ],
);

const PAUSE: Shape = Shape::Object(&[
    may("until", Shape::Time, "it ends by itself then"),
    may("reason", Shape::Text, "for whoever wonders"),
]);
const ENABLE: Shape = Shape::Object(&[may("reason", Shape::Text, "for whoever wonders")]);

const SWITCHED: &[Field] =
    &[need("id", Shape::Text, ""), need("paused", Shape::Truth, ""), null("until", Shape::Time, "")];

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/endpoints", "Makes an endpoint").scope("manage").takes(&NEW).keyed().answers(&[answer(
        201,
        "The endpoint, with the secret it signs with.",
        &SHOWN,
    )]),
    Operation::get("/v1/endpoints", "Lists endpoints")
        .scope("read")
        .parameters(&[LIMIT, ORDER, CURSOR])
        .answers(&[answer(200, "A page of them.", &Shape::Page(&SHOWN))]),
    Operation::get("/v1/endpoints/{id}", "Shows an endpoint").scope("read").answers(&[answer(
        200,
        "The endpoint.",
        &SHOWN,
    )]),
    Operation::post("/v1/endpoints/{id}/pause", "Holds what is for an endpoint")
        .scope("manage")
        .may_take(&PAUSE)
        .answers(&[answer(200, "Nothing is sent there.", &Shape::Object(SWITCHED))]),
    Operation::post("/v1/endpoints/{id}/enable", "Lets go what is for an endpoint")
        .scope("manage")
        .may_take(&ENABLE)
        .answers(&[answer(200, "It is sent again.", &Shape::Object(SWITCHED))]),
];
