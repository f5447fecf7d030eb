//! The reader thread of a connection: bytes into frames, bodies straight to where they belong, requests to the handler.

use std::{
    io::{self, IoSliceMut},
    sync::Arc,
    time::{Duration, Instant},
};

use wire::{Decoder, PageBuffer, Piece, connection::Loss, frame::Header, handshake::Peer, schema::Lane};

use crate::{
    link::{Link, News, Reply},
    pool::Buffer,
    transport::is_wait_over,
    waiter::Woken,
};

/// Small frames are read many at once; a large body is at most that much copied.
const STAGING: usize = 32 << 10;

/// Who answers the peer's requests. Called on the connection's reader thread: what has to wait for something goes to a thread of the
/// handler's own with its [`Reply`], or nothing else of the connection is read meanwhile.
pub trait Handler: Send + Sync {
    fn asked(&self, incoming: Incoming, reply: Reply);

    /// The peer waits no longer for the answer to request `id`. The reply is owed nevertheless.
    fn unasked(&self, peer: &Peer, id: u64) {
        let _ = (peer, id);
    }

    /// A connection is over; in order without a loss.
    fn gone(&self, peer: &Peer, lane: Lane, loss: Option<Loss>) {
        let _ = (peer, lane, loss);
    }
}

/// Of a side that only asks: who asks it is told that nobody answers.
pub struct NobodyAnswers;

impl Handler for NobodyAnswers {
    fn asked(&self, _: Incoming, reply: Reply) {
        drop(reply);
    }
}

/// A request of the peer's.
pub struct Incoming {
    pub header: Header,
    pub meta: Vec<u8>,
    /// Nobody waits for the answer after that.
    pub deadline: Instant,
    body: PageBuffer,
    /// The last of what was received together.
    alone: bool,
    link: Arc<Link>,
}

impl Incoming {
    pub fn peer(&self) -> &Peer {
        &self.link.peer
    }

    pub fn lane(&self) -> Lane {
        self.link.lane
    }

    /// A newer connection of the same peer is in the place of the one over which it came. Nobody waits for its answer, and it may have been asked
    /// again: what has not begun must not.
    pub fn is_superseded(&self) -> bool {
        self.link.mark.is_superseded()
    }

    /// The number of the connection over which it came, of all in this process; those of newer ones are greater.
    pub fn connection(&self) -> u64 {
        self.link.mark.number
    }

    /// It came over the Unix socket for clients on this machine.
    pub fn is_near(&self) -> bool {
        self.link.mark.near
    }

    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// For the body of an answer. What is in it has no meaning.
    pub fn buffer(&self, len: usize) -> Buffer {
        Buffer::new(&self.link.pool, len)
    }

    /// Nothing else has come over its connection: who carries it out on the reader's thread holds nothing up that is there by now.
    pub fn is_alone(&self) -> bool {
        self.alone && !self.link.transport.has_more()
    }

    /// Takes the body away; else its buffer is used again.
    pub fn take_body(&mut self) -> PageBuffer {
        std::mem::take(&mut self.body)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.link.pool.give(std::mem::take(&mut self.body));
    }
}

struct Frame {
    header: Header,
    meta: Vec<u8>,
    /// At least as long as the body.
    body: PageBuffer,
    filled: usize,
}

pub(crate) struct Reader {
    pub(crate) link: Arc<Link>,
    pub(crate) decoder: Decoder,
    pub(crate) handler: Arc<dyn Handler>,
    /// A frame is whole so soon after its first byte.
    pub(crate) frame_wait: Duration,
    /// When the first bytes of the frame came that is not whole yet.
    pub(crate) begun: Option<Instant>,
}

impl Reader {
    /// The thread's whole life. `early` came with the handshake.
    pub(crate) fn run(mut self, early: &[u8]) {
        self.link.i_am_the_reader();
        let mut frame = None;
        let mut staging = vec![0; STAGING];
        let mut on = self.take(&mut frame, early);
        while on {
            self.deliver();
            self.link.tick();
            let Some((got, used)) = self.receive(&mut frame, &mut staging) else { break };
            if got > 0 {
                self.link.heard();
                on = self.take(&mut frame, &staging[..got - used]);
            }
            if !self.decoder.is_between_frames() {
                let now = Instant::now();
                if now.duration_since(*self.begun.get_or_insert(now)) > self.frame_wait {
                    tracing::warn!(peer = self.link.peer.node, "a frame did not become whole in time");
                    break;
                }
            }
        }
        self.link.lose();
        self.link.transport.close();
        self.deliver();
        self.handler.gone(&self.link.peer, self.link.lane, self.link.loss());
    }

    /// One read: how many bytes, and how many of them are in the body already. `None` at the end.
    fn receive(&mut self, frame: &mut Option<Frame>, staging: &mut [u8]) -> Option<(usize, usize)> {
        let left = self.decoder.body_left();
        let received = match frame {
            Some(Frame { body, filled, .. }) if left > 0 => {
                let place = &mut body[*filled..*filled + left];
                let received =
                    self.link.transport.receive(&mut [IoSliceMut::new(place), IoSliceMut::new(staging)]);
                received.map(|got| {
                    let direct = got.min(left);
                    self.decoder.body_was_read(&place[..direct]);
                    *filled += direct;
                    (got, direct)
                })
            }
            Some(_) | None => {
                self.link.transport.receive(&mut [IoSliceMut::new(staging)]).map(|got| (got, 0))
            }
        };
        match received {
            Ok((0, _)) => None,
            Ok(received) => Some(received),
            Err(error) if is_wait_over(&error) => Some((0, 0)),
            // Of TLS: what it does not take was changed on the way.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(peer = self.link.peer.node, %error, "damaged bytes: the connection ends");
                None
            }
            Err(error) => {
                tracing::debug!(peer = self.link.peer.node, %error, "cannot receive");
                None
            }
        }
    }

    /// Takes frames out of bytes. Whether the connection goes on.
    fn take(&mut self, frame: &mut Option<Frame>, bytes: &[u8]) -> bool {
        // Bounded by the frames that fit into the staging buffer.
        let mut woken = Vec::new();
        let on = self.take_all(frame, bytes, &mut woken);
        woken.into_iter().for_each(Woken::wake);
        on
    }

    fn take_all(&mut self, frame: &mut Option<Frame>, mut bytes: &[u8], woken: &mut Vec<Woken>) -> bool {
        loop {
            let (used, piece) = match self.decoder.take(bytes) {
                Ok(taken) => taken,
                Err(error) => {
                    tracing::warn!(peer = self.link.peer.node, %error, "damaged bytes: the connection ends");
                    return false;
                }
            };
            match piece {
                Piece::Nothing => return true,
                Piece::Begin { header, meta, body_len } => {
                    let Some(body) = self.link.begin(&header, meta.len(), body_len) else {
                        return false;
                    };
                    *frame = Some(Frame { header, meta, body, filled: 0 });
                }
                Piece::Body(len) => {
                    if let Some(Frame { body, filled, .. }) = frame {
                        body[*filled..*filled + len].copy_from_slice(&bytes[..len]);
                        *filled += len;
                    }
                }
                Piece::End => {
                    self.begun = None;
                    if let Some(Frame { header, meta, mut body, filled }) = frame.take() {
                        body.truncate(filled);
                        woken.extend(self.link.end(header, meta, body));
                    }
                }
            }
            bytes = &bytes[used..];
        }
    }

    fn deliver(&self) {
        while let Some(ended) = self.link.ended() {
            ended.wake();
        }
        while let Some(news) = self.link.news() {
            match news {
                News::Asked { .. } if self.link.mark.is_superseded() => (),
                News::Asked { header, meta, body, deadline } => {
                    let reply = Reply::new(self.link.clone(), header.id);
                    let deadline = self.link.instant(deadline);
                    let link = self.link.clone();
                    let alone = self.decoder.is_between_frames() && self.link.has_no_news();
                    self.handler.asked(Incoming { header, meta, deadline, body, alone, link }, reply);
                }
                News::Unasked { id } => self.handler.unasked(&self.link.peer, id),
            }
        }
    }
}
