//! The documentation of the routes for retry policies.

use super::shape::{Field, Shape, may, need, null};
use super::{Operation, answer, no_answer};

const STRATEGIES: Shape = Shape::OneOf(&["fixed", "linear", "exponential", "list"]);
const JITTERS: Shape = Shape::OneOf(&["none", "full", "equal", "decorrelated", "spread", "add"]);

const JITTER: &[Field] = &[
    may("kind", JITTERS, ""),
    may("share", Shape::Number, "for spread and add: the random part, as a share of the wait"),
];
const TIER: &[Field] =
    &[may("scale", Shape::Number, "a factor for every wait"), may("first", Shape::Duration, "the longest first wait")];
const TIERS: &[Field] = &[
    may("transactional", Shape::Object(TIER), ""),
    may("promotional", Shape::Object(TIER), ""),
    may("engagement", Shape::Object(TIER), ""),
];
const BREAKER: &[Field] = &[
    may("failure_rate", Shape::Number, "the share of failed attempts that opens the breaker"),
    may("min_volume", Shape::Whole, "the fewest attempts for which failure_rate counts"),
    may("consecutive", Shape::Whole, "the number of failures in a row that opens the breaker"),
    may("open_for", Shape::Duration, "how long it stays open before the first probe"),
];

const POLICY: &[Field] = &[
    may("strategy", STRATEGIES, ""),
    may("base", Shape::Duration, "the first wait"),
    may("multiplier", Shape::Number, "for exponential: the factor from one wait to the next"),
    may("cap", Shape::Duration, "the longest wait before jitter"),
    may("step", Shape::Duration, "for linear: the difference from one wait to the next"),
    may("delays", Shape::List(&Shape::Duration), "for list: the waits in order"),
    may("jitter", Shape::Object(JITTER), ""),
    may("max_attempts", Shape::Whole, "the most attempts, the first one included"),
    may("window", Shape::Duration, "how long after its first due time a delivery is tried; then it is dead"),
    may("retry_after_max", Shape::Duration, "the longest Retry-After that is obeyed"),
    may("tiers", Shape::Object(TIERS), ""),
    may("breaker", Shape::Object(BREAKER), ""),
];

const SHOWN: Shape = Shape::Named(
    "Policy",
    &[
        need("name", Shape::Text, ""),
        need("preset", Shape::Truth, "whether it is built in; a preset cannot be changed"),
        null("owner", Shape::OneOf(&["operator", "tenant"]), "who defined it; null for a preset"),
        null("created_at", Shape::Time, "when it was first put; null for a preset"),
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
    need("policy", Shape::Either(&[Shape::Text, WRITTEN]), "the name of a policy, or a policy itself"),
    may("tier", Shape::Tier, ""),
    may("ttl", Shape::Duration, ""),
]);

const WAIT: Shape = Shape::Object(&[
    need("retry", Shape::Whole, "the retry's number, from 1"),
    need("after", Shape::Duration, "the wait before jitter"),
    need("earliest", Shape::Duration, "the shortest wait with jitter"),
    need("latest", Shape::Duration, "the longest wait with jitter"),
    need("since_accept", Shape::Duration, "the sum of the waits before jitter up to this retry"),
]);

const PREVIEWED: Shape = Shape::Named(
    "Preview",
    &[
        need("waits", Shape::List(&WAIT), ""),
        need("largest_wait", Shape::Duration, ""),
        need("survives", Shape::Duration, "the longest outage of a receiver that the retries outlast"),
        need("notes", Shape::List(&Shape::Text), ""),
        need("text", Shape::Text, "the schedule as text for people"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/policies", "Lists retry policies").scope("read").answers(&[answer(
        200,
        "All policies that an endpoint can name: the presets, then the tenant's and the operator's.",
        &Shape::Page(&SHOWN),
    )]),
    Operation::get("/v1/policies/{name}", "Shows a retry policy").scope("read").answers(&[answer(
        200,
        "The policy of that name.",
        &SHOWN,
    )]),
    Operation::new("PUT", "/v1/policies/{name}", "Creates or replaces a retry policy")
        .scope("manage")
        .conflicts()
        .takes(&WRITTEN)
        .answers(&[answer(200, "The policy. Pending deliveries use it from their next attempt on.", &SHOWN)]),
    Operation::new("DELETE", "/v1/policies/{name}", "Deletes a retry policy that is not in use")
        .scope("manage")
        .conflicts()
        .answers(&[no_answer(204, "The policy is deleted.")]),
    Operation::post("/v1/policies/preview", "Shows the retry schedule of a policy")
        .scope("read")
        .takes(&PREVIEW)
        .answers(&[answer(200, "The schedule.", &PREVIEWED)]),
];
