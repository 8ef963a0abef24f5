//! What is said of batches.

use super::messages::{ACCEPTED_FIELDS, NEW_FIELDS};
use super::shape::{Field, Shape, may, need};
use super::{Operation, answer_as};

const KEY: Field = may("idempotency_key", Shape::Text, "the same line with the same key is one message, for 24 hours");

const LINE_FIELDS: [Field; 14] = joined(NEW_FIELDS, [KEY]);
const LINE: Shape = Shape::Named("NewMessageLine", &LINE_FIELDS);

const NUMBER: Field = need("line", Shape::Whole, "which line of the body it is about; the first is 1");

const DONE_FIELDS: [Field; 9] = joined(
    ACCEPTED_FIELDS,
    [
        need("status", Shape::Whole, "202"),
        NUMBER,
        may("idempotency_replayed", Shape::Truth, "whether it was accepted before, under the same key"),
    ],
);
const DONE: Shape = Shape::Named("AcceptedLine", &DONE_FIELDS);

const REFUSED: Shape = Shape::Named(
    "RefusedLine",
    &[
        need("type", Shape::Text, ""),
        need("title", Shape::Text, ""),
        need("status", Shape::Whole, "what the line would have been answered alone"),
        need("detail", Shape::Text, ""),
        need("code", Shape::Text, ""),
        may("errors", Shape::List(&Shape::Json), "what is wrong with it, each with its pointer"),
        may("retry_after", Shape::Whole, "in how many seconds to send it again"),
        NUMBER,
    ],
);

/// Fields and more of them.
const fn joined<const A: usize, const B: usize, const ALL: usize>(
    fields: [Field; A],
    more: [Field; B],
) -> [Field; ALL] {
    assert!(A + B == ALL, "as many as there are");
    let mut all = [fields[0]; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < A { fields[at] } else { more[at - A] };
        at += 1;
    }
    all
}

pub(super) const OPERATIONS: &[Operation] =
    &[Operation::post("/v1/messages/batch", "Sends up to 1,000 messages, a line each, each on its own")
        .scope("send")
        .takes_lines(&LINE)
        .limited()
        .answers(&[answer_as(
            200,
            "A line for each, in their order: accepted, or why not.",
            &Shape::Either(&[DONE, REFUSED]),
            "application/x-ndjson",
        )])];
