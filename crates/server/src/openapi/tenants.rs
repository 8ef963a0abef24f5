//! What is said of tenants.

use super::shape::{CURSOR, Field, LIMIT, ORDER, Shape, may, need, null};
use super::{Operation, answer};

const NEW_QUOTA: &[Field] = &[
    may("per_second", Shape::Whole, "messages taken in, on average"),
    may("burst", Shape::Whole, "at once, after a rest; per_second where nothing is said"),
    may("pending", Shape::Whole, "while so many of its deliveries are pending, no message is taken in"),
];

const OFF_PEAK: &[Field] = &[
    need("from", Shape::Text, "a time of the day, such as 20:00"),
    need("to", Shape::Text, "another; an earlier one is on the next day"),
];

const NEW_RETENTION: &[Field] = &[
    may("payload", Shape::Duration, "a message with its payload, from its accept; 1h to 3650d, no longer than history"),
    may(
        "history",
        Shape::Duration,
        "what became of a delivery, with its attempts and its dead letter, from its end; what is pending for so long is \
         given up. No longer than the audit trail",
    ),
];

const NEW: Shape = Shape::Named(
    "NewTenant",
    &[
        may("uid", Shape::Name, "what you call it; taken wherever its id is"),
        may("weight", Shape::Number, "its share beside others': 2 gets twice the time of 1"),
        may("quota", Shape::Object(NEW_QUOTA), "how fast its messages are taken in"),
        may("policy", Shape::Text, "the retry policy of endpoints that name none"),
        may("time_zone", Shape::Text, "whose clock its off-peak window goes by, such as Europe/Berlin; UTC unless set"),
        may("off_peak", Shape::Object(OFF_PEAK), "when engagement messages may leave; at any time unless set"),
        may("region", Shape::Name, "where its data is at home; kept and shown"),
        may(
            "retention",
            Shape::Object(NEW_RETENTION),
            "how long its things are kept; where nothing is said, as long as the server's settings say",
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
        null("retention", Shape::Object(RETENTION), "null: as long as the server's settings say"),
        need("created_at", Shape::Time, ""),
    ],
);

pub(super) const ERASED: Shape = Shape::Named(
    "Erased",
    &[
        need("erased_at", Shape::Time, "nobody can read any of it since"),
        need("audit_row", Shape::Whole, "the row of the audit trail that says so"),
        need("messages", Shape::Whole, "so many are gone so far"),
        need("deliveries", Shape::Whole, "so many are gone so far"),
        need("in_flight", Shape::Whole, "so many were being sent, and may still arrive"),
        null(
            "swept_at",
            Shape::Time,
            "when the last row went; null while some are left: the audit trail tells of the end as erasure_done",
        ),
    ],
);

const UID: Field = may("uid", Shape::Text, "the one that is called so");

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post("/v1/tenants", "Makes a tenant").scope("operate").may_take(&NEW).keyed().answers(&[answer(
        201,
        "The tenant.",
        &SHOWN,
    )]),
    Operation::get("/v1/tenants", "Lists tenants")
        .scope("operate")
        .parameters(&[LIMIT, ORDER, CURSOR, UID])
        .answers(&[answer(200, "A page of them.", &Shape::Page(&SHOWN))]),
    Operation::get("/v1/tenants/{t}", "Shows a tenant").scope("operate").or_own("read").answers(&[answer(
        200,
        "The tenant.",
        &SHOWN,
    )]),
    Operation::new(
        "PATCH",
        "/v1/tenants/{t}",
        "Changes a tenant: what is left out stays as it is. A tenant itself changes its policy, time_zone and \
         off_peak",
    )
    .or_own("manage")
    .conflicts()
    .scope("operate")
    .may_take(&NEW)
    .answers(&[answer(200, "The tenant as it is now.", &SHOWN)]),
    Operation::new("DELETE", "/v1/tenants/{t}", "Erases a tenant with everything it has")
        .scope("operate")
        .answers(&[answer(200, "Nobody can read any of it.", &ERASED)]),
];
