//! One end of a connection: a handshake, then the machine of `wire`, with its encoder and decoder.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::tenure::Time;
use wire::{
    Decoder, Encoder, Piece,
    connection::{Answer, Connection, Event, Failure, NotTaken, Request, RequestId, Settings, Window},
    frame::{Body, HANDSHAKE_VERSION, Header, Limits, Place as At, SumKey},
    handshake::{Handshake, HandshakeMessage, Identity, NONCE_LEN, Versions, Wish},
    key::ClusterKey,
    schema::Lane,
};

use crate::cast::Place;

const LIMITS: Limits = Limits { meta: 64, body: 4096 };
const WINDOW: Window = Window { requests: 48, bytes: 96 << 10 };

enum State {
    Greeting(Box<Handshake>),
    Open(Box<Connection>),
    Gone,
}

/// What comes of a connection, for who keeps the calls.
pub enum Came {
    Open,
    Asked { id: u64, meta: Vec<u8>, body: Vec<u8> },
    Answered { call: Option<u64>, meta: Vec<u8>, body: Vec<u8> },
    Failed { call: Option<u64>, failure: Failure },
    Over,
}

pub struct Side {
    pub place: Place,
    state: State,
    encoder: Encoder,
    decoder: Decoder,
    frame: Option<(Header, Vec<u8>, Vec<u8>)>,
    greeting: Vec<u8>,
    calls: BTreeMap<RequestId, Option<u64>>,
    came: Vec<Came>,
    began: Time,
}

fn identity(place: Place) -> Identity {
    Identity {
        cluster: [7; 16],
        node: place.number(),
        roles: place.roles(),
        build: "simulation".into(),
        versions: Versions::OURS,
        takes: WINDOW,
    }
}

const KEY: ClusterKey = ClusterKey::new([9; 32]);

impl Side {
    pub fn initiate((from, to): (Place, Place), nonce: [u8; NONCE_LEN], now: Time) -> Side {
        let wish = Wish { lane: Lane::Metadata, node: Some(to.number()) };
        Side::new(from, Handshake::initiate(identity(from), KEY, wish, 0, nonce), now)
    }

    pub fn respond((_, to): (Place, Place), nonce: [u8; NONCE_LEN], now: Time) -> Side {
        Side::new(to, Handshake::respond(identity(to), KEY, nonce), now)
    }

    fn new(place: Place, handshake: Handshake, now: Time) -> Side {
        let at = At::first(HANDSHAKE_VERSION, SumKey::OPEN);
        let mut side = Side {
            place,
            state: State::Greeting(Box::new(handshake)),
            encoder: Encoder::new(at),
            decoder: Decoder::new(at, Limits::HANDSHAKE),
            frame: None,
            greeting: Vec::new(),
            calls: BTreeMap::new(),
            came: Vec::new(),
            began: now,
        };
        side.greet();
        side
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone)
    }

    pub fn is_greeting(&self) -> bool {
        matches!(self.state, State::Greeting(_))
    }

    pub fn is_ending(&self) -> bool {
        matches!(&self.state, State::Open(connection) if !connection.is_open())
    }

    pub fn ask(&mut self, request: Request, call: Option<u64>) -> Result<(), NotTaken> {
        let State::Open(connection) = &mut self.state else { return Err(NotTaken::Ending) };
        let id = connection.request(request)?;
        self.calls.insert(id, call);
        Ok(())
    }

    pub fn answer(&mut self, id: u64, answer: Answer) {
        if let State::Open(connection) = &mut self.state {
            assert_eq!(connection.answer(id, answer), Ok(()), "an answer fits");
        }
    }

    /// The transport is gone.
    pub fn lose(&mut self) {
        match &mut self.state {
            State::Open(connection) => connection.lost(),
            State::Greeting(_) => {
                self.state = State::Gone;
                self.came.push(Came::Over);
            }
            State::Gone => (),
        }
    }

    /// The process is gone, and nobody hears of anything.
    pub fn vanish(&mut self) {
        self.state = State::Gone;
        self.came.clear();
        self.calls.clear();
    }

    fn greet(&mut self) {
        let State::Greeting(handshake) = &mut self.state else { return };
        while let Some(message) = handshake.poll_output() {
            let header = message.header();
            let HandshakeMessage { meta, body, .. } = message;
            let body = Body::new(body);
            self.greeting.extend(self.encoder.header(&header, &meta, &body));
            self.greeting.extend(meta);
            self.greeting.extend(body.into_bytes());
        }
    }

    pub fn read(&mut self, mut bytes: &[u8], now: Time) {
        if let State::Open(connection) = &mut self.state {
            connection.heard(now);
        }
        while !self.is_gone() {
            let taken = self.decoder.take(bytes);
            assert!(taken.is_ok(), "{:?}: nothing is changed on the way: {taken:?}", self.place);
            let Ok((used, piece)) = taken else { return };
            match piece {
                Piece::Nothing => return,
                Piece::Begin { header, meta, body_len } => {
                    if let State::Open(connection) = &mut self.state
                        && !connection.is_over()
                    {
                        let begun = connection.begin(&header, meta.len(), body_len);
                        assert!(begun.is_ok(), "{:?}: the peer keeps the rules: {begun:?}", self.place);
                    }
                    self.frame = Some((header, meta, Vec::new()));
                }
                Piece::Body(len) => {
                    if let Some((_, _, body)) = &mut self.frame {
                        body.extend(&bytes[..len]);
                    }
                }
                Piece::End => {
                    if let Some((header, meta, body)) = self.frame.take() {
                        self.whole(now, header, meta, body);
                    }
                }
            }
            bytes = &bytes[used..];
        }
    }

    fn whole(&mut self, now: Time, header: Header, meta: Vec<u8>, body: Vec<u8>) {
        match &mut self.state {
            State::Gone => (),
            State::Open(connection) => connection.end(now, header, meta, body.into()),
            State::Greeting(handshake) => {
                let done = handshake.handle(&header, &meta, &body);
                assert!(done.is_ok(), "{:?}: all have one key: {done:?}", self.place);
                self.greet();
                let Ok(Some(session)) = done else { return };
                self.encoder.switch(session.version, session.send);
                self.decoder.switch(session.version, session.receive, LIMITS);
                let settings = Settings {
                    takes: WINDOW,
                    peer_takes: session.peer.takes,
                    limits: LIMITS,
                    queued_max: 64,
                    ping_after: Duration::from_millis(300),
                    silence_max: Duration::from_millis(900),
                    leave_max: Duration::from_secs(2),
                };
                self.state = State::Open(Box::new(Connection::new(settings, now)));
                self.came.push(Came::Open);
            }
        }
    }

    pub fn handle_deadline(&mut self, now: Time) {
        match &mut self.state {
            State::Open(connection) => {
                if connection.next_deadline().is_some_and(|(at, _)| at <= now) {
                    connection.handle_deadline(now);
                    let next = connection.next_deadline();
                    assert!(next.is_none_or(|(at, _)| at > now), "no busy loop: {next:?}");
                }
            }
            State::Greeting(_) if now.saturating_sub(self.began) > Duration::from_millis(900) => self.lose(),
            State::Greeting(_) | State::Gone => (),
        }
    }

    pub fn events(&mut self) -> Vec<Came> {
        let mut came = std::mem::take(&mut self.came);
        let State::Open(connection) = &mut self.state else { return came };
        while let Some(event) = connection.poll_event() {
            match event {
                Event::Asked { header, meta, body, .. } => {
                    came.push(Came::Asked { id: header.id, meta, body: body.into_vec() });
                }
                Event::Unasked { .. } => (),
                Event::Answered { id, meta, body, .. } => {
                    let call = self.calls.remove(&id).flatten();
                    came.push(Came::Answered { call, meta, body: body.into_vec() });
                }
                Event::Failed { id, failure } => {
                    let call = self.calls.remove(&id).flatten();
                    came.push(Came::Failed { call, failure });
                }
                Event::Ended | Event::Lost(_) => {
                    assert!(self.calls.is_empty(), "every request has ended");
                    came.push(Came::Over);
                }
            }
        }
        if connection.is_over() {
            self.state = State::Gone;
        }
        came
    }

    /// All that may be written now.
    pub fn output(&mut self, now: Time) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.greeting);
        let State::Open(connection) = &mut self.state else { return bytes };
        while let Some(frame) = connection.poll_output(now) {
            bytes.extend(self.encoder.header(&frame.header, &frame.meta, &frame.body));
            bytes.extend(&frame.meta);
            bytes.extend(frame.body.into_bytes());
        }
        bytes
    }
}
