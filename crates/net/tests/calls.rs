//! Goal: calls over real sockets: right bytes, any order, many callers, deadlines, ends and new beginnings. Method: a server of
//! this process on both kinds of sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "tests")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use fuzzing::Ending;
use net::{
    Bounds, Call, CallError, Client, Handler, Incoming, Instance, Reply, Server, Target, Tuning, connect,
};
use prost::Message;
use support::*;
use wire::{
    PageBuffer,
    connection::{Cause, Failure, NotTaken, Window},
    frame::{Body, Verdict},
    handshake::Wish,
    schema::{Fault, Lane},
};

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 17 + i / 251) as u8).collect()
}

#[test]
fn bodies_of_all_sizes_come_back_on_both_kinds_of_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", dir.path().join("s").display()).parse().unwrap();
    for address in [tcp(), unix] {
        let methods = Arc::new(Methods::default());
        let bounds = Bounds::default();
        let server =
            Server::start(&address, credentials(1, 1), methods.clone(), Tuning::default(), bounds).unwrap();
        let channel = client(&server);
        assert_eq!((channel.peer().node, channel.peer().build.as_str()), (1, "test"));
        let mut into = PageBuffer::default();
        for len in [0, 1, 79, 1023, 1024, 1025, 32 << 10, (32 << 10) + 1, 1 << 20, 4 << 20, 5, 0] {
            let body = bytes(len, len);
            let call = Call {
                body: Body::new(body.clone()),
                answer_bytes_max: len as u32,
                into: std::mem::take(&mut into),
                trace: 99,
                ..call(ECHO)
            };
            let answered = channel.call(call).unwrap();
            assert!(answered.body == body, "{len} bytes");
            assert_eq!((answered.header.trace, answered.header.epoch), (99, 7));
            into = answered.body;
        }
        assert!(channel.close(Duration::from_secs(5)), "an end in order");
        until("the server sees it", || methods.gone.load(SeqCst) == 1 && server.connections() == 0);
        assert!(matches!(channel.call(call(ECHO)), Err(CallError::NotTaken(NotTaken::Ending))));
    }
}

#[test]
fn a_buffer_of_the_callers_is_the_one_that_is_filled() {
    let (server, _) = server(tuning(), Bounds::default());
    let channel = client(&server);
    let into = PageBuffer::new(100_000);
    let place = into.as_ptr();
    let answered = channel.call(Call { into, answer_bytes_max: 90_000, ..call(READ) }).unwrap();
    assert_eq!((answered.body.as_ptr(), answered.body.len()), (place, 90_000));
}

#[test]
fn many_threads_share_a_connection_and_answers_come_in_any_order() {
    let (server, _) = server(tuning(), Bounds::default());
    let channel = client(&server);
    thread::scope(|scope| {
        for worker in 0..8_usize {
            let channel = &channel;
            scope.spawn(move || {
                for n in 0..200_usize {
                    let method = if n % 20 == 0 { LATE } else { ECHO };
                    let body = bytes((worker * 997 + n * 131) % 9000, n);
                    let meta = vec![(n % 7) as u8, worker as u8, n as u8];
                    let call = Call {
                        meta: meta.clone().into(),
                        body: Body::new(body.clone()),
                        answer_bytes_max: body.len() as u32,
                        ..call(method)
                    };
                    let answered = channel.call(call).unwrap();
                    assert_eq!(answered.meta, meta);
                    assert!(method == LATE || answered.body == body);
                }
            });
        }
    });
}

#[test]
fn several_calls_go_in_one_write_and_each_ends_by_itself() {
    let (server, methods) = server(tuning(), Bounds::default());
    let channel = client(&server);
    let too_long = Call { meta: vec![0; 70_000].into(), ..call(ECHO) };
    let calls = vec![call(ECHO), call(DROP), too_long, call(LONG), call(ECHO)];
    let results: Vec<_> = channel.begin_all(calls).into_iter().map(|p| Ok(p?.wait()?)).collect();
    let verdicts: Vec<Option<Verdict>> = results
        .iter()
        .map(|r: &Result<net::Answered, CallError>| r.as_ref().ok().map(|a| a.header.verdict))
        .collect();
    let (done, fault) = (Some(Verdict::Done), Some(Verdict::Fault));
    assert_eq!(verdicts, [done, fault, None, fault, done]);
    assert!(matches!(results[2], Err(CallError::NotTaken(NotTaken::TooLong { .. }))));
    let fault = Fault::decode(&results[1].as_ref().unwrap().meta[..]).unwrap();
    assert_eq!((fault.errno, fault.detail.as_str()), (5, "the request was dropped"));
    assert_eq!(methods.asked.load(SeqCst), 4);
}

/// Goal: what is begun without a thread that waits ends once, too: with its answer, at its deadline, or with the connection. Method: calls of all
/// kinds at once, counted by what is done with them.
#[test]
fn what_nobody_waits_for_ends_once() {
    let (server, methods) = server(tuning(), Bounds::default());
    let channel = client(&server);
    let (said, heard) = std::sync::mpsc::channel();
    let begin = |n: usize, call| {
        let said = said.clone();
        channel.begin_then(call, move |result| said.send((n, result)).unwrap()).unwrap();
    };
    for n in 0..100 {
        begin(n, Call { meta: vec![n as u8].into(), ..call(ECHO) });
    }
    for n in 0..100 {
        let (ended, result) = heard.recv().unwrap();
        assert_eq!((ended, &result.unwrap().meta[..]), (n, &[n as u8][..]));
    }
    begin(100, Call { deadline: soon(Duration::from_millis(50)), ..call(NEVER) });
    assert_eq!(heard.recv().unwrap(), (100, Err(Failure::Unknown(Cause::Deadline))));
    (101..104).for_each(|n| begin(n, call(NEVER)));
    until("they are there", || methods.asked.load(SeqCst) == 104);
    drop(server);
    let mut lost: Vec<_> = heard.iter().take(3).collect();
    lost.sort_by_key(|(n, _)| *n);
    assert_eq!(lost, [101, 102, 103].map(|n| (n, Err(Failure::Unknown(Cause::Lost)))));
    until("no more can be asked", || channel.begin_then(call(ECHO), |_| ()).is_err());
    assert!(heard.try_recv().is_err());
}

#[test]
fn a_deadline_ends_a_call_and_not_the_connection() {
    let (server, methods) = server(tuning(), Bounds::default());
    let channel = client(&server);
    let begun = Instant::now();
    let deadline = soon(Duration::from_millis(100));
    let error = channel.call(Call { deadline, ..call(NEVER) }).expect_err("no answer");
    assert_eq!(error, CallError::Failed(Failure::Unknown(Cause::Deadline)));
    assert!(error.is_unknown() && begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    until("the server hears of it", || methods.unasked.load(SeqCst) == 1);
    // A pending call that is dropped is cancelled.
    drop(channel.begin(call(NEVER)).unwrap());
    until("the server hears of it", || methods.unasked.load(SeqCst) == 2);
    channel.call(call(ECHO)).expect("the connection goes on");
}

#[test]
fn a_server_that_leaves_answers_what_is_open() {
    let (server, methods) = server(tuning(), Bounds::default());
    let channel = client(&server);
    let pending = channel.begin(Call { meta: vec![200].into(), ..call(LATE) }).unwrap();
    until("it is there", || methods.asked.load(SeqCst) == 1);
    let closing = thread::spawn(move || server.close(Duration::from_secs(10)));
    assert_eq!(pending.wait().unwrap().header.verdict, Verdict::Done);
    closing.join().unwrap();
    until("no more can be asked", || !channel.is_open());
}

#[test]
fn at_a_loss_what_was_sent_is_unknown_and_a_client_connects_again() {
    let (server, methods) = server(tuning(), Bounds::default());
    let address = server.address();
    let target = |address| Target {
        address,
        wish: WISH,
        credentials: credentials(2, 1),
        handler: Arc::new(Methods::default()),
        tuning: tuning(),
    };
    let client = Arc::new(Client::new(target(address.clone())));
    client.call(call(ECHO)).unwrap();
    let waiting = {
        let client = client.clone();
        thread::spawn(move || client.call(call(NEVER)))
    };
    until("it is there", || methods.asked.load(SeqCst) == 2);
    drop(server);
    let lost = waiting.join().unwrap().expect_err("the server is gone");
    assert_eq!(lost, CallError::Failed(Failure::Unknown(Cause::Lost)));
    // Nobody listens: not carried out, and said so within the deadline.
    let begun = Instant::now();
    let deadline = soon(Duration::from_millis(300));
    let nobody = client.call(Call { deadline, ..call(ECHO) }).expect_err("nobody listens");
    assert!(matches!(&nobody, CallError::NoConnection { .. }) && !nobody.is_unknown(), "{nobody}");
    assert!(begun.elapsed() < Duration::from_secs(2));
    // It listens again, and a call that waits finds it.
    let waiting = {
        let client = client.clone();
        thread::spawn(move || client.call(call(ECHO)))
    };
    let again = Arc::new(Methods::default());
    let _server = Server::start(&address, credentials(1, 1), again, tuning(), Bounds::default()).unwrap();
    waiting.join().unwrap().expect("connected again");
}

fn client_of(server: &Server, instance: Instance, lane: Lane) -> Client {
    let target = Target {
        address: server.address(),
        wish: Wish { lane, ..WISH },
        credentials: credentials(2, 1),
        handler: Arc::new(Methods::default()),
        tuning: tuning(),
    };
    Client::of(instance, target)
}

/// Answers what is newer than what it keeps.
#[derive(Default)]
struct Keeps(std::sync::Mutex<Vec<(Incoming, Reply)>>);

impl Handler for Keeps {
    fn asked(&self, incoming: Incoming, reply: Reply) {
        match incoming.header.method {
            NEVER => self.0.lock().unwrap().push((incoming, reply)),
            _ => reply.answer(done(incoming.connection().to_be_bytes().to_vec(), Vec::new())).unwrap(),
        }
    }
}

/// Goal: the newest connection of an instance takes the place of those before it, and of nobody else's: what came over them says so by the time
/// that anything can come over the newer one. Method: requests that are kept unanswered, from one instance on two lanes and from another.
#[test]
fn the_newest_connection_of_an_instance_takes_the_place_of_the_older_ones() {
    let keeps = Arc::new(Keeps::default());
    let server =
        Server::start(&tcp(), credentials(1, 1), keeps.clone(), tuning(), Bounds::default()).unwrap();
    let instance = Instance::random();
    let clients = [
        client_of(&server, instance, Lane::Data),
        client_of(&server, instance, Lane::Control),
        client_of(&server, Instance::random(), Lane::Data),
    ];
    let wait = || soon(Duration::from_secs(20));
    let mut channels: Vec<_> = clients.iter().map(|client| client.channel(wait()).unwrap()).collect();
    // Without an instance nobody is in anybody's place.
    channels.extend((0..2).map(|_| Arc::new(client(&server))));
    let mut pending = Vec::new();
    for (n, channel) in channels.iter().enumerate() {
        pending.push(channel.begin(call(NEVER)).unwrap());
        until("it is there", || keeps.0.lock().unwrap().len() == n + 1);
    }
    let superseded =
        || keeps.0.lock().unwrap().iter().map(|(asked, _)| asked.is_superseded()).collect::<Vec<_>>();
    assert_eq!(superseded(), [false; 5]);
    let newer = client_of(&server, instance, Lane::Data);
    let number = newer.call(call(ECHO)).unwrap().meta;
    assert_eq!(superseded(), [true, false, false, false, false]);
    let number = u64::from_be_bytes(number.try_into().unwrap());
    assert!(keeps.0.lock().unwrap().iter().all(|(asked, _)| asked.connection() < number));
    assert_eq!(pending.remove(0).wait(), Err(Failure::Unknown(Cause::Lost)));
    until("it was cut", || !channels[0].is_open());
    // An answer that nobody waits for any more goes nowhere.
    let (_, reply) = keeps.0.lock().unwrap().remove(0);
    reply.answer(done(Vec::new(), Vec::new())).unwrap();
    for channel in &channels[1..] {
        channel.call(call(ECHO)).unwrap();
    }
    // Whoever comes again over the first client is the newest.
    clients[0].call(call(ECHO)).unwrap();
    until("the other one is gone", || server.connections() == 5);
}

/// Goal: who gives up what it does not know the end of asks the next thing over a newer connection, if it wants that. Method: requests that are
/// never answered.
#[test]
fn what_is_given_up_takes_its_connection_with_it_if_it_is_to() {
    let (server, methods) = server(tuning(), Bounds::default());
    let client = client_of(&server, Instance::random(), Lane::Data);
    let given_up = |cuts| {
        let deadline = soon(Duration::from_millis(100));
        client.call(Call { deadline, cuts, ..call(NEVER) }).expect_err("no answer")
    };
    let first = client.channel(soon(Duration::from_secs(20))).unwrap();
    assert_eq!(given_up(false), CallError::Failed(Failure::Unknown(Cause::Deadline)));
    assert!(first.is_open());
    assert_eq!(given_up(true), CallError::Failed(Failure::Unknown(Cause::Deadline)));
    assert!(!first.is_open());
    client.call(call(ECHO)).unwrap();
    until("the first is gone", || methods.gone.load(SeqCst) == 1);
    // Nobody waits for it at all.
    let second = client.channel(soon(Duration::from_secs(20))).unwrap();
    let pending = second.begin(Call { cuts: true, ..call(NEVER) }).unwrap();
    until("it is there", || methods.asked.load(SeqCst) == 4);
    drop(pending);
    assert!(!second.is_open());
    // What is to be done with the answer is done after that.
    let third = client.channel(soon(Duration::from_secs(20))).unwrap();
    for cuts in [false, true] {
        let (tell, told) = std::sync::mpsc::channel();
        let asked = third.clone();
        let call = Call { deadline: soon(Duration::from_millis(100)), cuts, ..call(NEVER) };
        third.begin_then(call, move |result| tell.send((result, asked.is_open())).unwrap()).unwrap();
        let ended = told.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(ended, (Err(Failure::Unknown(Cause::Deadline)), !cuts));
    }
}

#[test]
fn both_sides_may_ask() {
    // The client's own handler is asked over the connection that the client made.
    let (server, _) = server(tuning(), Bounds::default());
    let mine = Arc::new(Methods::default());
    let channel = connect(&server.address(), &credentials(2, 1), WISH, mine.clone(), &tuning()).unwrap();
    until("the server has it", || server.channel_of(2).is_some());
    let asked_by_server = server.channel_of(2).expect("the client is there");
    let body = bytes(3000, 1);
    let back = Call { body: Body::new(body.clone()), answer_bytes_max: 3000, ..call(ECHO) };
    assert_eq!(asked_by_server.call(back).unwrap().body, body);
    assert_eq!(mine.asked.load(SeqCst), 1);
    channel.call(call(ECHO)).unwrap();
}

#[test]
fn requests_beyond_the_window_wait_their_turn() {
    let takes = Window { requests: 2, bytes: 300_000 };
    let (server, _) = server(Tuning { takes, ..tuning() }, Bounds::default());
    let channel = client(&server);
    let calls = (0..40).map(|n| Call { answer_bytes_max: 1000 + n, ..call(READ) }).collect();
    for (n, pending) in channel.begin_all(calls).into_iter().enumerate() {
        assert_eq!(pending.unwrap().wait().unwrap().body.len(), 1000 + n);
    }
    let large = Call { answer_bytes_max: 299_999, ..call(READ) };
    let refused = channel.call(large).expect_err("more than the window");
    assert!(matches!(refused, CallError::NotTaken(NotTaken::TooLong { limit: 300_000, .. })));
}

#[test]
fn large_bodies_both_ways_and_from_both_sides_at_once() {
    // More than sockets hold is on the way in both directions, so writing passes between callers, reader and writer.
    let (server, _) = server(Tuning::default(), Bounds::default());
    let mine = Arc::new(Methods::default());
    let channel = connect(&server.address(), &credentials(2, 1), WISH, mine, &Tuning::default()).unwrap();
    until("the server has it", || server.channel_of(2).is_some());
    let back = server.channel_of(2).unwrap();
    thread::scope(|scope| {
        for worker in 0..6_usize {
            let side = if worker % 2 == 0 { &channel } else { back.as_ref() };
            scope.spawn(move || {
                let mut into = PageBuffer::default();
                for n in 0..30_usize {
                    let len = if n % 5 == 4 { 100 } else { (worker * 399_989 + n * 700_001) % (3 << 20) };
                    let body = bytes(len, n);
                    let call = Call {
                        body: Body::new(body.clone()),
                        answer_bytes_max: len as u32,
                        into: std::mem::take(&mut into),
                        ..call(ECHO)
                    };
                    into = side.call(call).unwrap().body;
                    assert!(into == body, "worker {worker}, call {n}");
                }
            });
        }
    });
    assert!(channel.close(Duration::from_secs(10)), "an end in order");
}

#[test]
fn callers_live_through_a_server_that_comes_and_goes() {
    let (first, _) = server(tuning(), Bounds::default());
    let address = first.address();
    let target = Target {
        address: address.clone(),
        wish: WISH,
        credentials: credentials(2, 1),
        handler: Arc::new(Methods::default()),
        tuning: tuning(),
    };
    let client = Client::new(target);
    let (ending, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !ending.load(SeqCst) {
                    let deadline = soon(Duration::from_secs(2));
                    let call = Call {
                        deadline,
                        body: Body::new(bytes(50_000, 1)),
                        answer_bytes_max: 50_000,
                        ..call(ECHO)
                    };
                    match client.call(call) {
                        Ok(answer) => {
                            assert!(answer.body == bytes(50_000, 1));
                            answered.fetch_add(1, SeqCst);
                        }
                        Err(CallError::NotTaken(NotTaken::Ending) | CallError::NoConnection { .. }) => (),
                        Err(CallError::Failed(
                            Failure::Unknown(Cause::Lost) | Failure::NotSent(Cause::Lost | Cause::Refused),
                        )) => (),
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        let _ending = Ending(&ending);
        let mut server = first;
        for n in 0..6 {
            let before = answered.load(SeqCst);
            until("answers come", || answered.load(SeqCst) > before + 20);
            // In order, and not.
            if n % 2 == 0 {
                server.close(Duration::from_secs(5));
            } else {
                drop(server);
            }
            let methods = Arc::new(Methods::default());
            server =
                Server::start(&address, credentials(1, 1), methods, tuning(), Bounds::default()).unwrap();
        }
    });
}
