//! What is said of policies.

use super::shape::{Field, Shape, may, need, null};
use super::{Operation, answer, no_answer};

const STRATEGIES: Shape = Shape::OneOf(&["fixed", "linear", "exponential", "list"]);
const JITTERS: Shape = Shape::OneOf(&["none", "full", "equal", "decorrelated", "spread", "add"]);

const JITTER: &[Field] = &[may("kind", JITTERS, ""), may("share", Shape::Number, "of a wait, for spread and add")];
const TIER: &[Field] =
    &[may("scale", Shape::Number, "every wait times this"), may("first", Shape::Duration, "the first wait at most")];
const TIERS: &[Field] = &[
    may("transactional", Shape::Object(TIER), ""),
    may("promotional", Shape::Object(TIER), ""),
    may("engagement", Shape::Object(TIER), ""),
];
const BREAKER: &[Field] = &[
    may("failure_rate", Shape::Number, "a share of failures that opens it"),
    may("min_volume", Shape::Whole, "of at least so many"),
    may("consecutive", Shape::Whole, "or so many in a row"),
    may("open_for", Shape::Duration, "before the first probe"),
];

const POLICY: &[Field] = &[
    may("strategy", STRATEGIES, ""),
    may("base", Shape::Duration, "the first wait"),
    may("multiplier", Shape::Number, "of exponential waits"),
    may("cap", Shape::Duration, "the longest wait before jitter"),
    may("step", Shape::Duration, "of linear waits"),
    may("delays", Shape::List(&Shape::Duration), "the waits, one by one"),
    may("jitter", Shape::Object(JITTER), ""),
    may("max_attempts", Shape::Whole, "the first one included"),
    may("window", Shape::Duration, "no attempt begins later after the first"),
    may("retry_after_max", Shape::Duration, "the longest Retry-After that is obeyed"),
    may("tiers", Shape::Object(TIERS), ""),
    may("breaker", Shape::Object(BREAKER), ""),
];

const SHOWN: Shape = Shape::Named(
    "Policy",
    &[
        need("name", Shape::Text, ""),
        need("preset", Shape::Truth, "whether it is built in, and cannot be changed"),
        null("owner", Shape::OneOf(&["operator", "tenant"]), "whose it is; nobody's where it is a preset"),
        null("created_at", Shape::Time, "when it was first put"),
        null("strategy", Shape::Text, ""),
        null("base", Shape::Duration, ""),
        null("multiplier", Shape::Number, ""),
        null("cap", Shape::Duration, ""),
        null("step", Shape::Duration, ""),
        null("delays", Shape::List(&Shape::Duration), ""),
        need("jitter", Shape::Object(JITTER), ""),
        null("max_attempts", Shape::Whole, ""),
        null("window", Shape::Duration, ""),
        null("retry_after_max", Shape::Duration, ""),
        need("tiers", Shape::Object(TIERS), ""),
        need("breaker", Shape::Object(BREAKER), ""),
    ],
);

const WRITTEN: Shape = Shape::Named("NewPolicy", POLICY);

const PREVIEW: Shape = Shape::Object(&[
    need("policy", Shape::Either(&[Shape::Text, WRITTEN]), "its name, or what it would say"),
    may("tier", Shape::Tier, ""),
    may("ttl", Shape::Duration, ""),
]);

const WAIT: Shape = Shape::Object(&[
    need("retry", Shape::Whole, "its number, from 1"),
    need("after", Shape::Duration, "the wait before jitter"),
    need("earliest", Shape::Duration, ""),
    need("latest", Shape::Duration, ""),
    need("since_accept", Shape::Duration, ""),
]);

const PREVIEWED: Shape = Shape::Named(
    "Preview",
    &[
        need("waits", Shape::List(&WAIT), ""),
        need("largest_wait", Shape::Duration, ""),
        need("survives", Shape::Duration, "an outage of this length"),
        need("notes", Shape::List(&Shape::Text), ""),
        need("text", Shape::Text, "the same for people"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/policies", "Lists retry policies").scope("read").answers(&[answer(
        200,
        "Every one that an endpoint can name: the presets, then yours and the operator's.",
        &Shape::Page(&SHOWN),
    )]),
    Operation::get("/v1/policies/{name}", "Shows a retry policy").scope("read").answers(&[answer(
        200,
        "What the name stands for.",
        &SHOWN,
    )]),
    Operation::new("PUT", "/v1/policies/{name}", "Makes a retry policy, or puts another in its place")
        .scope("manage")
        .conflicts()
        .takes(&WRITTEN)
        .answers(&[answer(200, "The policy: what waits goes by it from its next attempt on.", &SHOWN)]),
    Operation::new("DELETE", "/v1/policies/{name}", "Deletes a retry policy that nobody uses")
        .scope("manage")
        .conflicts()
        .answers(&[no_answer(204, "It is gone.")]),
    Operation::post("/v1/policies/preview", "Shows when a policy would try again")
        .scope("read")
        .takes(&PREVIEW)
        .answers(&[answer(200, "Its schedule.", &PREVIEWED)]),
];
