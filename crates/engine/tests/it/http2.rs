//! HTTP/2: many attempts over one connection, and receivers that violate the protocol.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use h2::Reason;
use posthaste_engine::connector::{BODY_BYTES_READ_MAX, HEAD_BYTES_MAX, Settings};
use posthaste_engine::{NoAnswer, TargetRules};
use posthaste_store::EXCERPT_BYTES_MAX;
use tokio::sync::Semaphore;

use crate::multiplexer::{
    Manner, Multiplexer, Reply, ServeTerms, frame, goaway_frame, ok_frame, serve, settings_frame, streams_frame,
};
use crate::network::{Bench, Lookup, Names, Patience, SHORT, Witness, addresses, describe, settings};
use crate::tls::Authority;

const URL: &str = "https://hooks.example.com/hook?a=b";
const NAME: &[&str] = &["hooks.example.com"];

/// A receiver with these manners and a bench that reaches it by name.
async fn start(settings: Settings, manners: Vec<Manner>) -> (Multiplexer, Bench) {
    start_with(&["h2", "http/1.1"], settings, manners, [addresses(&["93.184.216.34"])]).await
}

async fn start_with(
    protocols: &[&str],
    settings: Settings,
    manners: Vec<Manner>,
    names: impl IntoIterator<Item = Lookup>,
) -> (Multiplexer, Bench) {
    let authority = Authority::new();
    let receiver = Multiplexer::start(authority.acceptor_of(NAME, protocols), manners).await;
    let witness = Witness::new(receiver.address(), Patience::None);
    let bench = Bench::with(settings, Names::new(names), witness, authority.roots());
    (receiver, bench)
}

/// The result of the next attempt: a status, or a cause and its detail.
async fn outcome(bench: &mut Bench) -> String {
    let done = bench.attempt(URL).await;
    describe(&done.result)
}

async fn check(manner: Manner, expected: &str) {
    let (_receiver, mut bench) =
        start(Settings { attempt_timeout: 5 * SHORT, ..settings() }, vec![manner.clone()]).await;
    assert_eq!(outcome(&mut bench).await, expected, "{manner:?}");
}

/// Sends this many jobs and returns their results, in the order of their tokens.
async fn many(bench: &mut Bench, count: u64) -> Vec<String> {
    bench.send(0..count, URL);
    let mut outcomes = vec![String::new(); usize::try_from(count).expect("a few")];
    for _ in 0..count {
        let done = bench.next().await;
        let outcome = &mut outcomes[usize::try_from(done.token).expect("a token of ours")];
        assert!(outcome.is_empty(), "{} ended twice", done.token);
        *outcome = describe(&done.result);
    }
    outcomes
}

#[tokio::test]
async fn target_decides_authority_and_path_and_no_http_1_field_is_sent() {
    let (receiver, mut bench) = start(settings(), vec![serve(&[Reply::Ok])]).await;
    assert_eq!(bench.post(URL, "{\"a\":1}").await.status, 200);
    assert_eq!(
        *receiver.seen.last.lock().expect("no receiver panics"),
        "POST https://hooks.example.com/hook?a=b [\"content-length: \\\"7\\\"\", \"content-type: \
         \\\"application/json\\\"\"] {\"a\":1}"
    );
}

#[tokio::test]
async fn many_attempts_at_once_share_one_connection() {
    let gate = Arc::new(Semaphore::new(1));
    let (receiver, mut bench) = start(settings(), vec![serve(&[Reply::Held(Arc::clone(&gate))])]).await;
    assert_eq!(outcome(&mut bench).await, "200");
    bench.send(0..50, URL);
    while receiver.seen.at_once_max.load(Ordering::SeqCst) < 50 {
        tokio::task::yield_now().await;
    }
    gate.add_permits(50);
    bench.check_answers(50).await;
    assert_eq!(receiver.seen.counts(), (1, 51));
    assert_eq!(bench.connector.connections(), 1);
}

#[tokio::test]
async fn receiver_without_http_2_gets_http_1() {
    let (ok, names) = (serve(&[Reply::Ok]), [addresses(&["93.184.216.34"])]);
    let (receiver, mut bench) = start_with(&["http/1.1"], settings(), vec![ok], names).await;
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!((receiver.seen.over_http1.load(Ordering::SeqCst), receiver.seen.counts()), (1, (1, 0)));
}

#[tokio::test]
async fn neither_the_receiver_s_limit_of_streams_nor_ours_is_exceeded() {
    for (theirs, ours) in [(Some(2), 128), (None, 3)] {
        let terms = ServeTerms { streams_max: theirs, answers: vec![Reply::Ok], ..ServeTerms::default() };
        let limits = Settings { streams_per_connection_max: ours, connections_per_origin_max: 4, ..settings() };
        let (receiver, mut bench) = start(limits, vec![Manner::Serve(terms)]).await;
        assert!(many(&mut bench, 100).await.iter().all(|outcome| outcome == "200"));
        let at_once = receiver.seen.at_once_max.load(Ordering::SeqCst);
        assert!(at_once <= 3 && theirs.is_none_or(|max| at_once <= max as usize), "{at_once}");
        assert!(receiver.seen.counts().0 <= 4);
    }
}

#[tokio::test]
async fn receiver_that_allows_no_stream_times_out_without_a_byte_of_the_message() {
    let terms = ServeTerms { streams_max: Some(0), answers: vec![Reply::Ok], ..ServeTerms::default() };
    check(Manner::Serve(terms), "connect_timeout attempt_timeout").await;
}

#[tokio::test]
async fn a_receiver_may_begin_with_one_stream_and_take_more_later() {
    let first = [streams_frame(1), streams_frame(5)].concat();
    let then = (1..=9).step_by(2).flat_map(ok_frame).collect();
    let (receiver, mut bench) = start(settings(), vec![Manner::Raw(first, 5, then)]).await;
    bench.send([0], URL);
    receiver.until_requests(1).await;
    bench.send(1..5, URL);
    bench.check_answers(5).await;
    assert_eq!(receiver.seen.counts(), (1, 5));
}

#[tokio::test]
async fn a_refused_stream_is_repeated_once_and_silently() {
    let replies = [Reply::Reset(Reason::REFUSED_STREAM), Reply::Ok];
    let (receiver, mut bench) = start(settings(), vec![serve(&replies)]).await;
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(receiver.seen.counts().1, 2);
    let (receiver, mut bench) = start(settings(), vec![serve(&replies[..1])]).await;
    assert_eq!(outcome(&mut bench).await, "closed_early stream_refused");
    assert_eq!(receiver.seen.counts().1, 2);
}

#[tokio::test]
async fn unprocessed_streams_after_goaway_are_repeated_on_another_connection() {
    let leaves = Manner::Raw(settings_frame(), 1, goaway_frame(0, 0));
    let (receiver, mut bench) = start(settings(), vec![leaves.clone(), serve(&[Reply::Ok])]).await;
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(receiver.seen.counts(), (2, 2));
    // The same with an error code, and only once.
    let leaves = Manner::Raw(settings_frame(), 1, goaway_frame(0, 2));
    let (receiver, mut bench) = start(settings(), vec![leaves]).await;
    assert_eq!(outcome(&mut bench).await, "closed_early going_away");
    assert_eq!(receiver.seen.counts(), (2, 2));
}

#[tokio::test]
async fn processed_streams_after_goaway_are_waited_for() {
    let leaves = Manner::Raw(settings_frame(), 1, [goaway_frame(1, 0), ok_frame(1)].concat());
    let (receiver, mut bench) = start(settings(), vec![leaves, serve(&[Reply::Ok])]).await;
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(receiver.seen.counts(), (2, 2));
}

#[tokio::test]
async fn receiver_gets_http_1_after_three_broken_streams_in_a_row() {
    let (receiver, mut bench) = start(settings(), vec![serve(&[Reply::Reset(Reason::INTERNAL_ERROR)])]).await;
    for _ in 0..3 {
        assert_eq!(outcome(&mut bench).await, "unknown stream_reset");
    }
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(receiver.seen.over_http1.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_receiver_that_asks_for_http_1_gets_it_at_once() {
    let (receiver, mut bench) = start(settings(), vec![serve(&[Reply::Reset(Reason::HTTP_1_1_REQUIRED)])]).await;
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!((receiver.seen.over_http1.load(Ordering::SeqCst), receiver.seen.counts()), (1, (2, 1)));
}

#[tokio::test]
async fn malformed_http_2_is_a_protocol_error() {
    check(Manner::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), 1, Vec::new()), "protocol_error http2").await;
    let unsolicited = [settings_frame(), ok_frame(99)].concat();
    check(Manner::Raw(unsolicited, 1, Vec::new()), "protocol_error http2").await;
}

#[tokio::test]
async fn stream_that_times_out_ends_its_connection_and_affects_no_other() {
    let replies = [Reply::Ok, Reply::Never, Reply::Ok];
    let (receiver, mut bench) =
        start(Settings { attempt_timeout: 5 * SHORT, ..settings() }, vec![serve(&replies)]).await;
    assert_eq!(outcome(&mut bench).await, "200");
    let outcomes = many(&mut bench, 2).await;
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "200").count(), 1, "{outcomes:?}");
    assert!(outcomes.iter().any(|outcome| outcome == "unknown attempt_timeout"), "{outcomes:?}");
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(receiver.seen.counts(), (2, 4));
}

#[tokio::test]
async fn flooding_receiver_loses_its_connection() {
    let floods = [
        ("SETTINGS", settings_frame()),
        ("PING", frame(6, 0, 0, &[1; 8])),
        ("RST_STREAM of a request that has ended", frame(3, 0, 1, &[0, 0, 0, 8])),
        ("CONTINUATION", frame(9, 0, 1, &[])),
        ("WINDOW_UPDATE", frame(8, 0, 0, &[0, 0, 0, 1])),
        ("PRIORITY", frame(2, 0, 5, &[0, 0, 0, 0, 1])),
        ("an unknown frame", frame(0x60, 0, 0, &[])),
        ("empty DATA", frame(0, 0, 1, &[])),
        ("DATA of a request that has ended", frame(0, 0, 1, &[0; 16_384])),
    ];
    for (name, flood) in floods {
        // A flood after the answer: no attempt waits for anything.
        let manner = Manner::Flood { before: ok_frame(1), flood: flood.clone() };
        let (receiver, mut bench) = start(settings(), vec![manner]).await;
        assert_eq!(outcome(&mut bench).await, "200", "{name}");
        bench.until_no_connection().await;
        receiver.seen.check_flood(name).await;
        // A flood in place of an answer.
        let manner = Manner::Flood { before: Vec::new(), flood };
        let (receiver, mut bench) = start(settings(), vec![manner]).await;
        let outcome = outcome(&mut bench).await;
        assert!(outcome.starts_with("protocol_error http2") || outcome == "unknown stream_reset", "{name}: {outcome}");
        bench.until_no_connection().await;
        receiver.seen.check_flood(name).await;
    }
}

#[tokio::test]
async fn status_stands_however_the_body_ends() {
    // A head with `:status: 200` and `content-length: 3` that leaves its stream open.
    let head = frame(1, 0x4, 1, &[0x88, 0x0f, 0x0d, 1, b'3']);
    for body in [frame(0, 1, 1, b"longer than three"), frame(3, 0, 1, &[0, 0, 0, 2]), frame(0, 0, 99, b"x")] {
        let answer = [head.clone(), body].concat();
        check(Manner::Raw(settings_frame(), 1, answer), "200 cut").await;
    }
}

#[tokio::test]
async fn receiver_with_an_empty_window_times_out_at_the_deadline() {
    let terms = ServeTerms { window: Some(0), answers: vec![Reply::Ok], ..ServeTerms::default() };
    check(Manner::Serve(terms), "unknown attempt_timeout").await;
}

#[tokio::test]
async fn heads_above_the_limits_are_refused() {
    check(serve(&[Reply::Fields(100, 10)]), "200").await;
    check(serve(&[Reply::Fields(101, 10)]), "response_head_too_large").await;
    check(serve(&[Reply::Fields(2, HEAD_BYTES_MAX / 2)]), "response_head_too_large").await;
    check(serve(&[Reply::Fields(40, HEAD_BYTES_MAX / 4)]), "protocol_error http2").await;
    check(serve(&[Reply::Interim(8)]), "200").await;
    check(serve(&[Reply::Interim(9)]), "protocol_error interim_answers").await;
}

#[tokio::test]
async fn body_is_read_up_to_its_bound_and_the_connection_stays_open() {
    let replies = [Reply::Body(500, 3), Reply::Body(503, 8 * BODY_BYTES_READ_MAX), Reply::Body(200, 9), Reply::Ok];
    let (receiver, mut bench) = start(settings(), vec![serve(&replies)]).await;
    let answer = bench.answer(URL).await;
    assert_eq!((answer.status.as_u16(), &answer.excerpt[..], answer.cut), (500, &b"xxx"[..], false));
    let answer = bench.answer(URL).await;
    assert_eq!((answer.status.as_u16(), answer.excerpt.len(), answer.cut), (503, EXCERPT_BYTES_MAX, true));
    let answer = bench.answer(URL).await;
    assert_eq!((answer.status.as_u16(), answer.excerpt.len(), answer.cut), (200, 0, false));
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(receiver.seen.counts(), (1, 4));
}

#[tokio::test]
async fn silent_connection_is_pinged_and_closed_without_a_pong() {
    let silent = Manner::Raw(settings_frame(), 99, Vec::new());
    let (_receiver, mut bench) = start(Settings { ping_after: SHORT, ..settings() }, vec![silent]).await;
    assert_eq!(outcome(&mut bench).await, "unknown connection_closed");
    // A receiver that is only slow answers the ping and keeps its connection.
    let gate = Arc::new(Semaphore::new(0));
    let slow = serve(&[Reply::Held(Arc::clone(&gate))]);
    let limits = Settings { ping_after: SHORT / 4, ..settings() };
    let (receiver, mut bench) = start(limits, vec![slow]).await;
    bench.send([1], URL);
    let no_end = tokio::time::timeout(4 * SHORT, bench.next()).await;
    assert!(no_end.is_err(), "it ended before it was answered: {no_end:?}");
    gate.add_permits(1);
    bench.check_answers(1).await;
    assert_eq!(receiver.seen.counts(), (1, 1));
}

#[tokio::test]
async fn kept_connection_is_rechecked_after_a_while() {
    let names = [
        addresses(&["93.184.216.34"]),
        addresses(&["93.184.216.34", "8.8.8.8"]),
        addresses(&["1.1.1.1"]),
        addresses(&["1.1.1.1"]),
        addresses(&["127.0.0.1", "1.1.1.1"]),
        Lookup::Fails(NoAnswer::Failed),
    ];
    let limits = Settings { recheck_after: Duration::ZERO, rules: TargetRules::default(), ..settings() };
    let (receiver, mut bench) = start_with(&["h2"], limits, vec![serve(&[Reply::Ok])], names).await;
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(receiver.seen.counts(), (1, 2));
    // The name has another address: a new connection, with a look-up of its own.
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(receiver.seen.counts(), (2, 3));
    assert_eq!(outcome(&mut bench).await, "address_refused dns_mixed");
    assert_eq!(outcome(&mut bench).await, "dns_failed");
    assert_eq!(receiver.seen.counts(), (2, 3));
}

#[tokio::test]
async fn closing_lets_streams_under_way_end() {
    let gate = Arc::new(Semaphore::new(0));
    let (receiver, mut bench) = start(settings(), vec![serve(&[Reply::Held(Arc::clone(&gate))])]).await;
    bench.send(0..3, URL);
    receiver.until_requests(3).await;
    let (_, ()) = tokio::join!(bench.connector.close(), async { gate.add_permits(3) });
    bench.check_answers(3).await;
    assert_eq!(bench.connector.connections(), 0);
}

#[tokio::test]
async fn an_idle_connection_ends_after_its_time() {
    let limits = Settings { idle_timeout: Duration::from_millis(20), ..settings() };
    let (receiver, mut bench) = start(limits, vec![serve(&[Reply::Ok])]).await;
    assert_eq!(outcome(&mut bench).await, "200");
    bench.until_no_connection().await;
    assert_eq!(outcome(&mut bench).await, "200");
    assert_eq!(receiver.seen.counts(), (2, 2));
}

#[tokio::test]
async fn attempts_queued_for_a_connection_that_fails_to_open_fail_with_it() {
    let (receiver, mut bench) = start(settings(), vec![serve(&[Reply::Ok])]).await;
    assert_eq!(outcome(&mut bench).await, "200");
    drop(receiver);
    bench.until_no_connection().await;
    let outcomes = many(&mut bench, 20).await;
    assert!(outcomes.iter().all(|outcome| outcome == "connect_refused"), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_job_ends_exactly_once_while_receivers_go_away_and_break_streams() {
    let resets = [Reason::REFUSED_STREAM, Reason::INTERNAL_ERROR, Reason::CANCEL].map(Reply::Reset);
    let mut answers: Vec<Reply> = (0..40).flat_map(|_| vec![Reply::Ok; 12]).collect();
    resets.iter().enumerate().for_each(|(index, reset)| answers[100 * (index + 1)] = reset.clone());
    let terms = ServeTerms { requests_max: Some(7), streams_max: Some(5), answers, ..ServeTerms::default() };
    let limits = Settings { connections_per_origin_max: 8, idle_connections_max: 4, ..settings() };
    let (receiver, mut bench) = start(limits, vec![Manner::Serve(terms)]).await;
    let mut ended = vec![0; 600];
    let (mut sent, mut answered) = (0, 0);
    for received in 0..ended.len() {
        while sent < ended.len() && sent - received < 40 {
            bench.send([sent as u64], URL);
            sent += 1;
        }
        let done = bench.next().await;
        ended[usize::try_from(done.token).expect("a token of ours")] += 1;
        answered += usize::from(done.result.is_ok());
    }
    assert!(ended.iter().all(|times| *times == 1));
    assert!(answered >= 500, "{answered} answered of {:?}", receiver.seen.counts());
    bench.connector.close().await;
    assert_eq!(bench.connector.connections(), 0);
}
