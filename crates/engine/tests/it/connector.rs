//! The connector against receivers that misbehave, over real sockets on loopback.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::Cause;
use posthaste_engine::connector::{BODY_BYTES_READ_MAX, HEAD_BYTES_MAX, INTERIM_ANSWERS_MAX, NotTaken, Settings};
use posthaste_engine::{NoAnswer, Roots};
use posthaste_store::EXCERPT_BYTES_MAX;
use tokio::net::TcpListener;

use crate::harness::loopback_allowed;
use crate::network::{Bench, Lookup, Names, Patience, SHORT, Witness, addresses, describe, settings};
use crate::receiver::{OK, Receiver, Step, write};

/// Checks the result of an attempt at a receiver with this script.
async fn check(script: Vec<Step>, expected: &str) {
    let receiver = Receiver::start(vec![script.clone()]).await;
    let mut bench = Bench::new(Settings { attempt_timeout: 5 * SHORT, ..settings() });
    assert_eq!(describe(&bench.attempt(&receiver.url()).await.result), expected, "{script:?}");
    assert_eq!(receiver.connections(), 1, "{script:?}");
}

async fn check_answer(answer: impl AsRef<[u8]>, expected: &str) {
    check(vec![Step::Read, write(answer)], expected).await;
}

#[tokio::test]
async fn the_target_decides_path_and_host_and_http_frames_the_body() {
    let receiver = Receiver::start(vec![vec![Step::Serve]]).await;
    let mut bench = Bench::new(settings());
    bench.post(&format!("{}?a=b", receiver.url()), "{\"a\":1}").await;
    let expected = format!(
        "POST /hook?a=b HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{{\"a\":1}}",
        receiver.address()
    );
    assert_eq!(receiver.requests(), [expected]);
}

#[tokio::test]
async fn attempts_in_a_row_share_one_connection() {
    let receiver = Receiver::start(vec![vec![Step::Serve]]).await;
    let mut bench = Bench::new(settings());
    for _ in 0..20 {
        assert_eq!(bench.answer(&receiver.url()).await.status, 200);
    }
    assert_eq!((receiver.connections(), receiver.requests().len()), (1, 20));
}

#[tokio::test]
async fn an_origin_never_has_more_connections_than_allowed_and_all_jobs_end() {
    let receiver = Receiver::start(vec![vec![Step::Serve]]).await;
    let mut bench = Bench::new(Settings { connections_per_origin_max: 2, ..settings() });
    bench.send(0..50, &receiver.url());
    let mut tokens = Vec::new();
    for _ in 0..50 {
        let done = bench.next().await;
        done.result.expect("an answer");
        tokens.push(done.token);
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (0..50).collect::<Vec<_>>());
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_job_ends_exactly_once_while_receivers_come_and_go() {
    let three_each = [Step::Read, write(OK), Step::Read, write(OK), Step::Read, write(OK)];
    let receiver = Receiver::start(vec![three_each.to_vec()]).await;
    let mut bench = Bench::new(Settings { connections_per_origin_max: 8, idle_connections_max: 4, ..settings() });
    let mut ended = vec![0; 2_000];
    let mut sent = 0;
    for received in 0..ended.len() {
        while sent < ended.len() && sent - received < 20 {
            bench.send([sent as u64], &receiver.url());
            sent += 1;
        }
        let done = bench.next().await;
        ended[usize::try_from(done.token).expect("a token of ours")] += 1;
        if let Err(fault) = done.result {
            assert!(matches!(fault.cause, Cause::Unknown | Cause::ConnectReset | Cause::ClosedEarly), "{fault:?}");
        }
    }
    assert!(ended.iter().all(|times| *times == 1));
    bench.connector.close().await;
    assert_eq!(bench.connector.connections(), 0);
}

#[tokio::test]
async fn a_panic_in_a_connection_ends_its_attempt_and_those_queued_behind_it() {
    // A resolver without an answer panics.
    let witness = Witness::new("127.0.0.1:1".parse().expect("an address"), Patience::None);
    let settings = Settings { connections_per_origin_max: 1, ..settings() };
    let mut bench = Bench::with(settings, Names::new([]), witness, Roots::none());
    bench.send([1, 2, 3], "https://hooks.example.com/");
    for _ in 0..3 {
        let fault = bench.next().await.result.expect_err("the resolver panics");
        assert_eq!((fault.cause, fault.detail), (Cause::Unknown, Some("connector_stopped")));
    }
    assert_eq!(bench.connector.connections(), 0);
}

/// Checks that a connection ends after an attempt, and that the next attempt opens another.
async fn check_reconnects(why: &str, settings: Settings, scripts: Vec<Vec<Step>>) {
    let receiver = Receiver::start(scripts).await;
    let mut bench = Bench::new(settings);
    bench.answer(&receiver.url()).await;
    bench.until_no_connection().await;
    assert_eq!(bench.answer(&receiver.url()).await.status, 200, "{why}");
    assert_eq!(receiver.connections(), 2, "{why}");
}

#[tokio::test]
async fn idle_connection_that_has_ended_is_replaced_silently() {
    let serve = vec![vec![Step::Serve]];
    check_reconnects("above the limit", Settings { idle_connections_max: 0, ..settings() }, serve.clone()).await;
    let short = Settings { idle_timeout: Duration::from_millis(20), ..settings() };
    check_reconnects("after its time", short, serve).await;
    let closes = vec![vec![Step::Read, write(OK)], vec![Step::Serve]];
    check_reconnects("closed by its receiver", settings(), closes).await;
}

#[tokio::test]
async fn closed_port_is_connect_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    drop(listener);
    let fault = Bench::new(settings()).fault(&format!("http://{address}/")).await;
    assert_eq!(fault.cause, Cause::ConnectRefused);
}

/// Checks the cause when the receiver acts before the request is written: the connection is handed over after that.
async fn check_before_write(script: Vec<Step>, cause: Cause) {
    let receiver = Receiver::start(vec![script]).await;
    let witness = Witness::new(receiver.address(), Patience::UntilReadable);
    let mut bench = Bench::with(settings(), Names::new([]), witness.clone(), Roots::none());
    let fault = bench.fault(&receiver.url()).await;
    assert_eq!(fault.cause, cause, "{fault:?}");
    assert_eq!(witness.dialled().len(), 1, "a fresh connection is not tried twice");
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn a_connection_lost_before_the_request_was_written_cannot_have_delivered_it() {
    check_before_write(vec![Step::Reset], Cause::ConnectReset).await;
    check_before_write(vec![], Cause::ClosedEarly).await;
    check_before_write(vec![write("220 mail ready\r\n"), Step::Hold], Cause::ProtocolError).await;
}

#[tokio::test]
async fn a_connection_lost_after_the_request_was_written_may_have_delivered_it() {
    check(vec![Step::Read], "unknown connection_closed").await;
    check(vec![Step::Read, write("HTTP/1.1 2")], "unknown connection_closed").await;
    check(vec![Step::ReadFirst, Step::Reset], "unknown connection_reset").await;
}

#[tokio::test]
async fn attempt_without_an_answer_ends_at_the_deadline() {
    let never: [Vec<Step>; 2] = [vec![Step::Hold], vec![Step::Read, write("HTTP/1.1 200 OK\r\n"), Step::Hold]];
    for script in never {
        let receiver = Receiver::start(vec![script]).await;
        let mut bench = Bench::new(Settings { attempt_timeout: SHORT, ..settings() });
        let done = bench.attempt(&receiver.url()).await;
        let fault = done.result.expect_err("no answer");
        assert_eq!((fault.cause, fault.detail), (Cause::Unknown, Some("attempt_timeout")));
        assert!(done.took >= SHORT && done.took < 10 * SHORT, "{:?}", done.took);
    }
}

#[tokio::test]
async fn a_job_ends_by_its_own_deadline_even_while_it_queues() {
    let receiver = Receiver::start(vec![vec![Step::Hold]]).await;
    let mut bench = Bench::new(Settings { attempt_timeout: SHORT, connections_per_origin_max: 1, ..settings() });
    bench.send([1, 2], &receiver.url());
    let faults =
        [bench.next().await, bench.next().await].map(|done| (done.token, done.result.expect_err("no answer").cause));
    assert_eq!(faults, [(1, Cause::Unknown), (2, Cause::ConnectTimeout)]);
}

#[tokio::test]
async fn connect_that_never_ends_fails_after_the_connect_timeout() {
    let receiver = Receiver::start(vec![vec![Step::Hold]]).await;
    let witness = Witness::new(receiver.address(), Patience::Endless);
    let names = Names::new([addresses(&["127.0.0.1", "127.0.0.2"])]);
    let settings = Settings { connect_timeout: SHORT, ..settings() };
    let mut bench = Bench::with(settings, names, witness.clone(), Roots::none());
    let done = bench.attempt("http://hooks.example.com/").await;
    assert_eq!(done.result.expect_err("no connection").cause, Cause::ConnectTimeout);
    assert!(done.took < 10 * SHORT);
    let tried: Vec<_> = witness.dialled().iter().map(|address| address.ip().to_string()).collect();
    assert_eq!(tried, ["127.0.0.1", "127.0.0.2"], "each address has its share of the time");
}

#[tokio::test]
async fn the_second_address_is_tried_when_the_first_refuses() {
    let receiver = Receiver::start(vec![vec![Step::Serve]]).await;
    let names = Names::new([addresses(&["127.0.0.9", "127.0.0.1"])]);
    let mut bench = Bench::with(settings(), names, Arc::new(posthaste_engine::connector::Tcp), Roots::none());
    let url = format!("http://hooks.example.com:{}/", receiver.address().port());
    assert_eq!(bench.answer(&url).await.status, 200);
}

#[tokio::test]
async fn heads_above_the_limits_are_refused() {
    let long_line = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(1 << 20));
    check_answer(long_line, "response_head_too_large").await;
    let many_fields = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(10_000));
    check_answer(many_fields, "response_head_too_large").await;
    let one_above = format!("HTTP/1.1 204 No Content\r\n{}\r\n", "x: y\r\n".repeat(101));
    check_answer(one_above, "response_head_too_large").await;
    let fits = format!("HTTP/1.1 204 No Content\r\nx: {}\r\n\r\n", "a".repeat(HEAD_BYTES_MAX - 40));
    check_answer(fits, "204").await;
}

#[tokio::test]
async fn malformed_http_1_is_a_protocol_error() {
    for garbage in [
        "hello there, this is no web server\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "HTTP/1.1 000 Zero\r\n\r\n",
        "HTTP/1.1 99 Low\r\n\r\n",
        "HTTP/1.1 20000000000000000000 Long\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "\x15\x03\x01\x00\x02\x02\x46",
    ] {
        check_answer(garbage, "protocol_error").await;
    }
    for status in [101, 600, 999] {
        check_answer(format!("HTTP/1.1 {status} Odd\r\ncontent-length: 0\r\n\r\n"), "protocol_error status").await;
    }
    let smuggled = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    check_answer(smuggled, "protocol_error two_lengths").await;
}

#[tokio::test]
async fn bad_chunks_long_extensions_and_long_trailers_leave_the_status_alone() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for size in ["zz", "-1", "10000000000000000"] {
        check_answer(format!("{CHUNKED}{size}\r\n"), "200 cut").await;
    }
    let extension = format!("{CHUNKED}1;{}\r\na\r\n0\r\n\r\n", "x".repeat(1 << 20));
    check_answer(extension, "200 cut").await;
    let trailers = format!("{CHUNKED}1\r\na\r\n0\r\nt: {}\r\n\r\n", "x".repeat(1 << 20));
    check_answer(trailers, "200 cut").await;
}

#[tokio::test]
async fn a_few_interim_answers_are_skipped_and_a_flood_is_a_protocol_error() {
    let interim = |count: usize| "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".repeat(count);
    check_answer(interim(INTERIM_ANSWERS_MAX) + OK, "200").await;
    check(vec![Step::Read, write(interim(INTERIM_ANSWERS_MAX + 1)), Step::Hold], "protocol_error interim_answers")
        .await;
    check(vec![Step::Read, Step::Flood(interim(100).into())], "protocol_error interim_answers").await;
}

#[tokio::test]
async fn status_counts_even_if_the_body_fails() {
    check_answer("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", "200 cut").await;
    check_answer("HTTP/1.1 200 OK\r\n\r\nuntil the end", "200").await;
    check_answer("HTTP/1.0 200 OK\r\n\r\n", "200").await;
    check(vec![Step::Read, write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nslow"), Step::Hold], "200 cut").await;
    let endless = vec![Step::Read, write("HTTP/1.1 200 OK\r\n\r\n"), Step::Flood(vec![b'x'; 4096])];
    check(endless, "200 cut").await;
    check_answer("HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{\"error\": \"none\"}", "200").await;
}

#[tokio::test]
async fn early_answer_counts_even_if_the_request_is_not_read() {
    let receiver = Receiver::start(vec![vec![Step::ReadFirst, write(OK), Step::Stall], vec![Step::Serve]]).await;
    let mut bench = Bench::new(settings());
    // Far more than the sockets' buffers hold: most of it is never written.
    assert_eq!(bench.post(&receiver.url(), &"x".repeat(16 << 20)).await.status, 200);
    assert_eq!(bench.answer(&receiver.url()).await.status, 200);
    assert_eq!(receiver.connections(), 2, "a request half written ends its connection");
}

#[tokio::test]
async fn a_failure_keeps_the_beginning_of_its_body_and_a_success_keeps_none() {
    let body = "e".repeat(EXCERPT_BYTES_MAX + 10);
    let answer = |status: &str| write(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    let receiver = Receiver::start(vec![vec![Step::Read, answer("500 No"), Step::Read, answer("200 OK")]]).await;
    let mut bench = Bench::new(settings());
    let failed = bench.answer(&receiver.url()).await;
    assert_eq!((failed.excerpt.len(), failed.cut), (EXCERPT_BYTES_MAX, false));
    let succeeded = bench.answer(&receiver.url()).await;
    assert!(succeeded.excerpt.is_empty());
    assert_eq!(receiver.connections(), 1, "both bodies were read to their end");
}

#[tokio::test]
async fn connection_with_an_unclear_end_of_answer_is_not_reused() {
    let too_long = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}",
        BODY_BYTES_READ_MAX + 1,
        "x".repeat(BODY_BYTES_READ_MAX + 1)
    );
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok and more",
        "HTTP/1.1 204 No Content\r\n\r\nbody",
        "HTTP/1.1 205 Reset Content\r\ncontent-length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        &too_long,
    ] {
        let receiver = Receiver::start(vec![vec![Step::Read, write(answer), Step::Hold], vec![Step::Serve]]).await;
        let mut bench = Bench::new(settings());
        assert!(bench.answer(&receiver.url()).await.status.is_success(), "{answer:.40}");
        bench.until_no_connection().await;
        assert_eq!(bench.answer(&receiver.url()).await.status, 200);
        assert_eq!(receiver.connections(), 2, "{answer:.40}");
    }
}

#[tokio::test]
async fn redirect_is_an_answer_and_not_followed() {
    let elsewhere = Receiver::start(vec![vec![Step::Serve]]).await;
    let answer = format!("HTTP/1.1 307 Moved\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", elsewhere.url());
    let receiver = Receiver::start(vec![vec![Step::Read, write(answer)]]).await;
    let answer = Bench::new(settings()).answer(&receiver.url()).await;
    assert_eq!(answer.status, 307);
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn request_has_no_cookie_authorization_or_other_extra_header() {
    let receiver = Receiver::start(vec![vec![
        Step::Read,
        write("HTTP/1.1 200 OK\r\nset-cookie: a=b\r\nalt-svc: h2=\":1\"\r\ncontent-length: 0\r\n\r\n"),
        Step::Serve,
    ]])
    .await;
    let mut bench = Bench::new(settings());
    bench.answer(&receiver.url()).await;
    bench.answer(&receiver.url()).await;
    for request in receiver.requests() {
        let head = request.to_lowercase();
        for name in ["accept-encoding", "cookie", "referer", "authorization", "proxy-", "expect", "upgrade"] {
            assert!(!head.contains(&format!("\r\n{name}")), "{request}");
        }
    }
}

#[tokio::test]
async fn kept_connection_is_rechecked_after_a_while() {
    let receiver = Receiver::start(vec![vec![Step::Serve]]).await;
    let answers = [&["127.0.0.1"], &["127.0.0.1"], &["127.0.0.2"], &["10.0.0.1"]];
    let names = Names::new(answers.map(|list| addresses(list)));
    let witness = Witness::new(receiver.address(), Patience::None);
    let settings = Settings { recheck_after: Duration::ZERO, ..settings() };
    let mut bench = Bench::with(settings, names.clone(), witness.clone(), Roots::none());
    let url = "http://hooks.example.com/";
    bench.answer(url).await;
    bench.answer(url).await;
    assert_eq!((names.asked(), witness.dialled().len()), (2, 1), "the same address: the connection is kept");
    bench.answer(url).await;
    assert_eq!(witness.dialled().len(), 2, "the name has another address: a new connection");
    let fault = bench.fault(url).await;
    assert_eq!((fault.cause, fault.detail), (Cause::AddressRefused, Some("ip_private")));
    assert_eq!((witness.dialled().len(), receiver.requests().len()), (2, 3), "nothing more was sent");
}

#[tokio::test]
async fn recently_checked_connection_needs_no_look_up() {
    let receiver = Receiver::start(vec![vec![Step::Serve]]).await;
    let names = Names::new([addresses(&["127.0.0.1"]), addresses(&["10.0.0.1"])]);
    let witness = Witness::new(receiver.address(), Patience::None);
    let mut bench = Bench::with(settings(), names.clone(), witness, Roots::none());
    for _ in 0..3 {
        bench.answer("http://hooks.example.com/").await;
    }
    assert_eq!(names.asked(), 1);
}

#[tokio::test]
async fn missing_name_and_failing_resolver_have_different_causes() {
    let cases = [
        (Lookup::Fails(NoAnswer::NotFound), Cause::DnsNotFound),
        (Lookup::Addresses(vec![]), Cause::DnsNotFound),
        (Lookup::Fails(NoAnswer::Failed), Cause::DnsFailed),
        (Lookup::NeverEnds, Cause::DnsFailed),
    ];
    for (lookup, cause) in cases {
        let witness = Witness::new("127.0.0.1:1".parse().expect("an address"), Patience::None);
        let settings = Settings { dns_timeout: SHORT, ..settings() };
        let mut bench = Bench::with(settings, Names::new([lookup]), witness.clone(), Roots::none());
        assert_eq!(bench.fault("https://hooks.example.com/").await.cause, cause);
        assert!(witness.dialled().is_empty());
    }
}

#[tokio::test]
async fn close_lets_jobs_end_and_refuses_further_ones() {
    let receiver = Receiver::start(vec![vec![Step::Serve], vec![Step::Hold]]).await;
    let mut bench = Bench::new(Settings { attempt_timeout: SHORT, ..settings() });
    bench.answer(&receiver.url()).await;
    // One connection is idle; make it busy with a job and a second one hang.
    bench.send([1, 2], &receiver.url());
    bench.connector.close().await;
    assert_eq!(bench.connector.connections(), 0);
    let mut ends = [bench.next().await, bench.next().await].map(|done| (done.token, done.result.is_ok()));
    ends.sort_unstable();
    assert_eq!(ends, [(1, true), (2, false)]);
    let refused = bench.connector.send(bench.job(3, &receiver.url())).expect_err("it is closed");
    assert!(matches!(refused, NotTaken::Closed));
}

#[tokio::test]
async fn closing_ends_idle_connections_at_once() {
    let receiver = Receiver::start(vec![vec![Step::Serve]]).await;
    let mut bench = Bench::new(settings());
    bench.answer(&receiver.url()).await;
    let closed = tokio::time::timeout(10 * SHORT, bench.connector.close()).await;
    assert!(closed.is_ok(), "an idle connection delayed the close");
}

#[tokio::test]
async fn jobs_over_the_limit_are_refused() {
    let receiver = Receiver::start(vec![vec![Step::Serve]]).await;
    let mut bench = Bench::new(Settings { jobs_max: 2, ..settings() });
    bench.send([1, 2], &receiver.url());
    let refused = bench.connector.send(bench.job(3, &receiver.url())).expect_err("two are under way");
    assert!(matches!(refused, NotTaken::Full));
    bench.next().await.result.expect("an answer");
    bench.send([4], &receiver.url());
}

#[tokio::test]
async fn check_of_a_target_opens_no_connection() {
    let witness = Witness::new("127.0.0.1:1".parse().expect("an address"), Patience::None);
    let names = Names::new([addresses(&["93.184.216.34"]), addresses(&["10.0.0.1"])]);
    let bench = Bench::with(settings(), names, witness.clone(), Roots::none());
    let target = posthaste_engine::target::Target::parse("https://hooks.example.com/", &loopback_allowed());
    let target = target.expect("a public name");
    bench.connector.check(&target).await.expect("a public address");
    let refusal = bench.connector.check(&target).await.expect_err("a private address");
    assert_eq!(refusal.code(), "ip_private");
    assert!(witness.dialled().is_empty());
}
