//! What is said of the master key.

use super::shape::{Shape, need, null};
use super::{Operation, answer};

const SHOWN: Shape = Shape::Named(
    "MasterKeyRotation",
    &[
        need("under_way", Shape::Truth, ""),
        need("newest", Shape::Text, "the fingerprint of the key that wraps"),
        need("older", Shape::List(&Shape::Text), "those that still wrap something: keep them"),
        null("offered", Shape::Text, "a newer one that wraps nothing yet"),
        need("rewrapped", Shape::Whole, "keys wrapped anew by this rotation, or the last one"),
        need("left", Shape::Whole, "keys yet to be wrapped anew"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/master-key/rotation", "Shows how far the rotation of the master key is")
        .scope("operate")
        .answers(&[answer(200, "How far it is.", &SHOWN)]),
    Operation::post("/v1/master-key/rotation", "Rotates the master key while the server serves")
        .scope("operate")
        .conflicts()
        .answers(&[answer(202, "It has begun, or was under way.", &SHOWN)]),
];
