//! One connector is the only way out of the process: it checks every address it connects to.

use super::source::{Complaint, SourceFile};

/// Who may open a connection outwards: the connector; receivers that misbehave; and the commands
/// that measure or show the server from outside.
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

/// Nothing but the connector opens a connection or asks for an address.
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
    fn a_second_way_out_is_caught() {
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
