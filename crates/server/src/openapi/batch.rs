//! The documentation of batches: many messages in one request, a line each.

use super::messages::{ACCEPTED_FIELDS, NEW_FIELDS};
use super::shape::{Field, Shape, may, need};
use super::{Operation, answer_as};

const KEY: Field = may(
    "idempotency_key",
    Shape::Text,
    "a second line with the same key and content within 24 hours gets the first one's answer, and creates nothing",
);

const LINE_FIELDS: [Field; 14] = joined(NEW_FIELDS, [KEY]);
const LINE: Shape = Shape::Named("NewMessageLine", &LINE_FIELDS);

const NUMBER: Field = need("line", Shape::Whole, "the line of the request body that this answers, counted from 1");

const DONE_FIELDS: [Field; 9] = joined(
    ACCEPTED_FIELDS,
    [
        need("status", Shape::Whole, "always 202"),
        NUMBER,
        may("idempotency_replayed", Shape::Truth, "true if the message was accepted before under the same key"),
    ],
);
const DONE: Shape = Shape::Named("AcceptedLine", &DONE_FIELDS);

const REFUSED: Shape = Shape::Named(
    "RefusedLine",
    &[
        need("type", Shape::Text, ""),
        need("title", Shape::Text, ""),
        need("status", Shape::Whole, "the HTTP status that the message would get in a request of its own"),
        need("detail", Shape::Text, ""),
        need("code", Shape::Text, ""),
        may("errors", Shape::List(&Shape::Json), "the faults of the line, each with its JSON pointer"),
        may("retry_after", Shape::Whole, "the number of seconds to wait before sending it again"),
        NUMBER,
    ],
);

/// Concatenates two lists of fields.
const fn joined<const A: usize, const B: usize, const ALL: usize>(
    fields: [Field; A],
    more: [Field; B],
) -> [Field; ALL] {
    assert!(A + B == ALL, "the lengths add up");
    let mut all = [fields[0]; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < A { fields[at] } else { more[at - A] };
        at += 1;
    }
    all
}

pub(super) const OPERATIONS: &[Operation] =
    &[Operation::post("/v1/messages/batch", "Sends up to 1,000 messages, one JSON line each")
        .scope("send")
        .takes_lines(&LINE)
        .limited()
        .answers(&[answer_as(
            200,
            "One line for each message, in the order of the request. Each is accepted or refused on its own.",
            &Shape::Either(&[DONE, REFUSED]),
            "application/x-ndjson",
        )])];
