//! What is said of endpoints.

use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, TENANT, may, need, null};
use super::{Operation, answer};

const ORDERS: Shape = Shape::OneOf(&["fifo", "newest_first", "strict"]);
const ON_DEAD: Shape = Shape::OneOf(&["skip", "hold"]);

const NEW_SIGNING: Shape = Shape::Object(&[
    may("scheme", SCHEMES, "HMAC-SHA256 with a shared secret, or Ed25519 with a public key"),
    may("secret", Shape::Text, "an imported one, whsec_… or whsk_…; one is made where nothing is said"),
]);
const CLASSES: Shape = Shape::OneOf(&["retry", "dead", "gone", "delivered"]);
const SCHEMES: Shape = Shape::OneOf(&["v1", "v1a"]);

const RATE: Shape = Shape::Object(&[
    need("per_second", Shape::Number, "at most so many a second"),
    may("burst", Shape::Whole, "so many at once after a pause; 1 where nothing is said"),
]);

const TLS: Shape = Shape::Object(&[
    may("ca", Shape::Text, "PEM: authorities that are believed beside the server's own"),
    may("client_cert", Shape::Text, "PEM: the certificate we show"),
    may("client_key", Shape::Text, "PEM: its private key; never shown again"),
]);

const URL: Field = need("url", Shape::Text, "where to: https, and no address of a network that is not public");

/// What may be said of an endpoint, at any time.
const fn said(url: Field, signing: Field) -> [Field; 19] {
    [
        url,
        may("uid", Shape::Name, "a name of its owner's own, taken wherever its id is"),
        may("channel", Shape::OneOf(&["webhook"]), ""),
        may(
            "event_types",
            Shape::List(&Shape::Text),
            "which events it wants, such as invoice.*; all where none is said",
        ),
        may("subject", Shape::Text, "whose it is: it is erased with them"),
        may("tags", Shape::List(&Shape::Name), "what messages can be addressed to"),
        may("description", Shape::Text, "a note"),
        may("headers", Shape::Map(&Shape::Text), "sent along; none can take the place of ours"),
        may("policy", Shape::Text, "its retry policy, by name; its tenant's where nothing is said"),
        may("ttl", Shape::Duration, "how long its messages are worth sending"),
        may("timeout", Shape::Duration, "how long an attempt may take, at most 30s"),
        may("rate", RATE, "how fast it may be sent to"),
        may("max_in_flight", Shape::Whole, "attempts under way at once, 1 to 1000"),
        may("order", ORDERS, ""),
        may("on_dead", ON_DEAD, "for a strict order: what a dead delivery does to those behind it"),
        may("time_zone", Shape::Text, "whose clock off-peak windows go by, such as Europe/Berlin"),
        may("tls", TLS, ""),
        may("status_overrides", Shape::Map(&CLASSES), "what a code (404) or a range (4xx) means"),
        signing,
    ]
}

const NEW_FIELDS: &[Field] = &said(URL, may("signing", NEW_SIGNING, ""));
const NEW: Shape = Shape::Named("NewEndpoint", NEW_FIELDS);
const OTHER_URL: Field = may("url", Shape::Text, "where to");
const CHANGED: [Field; 19] = said(OTHER_URL, OTHER_URL);
/// A secret is changed by rotating it.
const CHANGED_FIELDS: &[Field] = CHANGED.split_at(CHANGED.len() - 1).0;
const CHANGES: Shape = Shape::Named("EndpointChanges", CHANGED_FIELDS);

const SIGNING: Shape = Shape::Object(&[
    need("scheme", SCHEMES, ""),
    may("secret", Shape::Text, "what its receiver verifies with, where it is to be shown"),
    may("public_key", Shape::Text, "the same for v1a"),
]);

pub(super) const SHOWN: Shape = Shape::Named(
    "Endpoint",
    &[
        need("id", Shape::Text, ""),
        TENANT,
        null("uid", Shape::Name, ""),
        need("channel", Shape::Text, ""),
        need("url", Shape::Text, "whole for its tenant's own keys, up to the path for others"),
        null("subject", Shape::Text, ""),
        null("description", Shape::Text, ""),
        need("tags", Shape::List(&Shape::Name), ""),
        need("headers", Shape::Map(&Shape::Text), ""),
        need("event_types", Shape::List(&Shape::Text), ""),
        need("policy", Shape::Text, "the one it goes by: its own, else its tenant's"),
        null("ttl", Shape::Duration, ""),
        null("timeout", Shape::Duration, ""),
        null("rate", RATE, ""),
        need("max_in_flight", Shape::Whole, ""),
        need("order", ORDERS, ""),
        need("on_dead", ON_DEAD, ""),
        null("time_zone", Shape::Text, ""),
        null("tls", SHOWN_TLS, "which texts were given"),
        need("status_overrides", Shape::Map(&CLASSES), ""),
        need("status", Shape::OneOf(&["active", "paused", "disabled", "gone"]), ""),
        null("status_reason", Shape::Text, "why it is not active, if it is not"),
        need("created_at", Shape::Time, ""),
        need("signing", SIGNING, "with the secret only where it was just made"),
    ],
);
const SHOWN_TLS: Shape = Shape::Object(&[need("ca", Shape::Truth, ""), need("client_cert", Shape::Truth, "")]);

const SECRETS: Shape = Shape::Object(&[
    need("scheme", SCHEMES, ""),
    may("secret", Shape::Text, "what its receiver verifies with"),
    may("public_key", Shape::Text, "the same for v1a"),
    need("previous", Shape::List(&PREVIOUS), "those that still sign beside it, newest first"),
]);
const PREVIOUS: Shape = Shape::Object(&[
    need("scheme", SCHEMES, ""),
    may("secret", Shape::Text, ""),
    may("public_key", Shape::Text, ""),
    null("until", Shape::Time, "when it stops to sign"),
]);
const ROTATE: Shape =
    Shape::Object(&[may("overlap", Shape::Duration, "how long older secrets sign on; 24h where nothing is said")]);
const NOTHING: Shape = Shape::Object(&[]);
const ENDED: Shape = Shape::Object(&[
    need("id", Shape::Text, ""),
    need("ended", Shape::Whole, "never sent from now on"),
    need("in_flight", Shape::Whole, "may still arrive"),
]);

const PAUSE: Shape = Shape::Object(&[
    may("until", Shape::Time, "it ends by itself then"),
    may("reason", Shape::Text, "for whoever wonders"),
]);
const ENABLE: Shape = Shape::Object(&[may("reason", Shape::Text, "for whoever wonders")]);

const SWITCHED: &[Field] = &[
    need("id", Shape::Text, ""),
    need("paused", Shape::Truth, ""),
    null("until", Shape::Time, ""),
    null("reason", Shape::Text, "in the words of whoever paused it"),
];

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/endpoints", "Makes an endpoint").scope("manage").takes(&NEW).keyed().answers(&[answer(
        201,
        "The endpoint, with the secret it signs with.",
        &SHOWN,
    )]),
    Operation::get("/v1/endpoints", "Lists endpoints")
        .scope("read")
        .parameters(&[
            LIMIT,
            ORDER,
            CURSOR,
            may("uid", Shape::Text, "that has this uid"),
            may("subject", Shape::Text, "of this subject"),
            may("tags", Shape::Text, "with this tag"),
            may("status", Shape::Text, "that are active, paused, disabled or gone"),
        ])
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
        .conflicts()
        .may_take(&ENABLE)
        .answers(&[answer(200, "It is sent again.", &Shape::Object(SWITCHED))]),
    Operation::new("PATCH", "/v1/endpoints/{id}", "Changes an endpoint; what is left out stays as it is")
        .scope("manage")
        .conflicts()
        .takes(&CHANGES)
        .answers(&[answer(200, "The endpoint as it is now.", &SHOWN)]),
    Operation::new("DELETE", "/v1/endpoints/{id}", "Deletes an endpoint and ends what waits for it")
        .scope("manage")
        .answers(&[answer(200, "Nothing more is sent there.", &ENDED)]),
    Operation::get("/v1/endpoints/{id}/secret", "Shows what an endpoint signs with")
        .scope("secrets")
        .answers(&[answer(200, "What its receiver verifies with.", &SECRETS)]),
    Operation::post("/v1/endpoints/{id}/secret/rotate", "Makes an endpoint sign with a new secret")
        .scope("secrets")
        .may_take(&ROTATE)
        .keyed()
        .answers(&[answer(200, "All that signs from now on.", &SECRETS)]),
    Operation::post("/v1/endpoints/{id}/test", "Sends an example message to an endpoint")
        .scope("manage")
        .may_take(&NOTHING)
        .keyed()
        .answers(&[answer(202, "The message is on its way.", &super::messages::ACCEPTED)]),
];
