//! Answers that arrive in different numbers of pieces, and their parsed form.

use std::fmt::Write;
use std::sync::Arc;

use posthaste_channels::Fields;
use posthaste_store::EXCERPT_BYTES_MAX;
use proptest::prelude::*;

use super::*;
use crate::TargetRules;
use crate::connector::BODY_BYTES_READ_MAX;

/// Parses an answer that arrives in pieces of these lengths, in turn, and then ends; describes the result.
fn read(answer: &[u8], pieces: &[usize]) -> String {
    let (mut reading, mut inbox, mut rest) = (ResponseReader::default(), BytesMut::new(), answer);
    let mut pieces = pieces.iter().cycle();
    let end = loop {
        match reading.take(&mut inbox) {
            Err(fault) => return format!("{} {}", fault.cause.code(), fault.detail.unwrap_or_default()),
            Ok(ReadProgress::More) if rest.is_empty() => match reading.end(&mut inbox, true) {
                Err(fault) => return format!("{} {}", fault.cause.code(), fault.detail.unwrap_or_default()),
                Ok(None) => return "no head".to_owned(),
                Ok(Some(end)) => break end,
            },
            Ok(ReadProgress::More) => {
                let (piece, left) = rest.split_at(rest.len().min(*pieces.next().expect("it goes round")));
                inbox.extend_from_slice(piece);
                rest = left;
            }
            Ok(end) => break end,
        }
    };
    let (answer, reusable) = reading.into_answer(end).expect("an answer that ended has a head");
    let mut description = answer.status.as_u16().to_string();
    for (is_so, word) in [(answer.cut, " cut"), (reusable && inbox.is_empty() && rest.is_empty(), " kept")] {
        description.push_str(if is_so { word } else { "" });
    }
    if !answer.excerpt.is_empty() {
        write!(description, " {}", answer.excerpt.escape_ascii()).expect("a string takes everything");
    }
    description
}

fn check(answer: &str, expected: &str) {
    for pieces in [&[usize::MAX][..], &[1], &[2, 3, 5], &[64]] {
        assert_eq!(read(answer.as_bytes(), pieces), expected, "{answer:?} in pieces of {pieces:?}");
    }
}

#[test]
fn end_of_an_answer_is_found_by_length_chunks_or_close() {
    check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", "200 kept");
    check("HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", "500 kept no");
    check("HTTP/1.1 500 No\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nno\r\na;x=y\r\n0123456789\r\n0\r\n\r\n", {
        "500 kept no0123456789"
    });
    check(
        "HTTP/1.1 500 No\r\ntransfer-encoding: gzip, chunked\r\n\r\n2 \r\nno\r\n0\r\nt: x\r\nu: y\r\n\r\n",
        "500 kept no",
    );
    check("HTTP/1.1 500 No\r\n\r\nuntil it ends", "500 until it ends");
    check("HTTP/1.1 500 No\r\ntransfer-encoding: chunked, gzip\r\n\r\n2\r\nno", "500 2\\r\\nno");
}

#[test]
fn statuses_without_a_body_have_none_despite_their_headers() {
    check("HTTP/1.1 204 No Content\r\n\r\n", "204 kept");
    check("HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", "304 kept");
    check("HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n", "204 kept");
    check("HTTP/1.1 205 Reset Content\r\ncontent-length: 0\r\n\r\n", "205 kept");
    check("HTTP/1.1 205 Reset Content\r\ncontent-length: 1\r\n\r\nx", "205");
}

#[test]
fn connection_is_kept_unless_the_receiver_closes_it() {
    check("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", "200");
    check("HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 0\r\n\r\n", "200");
    check("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", "200");
    check("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n", "200 kept");
    check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nand more", "200");
}

#[test]
fn conflicting_or_malformed_lengths_are_refused() {
    let protocol_error = "protocol_error ";
    check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok", "200 kept");
    check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok", protocol_error);
    for length in ["", "-1", "+2", "2, 2", "0x2", "99999999999999999999", "2 2"] {
        check(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\nok"), protocol_error);
    }
    let both = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    check(both, "protocol_error two_lengths");
    check("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", protocol_error);
}

#[test]
fn malformed_chunks_cut_the_body() {
    let check = |body: &str, expected: &str| {
        check(&format!("HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n{body}"), expected);
    };
    // The status stands, and the connection is not used again.
    for bad in ["\r\n", ";x\r\n", "g\r\n", "1\nx", "1\rx", "1;a\nb\r\nx", "11111111111111111\r\n"] {
        check(bad, "500 cut");
    }
    for bad in ["1\r\nxy\r\n", "1\r\nx\ry"] {
        check(bad, "500 cut x");
    }
    check("1\r\nx\r\n", "500 cut x");
    check("ffffffffffffffff\r\nx", "500 cut x");
    check("0\r\n", "500 cut");
    let half = "x".repeat(HEAD_BYTES_MAX / 2);
    check(&format!("1;{half}\r\na\r\n1;{half}x\r\na\r\n"), "500 cut a");
    check(&format!("0\r\na: {half}\r\nb: {half}\r\n\r\n"), "500 cut");
}

#[test]
fn head_is_bounded_in_bytes_fields_and_interim_answers() {
    let too_large = "response_head_too_large ";
    let long = |length: usize| format!("HTTP/1.1 204 No\r\nx: {}\r\n\r\n", "a".repeat(length));
    check(&long(HEAD_BYTES_MAX - long(0).len()), "204 kept");
    check(&long(HEAD_BYTES_MAX - long(0).len() + 1), too_large);
    let many = |count: usize| format!("HTTP/1.1 204 No\r\n{}\r\n", "x: y\r\n".repeat(count));
    check(&many(FIELDS_MAX), "204 kept");
    check(&many(FIELDS_MAX + 1), too_large);
    let interim = |count: usize| "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".repeat(count) + &many(0);
    check(&interim(INTERIM_ANSWERS_MAX), "204 kept");
    check(&interim(INTERIM_ANSWERS_MAX + 1), "protocol_error interim_answers");
    check("HTTP/1.1 200 OK\r\ncontent-le", "no head");
}

#[test]
fn excerpt_is_kept_of_failures_only_and_a_long_body_is_cut() {
    let body = |status: &str, length: usize| {
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{}", "e".repeat(length))
    };
    check(&body("500 No", EXCERPT_BYTES_MAX + 1), &format!("500 kept {}", "e".repeat(EXCERPT_BYTES_MAX)));
    check(&body("200 OK", EXCERPT_BYTES_MAX + 1), "200 kept");
    check(&body("200 OK", BODY_BYTES_READ_MAX), "200 kept");
    check(&body("200 OK", BODY_BYTES_READ_MAX + 1), "200 cut");
}

#[test]
fn request_head_has_path_and_host_then_our_fields_then_the_endpoints_own() {
    let rules = TargetRules { allow_http: true, ..TargetRules::default() };
    let target = Target::parse("http://hooks.example.com:8080/a/b?c=d", &rules).expect("a public name");
    let of = |name: &'static str, value| {
        let mut fields = Fields::default();
        assert!(fields.push(&HeaderName::from_static(name), value));
        fields
    };
    let (ours, own) = (of("webhook-id", "msg_1"), Arc::new(of("x-team", "a")));
    let mut out = Vec::new();
    write_head(&mut out, &ChannelRequest { ours, own, body: "{}".into() }, &target);
    let expected = "POST /a/b?c=d HTTP/1.1\r\nhost: hooks.example.com:8080\r\nwebhook-id: msg_1\r\nx-team: a\r\n\
                    content-length: 2\r\n\r\n";
    assert_eq!(String::from_utf8(out).expect("text"), expected);
}

#[test]
fn only_header_fields_that_are_used_are_kept() {
    let answer = "HTTP/1.1 429 No\r\nserver: x\r\nRetry-After: 7\r\nset-cookie: a\r\ncontent-length: 0\r\n\r\n";
    let (mut reading, mut inbox) = (ResponseReader::default(), BytesMut::from(answer));
    let end = reading.take(&mut inbox).expect("an answer");
    let (answer, _) = reading.into_answer(end).expect("an answer");
    let names: Vec<_> = answer.headers.keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["retry-after", "content-length"]);
}

/// Bytes that are nearly an answer.
fn an_answer() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 503 No\r\n",
        "HTTP/1.0 404 No\r\n",
        "HTTP/1.1 204 \r\n",
    ]);
    let field = prop::sample::select(vec![
        "content-length: 5\r\n",
        "content-length: 70000\r\n",
        "transfer-encoding: chunked\r\n",
        "connection: close\r\n",
        "retry-after: 7\r\n",
        ": \r\n",
    ]);
    let part =
        prop::sample::select(vec!["5\r\nhello\r\n", "0\r\n\r\n", "0\r\n", "hello", "\r\n", "zz", "1;x\r\na\r\n"]);
    let parts = (line, prop::collection::vec(field, 0..3), prop::collection::vec(part, 0..5));
    let whole =
        parts.prop_map(|(line, fields, parts)| [line, &fields.concat(), "\r\n", &parts.concat()].concat().into_bytes());
    (whole, any::<prop::sample::Index>(), prop::option::weighted(0.3, any::<u8>())).prop_map(
        |(mut bytes, at, instead)| {
            if let Some(instead) = instead {
                let at = at.index(bytes.len());
                bytes[at] = instead;
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn answer_parses_the_same_in_any_number_of_pieces(
        answer in an_answer(),
        pieces in prop::collection::vec(1..40_usize, 1..8),
    ) {
        prop_assert_eq!(read(&answer, &pieces), read(&answer, &[usize::MAX]));
    }

    #[test]
    fn any_bytes_are_an_answer_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read(&bytes, &[usize::MAX]);
    }
}
