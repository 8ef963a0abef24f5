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
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await.expect("an answer");
        answer.push(byte);
    }
    (stream, String::from_utf8(answer).expect("text").to_lowercase())
}

#[tokio::test]
async fn bodies_beyond_the_memory_bound_are_refused_before_they_are_read() {
    let server = Server::start().await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let (stream, answer) = announce(&server, 7_900_000).await;
        assert!(answer.starts_with("http/1.1 100"), "{answer}");
        open.push(stream);
    }
    let (_, refused) = announce(&server, 7_900_000).await;
    assert!(refused.starts_with("http/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n") && refused.contains("request-id: "), "{refused}");
    assert!(refused.contains("connection: close\r\n"), "the body is not read, so the connection is closed: {refused}");
    let small = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    assert_eq!(small.status, 202, "there is room for a small one");
    drop(open);
    loop {
        // Until the server has seen that the connections are closed.
        let (_, answer) = announce(&server, 7_900_000).await;
        if answer.starts_with("http/1.1 100") {
            break;
        }
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
