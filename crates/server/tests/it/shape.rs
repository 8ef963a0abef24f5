//! What all answers have in common, and how a server shuts down.

use http::{Method, Request, StatusCode};
use http_body_util::Full;

use crate::fixture::Server;
use crate::keys::PAYLOAD;

#[tokio::test]
async fn every_answer_has_a_unique_request_id() {
    let server = Server::start().await;
    let first = server.get("/healthz").await;
    let second = server.get("/nowhere").await;
    assert!(first.headers["request-id"].to_str().expect("text").starts_with("req_"));
    assert_ne!(first.headers["request-id"], second.headers["request-id"]);
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems_too() {
    let server = Server::start().await;
    assert_eq!(server.get("/v1/nothing").await.problem(), (404, "not_found", ""));
    let wrong = server.call(Method::DELETE, "/v1/messages", "").await;
    assert_eq!(wrong.problem(), (405, "method_not_allowed", ""));
    assert_eq!(wrong.headers["allow"], "GET, POST");
}

#[tokio::test]
async fn the_health_checks_answer() {
    let server = Server::start().await;
    for path in ["/healthz", "/readyz"] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.text("status")), (StatusCode::OK, "ok"));
    }
}

#[tokio::test]
async fn parameters_are_known_or_refused_with_the_nearest() {
    let server = Server::start().await;
    let answer = server.get("/v1/endpoints?limt=5").await;
    assert_eq!(answer.problem(), (400, "unknown_parameter", ""));
    assert!(answer.text("detail").ends_with("the nearest is limit"), "{}", answer.body);
    assert_eq!(server.post("/v1/messages?dry=1", "{}").await.problem(), (400, "unknown_parameter", ""));
    assert_eq!(server.get("/v1/endpoints?limit=0").await.problem(), (400, "invalid_parameter", ""));
    assert_eq!(server.get("/v1/endpoints?limit=1&limit=2").await.problem(), (400, "invalid_parameter", ""));
}

#[tokio::test]
async fn headers_that_do_not_apply_to_a_request_are_refused() {
    let server = Server::start().await;
    let cancel = Request::post("/v1/messages/msg_0/cancel").header("idempotency-key", "a").body(Full::default());
    assert_eq!(server.send(cancel.expect("a request")).await.problem(), (400, "invalid_idempotency_key", ""));
    let send = async |tenant: &str| server.call_as("", tenant, Method::POST, "/v1/messages", PAYLOAD).await;
    assert_eq!(send("acme").await.problem(), (404, "not_found", ""));
    assert_eq!(send("default").await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_body_not_declared_as_json_is_refused() {
    let server = Server::start().await;
    let post = || Request::post("/v1/messages");
    let body = || Full::from(r#"{"payload": 1}"#);
    let declared = |as_what: &str| post().header("content-type", as_what).body(body()).expect("a request");
    assert_eq!(server.send(declared("text/plain")).await.problem(), (415, "not_json", ""));
    assert_eq!(server.send(post().body(body()).expect("a request")).await.problem(), (415, "not_json", ""));
    assert_eq!(server.send(declared("Application/JSON; charset=utf-8")).await.status, StatusCode::ACCEPTED);
    let empty = Request::post("/v1/messages/msg_0/cancel").body(Full::default()).expect("a request");
    let empty = server.send(empty).await;
    assert_eq!(empty.problem(), (404, "not_found", ""), "a request without a body needs no content type");
}

#[tokio::test]
async fn foreign_origins_and_hosts_are_refused_on_every_route() {
    let server = Server::start().await;
    let from = |path: &str, name: &'static str, value: &'static str| {
        Request::get(path).header(name, value).body(Full::default()).expect("a request")
    };
    for path in ["/v1/endpoints", "/healthz", "/v1/nothing"] {
        for (name, value) in [("host", "rebound.example:8400"), ("origin", "https://evil.example"), ("origin", "null")]
        {
            let answer = server.send(from(path, name, value)).await;
            assert_eq!(answer.problem(), (403, "forbidden_origin", ""), "{path} {name} {value}");
        }
    }
    assert_eq!(server.send(from("/healthz", "host", "127.0.0.1:8400")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_path_that_is_not_utf_8_is_not_found() {
    let server = Server::start().await;
    for path in ["/v1/endpoints/%ff", "/v1/messages/%ff", "/v1/deliveries/%ff"] {
        assert_eq!(server.get(path).await.problem(), (404, "not_found", ""), "{path}");
    }
    assert_eq!(server.post("/v1/messages/%ff/cancel", "").await.problem(), (404, "not_found", ""));
}

#[tokio::test]
async fn an_answer_lists_20_complaints_and_counts_the_rest() {
    let server = Server::start().await;
    let unknown: String = (0..1_000).map(|number| format!(r#", "unknown{number}": 1"#)).collect();
    let answer = server.post("/v1/messages", &format!(r#"{{"payload": 1{unknown}}}"#)).await;
    assert_eq!(answer.problem(), (400, "invalid_body", "/unknown0"));
    assert_eq!(answer.body["errors"].as_array().map(Vec::len), Some(20));
    assert!(answer.text("detail").ends_with("(the first of 1000; 980 more are not listed)"), "{}", answer.body);
}

#[tokio::test]
async fn an_idle_server_shuts_down_at_once() {
    let server = Server::start().await;
    let address = server.address;
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
    server.stop().await.expect("an orderly shutdown");
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the listener is closed");
}
