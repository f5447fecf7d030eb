//! A TLS 1.3 session over a socket, as a [`Transport`].
//!
//! The session of rustls is one state machine for both directions, and our two threads must not wait for each other in it. So its lock is held
//! only while bytes in memory are opened or sealed: the reader waits in the socket without it and feeds what came; the sender waits in the
//! socket with what is sealed already, under a lock of its own. Locks are taken in the order incoming, outgoing, session; the reader, which may
//! have something to say of the session's own (an alert, an answer to new keys), only tries for outgoing.
//!
//! Memory: 64 KiB of what came and 128 KiB of what goes, and what the session holds: a record, or 64 KiB of a message of its handshake.
//!
//! The end of the stream without a word of farewell is an end as any other: what cutting it gains is a lost connection, as with a socket. Half a
//! frame is none, and a request without an answer has an unknown outcome.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustls::{Connection, pki_types::CertificateDer};

use super::trouble::{self, TlsTrouble};
use crate::transport::{SocketStream, Transport, is_wait_over};

/// Sealed bytes that are read at once.
const INCOMING: usize = 64 << 10;
/// Strangers have to do with so much.
const INCOMING_FIRST: usize = 4 << 10;
/// Bytes that are sealed at once, so that a ping is not behind much, and the reader does not wait long for the session.
const SEALED_MAX: usize = 128 << 10;

pub(crate) struct TlsStream {
    socket: SocketStream,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
    session: Mutex<Connection>,
}

/// Sealed bytes of the socket, not yet fed.
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    fed: usize,
    filled: usize,
}

/// Sealed bytes for the socket.
#[derive(Default)]
struct Outgoing {
    sealed: Vec<u8>,
    sent: usize,
    /// So many of the caller's bytes are in them. He is told of them when all is with the socket, and until then comes with the same again.
    covers: usize,
}

impl TlsStream {
    /// Of a socket whose sides have shaken hands.
    pub(crate) fn new(socket: SocketStream, session: Connection, came: Incoming) -> TlsStream {
        TlsStream {
            socket,
            incoming: Mutex::new(came),
            outgoing: Mutex::default(),
            session: Mutex::new(session),
        }
    }

    /// The peer's own certificate.
    pub(crate) fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        let session = self.session.lock();
        session.peer_certificates().and_then(<[_]>::first).map(|own| own.clone().into_owned())
    }

    /// Feeds what came, until `into` is full or more is needed. `None`: not a byte yet.
    fn open(&self, incoming: &mut Incoming, into: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let mut session = self.session.lock();
        let mut got = 0;
        let opened = loop {
            match read_opened(&mut session, into, &mut got) {
                Ok(Opened::Full | Opened::Closed) => break Ok(Some(got)),
                Ok(Opened::Empty) if incoming.fed == incoming.filled => break Ok((got > 0).then_some(got)),
                Ok(Opened::Empty) => (),
                Err(error) => break Err(error),
            }
            if let Err(error) = incoming.feed(&mut session) {
                break Err(io::Error::new(io::ErrorKind::InvalidData, trouble::after_handshake(error)));
            }
        };
        if session.wants_write()
            && let Some(mut outgoing) = self.outgoing.try_lock()
        {
            // Whoever has the lock, or comes next, sends it otherwise: at the latest with the next ping.
            take_sealed(&mut session, &mut outgoing.sealed);
            drop(session);
            let _ = outgoing.flush(&self.socket, false);
        }
        opened
    }

    /// Seals the front of `parts`. How many bytes.
    fn seal(&self, parts: &[IoSlice<'_>], sealed: &mut Vec<u8>) -> io::Result<usize> {
        let mut room = SEALED_MAX;
        let mut front = Vec::with_capacity(parts.len());
        for part in parts {
            let len = part.len().min(room);
            front.push(IoSlice::new(&part[..len]));
            room -= len;
            if room == 0 {
                break;
            }
        }
        let mut session = self.session.lock();
        let taken = session.writer().write_vectored(&front)?;
        take_sealed(&mut session, sealed);
        Ok(taken)
    }
}

impl Transport for TlsStream {
    fn send(&self, parts: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let mut outgoing = self.outgoing.lock();
        if outgoing.covers == 0 {
            let Outgoing { sealed, covers, .. } = &mut *outgoing;
            *covers = self.seal(parts, sealed)?;
        }
        outgoing.flush(&self.socket, wait)?;
        Ok(std::mem::take(&mut outgoing.covers))
    }

    fn receive(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        loop {
            if let Some(got) = self.open(&mut incoming, into)? {
                return Ok(got);
            }
            if !incoming.fill(&self.socket)? {
                return Ok(0);
            }
        }
    }

    fn close(&self) {
        // Farewell, if nobody is in the middle of something.
        if let Some(mut outgoing) = self.outgoing.try_lock() {
            let mut session = self.session.lock();
            session.send_close_notify();
            take_sealed(&mut session, &mut outgoing.sealed);
            drop(session);
            let _ = outgoing.flush(&self.socket, false);
        }
        self.socket.close();
    }
}

impl Incoming {
    /// Whether there was something; with `false` the stream has ended.
    fn fill(&mut self, socket: &SocketStream) -> io::Result<bool> {
        (self.fed, self.filled) = (0, 0);
        self.filled = socket.receive(&mut [IoSliceMut::new(&mut self.bytes)])?;
        Ok(self.filled > 0)
    }

    /// Some of it, and what the session makes of it.
    fn feed(&mut self, session: &mut Connection) -> Result<(), rustls::Error> {
        let mut rest = &self.bytes[self.fed..self.filled];
        let before = rest.len();
        // From memory only the session itself can refuse, for a message that is too long.
        let full = session.read_tls(&mut rest).is_err();
        self.fed += before - rest.len();
        session.process_new_packets()?;
        if full { Err(rustls::Error::General("a message without an end".to_owned())) } else { Ok(()) }
    }
}

impl Outgoing {
    fn flush(&mut self, socket: &SocketStream, wait: bool) -> io::Result<()> {
        while self.sent < self.sealed.len() {
            self.sent += socket.send(&[IoSlice::new(&self.sealed[self.sent..])], wait)?;
        }
        self.sealed.clear();
        self.sent = 0;
        Ok(())
    }
}

enum Opened {
    Full,
    /// Nothing more without more of the socket's bytes.
    Empty,
    Closed,
}

/// Moves opened bytes behind the first `got` ones of `into`.
fn read_opened(session: &mut Connection, into: &mut [IoSliceMut<'_>], got: &mut usize) -> io::Result<Opened> {
    let mut skip = *got;
    for part in into {
        let mut from = skip.min(part.len());
        skip -= from;
        while from < part.len() {
            match session.reader().read(&mut part[from..]) {
                Ok(0) => return Ok(Opened::Closed),
                Ok(len) => (from, *got) = (from + len, *got + len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Opened::Empty),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Opened::Full)
}

/// Behind what is there already: sealed bytes go out in the order in which they were sealed.
fn take_sealed(session: &mut Connection, sealed: &mut Vec<u8>) {
    while session.wants_write() {
        // Into memory it does not fail.
        if session.write_tls(sealed).is_err() {
            break;
        }
    }
}

/// What the session has to say. It is small: what the socket does not take at once is a peer that plays.
fn say(socket: &SocketStream, session: &mut Connection) -> io::Result<()> {
    let mut sealed = Vec::new();
    take_sealed(session, &mut sealed);
    if !sealed.is_empty() && socket.send(&[IoSlice::new(&sealed)], false)? < sealed.len() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(())
}

/// Carries the TLS handshake out, not longer than `wait`. After an error the peer was told, if it can be.
pub(crate) fn shake(
    socket: &SocketStream,
    session: &mut Connection,
    wait: Duration,
) -> Result<Incoming, TlsTrouble> {
    // What waits is bounded by us: all that is sealed is taken out at once.
    session.set_buffer_limit(None);
    let mut incoming = Incoming { bytes: vec![0; INCOMING_FIRST], fed: 0, filled: 0 };
    match take_turns(socket, session, &mut incoming, wait) {
        Ok(()) => {
            incoming.bytes.resize(INCOMING, 0);
            Ok(incoming)
        }
        Err(TlsTrouble::Plain) => Err(TlsTrouble::Plain),
        Err(error) => {
            let _ = say(socket, session);
            Err(error)
        }
    }
}

fn take_turns(
    socket: &SocketStream,
    session: &mut Connection,
    incoming: &mut Incoming,
    wait: Duration,
) -> Result<(), TlsTrouble> {
    let late = Instant::now() + wait;
    // Enough to say what the peer speaks in place of TLS.
    let mut first = Vec::new();
    loop {
        say(socket, session)?;
        if !session.is_handshaking() {
            return Ok(());
        }
        match incoming.fill(socket) {
            Ok(true) => (),
            Ok(false) => return Err(TlsTrouble::Closed),
            Err(error) if is_wait_over(&error) => (),
            Err(error) => return Err(error.into()),
        }
        // After each piece too: one byte now and then is no handshake.
        if Instant::now() >= late {
            return Err(TlsTrouble::Slow(wait));
        }
        let room = 4usize.saturating_sub(first.len());
        first.extend(incoming.bytes[..incoming.filled].iter().take(room));
        while session.is_handshaking() && incoming.fed < incoming.filled {
            if let Err(error) = incoming.feed(session) {
                return Err(if wire::frame::is_ours(&first) {
                    TlsTrouble::Plain
                } else {
                    trouble::in_handshake(error)
                });
            }
        }
    }
}
