//! The guard's defaults. The whole corpus of forged and hostile targets is the proof `ssrf`.

use std::sync::Arc;

use posthaste_engine::connector::Settings;
use posthaste_engine::{Connector, Roots, Target, TargetRules};

use crate::harness::loopback_allowed;

const CORPUS: &str = include_str!("../../../testkit/fixtures/ssrf-corpus.tsv");

#[test]
fn http_is_refused_unless_the_operator_allows_it() {
    let rows = CORPUS.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    for row in rows.filter(|row| row[1] == "url" && row[2].starts_with("http://") && !row[2].contains('\\')) {
        let refusal = Target::parse(row[2], &TargetRules::default()).expect_err("http is off by default");
        assert_eq!(refusal.code(), "url_scheme", "{}", row[0]);
    }
}

#[tokio::test]
async fn the_default_resolver_cannot_reach_loopback_by_name() {
    let (connector, _results) =
        Connector::new(Settings::default(), Arc::new(posthaste_engine::connector::System), Roots::none());
    let rules = TargetRules::default();
    assert!(Target::parse("https://localhost/", &rules).is_err());
    let literal = Target::parse("https://127.0.0.1/", &loopback_allowed());
    // The connector applies its own rules, also to a target that was parsed under laxer ones.
    let refusal = connector.check(&literal.expect("allowed when it was parsed")).await.expect_err("not allowed here");
    assert_eq!(refusal.code(), "ip_loopback");
}
