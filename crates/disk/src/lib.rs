//! A simulated disk that loses power, fills up and fails, under the real SQLite store; and the proofs that need it. Not
//! linked into `posthaste`.
//!
//! This is the only crate with `unsafe` code: SQLite accesses files through C function pointers, and the simulated disk
//! is a SQLite file system ([`vfs`]) made of them. All `unsafe` code is in that file; every other file denies it.
//!
//! Read [`disk`] for what can go wrong, then the proofs.

#![deny(unsafe_code)]

mod crowd;
pub mod disk;
mod faults;
mod load;
mod powercut;
mod vfs;

use posthaste_testkit::prove::Proof;

pub use disk::FaultyDisk;

/// The proofs of this crate; the others are the testkit's.
pub const PROOFS: &[Proof] = &[
    Proof::new("store-powercut", powercut::run)
        .shows("power cuts under a real store: nothing acknowledged is lost, nothing damaged"),
    Proof::new("store-faults", faults::run)
        .shows("every write and sync of a real store fails in turn: it stops clean or goes on, and loses nothing"),
];
