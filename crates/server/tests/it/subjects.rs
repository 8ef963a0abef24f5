//! Export and erasure of subjects, over SQLite, which stores their data encrypted.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use posthaste_server::api::caller::Door;
use posthaste_store::Store;
use posthaste_store::sqlite::Sqlite;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::fixture::{Answer, Server, accept, delivery_of};

/// A subject with every character that must be encoded in a path.
const ANN: &str = "ann/o'hara+1 @ höfe.example?#%";
const ANN_IN_A_PATH: &str = "ann%2Fo'hara+1%20@%20h%C3%B6fe.example%3F%23%25";

async fn erase<S: Store>(server: &Server<S>, subject: &str) -> Answer {
    server.call(Method::DELETE, &format!("/v1/subjects/{subject}"), "").await
}

async fn export<S: Store>(server: &Server<S>, subject: &str) -> Vec<Value> {
    let exported = server.get(&format!("/v1/subjects/{subject}/export")).await.expect(StatusCode::OK);
    assert_eq!(exported.headers["content-type"], "application/x-ndjson");
    exported.lines()
}

fn kinds(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["kind"].as_str()).collect()
}

fn nothing() -> Value {
    json!({ "kind": "complete", "endpoints": 0, "messages": 0, "deliveries": 0 })
}

/// Sends a message about Ann whose receiver repeats the payload in its refusal; returns the message's id.
async fn refused(server: &Server<Sqlite>) -> String {
    let (receiver, _) = server.receiver(&format!(r#", "subject": "{ANN}""#)).await;
    let message = json!({ "payload": { "about": "a canary" }, "subject": ANN }).to_string();
    let message = server.message(&message).await;
    let (mut stream, _) = accept(&receiver).await;
    let answer = "HTTP/1.1 422 No\r\ncontent-length: 17\r\nconnection: close\r\n\r\nno such: a canary";
    stream.write_all(answer.as_bytes()).await.expect("the server reads it");
    server.until(&format!("/v1/deliveries/{}", delivery_of(&message)), "dead").await;
    message
}

#[tokio::test]
async fn a_subject_s_data_is_exported_until_it_is_erased() {
    let server = Server::on_disk(Door::Open).await;
    let message = refused(&server).await;
    server.post("/v1/messages", r#"{"payload": 1, "subject": "bob", "to": {"tags": ["none"]}}"#).await;
    let held = export(&server, ANN_IN_A_PATH).await;
    assert_eq!(kinds(&held), ["endpoint", "message", "delivery", "complete"]);
    let [endpoint, about, delivery, complete] = &held[..] else { panic!("four lines: {held:?}") };
    assert_eq!(endpoint["endpoint"]["subject"], ANN);
    assert_eq!((&about["message"]["id"], &about["message"]["subject"]), (&json!(message), &json!(ANN)));
    assert_eq!(about["message"]["payload"], json!({ "about": "a canary" }));
    let delivery = &delivery["delivery"];
    assert_eq!((&delivery["message"], &delivery["state"]), (&json!(message), &json!("dead")));
    assert_eq!(delivery["endpoint"], endpoint["endpoint"]["id"]);
    let attempt = &delivery["attempts"][0];
    assert_eq!((&attempt["status"], &attempt["response"]), (&json!(422), &json!("no such: a canary")));
    assert_eq!(*complete, json!({ "kind": "complete", "endpoints": 1, "messages": 1, "deliveries": 1 }));

    let erased = erase(&server, ANN_IN_A_PATH).await.expect(StatusCode::OK);
    let counts = ["messages", "deliveries", "in_flight"].map(|name| erased.body[name].as_u64());
    assert_eq!(counts, [Some(1), Some(1), Some(0)], "{}", erased.body);
    assert!(erased.body["swept_at"].is_string(), "so few rows are removed at once: {}", erased.body);
    assert_eq!(export(&server, ANN_IN_A_PATH).await, [nothing()]);
    let delivery = delivery_of(&message);
    for path in [format!("/v1/messages/{message}"), format!("/v1/deliveries/{delivery}")] {
        assert_eq!(server.get(&path).await.problem(), (404, "not_found", ""), "{path}");
    }
    assert_eq!(kinds(&export(&server, "bob").await), ["message", "complete"], "other subjects stay");

    let trail = server.get("/v1/audit").await;
    let entries = trail.list().iter();
    let rows: Vec<&Value> = entries.clone().filter(|one| one["kind"] == "erased").map(|one| &one["row"]).collect();
    assert_eq!(rows, [&erased.body["audit_row"]]);
    assert_eq!(entries.filter(|one| one["kind"] == "exported").count(), 3);
    assert!(!trail.body.to_string().contains("hara"), "{}", trail.body);
    server.stop().await.expect("it stops");
}

#[tokio::test]
async fn an_erasure_counts_attempts_in_flight_and_removes_them_when_they_end() {
    let server = Server::on_disk(Door::Open).await;
    let (receiver, _) = server.receiver("").await;
    server.message(r#"{"payload": 1, "subject": "ann"}"#).await;
    let (mut stream, _) = accept(&receiver).await;
    let erased = erase(&server, "ann").await;
    let counts = (&erased.body["in_flight"], &erased.body["messages"], &erased.body["swept_at"]);
    assert_eq!(counts, (&json!(1), &json!(0), &Value::Null), "{}", erased.body);
    assert_eq!(export(&server, "ann").await, [nothing()], "the erasure is in force before the attempt ends");
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.expect("the server reads it");
    let row = format!("announced by row {}", erased.body["audit_row"]);
    while server.get("/v1/audit?kind=erasure_done").await.body["data"][0]["what"] != row.as_str() {}
    server.stop().await.expect("it stops");
}

#[tokio::test]
async fn subjects_are_separate_for_each_tenant_and_audited_with_the_key() {
    let server = Server::on_disk(Door::Locked).await;
    let operator = server.operator_key().await;
    let call = async |key: &str, method, path: &str, body: &str| server.call_as(key, "", method, path, body).await;
    let mut keys = Vec::new();
    for uid in ["ours", "theirs"] {
        call(&operator, Method::POST, "/v1/tenants", &json!({ "uid": uid }).to_string()).await;
        let scopes = r#"{"scopes": ["send", "privacy"]}"#;
        let key = call(&operator, Method::POST, &format!("/v1/tenants/{uid}/keys"), scopes).await;
        keys.push((key.text("key").to_owned(), key.text("id").to_owned()));
    }
    let [(ours, our_id), (theirs, _)] = &keys[..] else { panic!("two keys") };
    call(theirs, Method::POST, "/v1/messages", r#"{"payload": 1, "subject": "ann"}"#).await;
    let path = "/v1/subjects/ann/export";
    for (method, path) in [(Method::GET, path), (Method::DELETE, "/v1/subjects/ann")] {
        let refused = call(&operator, method, path, "").await;
        assert_eq!(refused.problem(), (400, "tenant_required", ""), "an operator must name the tenant");
    }
    assert_eq!(call(ours, Method::GET, path, "").await.lines(), [nothing()]);
    let erased = call(ours, Method::DELETE, "/v1/subjects/ann", "").await;
    assert_eq!((&erased.body["messages"], &erased.body["in_flight"]), (&json!(0), &json!(0)), "{}", erased.body);
    let held = server.call_as(&operator, "theirs", Method::GET, path, "").await.lines();
    assert_eq!(kinds(&held), ["message", "complete"], "another tenant's subject of the same name stays");

    for kind in ["exported", "erased"] {
        let trail = call(&operator, Method::GET, &format!("/v1/audit?kind={kind}&order=asc"), "").await;
        let first = &trail.body["data"][0];
        assert_eq!((first["by"].as_str(), first["what"].as_str()), (Some(our_id.as_str()), Some("a subject")));
    }
    server.stop().await.expect("it stops");
}

#[tokio::test]
async fn an_invalid_subject_is_refused() {
    let server = Server::start().await;
    let long = "a".repeat(257);
    for subject in ["%00", "%0A", "%ff", &long] {
        assert_eq!(erase(&server, subject).await.problem(), (400, "invalid_parameter", ""), "{subject}");
        let exported = server.get(&format!("/v1/subjects/{subject}/export")).await;
        assert_eq!(exported.problem(), (400, "invalid_parameter", ""), "{subject}");
    }
    assert_eq!(erase(&server, "").await.problem(), (404, "not_found", ""));
    assert_eq!(erase(&server, &long[1..]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn an_incomplete_export_lacks_the_last_line() {
    let server = Server::on_disk(Door::Open).await;
    // More than the buffers between server and client hold.
    let message = json!({ "payload": "x".repeat(900_000), "subject": "ann" }).to_string();
    for _ in 0..20 {
        server.message(&message).await;
    }
    let stream = TcpStream::connect(server.address).await.expect("the server listens");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    let request = Request::get("/v1/subjects/ann/export").header("host", "localhost");
    let exchange = async {
        let request = request.body(Full::<Bytes>::default()).expect("a request");
        let response = sender.send_request(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        let (mut body, mut read) = (response.into_body(), Vec::new());
        loop {
            match body.frame().await {
                Some(Ok(frame)) => read.extend_from_slice(frame.data_ref().expect("data alone")),
                ended => break (read, ended.is_some()),
            }
            // The export has begun: now its source fails.
            server.store.close().await;
        }
    };
    let ((read, is_incomplete), _) = tokio::join!(exchange, connection);
    assert!(is_incomplete, "the body ends with an error");
    assert!(!String::from_utf8_lossy(&read).contains("complete"), "{} bytes", read.len());
}
