//! The documentation of the routes for subjects: erasure and export.

use super::shape::{Shape, TENANT, may, need, null};
use super::{Operation, answer, answer_as, deliveries, endpoints, tenants};

const MESSAGE: Shape = Shape::Named(
    "HeldMessage",
    &[
        need("id", Shape::Text, ""),
        TENANT,
        null("event_type", Shape::Text, ""),
        need("correlation_id", Shape::Text, ""),
        null("subject", Shape::Text, ""),
        need("tier", Shape::Text, ""),
        need("labels", Shape::Map(&Shape::Text), ""),
        null("region", Shape::Text, ""),
        null("cost_center", Shape::Text, ""),
        need("accepted_at", Shape::Time, ""),
        null("deliver_at", Shape::Time, ""),
        null("ttl", Shape::Duration, ""),
        null("expires_at", Shape::Time, ""),
        need("payload", Shape::Json, ""),
        may("compact", Shape::Json, "the smaller payload, if the message has one"),
    ],
);

const LINE: Shape = Shape::Either(&[
    Shape::Object(&[
        need("kind", Shape::OneOf(&["endpoint"]), ""),
        need("endpoint", endpoints::SHOWN, "an endpoint that belongs to the subject"),
    ]),
    Shape::Object(&[
        need("kind", Shape::OneOf(&["message"]), ""),
        need("message", MESSAGE, "a message about the subject; the lines of its deliveries follow"),
    ]),
    Shape::Object(&[
        need("kind", Shape::OneOf(&["delivery"]), ""),
        need("delivery", deliveries::SHOWN, "a delivery with all its attempts, and the answers to those that failed"),
    ]),
    Shape::Object(&[
        need("kind", Shape::OneOf(&["complete"]), "the last line; an export without it is incomplete"),
        need("endpoints", Shape::Whole, "the number of endpoint lines before it"),
        need("messages", Shape::Whole, "the number of message lines before it"),
        need("deliveries", Shape::Whole, "the number of delivery lines before it"),
    ]),
]);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::new("DELETE", "/v1/subjects/{s}", "Erases a subject: its endpoints, and the messages about it")
        .scope("privacy")
        .answers(&[answer(200, "The subject's data can no longer be read.", &tenants::ERASED)]),
    Operation::get("/v1/subjects/{s}/export", "Exports all data stored about a subject").scope("privacy").answers(&[
        answer_as(
            200,
            "One line for each endpoint, message and delivery, oldest first, then a line of kind complete.",
            &LINE,
            "application/x-ndjson",
        ),
    ]),
];
