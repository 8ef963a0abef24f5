//! Metrics and readiness, as monitoring reads them.

use http::{Method, Request, StatusCode};
use http_body_util::Full;
use posthaste_engine::metrics::{ALL, MetricKind};
use posthaste_server::api::caller::Door;

use crate::fixture::{Answer, Server};

async fn scrape(server: &Server) -> String {
    let answer = read(server, "/metrics").await.expect(StatusCode::OK);
    assert_eq!(answer.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    answer.body.as_str().expect("a text").to_owned()
}

async fn read(server: &Server, path: &str) -> Answer {
    server.send_to(server.metrics, Request::get(path).body(Full::default()).expect("a request")).await
}

fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.split(' ').next() == Some(sample))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn every_metric_is_exposed_exactly_once() {
    let server = Server::start().await;
    let text = scrape(&server).await;
    for metric in ALL {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Summary => "summary",
        };
        let head = format!("# TYPE {} {kind}", metric.name);
        assert_eq!(text.lines().filter(|line| **line == head).count(), 1, "{head} in\n{text}");
    }
    let named = |line: &str| ALL.iter().any(|metric| line.trim_start_matches(['#', ' ']).contains(metric.name));
    assert!(text.lines().all(|line| named(line) || line == "# EOF"), "{text}");
}

#[tokio::test]
async fn metrics_count_messages_refusals_and_pauses() {
    let server = Server::start().await;
    let endpoint = server.endpoint("").await;
    assert_eq!(server.post(&format!("/v1/endpoints/{endpoint}/pause"), "").await.status, StatusCode::OK);
    for _ in 0..3 {
        server.message(r#"{"tier": 1, "payload": 1}"#).await;
    }
    assert_eq!(server.post("/v1/messages", "{}").await.problem().1, "invalid_body");
    assert_eq!(server.post("/v1/pause", r#"{"scope": "all"}"#).await.status, StatusCode::OK);
    let text = scrape(&server).await;
    for (sample, expected) in [
        ("posthaste_messages_accepted_total", 3.0),
        ("posthaste_deliveries_accepted_total", 3.0),
        ("posthaste_queue_depth{tier=\"transactional\"}", 3.0),
        ("posthaste_queue_depth{tier=\"engagement\"}", 0.0),
        ("posthaste_pending{state=\"untried\"}", 3.0),
        ("posthaste_pending{state=\"tried\"}", 0.0),
        ("posthaste_window{state=\"queued\"}", 0.0),
        ("posthaste_queues_spilling", 1.0),
        ("posthaste_refusals_total{code=\"invalid_body\"}", 1.0),
        ("posthaste_paused{scope=\"all\"}", 1.0),
        ("posthaste_store_state{state=\"well\"}", 1.0),
        ("posthaste_illegal_transitions_total", 0.0),
        ("posthaste_overdue_seconds", 0.0),
    ] {
        assert_eq!(value(&text, sample), Some(expected), "{sample} in\n{text}");
    }
    assert!(value(&text, "posthaste_requests_total") >= Some(6.0), "{text}");
}

#[tokio::test]
async fn metrics_need_an_operator_key_except_on_the_metrics_listener() {
    let server = Server::behind(Door::Locked).await;
    let key = server.operator_key().await;
    assert_eq!(server.get("/metrics").await.problem(), (401, "unauthorized", ""));
    server.call_as(&key, "", Method::GET, "/metrics", "").await.expect(StatusCode::OK);
    assert_eq!(read(&server, "/metrics").await.status, StatusCode::OK);
    assert_eq!(read(&server, "/readyz").await.text("status"), "ok");
    let other = read(&server, "/v1/endpoints").await;
    assert_eq!(other.problem(), (404, "not_found", ""), "the metrics listener has no other routes");
}

#[tokio::test]
async fn readiness_shows_a_pause() {
    let server = Server::start().await;
    let ready = server.get("/readyz").await;
    assert_eq!((ready.text("store"), &ready.body["paused"]), ("well", &false.into()));
    let pause = r#"{"scope": "all", "until": "2099-01-01T00:00:00Z"}"#;
    assert_eq!(server.post("/v1/pause", pause).await.status, StatusCode::OK);
    let ready = server.get("/readyz").await;
    assert_eq!((&ready.body["paused"], ready.text("paused_until")), (&true.into(), "2099-01-01T00:00:00.000Z"));
}
