//! A running server on a free port, and requests to it.
//!
//! Every answer is compared with the OpenAPI document: a field that is not documented fails the test.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use posthaste_crypto::LookupKey;
use posthaste_crypto::keyring::{KeyId, StoreKey};
use posthaste_crypto::master::{MasterKey, Masters};
use posthaste_crypto::public_id::{IdKey, IdKind};
use posthaste_engine::clock::SystemClock;
use posthaste_engine::connector;
use posthaste_engine::engine::Settings;
use posthaste_engine::target::TargetRules;
use posthaste_server::api::caller::Door;
use posthaste_server::run::{Front, RunError, run};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{MemoryStore, Store};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::openapi;

/// A running server, by default over the store in memory.
pub(crate) struct Server<S = MemoryStore> {
    pub(crate) address: SocketAddr,
    /// The address of the metrics listener.
    pub(crate) metrics: SocketAddr,
    pub(crate) store: Arc<S>,
    pub(crate) data: TempDir,
    stop: CancellationToken,
    task: JoinSet<Result<(), RunError>>,
}

/// An answer of the server.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The body as JSON; a JSON string if it is not JSON.
    pub(crate) body: Value,
    /// The bytes of the body.
    pub(crate) raw: Bytes,
}

impl Answer {
    /// The lines of a body of JSON lines.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let lines = self.raw.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("a line of JSON")).collect()
    }

    /// The status, code and first pointer of a problem.
    pub(crate) fn problem(&self) -> (u16, &str, &str) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.body);
        assert_eq!(self.body["status"], self.status.as_u16());
        let text = |value: &'static str| self.body[value].as_str().unwrap_or_default();
        assert!(!text("title").is_empty() && !text("detail").is_empty() && !text("type").is_empty(), "{}", self.body);
        let pointer = self.body["errors"][0]["pointer"].as_str().unwrap_or_default();
        (self.status.as_u16(), text("code"), pointer)
    }

    /// The answer, which must have this status.
    pub(crate) fn expect(self, status: StatusCode) -> Self {
        assert_eq!(self.status, status, "{}", self.body);
        self
    }

    /// The entries of a list.
    pub(crate) fn list(&self) -> &[Value] {
        self.body["data"].as_array().unwrap_or_else(|| panic!("no list: {}", self.body))
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.body[name].as_str().unwrap_or_else(|| panic!("{name} is a text in {}", self.body))
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::behind(Door::Open).await
    }

    /// Starts a server that needs keys or not.
    pub(crate) async fn behind(door: Door) -> Self {
        let data = tempfile::tempdir().expect("a temporary folder");
        Self::over(MemoryStore::default(), door, data).await
    }
}

impl Server<Sqlite> {
    /// Starts a server with its data in SQLite on disk.
    pub(crate) async fn on_disk(door: Door) -> Self {
        let data = tempfile::tempdir().expect("a temporary folder");
        let key = MasterKey::parse("eTCMQLiQ1WZ3aITDlrR/+iyAzDYqPegWJRe4Ws+PyBg=").expect("32 random bytes");
        let store = Sqlite::open_folder(data.path(), Masters::new(key)).expect("an empty folder");
        Self::over(store, door, data).await
    }
}

impl<S: Store> Server<S> {
    async fn over(store: S, door: Door, data: TempDir) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let own = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let metrics = own.local_addr().expect("it listens");
        let loopback = "127.0.0.0/8".parse().expect("a network");
        let rules = TargetRules { allow_http: true, allow_networks: vec![loopback], ..TargetRules::default() };
        let settings = Settings {
            connector: connector::Settings { rules, ..connector::Settings::default() },
            ..Settings::new(
                IdKey::from_bytes([7; 16]),
                LookupKey::from_bytes([8; 32]),
                StoreKey::generate(KeyId(1)).api_keys(),
            )
        };
        let front = Front { listener, metrics: Some(own), door, data: Some(data.path().to_owned()) };
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let store = Arc::new(store);
        task.spawn(run(Arc::clone(&store), SystemClock::new(), settings, front, stop.clone()));
        Self { address, metrics, store, data, stop, task }
    }

    /// Shuts the server down as a signal would.
    pub(crate) async fn stop(mut self) -> Result<(), RunError> {
        self.stop.cancel();
        self.task.join_next().await.expect("the server runs").expect("it does not panic")
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        self.call(Method::POST, path, body).await
    }

    pub(crate) async fn call(&self, method: Method, path: &str, body: &str) -> Answer {
        self.call_with(&[], method, path, body).await
    }

    /// Makes a JSON request with these headers; those without a value are left out.
    pub(crate) async fn call_with(&self, headers: &[(&str, &str)], method: Method, path: &str, body: &str) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::from(body.to_owned())).expect("a request")).await
    }

    /// Sends a message, which must be accepted; returns its id.
    pub(crate) async fn message(&self, body: &str) -> String {
        self.post("/v1/messages", body).await.expect(StatusCode::ACCEPTED).text("id").to_owned()
    }

    /// Sends a message, which must be accepted; returns the path of its only delivery.
    pub(crate) async fn delivery(&self, body: &str) -> String {
        format!("/v1/deliveries/{}", delivery_of(&self.message(body).await))
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        self.send_to(self.address, request).await
    }

    /// Sends a request to one of the server's listeners.
    pub(crate) async fn send_to(&self, address: SocketAddr, mut request: Request<Full<Bytes>>) -> Answer {
        request.headers_mut().entry("host").or_insert("localhost".parse().expect("a header's value"));
        let (method, path) = (request.method().clone(), request.uri().to_string());
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        let exchange = async {
            let response = sender.send_request(request).await.expect("an answer");
            let (head, body) = response.into_parts();
            let raw = body.collect().await.expect("a whole body").to_bytes();
            drop(sender);
            let text = || if raw.is_empty() { Value::Null } else { String::from_utf8_lossy(&raw).into() };
            let body = serde_json::from_slice(&raw).unwrap_or_else(|_| text());
            Answer { status: head.status, headers: head.headers, body, raw }
        };
        let answer = tokio::join!(exchange, connection).0;
        let is_lines = answer.headers.get("content-type").is_some_and(|declared| declared == "application/x-ndjson");
        let bodies = if is_lines { answer.lines() } else { vec![answer.body.clone()] };
        let found = bodies.iter().flat_map(|body| openapi::undocumented(&method, &path, answer.status, body));
        let found: Vec<String> = found.collect();
        assert!(found.is_empty(), "crates/server/src/openapi does not document {found:?}");
        answer
    }

    /// Makes a request with a key and with `Posthaste-Tenant`, each unless it is empty.
    pub(crate) async fn call_as(&self, key: &str, tenant: &str, method: Method, path: &str, body: &str) -> Answer {
        let bearer = if key.is_empty() { String::new() } else { format!("Bearer {key}") };
        self.call_with(&[("authorization", &bearer), ("posthaste-tenant", tenant)], method, path, body).await
    }

    /// Reads a path until its answer has this `state`.
    pub(crate) async fn until(&self, path: &str, state: &str) -> Answer {
        loop {
            let shown = self.get(path).await;
            if shown.text("state") == state {
                return shown;
            }
        }
    }

    /// The entries of a whole list, read page by page. The path has a query.
    pub(crate) async fn pages(&self, key: &str, path: &str) -> Vec<Value> {
        let (mut entries, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.call_as(key, "", Method::GET, &format!("{path}{cursor}"), "").await.expect(StatusCode::OK);
            entries.extend_from_slice(page.list());
            let Some(next) = page.body["next_cursor"].as_str() else { return entries };
            cursor = format!("&cursor={next}");
        }
    }

    /// Creates an endpoint with these further fields, whose receiver the test answers for; returns the receiver and
    /// the endpoint's id.
    pub(crate) async fn receiver(&self, more: &str) -> (TcpListener, String) {
        let receiver = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let id = self.endpoint_at(receiver.local_addr().expect("it listens").port(), more).await;
        (receiver, id)
    }

    /// The first operator key of a server that needs keys.
    pub(crate) async fn operator_key(&self) -> String {
        // The key is written before the first request is answered.
        assert_eq!(self.get("/healthz").await.status, StatusCode::OK);
        let file = std::fs::read_to_string(self.data.path().join("operator.key")).expect("the first key's file");
        file.trim().to_owned()
    }

    /// Creates an endpoint at a port without a listener, with these further fields; returns its id.
    pub(crate) async fn endpoint(&self, more: &str) -> String {
        self.endpoint_at(9_999, more).await
    }

    async fn endpoint_at(&self, port: u16, more: &str) -> String {
        let body = format!(r#"{{"url": "http://127.0.0.1:{port}/hook"{more}}}"#);
        self.post("/v1/endpoints", &body).await.expect(StatusCode::CREATED).text("id").to_owned()
    }
}

/// The id of a message's only delivery: its key follows the message's, under the same time.
pub(crate) fn delivery_of(message: &str) -> String {
    let ids = IdKey::from_bytes([7; 16]);
    let opened = ids.open(message).expect("a message's id");
    ids.mint(IdKind::Delivery, opened.writer, opened.seq + 1, opened.time_ms)
}

/// Accepts the next request to a receiver; returns its connection and its text.
pub(crate) async fn accept(receiver: &TcpListener) -> (TcpStream, String) {
    let (mut stream, _) = receiver.accept().await.expect("the attempt comes");
    let mut request = [0; 4_096];
    let bytes = stream.read(&mut request).await.expect("a request");
    assert!(bytes > 0);
    (stream, String::from_utf8_lossy(&request[..bytes]).into_owned())
}

/// Accepts one request and answers it with this status; returns the request.
pub(crate) async fn answer(receiver: &TcpListener, status: &str) -> String {
    let (mut stream, request) = accept(receiver).await;
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("the server reads it");
    request
}
