//! More than the server takes at once.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::Server;

/// Announces a body and gives what is said to that.
async fn announce(server: &Server, bytes: usize) -> (TcpStream, String) {
    let head = format!(
        "POST /v1/messages/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n\
         expect: 100-continue\r\ncontent-length: {bytes}\r\n\r\n"
    );
    send_head(server, &head).await
}

/// Sends a request's head and gives the head of what is said to it.
async fn send_head(server: &Server, head: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
    stream.write_all(head.as_bytes()).await.expect("it is read");
    let mut said = Vec::new();
    while !said.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await.expect("an answer");
        said.push(byte);
    }
    (stream, String::from_utf8(said).expect("text").to_lowercase())
}

#[tokio::test]
async fn bodies_beyond_the_room_for_all_of_them_are_refused_before_they_are_read() {
    let server = Server::start().await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let (stream, said) = announce(&server, 7_900_000).await;
        assert!(said.starts_with("http/1.1 100"), "{said}");
        open.push(stream);
    }
    let (_, refused) = announce(&server, 7_900_000).await;
    assert!(refused.starts_with("http/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n") && refused.contains("request-id: "), "{refused}");
    assert!(refused.contains("connection: close\r\n"), "the body is not read, and its sender is told: {refused}");
    let small = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    assert_eq!(small.status, 202, "there is room for a small one");
    drop(open);
    loop {
        // Until the server has seen that they are gone.
        let (_, said) = announce(&server, 7_900_000).await;
        if said.starts_with("http/1.1 100") {
            break;
        }
    }
}

#[tokio::test]
async fn a_message_whose_twin_is_still_running_is_told_to_ask_again() {
    let server = Server::start().await;
    let begun = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 idempotency-key: twin\r\nexpect: 100-continue\r\ncontent-length: 14\r\n\r\n";
    // Its body is awaited: it is under way.
    let (mut first, said) = send_head(&server, begun).await;
    assert!(said.starts_with("http/1.1 100"), "{said}");
    let (_, twin) = send_head(&server, begun).await;
    assert!(twin.starts_with("http/1.1 409") && twin.contains("retry-after: 1\r\n"), "{twin}");
    first.write_all(br#"{"payload": 1}"#).await.expect("it is read");
    let mut answer = [0; 12];
    first.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 202", "the first is carried out");
}
