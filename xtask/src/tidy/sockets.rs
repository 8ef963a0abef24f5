//! Only the connector opens outward connections: it checks every address before it connects.

use super::source::{Complaint, SourceFile};

/// Files that may open outward connections: the connector, the testkit, and the commands `bench` and `demo`.
const HOMES: &[&str] =
    &["crates/engine/src/connector", "crates/testkit/", "crates/cli/src/bench", "crates/cli/src/demo", "xtask/"];

const WAYS_OUT: &[&str] = &[
    "TcpStream::connect",
    "TcpStream::connect_timeout",
    "TcpSocket",
    "UdpSocket",
    "UnixStream",
    "lookup_host",
    "ToSocketAddrs",
];

/// Only [`HOMES`] open a connection or resolve a name.
pub(super) fn check_sockets(file: &SourceFile) -> Vec<Complaint> {
    if file.is_in(HOMES) {
        return Vec::new();
    }
    WAYS_OUT
        .iter()
        .flat_map(|way| file.find(way).into_iter().map(move |at| (at, way)))
        .filter(|(at, _)| !file.is_test(*at))
        .map(|(at, way)| {
            file.complaint(
                at,
                format!("{way} outside the connector"),
                "send through engine::connector, which checks the address",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::check;
    use super::*;

    #[test]
    fn a_connection_outside_the_connector_is_reported() {
        check(check_sockets, "crates/server/src/health.rs", "//! Health.\nlet s = TcpStream::connect(a).await;", &[2]);
        check(check_sockets, "crates/engine/src/dispatch.rs", "tokio::net::UdpSocket::bind(a)", &[1]);
    }

    #[test]
    fn the_connector_and_tests_may_connect() {
        check(check_sockets, "crates/engine/src/connector/dial.rs", "TcpStream::connect(a)", &[]);
        check(
            check_sockets,
            "crates/server/src/api.rs",
            "#[cfg(test)]\nmod tests { fn f() { TcpStream::connect(a) } }",
            &[],
        );
        check(check_sockets, "crates/server/src/run.rs", "TcpListener::bind(a)", &[]);
    }
}
