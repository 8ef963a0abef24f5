//! Many messages in one request.

use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::fixture::{Answer, Server};

const BATCH: &str = "/v1/messages/batch";

async fn batch(server: &Server, body: String) -> Answer {
    let request = Request::post(BATCH).header("content-type", "application/x-ndjson");
    server.send(request.body(Full::from(body)).expect("a request")).await
}

/// The status of each line.
fn statuses(answer: &Answer) -> Vec<u64> {
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    answer.lines().iter().map(|line| line["status"].as_u64().expect("a status")).collect()
}

#[tokio::test]
async fn each_line_is_answered_in_order_and_a_bad_line_affects_no_other() {
    let server = Server::start().await;
    server.endpoint(r#", "event_types": ["a.*"]"#).await;
    let lines = [
        r#"{"payload": 1, "event_type": "a.b", "correlation_id": "one"}"#,
        "not JSON",
        r#"{"payload": 2, "tire": 1}"#,
        r#"{"payload": 3, "correlation_id": "four"}"#,
        "",
        r#"{"payload": 4, "to": {"endpoints": ["ep_0"]}}"#,
        r#"{"payload": 5, "event_type": "a.c"}"#,
    ];
    let answer = batch(&server, lines.join("\r\n")).await;
    assert_eq!(statuses(&answer), [202, 400, 400, 202, 400, 202], "a blank line gets no answer");
    let lines = answer.lines();
    assert_eq!(lines.iter().map(|line| line["line"].as_u64()).collect::<Vec<_>>(), [1, 2, 3, 4, 6, 7].map(Some));
    assert_eq!((&lines[0]["correlation_id"], &lines[0]["deliveries"]), (&json!("one"), &json!(1)));
    assert_eq!((&lines[3]["correlation_id"], &lines[3]["deliveries"]), (&json!("four"), &json!(0)));
    assert_eq!(lines[1]["code"], "invalid_json");
    let misspelt = json!({"pointer": "/tire", "detail": "there is no such field; the nearest is tier"});
    assert_eq!(lines[2]["errors"][0], misspelt);
    assert_eq!(lines[5]["deliveries"], 1);
    assert_eq!(server.store.lock().pending(), 2);
    let shown = server.get(&format!("/v1/messages/{}", lines[5]["id"].as_str().expect("an id"))).await;
    assert_eq!(shown.body["event_type"], "a.c", "each id is in the answer to its line");
}

#[tokio::test]
async fn a_line_s_idempotency_key_holds_within_and_across_batches() {
    let server = Server::start().await;
    server.endpoint("").await;
    let line = |payload: u32| format!(r#"{{"payload": {payload}, "idempotency_key": "k"}}"#);
    let answer = batch(&server, [line(1), line(1), line(2)].join("\n")).await;
    assert_eq!(statuses(&answer), [202, 202, 422]);
    let lines = answer.lines();
    assert_eq!((&lines[1]["id"], &lines[1]["idempotency_replayed"]), (&lines[0]["id"], &json!(true)));
    assert_eq!(lines[0]["idempotency_replayed"], Value::Null);
    assert_eq!(lines[2]["code"], "idempotency_key_reused");
    let again = batch(&server, line(1)).await;
    assert_eq!(again.lines()[0]["id"], lines[0]["id"]);
    assert_eq!(server.store.lock().pending(), 1);
    let bad = batch(&server, r#"{"payload": 1, "idempotency_key": "a b"}"#.to_owned()).await;
    assert_eq!(bad.lines()[0]["errors"][0]["pointer"], "/idempotency_key");
}

#[tokio::test]
async fn lines_beyond_the_quota_are_refused_with_retry_after() {
    let server = Server::start().await;
    server.endpoint("").await;
    let quota = r#"{"quota": {"per_second": 1, "burst": 2}}"#;
    assert_eq!(server.call(Method::PATCH, "/v1/tenants/default", quota).await.status, StatusCode::OK);
    let answer = batch(&server, r#"{"payload": 1}"#.to_owned() + "\n" + &"{\"payload\": 2}\n".repeat(3)).await;
    assert_eq!(statuses(&answer), [202, 202, 429, 429]);
    assert!(answer.lines()[2]["retry_after"].as_u64().expect("seconds") >= 1);
    assert_eq!(server.store.lock().pending(), 2);
}

#[tokio::test]
async fn a_batch_larger_than_a_transaction_is_accepted_in_order() {
    let server = Server::start().await;
    for _ in 0..3 {
        server.endpoint("").await;
    }
    let lines: Vec<String> = (0..1_000).map(|n| format!(r#"{{"payload": {n}, "correlation_id": "c-{n}"}}"#)).collect();
    let answer = batch(&server, lines.join("\n")).await;
    assert!(statuses(&answer).iter().all(|status| *status == 202));
    let named = |n: usize| answer.lines()[n]["correlation_id"].clone();
    assert_eq!((named(0), named(499), named(999)), (json!("c-0"), json!("c-499"), json!("c-999")));
}

#[tokio::test]
async fn a_batch_is_bounded_and_refuses_an_idempotency_key_header() {
    let server = Server::start().await;
    let many = batch(&server, "{\"payload\": 1}\n".repeat(1_001)).await;
    assert_eq!(many.problem(), (413, "body_too_large", ""));
    assert!(many.text("detail").contains("1000 lines"), "{}", many.body);
    let large = batch(&server, format!("{{\"payload\": \"{}\"}}", "x".repeat(8_000_000))).await;
    assert_eq!(large.problem(), (413, "body_too_large", ""));
    let long_line = batch(&server, format!("{{\"payload\": \"{}\"}}", "x".repeat(1_000_000))).await;
    assert_eq!(statuses(&long_line), [413]);
    let keyed = server.call_with(&[("idempotency-key", "k")], Method::POST, BATCH, r#"{"payload": 1}"#).await;
    assert_eq!(keyed.problem(), (400, "invalid_idempotency_key", ""));
    let declared = Request::post(BATCH).header("content-type", "text/plain");
    let declared = server.send(declared.body(Full::from(r#"{"payload": 1}"#)).expect("a request")).await;
    assert_eq!(declared.problem(), (415, "not_json", ""));
    for empty in ["", "\n \n"] {
        assert_eq!(batch(&server, empty.to_owned()).await.problem(), (400, "invalid_body", ""));
    }
}
