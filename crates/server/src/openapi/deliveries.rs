//! The documentation of the routes for deliveries.

use super::document::{STATES, WAITING};
use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, TENANT, may, need, null};
use super::{Operation, answer};

const ATTEMPT: Shape = Shape::Object(&[
    need("attempt", Shape::Whole, "the attempt's number, from 1"),
    need("at", Shape::Time, "when it began"),
    need("duration", Shape::Duration, ""),
    null("status", Shape::Whole, "the HTTP status of the receiver's answer; null without an answer"),
    need("cause", Shape::Text, "how it ended; docs/causes.md lists the causes"),
    may("response", Shape::Text, "of a failed attempt, with content=true: the first 1,024 bytes of the answer"),
    null("next_due", Shape::Time, "when the next attempt is due, if that time has not come yet"),
]);

const FILTERS: &[Field] = &[
    LIMIT,
    ORDER,
    CURSOR,
    may("state", Shape::OneOf(&STATES), "only deliveries in this state"),
    may("endpoint", Shape::Text, "only deliveries to this endpoint, by id or uid"),
    may("cause", Shape::Text, "only deliveries that ended, or were last tried, with this cause"),
    may("message", Shape::Text, "only deliveries of this message"),
    may("tier", Shape::Tier, "only deliveries of this tier"),
    may("since", Shape::Time, "only deliveries first due at or after this time"),
    may("until", Shape::Time, "only deliveries first due before this time"),
];

/// The fields of a delivery, with these for its endpoint and its attempts, in which the list and the view differ.
const fn delivery_fields(endpoint: Field, attempts: Field) -> [Field; 19] {
    [
        need("id", Shape::Text, ""),
        TENANT,
        need("message", Shape::Text, ""),
        endpoint,
        need("tier", Shape::Text, ""),
        need("state", Shape::OneOf(&STATES), ""),
        null("cause", Shape::Text, "why the last attempt failed, or why it ended without success"),
        may(
            "cause_detail",
            Shape::Text,
            "only in the view of one delivery that ended with a 413: how many bytes exceeded the receiver's limit",
        ),
        need("accepted_at", Shape::Time, "when its message was accepted"),
        need("created_at", Shape::Time, "when it was created: with its message, or by a replay"),
        null("replay_of", Shape::Text, "the ended delivery that this one replays"),
        null("replayed_as", Shape::Text, "the delivery that replays this one"),
        null("replay", Shape::Text, "the replay that created it"),
        null("expires_at", Shape::Time, "when its ttl ends; null without one"),
        null("sent_at", Shape::Time, "when its last attempt began"),
        null("delivered_at", Shape::Time, ""),
        null("failed_at", Shape::Time, "when it ended without success"),
        attempts,
        null("waiting", WAITING, "why it waits; null if it does not"),
    ]
}

const LISTED: Shape = Shape::Named(
    "ListedDelivery",
    &delivery_fields(need("endpoint", Shape::Text, ""), need("attempts", Shape::Whole, "the number of attempts made")),
);
pub(super) const SHOWN: Shape = Shape::Named(
    "Delivery",
    &delivery_fields(
        null("endpoint", Shape::Text, "null only in an export, if the endpoint no longer exists"),
        need("attempts", Shape::List(&ATTEMPT), ""),
    ),
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/deliveries", "Lists deliveries").scope("read").parameters(FILTERS).answers(&[answer(
        200,
        "A page of deliveries.",
        &Shape::Page(&LISTED),
    )]),
    Operation::get("/v1/deliveries/{id}", "Shows a delivery with all its attempts, and why it waits")
        .scope("read")
        .parameters(&[may(
            "content",
            Shape::Truth,
            "true: include the receiver's answers; the key then needs the scope privacy too",
        )])
        .answers(&[answer(200, "The delivery.", &SHOWN)]),
    Operation::post("/v1/deliveries/{id}/retry", "Sends a waiting delivery now instead of at its due time")
        .scope("replay")
        .conflicts()
        .answers(&[answer(200, "The delivery. Pauses, breakers and rate limits still apply to it.", &SHOWN)]),
];
