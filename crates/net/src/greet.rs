//! Carries out a handshake on a stream: feeds the machine, sends what it says, within one deadline.

use std::{
    io::{self, IoSlice, IoSliceMut},
    time::{Duration, Instant},
};

use thiserror::Error;
use wire::{
    Decoder, Encoder, Piece,
    frame::{Body, FrameError, HANDSHAKE_VERSION, HEADER_LEN, Header, Limits, Place, SumKey},
    handshake::{Handshake, HandshakeError, HandshakeMessage, Session},
    schema::Reason,
};

use crate::{
    tls::{TlsTrouble, begins_tls},
    transport::{Transport, is_wait_over},
};

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("{0}")]
    Io(io::Error),
    #[error(transparent)]
    Tls(#[from] TlsTrouble),
    #[error(
        "the peer speaks TLS and this node does not: both need cluster.tls_ca_file, cluster.tls_certificate_file and cluster.tls_key_file"
    )]
    OnlyTls,
    #[error("the peer does not speak this protocol, or the bytes are damaged: {0}")]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the handshake took longer than {0:?}")]
    Slow(Duration),
    #[error("the peer closed the connection during the handshake")]
    Closed,
}

impl ConnectError {
    /// Trying again soon is of use: nothing has to be put right by somebody.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            ConnectError::Io(_) | ConnectError::Frame(_) | ConnectError::Slow(_) | ConnectError::Closed => {
                true
            }
            ConnectError::Handshake(error) => error.may_pass(),
            ConnectError::Tls(trouble) => trouble.may_pass(),
            ConnectError::OnlyTls => false,
        }
    }
}

impl From<io::Error> for ConnectError {
    /// What TLS has to say comes in a stream's errors.
    fn from(error: io::Error) -> ConnectError {
        match error.downcast::<TlsTrouble>() {
            Ok(trouble) => ConnectError::Tls(trouble),
            Err(error) => ConnectError::Io(error),
        }
    }
}

/// A stream whose sides know each other.
pub(crate) struct Greeted {
    pub(crate) session: Session,
    pub(crate) encoder: Encoder,
    pub(crate) decoder: Decoder,
    /// Bytes behind the handshake that came with it.
    pub(crate) early: Vec<u8>,
}

pub(crate) fn greet(
    transport: &dyn Transport,
    mut handshake: Handshake,
    limits: Limits,
    wait: Duration,
    // Before the peer is told that it is so.
    mut agreed: impl FnMut(&Session),
) -> Result<Greeted, ConnectError> {
    let place = Place::first(HANDSHAKE_VERSION, SumKey::OPEN);
    let mut encoder = Encoder::new(place);
    let mut decoder = Decoder::new(place, Limits::HANDSHAKE);
    let late = Instant::now() + wait;
    // A peer that has turned us away already says why, in what can still be read.
    let _ = tell(transport, &mut encoder, handshake.poll_output());
    let mut frame: Option<(Header, Vec<u8>, Vec<u8>)> = None;
    let mut buffer = [0; 2048];
    let mut is_first = true;
    loop {
        let got = match transport.receive(&mut [IoSliceMut::new(&mut buffer)]) {
            Ok(0) => return Err(ConnectError::Closed),
            Ok(got) => got,
            Err(error) if is_wait_over(&error) => 0,
            Err(error) => return Err(error.into()),
        };
        // Looked at after each piece too: one byte now and then is no handshake.
        if Instant::now() >= late {
            return Err(ConnectError::Slow(wait));
        }
        let mut bytes = &buffer[..got];
        if is_first && begins_tls(bytes) {
            return Err(ConnectError::OnlyTls);
        }
        is_first = is_first && got == 0;
        loop {
            let (used, piece) = decoder.take(bytes)?;
            match piece {
                Piece::Nothing => break,
                Piece::Begin { header, meta, .. } => frame = Some((header, meta, Vec::new())),
                Piece::Body(len) => {
                    if let Some((_, _, body)) = &mut frame {
                        body.extend_from_slice(&bytes[..len]);
                    }
                }
                Piece::End => {
                    let Some((header, meta, body)) = frame.take() else { continue };
                    let done = handshake.handle(&header, &meta, &body);
                    if let Ok(Some(session)) = &done {
                        agreed(session);
                    }
                    tell(transport, &mut encoder, handshake.poll_output())?;
                    if let Some(session) = done? {
                        encoder.switch(session.version, session.send);
                        decoder.switch(session.version, session.receive, limits);
                        let early = bytes[used..].to_vec();
                        return Ok(Greeted { session, encoder, decoder, early });
                    }
                }
            }
            bytes = &bytes[used..];
        }
    }
}

/// A message of a handshake is small: what the socket's buffer does not take at once is a peer that plays.
fn tell(
    transport: &dyn Transport,
    encoder: &mut Encoder,
    message: Option<HandshakeMessage>,
) -> Result<(), ConnectError> {
    let Some(message) = message else { return Ok(()) };
    let bytes = bytes_of(encoder, message);
    let sent = transport.send(&[IoSlice::new(&bytes)], false)?;
    if sent < bytes.len() {
        return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
    }
    Ok(())
}

fn bytes_of(encoder: &mut Encoder, message: HandshakeMessage) -> Vec<u8> {
    let header = message.header();
    let body = Body::new(message.body);
    let mut bytes = Vec::with_capacity(HEADER_LEN + message.meta.len() + body.len());
    bytes.extend(encoder.header(&header, &message.meta, &body));
    bytes.extend(&message.meta);
    bytes.extend(body.bytes());
    bytes
}

/// Turns somebody away who has said nothing yet, in clear.
pub(crate) fn turn_away(transport: &dyn Transport, reason: Reason, text: &str) {
    let mut encoder = Encoder::new(Place::first(HANDSHAKE_VERSION, SumKey::OPEN));
    // He is told if that costs nothing.
    let _ = tell(transport, &mut encoder, Some(wire::handshake::refusal(reason, text)));
    transport.close();
}
