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
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        self.send(request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).expect("a request")).await
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
        let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        if !key.is_empty() {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if !tenant.is_empty() {
            request = request.header("posthaste-tenant", tenant);
        }
        self.send(request.body(Full::from(body.to_owned())).expect("a request")).await
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

    /// Creates an endpoint whose receiver the test answers for; returns the receiver and the endpoint's id.
    pub(crate) async fn receiver(&self) -> (TcpListener, String) {
        let receiver = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/", receiver.local_addr().expect("it listens"));
        let made = self.post("/v1/endpoints", &format!(r#"{{"url": "{url}"}}"#)).await.expect(StatusCode::CREATED);
        (receiver, made.text("id").to_owned())
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
        let made = self
            .post("/v1/endpoints", &format!(r#"{{"url": "http://127.0.0.1:9999/hook"{more}}}"#))
            .await
            .expect(StatusCode::CREATED);
        made.text("id").to_owned()
    }
}

/// The id of a message's only delivery: its key follows the message's, under the same time.
pub(crate) fn delivery_of(message: &str) -> String {
    let ids = IdKey::from_bytes([7; 16]);
    let opened = ids.open(message).expect("a message's id");
    ids.mint(IdKind::Delivery, opened.writer, opened.seq + 1, opened.time_ms)
}
