//! Goal: a peer that breaks a rule is stopped at the frame that does, and one that reads nothing or answers nothing costs no more
//! than its window. Method: one machine, fed with headers by hand.
#![allow(clippy::expect_used, clippy::wildcard_enum_match_arm)]

use std::time::Duration;

use bytes::Bytes;
use wire::{
    PageBuffer,
    backoff::Redial,
    connection::{
        Answer, BodyFor, Cause, Connection, Event, Failure, Loss, NotTaken, Request, RequestId, Settings,
        Time, Violation, Why, Window,
    },
    frame::{Body, Header, Kind, Limits, Verdict},
};

const WINDOW: Window = Window { requests: 2, bytes: 1000 };

fn connection() -> Connection {
    let settings = Settings {
        takes: WINDOW,
        peer_takes: WINDOW,
        limits: Limits { meta: 100, body: 800 },
        queued_max: 3,
        ping_after: Duration::from_secs(5),
        silence_max: Duration::from_secs(15),
        leave_max: Duration::from_secs(30),
    };
    Connection::new(settings, Time::ZERO)
}

fn asked(id: u64, answer_bytes_max: u32) -> Header {
    Header { id, answer_bytes_max, left_ms: 1000, ..Header::of(Kind::Request) }
}

fn wanted(seconds: u64) -> Request {
    Request {
        method: 1,
        meta: Bytes::new(),
        body: Body::new(vec![1; 10]),
        answer_bytes_max: 10,
        deadline: Duration::from_secs(seconds),
        epoch: 0,
        trace: 0,
        job: 0,
    }
}

fn answer(bytes: usize) -> Answer {
    Answer { verdict: Verdict::Done, meta: Bytes::new(), body: Body::new(vec![0; bytes]), epoch: 0 }
}

fn take(connection: &mut Connection, header: Header) -> BodyFor {
    let place = connection.begin(&header, 0, 0).expect("allowed");
    connection.end(Time::ZERO, header, Vec::new(), PageBuffer::default());
    place
}

fn violation(connection: &mut Connection, header: Header, body_len: u32) -> Violation {
    let violation = connection.begin(&header, 0, body_len).expect_err("a violation");
    let events: Vec<Event> = std::iter::from_fn(|| connection.poll_event()).collect();
    assert_eq!(events.last(), Some(&Event::Lost(Loss::Violation(violation))));
    assert!(connection.is_over() && connection.poll_output(Time::ZERO).is_none());
    violation
}

#[test]
fn more_than_the_credit_is_refused_before_the_body() {
    let mut one = connection();
    assert_eq!(violation(&mut one, asked(1, 0), 921), Violation::Credit(1), "bytes of the request");
    let mut one = connection();
    assert_eq!(violation(&mut one, asked(1, 921), 0), Violation::Credit(1), "bytes of the answer");
    let mut one = connection();
    take(&mut one, asked(1, 0));
    take(&mut one, asked(2, 0));
    assert_eq!(violation(&mut one, asked(3, 0), 0), Violation::Credit(3), "requests");
}

#[test]
fn credit_is_given_back_by_the_sending_of_the_answer() {
    // A peer that asks and does not read: answers that were made wait, and count.
    let mut one = connection();
    take(&mut one, asked(1, 0));
    take(&mut one, asked(2, 0));
    one.answer(1, answer(0)).expect("fits");
    one.answer(2, answer(0)).expect("fits");
    assert!(one.poll_output(Time::ZERO).is_some_and(|frame| frame.header.id == 1));
    take(&mut one, asked(3, 0));
    assert_eq!(violation(&mut one, asked(4, 0), 0), Violation::Credit(4));
}

#[test]
fn numbers_are_not_used_again() {
    let mut one = connection();
    take(&mut one, asked(5, 0));
    one.answer(5, answer(0)).expect("fits");
    one.answer(5, answer(0)).expect("a second answer is passed over");
    assert!(one.poll_output(Time::ZERO).is_some() && one.poll_output(Time::ZERO).is_none());
    assert_eq!(violation(&mut one, asked(5, 0), 0), Violation::Repeated(5));
}

#[test]
fn answers_that_nobody_asked_for_end_the_connection() {
    let answer = |id| Header { id, ..Header::of(Kind::Answer) };
    assert_eq!(violation(&mut connection(), answer(1), 0), Violation::NoRequest(1));
    let mut one = connection();
    one.request(wanted(9)).expect("taken");
    assert_eq!(violation(&mut one, answer(1), 0), Violation::NoRequest(1), "not sent yet");
    let mut one = connection();
    one.request(wanted(9)).expect("taken");
    one.poll_output(Time::ZERO);
    let long = Violation::LongAnswer { id: 1, bytes: 11, limit: 10 };
    assert_eq!(violation(&mut one, answer(1), 11), long);
}

#[test]
fn frames_out_of_their_time_end_the_connection() {
    let handshake = violation(&mut connection(), Header::of(Kind::Proof), 0);
    assert_eq!(handshake, Violation::Handshake(Kind::Proof));
    assert_eq!(violation(&mut connection(), Header::of(Kind::Ping), 1), Violation::Body(Kind::Ping));
    let mut one = connection();
    take(&mut one, Header::of(Kind::Goodbye));
    // With nothing open it has ended only when its own farewell was polled.
    assert_eq!(one.poll_event(), None);
    assert_eq!(violation(&mut one, asked(1, 0), 0), Violation::AfterGoodbye(1));
}

#[test]
fn a_peer_that_never_answers_gets_its_window_and_no_more() {
    let mut one = connection();
    for _ in 0..3 {
        one.request(wanted(1)).expect("taken");
    }
    assert_eq!(one.request(wanted(1)), Err(NotTaken::Full));
    assert!(one.poll_output(Time::ZERO).is_some() && one.poll_output(Time::ZERO).is_some());
    assert_eq!(one.poll_output(Time::ZERO), None, "the third waits for credit");
    assert_eq!(one.next_deadline(), Some((Duration::from_secs(1), Why::Request(RequestId(1)))));
    one.handle_deadline(Duration::from_secs(1));
    let failures: Vec<Failure> = std::iter::from_fn(|| one.poll_event())
        .map(|event| match event {
            Event::Failed { failure, .. } => failure,
            other => panic!("{other:?}"),
        })
        .collect();
    let unknown = Failure::Unknown(Cause::Deadline);
    assert_eq!(failures, [unknown, unknown, Failure::NotSent(Cause::Deadline)]);
    // Two cancellations go out; the credit is not back, so nothing else does, however much is asked.
    for second in 2..50 {
        for _ in 0..3 {
            one.request(wanted(second)).expect("taken");
        }
        one.handle_deadline(Duration::from_secs(second));
        one.heard(Duration::from_secs(second));
        while let Some(frame) = one.poll_output(Duration::from_secs(second)) {
            assert_eq!((frame.header.kind, second), (Kind::Cancel, 2));
        }
    }
    // A late answer is dropped, and gives the credit back.
    assert_eq!(take(&mut one, Header { id: 1, ..Header::of(Kind::Answer) }), BodyFor::Nobody);
    while one.poll_event().is_some() {}
    one.request(wanted(99)).expect("taken");
    assert!(one.poll_output(Duration::from_secs(50)).is_some());
}

#[test]
fn pings_that_nobody_reads_the_answer_of_make_no_queue() {
    let mut one = connection();
    for _ in 0..1000 {
        take(&mut one, Header::of(Kind::Ping));
    }
    assert!(one.poll_output(Time::ZERO).is_some_and(|frame| frame.header.kind == Kind::Pong));
    assert_eq!(one.poll_output(Time::ZERO), None);
}

#[test]
fn silence_is_asked_about_and_then_is_the_end() {
    let mut one = connection();
    let seconds = Duration::from_secs;
    assert_eq!(one.next_deadline(), Some((seconds(5), Why::Ping)));
    one.handle_deadline(seconds(5));
    assert!(one.poll_output(seconds(5)).is_some_and(|frame| frame.header.kind == Kind::Ping));
    assert_eq!(one.next_deadline(), Some((seconds(15), Why::Silence)));
    one.heard(seconds(6));
    assert_eq!(one.next_deadline(), Some((seconds(11), Why::Ping)));
    one.handle_deadline(seconds(21));
    assert_eq!(one.poll_event(), Some(Event::Lost(Loss::Silence)));
}

#[test]
fn what_has_no_time_left_is_refused_unseen() {
    let mut one = connection();
    take(&mut one, Header { left_ms: 0, ..asked(1, 0) });
    assert_eq!(one.poll_event(), None);
    assert!(one.poll_output(Time::ZERO).is_some_and(|frame| frame.header.verdict == Verdict::Refused));
}

#[test]
fn pauses_double_to_a_bound_and_a_success_ends_them() {
    let mut redial = Redial::new(Duration::from_millis(100), Duration::from_secs(5));
    assert_eq!(redial.not_before(), Time::ZERO);
    let mut now = Time::ZERO;
    for n in 0..40_u64 {
        let most = Duration::from_millis(100 * (1 << n.min(10))).min(Duration::from_secs(5));
        let pause = redial.failed(now, n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        assert!(pause >= most / 2 && pause <= most, "{n}: {pause:?}");
        assert_eq!(redial.not_before(), now + pause);
        now += pause;
    }
    redial.worked();
    assert!(redial.not_before() <= now && redial.failed(now, 0) <= Duration::from_millis(100));
}
