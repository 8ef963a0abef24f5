//! The documentation of the routes that rotate the master key.

use super::shape::{Shape, need, null};
use super::{Operation, answer};

const SHOWN: Shape = Shape::Named(
    "MasterKeyRotation",
    &[
        need("under_way", Shape::Truth, ""),
        need("newest", Shape::Text, "the fingerprint of the master key that new keys are wrapped under"),
        need("older", Shape::List(&Shape::Text), "the fingerprints of master keys that are still needed: keep them"),
        null("offered", Shape::Text, "the fingerprint of a newer master key that is not used yet"),
        need("rewrapped", Shape::Whole, "the number of keys rewrapped by this rotation, or by the last one"),
        need("left", Shape::Whole, "the number of keys still to be rewrapped"),
    ],
);

pub(super) const OPERATIONS: &[Operation] = &[
    Operation::get("/v1/master-key/rotation", "Shows the progress of the master key's rotation")
        .scope("operate")
        .answers(&[answer(200, "The progress.", &SHOWN)]),
    Operation::post("/v1/master-key/rotation", "Starts a rotation of the master key")
        .scope("operate")
        .conflicts()
        .answers(&[answer(202, "The rotation is under way.", &SHOWN)]),
];
