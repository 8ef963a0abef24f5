//! The documentation of the routes for tenants.

use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, may, need, null};
use super::{Operation, answer};

const NEW_QUOTA: &[Field] = &[
    may("per_second", Shape::Whole, "the average number of messages accepted in a second"),
    may("burst", Shape::Whole, "the most messages accepted at once; per_second by default"),
    may("pending", Shape::Whole, "the most pending deliveries; messages are refused while there are as many"),
];

const OFF_PEAK: &[Field] = &[
    need("from", Shape::Text, "a time of day, such as 20:00"),
    need("to", Shape::Text, "a time of day; earlier than `from` means on the next day"),
];

const NEW_RETENTION: &[Field] = &[
    may(
        "payload",
        Shape::Duration,
        "how long a message and its payload are kept after accept; 1h to 3650d, no longer than history",
    ),
    may(
        "history",
        Shape::Duration,
        "how long an ended delivery is kept with its attempts and its dead letter; a delivery that is pending for as \
         long is given up. 1h to 3650d, no longer than the audit trail is kept",
    ),
];

const NEW: Shape = Shape::Named(
    "NewTenant",
    &[
        may("uid", Shape::Name, "your name for it, accepted in place of its id"),
        may("weight", Shape::Number, "its share of sending capacity relative to other tenants: 2 gets twice that of 1"),
        may("quota", Shape::Object(NEW_QUOTA), "limits on the messages it sends"),
        may("policy", Shape::Text, "the retry policy of its endpoints that name none; webhook by default"),
        may("time_zone", Shape::Text, "the time zone of its off-peak window, such as Europe/Berlin; UTC by default"),
        may("off_peak", Shape::Object(OFF_PEAK), "when engagement messages may be sent; at any time by default"),
        may("region", Shape::Name, "where its data belongs; stored and shown, without effect"),
        may(
            "retention",
            Shape::Object(NEW_RETENTION),
            "how long its messages and deliveries are kept; the server's settings by default",
        ),
    ],
);

const QUOTA: &[Field] =
    &[null("per_second", Shape::Whole, ""), null("burst", Shape::Whole, ""), null("pending", Shape::Whole, "")];

const RETENTION: &[Field] = &[null("payload", Shape::Text, ""), null("history", Shape::Text, "")];

const SHOWN: Shape = Shape::Named(
    "Tenant",
    &[
        need("id", Shape::Text, ""),
        null("uid", Shape::Text, ""),
        need("weight", Shape::Number, ""),
        null("quota", Shape::Object(QUOTA), ""),
        null("policy", Shape::Text, ""),
        null("time_zone", Shape::Text, ""),
        null("off_peak", Shape::Object(OFF_PEAK), ""),
        null("region", Shape::Text, ""),
        null("retention", Shape::Object(RETENTION), "null: the server's settings apply"),
        need("created_at", Shape::Time, ""),
    ],
);

pub(super) const ERASED: Shape = Shape::Named(
    "Erased",
    &[
        need("erased_at", Shape::Time, "when it became unreadable: its keys are destroyed"),
        need("audit_row", Shape::Whole, "the row of the audit trail that records the erasure"),
        need("messages", Shape::Whole, "the number of messages removed so far"),
        need("deliveries", Shape::Whole, "the number of deliveries removed so far"),
        need("in_flight", Shape::Whole, "the number of deliveries being sent; they may still arrive"),
        null(
            "swept_at",
            Shape::Time,
            "when the last row was removed; null while rows are left. The audit trail records the end as erasure_done",
        ),
    ],
);

const UID: Field = may("uid", Shape::Text, "only the tenant with this uid");

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/tenants", "Creates a tenant").scope("operate").may_take(&NEW).keyed().answers(&[answer(
        201,
        "The tenant.",
        &SHOWN,
    )]),
    Operation::get("/v1/tenants", "Lists tenants")
        .scope("operate")
        .parameters(&[LIMIT, ORDER, CURSOR, UID])
        .answers(&[answer(200, "A page of tenants.", &Shape::Page(&SHOWN))]),
    Operation::get("/v1/tenants/{t}", "Shows a tenant").scope("operate").or_own("read").answers(&[answer(
        200,
        "The tenant.",
        &SHOWN,
    )]),
    Operation::new(
        "PATCH",
        "/v1/tenants/{t}",
        "Changes a tenant; fields that are left out keep their value. A tenant key can change policy, time_zone and \
         off_peak",
    )
    .or_own("manage")
    .conflicts()
    .scope("operate")
    .may_take(&NEW)
    .answers(&[answer(200, "The changed tenant.", &SHOWN)]),
    Operation::new("DELETE", "/v1/tenants/{t}", "Erases a tenant with all its data")
        .scope("operate")
        .answers(&[answer(200, "The tenant's data can no longer be read.", &ERASED)]),
];
