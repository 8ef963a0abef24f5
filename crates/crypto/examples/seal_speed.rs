//! What sealing and its neighbours cost, in CPU time of one thread: the best of several rounds, so
//! that neighbours on the machine do not count.
//!
//! `cargo run --release -p posthaste-crypto --example seal_speed`

use std::fs;
use std::hint::black_box;
use std::time::Duration;

use posthaste_crypto::api_key::{ApiKey, KeyClass};
use posthaste_crypto::checkpoint::Checkpoint;
use posthaste_crypto::keyring::{KeyId, StoreKey, TenantKey};
use posthaste_crypto::master::{MasterKey, Masters};
use posthaste_crypto::row_mac::{Ends, REST_BYTES, Scheduled};
use posthaste_crypto::spot::{Field, Object, Spot, Whose};
use posthaste_crypto::token::{Action, Claims};

const ROUNDS: usize = 9;
const TTL: Duration = Duration::from_secs(300);

fn main() {
    let masters = Masters::new(MasterKey::generate());
    let store = StoreKey::generate(KeyId(1));
    let tenant = TenantKey::generate(KeyId(2), 1);
    let spot = |field, row| Spot::new(Whose::Tenant(1), field, Object::Row(row));

    let key = tenant.sealing();
    let body = [b'x'; 600];
    let sealed = key.seal(&spot(Field::MessageBody, 0), &body);
    time("seal a body of 600 bytes", 20_000, |row| key.seal(&spot(Field::MessageBody, row), &body));
    time("seal it with two short fields (bar 4,000)", 10_000, |row| {
        let head = key.seal(&spot(Field::MessageHead, row), b"user-42 order-2026-11-16-000099");
        let compact = key.seal(&spot(Field::MessageCompact, row), &body[..80]);
        (head, compact, key.seal(&spot(Field::MessageBody, row), &body))
    });
    time("open a body of 600 bytes", 20_000, |_| key.open(&spot(Field::MessageBody, 0), &sealed));

    let row_macs = store.row_macs();
    let row = |delivery| Scheduled {
        delivery,
        message: 6,
        lane: 5,
        attempts: 1,
        due_ms: 60_000,
        ends: Ends::At(90_000),
        rest: [9; REST_BYTES],
    };
    let mac = row_macs.make(&row(7));
    time("make a row MAC (bar 1,000)", 50_000, |delivery| row_macs.make(&row(delivery)));
    time("check a row MAC (bar 1,000)", 50_000, |_| row_macs.check(&row(7), &mac, 61_000, TTL));

    let tokens = store.tokens();
    let claims = |delivery| Claims { tenant: 1, delivery, expires_ms: 9_000 };
    let token = tokens.make(Action::Receipt, &claims(7));
    time("make a token", 20_000, |delivery| tokens.make(Action::Receipt, &claims(delivery)));
    time("check a token", 20_000, |_| tokens.check(Action::Receipt, token.expose(), 1));

    let (hasher, api_key) = (store.api_keys(), ApiKey::generate(KeyClass::Tenant));
    time("parse and hash an API key", 20_000, |_| ApiKey::parse(api_key.reveal()).map(|key| hasher.hash(&key)));
    let lookups = store.lookups();
    time("hide a name", 20_000, |number| lookups.hash("subject", number, b"user-42"));

    let wrapped = masters.wrap_tenant(&tenant);
    let (_, kept) = tenant.new_subject_key(KeyId(3), &[7; 32]);
    time("unwrap a tenant's key", 5_000, |_| masters.unwrap_tenant(1, KeyId(2), &wrapped));
    time("unwrap a subject's key", 5_000, |_| tenant.unwrap_subject_key(KeyId(3), &[7; 32], &kept));
    let rotating = masters.rotated_to(MasterKey::generate());
    time("wrap a tenant's key anew", 5_000, |_| rotating.rewrap(Whose::Tenant(1), KeyId(2), &wrapped));

    let signer = store.checkpoints();
    let head = |row| Checkpoint { store: [7; 16], row, chain: [9; 32], at_ms: 1_800_000_000_000 };
    let line = signer.sign(&head(7));
    time("sign a checkpoint", 1_000, |row| signer.sign(&head(row)));
    time("verify a checkpoint", 1_000, |_| signer.public().verify(&line));
}

/// Prints what one of `count` costs.
fn time<T>(what: &str, count: u64, mut once: impl FnMut(u64) -> T) {
    let mut round = || {
        let began = cpu_nanos();
        (0..count).for_each(|number| drop(black_box(once(number))));
        (cpu_nanos() - began) / count
    };
    let best = (0..ROUNDS).map(|_| round()).min().unwrap_or_default();
    println!("{best:>8} ns  {what}");
}

/// CPU time of this thread.
fn cpu_nanos() -> u64 {
    // The scheduler brings its count up to date when the thread gives way.
    std::thread::yield_now();
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("Linux tells a thread's CPU time")
}
