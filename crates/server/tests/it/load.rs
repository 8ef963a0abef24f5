//! Requests beyond what the server takes at once.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::Server;

/// Announces a body, and returns the head of the answer to that.
async fn announce(server: &Server, bytes: usize) -> (TcpStream, String) {
    let head = format!(
        "POST /v1/messages/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n\
         expect: 100-continue\r\ncontent-length: {bytes}\r\n\r\n"
    );
    send_head(server, &head).await
}

/// Sends a request's head, and returns the head of the answer.
async fn send_head(server: &Server, head: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
    stream.write_all(head.as_bytes()).await.expect("it is read");
    let answer = answer_head(&mut stream).await;
    (stream, answer)
}

/// Announces a batch and sends this many bytes of it, but not the last. Returns the stream.
async fn hold(server: &Server, bytes: usize) -> TcpStream {
    let (mut stream, answer) = announce(server, bytes + 1).await;
    assert!(answer.starts_with("http/1.1 100"), "{answer}");
    stream.write_all(&vec![b' '; bytes]).await.expect("it is read");
    stream
}

async fn answer_head(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.expect("an answer"));
    }
    String::from_utf8(answer).expect("text").to_lowercase()
}

#[tokio::test]
async fn declared_lengths_alone_take_no_room() {
    let server = Server::start().await;
    let mut open = Vec::new();
    for _ in 0..64 {
        let (stream, answer) = announce(&server, 8_000_000).await;
        assert!(answer.starts_with("http/1.1 100"), "{answer}");
        open.push(stream);
    }
    let sent = server.post("/v1/messages", &format!(r#"{{"payload": "{}"}}"#, "x".repeat(500_000))).await;
    assert_eq!(sent.status, 202, "{}", sent.body);
}

#[tokio::test]
async fn declared_length_above_the_limit_is_refused_before_anything_is_read() {
    let server = Server::start().await;
    let (_, answer) = announce(&server, 8_000_001).await;
    assert!(answer.starts_with("http/1.1 413") && answer.contains("connection: close\r\n"), "{answer}");
}

#[tokio::test]
async fn bodies_beyond_a_senders_share_are_refused_until_some_have_ended() {
    let server = Server::start().await;
    // Together nearly 16 MiB, the share of one key.
    let held = [hold(&server, 7_900_000).await, hold(&server, 7_900_000).await];
    let refused = loop {
        // Until the server has read what was sent.
        let mut third = hold(&server, 1_000_000).await;
        let mut first = [0];
        let peeked = tokio::time::timeout(std::time::Duration::from_millis(50), third.peek(&mut first)).await;
        if peeked.is_ok() {
            break answer_head(&mut third).await;
        }
    };
    assert!(refused.starts_with("http/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n") && refused.contains("request-id: "), "{refused}");
    assert!(refused.contains("connection: close\r\n"), "the body is not read, so the connection is closed: {refused}");
    let small = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    assert_eq!(small.status, 202, "there is room for a small one");
    drop(held);
    let large = format!(r#"{{"payload": "{}"}}"#, "x".repeat(900_000));
    while server.post("/v1/messages", &large).await.status != 202 {
        // Until the server has seen that the connections are closed.
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_repeated_key_is_answered_409_while_the_first_request_runs() {
    let server = Server::start().await;
    let begun = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 idempotency-key: twin\r\nexpect: 100-continue\r\ncontent-length: 14\r\n\r\n";
    // The server waits for the first request's body: it is under way.
    let (mut first, answer) = send_head(&server, begun).await;
    assert!(answer.starts_with("http/1.1 100"), "{answer}");
    let (_, second) = send_head(&server, begun).await;
    assert!(second.starts_with("http/1.1 409") && second.contains("retry-after: 1\r\n"), "{second}");
    first.write_all(br#"{"payload": 1}"#).await.expect("it is read");
    let mut answer = [0; 12];
    first.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 202", "the first request succeeds");
}
