//! Descriptors that a server hands to a peer on its machine, over the Unix socket at which it listens.
//!
//! A connection that begins with [`FIRST`] asks for one, in place of a handshake: with a ticket, a random number that the peer was told in
//! an answer to a request. So only who proved the cluster key gets one, and each ticket is good once. The frames of a connection have no
//! place for descriptors, and need none.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::transport::is_wait_over;

/// What is proved by.
pub type Ticket = [u8; 16];

/// No frame begins so.
pub(crate) const FIRST: &[u8; 8] = b"ONFSFILE";
const ASK_LEN: usize = FIRST.len() + size_of::<Ticket>();
const THERE: u8 = 1;
const NOT_THERE: u8 = 0;

/// Who has the descriptors.
pub trait Hatch: Send + Sync {
    /// That of this ticket, which is worth nothing from then on.
    fn hand_out(&self, ticket: Ticket) -> Option<OwnedFd>;
}

/// Fetches a descriptor from the server that listens at `path`. `NotFound`: it has none for the ticket.
pub fn fetch(path: &Path, ticket: Ticket, wait: Duration) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.connect_timeout(&SockAddr::unix(path)?, wait)?;
    socket.set_read_timeout(Some(wait))?;
    socket.set_write_timeout(Some(wait))?;
    let mut asks = [0; ASK_LEN];
    asks[..FIRST.len()].copy_from_slice(FIRST);
    asks[FIRST.len()..].copy_from_slice(&ticket);
    // A new socket's buffer has room for all of it.
    if rustix::net::send(&socket, &asks, SendFlags::NOSIGNAL)? < ASK_LEN {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let mut said = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut said)];
    let got = recvmsg(&socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = control.drain().filter_map(|message| {
        if let RecvAncillaryMessage::ScmRights(mut files) = message { files.next() } else { None }
    });
    let whole = got.bytes == 1 && !got.flags.contains(ReturnFlags::CTRUNC);
    let file = files.next();
    drop(files);
    match (whole, said, file) {
        (true, [THERE], Some(file)) => Ok(file),
        (true, [NOT_THERE], None) => Err(io::ErrorKind::NotFound.into()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Does a peer that has connected ask for a descriptor? Nothing is taken from the stream.
pub(crate) fn is_asked(socket: &Socket, wait: Duration) -> bool {
    let until = Instant::now() + wait;
    loop {
        let mut bytes = [0; FIRST.len()];
        // The socket's own wait is a tick.
        match rustix::net::recv(socket, &mut bytes[..], RecvFlags::PEEK).map_err(io::Error::from) {
            // Who asks sends it whole.
            Ok((_, len)) => return len == FIRST.len() && bytes == *FIRST,
            Err(error) if is_wait_over(&error) && Instant::now() < until => {}
            Err(_) => return false,
        }
    }
}

/// Answers who asks for a descriptor.
pub(crate) fn serve(socket: &Socket, hatch: &dyn Hatch) -> io::Result<()> {
    let mut asks = [0; ASK_LEN];
    let (_, len) = rustix::net::recv(socket, &mut asks[..], RecvFlags::WAITALL)?;
    let ticket = asks.get(FIRST.len()..).and_then(|rest| Ticket::try_from(rest).ok());
    let file = ticket.filter(|_| len == ASK_LEN).and_then(|ticket| hatch.hand_out(ticket));
    let said = [if file.is_some() { THERE } else { NOT_THERE }];
    let files: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(socket, &[IoSlice::new(&said)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
