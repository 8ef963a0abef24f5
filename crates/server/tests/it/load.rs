//! More than the server takes at once.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::Server;

/// Announces a body and gives the first line of what is said to that.
async fn announce(server: &Server, bytes: usize) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
    let head = format!(
        "POST /v1/messages/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n\
         expect: 100-continue\r\ncontent-length: {bytes}\r\n\r\n"
    );
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
