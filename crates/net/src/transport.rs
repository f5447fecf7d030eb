//! Streams of bytes between two processes: TCP and Unix sockets, and TLS over them ([`crate::tls`]), behind one trait.
//!
//! RDMA can be another: `send` posts the parts to a ring of registered buffers and gives back how many it took; `receive` takes
//! from the ring of those that arrived, in order; both are what libfabric's message endpoints offer. What it would gain beyond that, bodies
//! put straight into the caller's buffer, fits where a body's place is known before its bytes come
//! ([`wire::connection::BodyFor`]).

use std::{
    io::{self, IoSlice, IoSliceMut, Read},
    net::Shutdown,
    time::Duration,
};

use rustix::net::sockopt::{set_socket_send_buffer_size, set_socket_send_buffer_size_force};
use socket2::Socket;

/// Of a Unix socket, which does not grow by itself as those of TCP do: a body of the largest kind and what goes with it. With the kernel's own 208 KiB
/// the writer thread is woken for the rest of each larger one.
const UNIX_BUFFER: usize = 5 << 20;

/// A stream in both directions. One thread receives, one at a time sends, any may close.
pub trait Transport: Send + Sync {
    /// Sends from the front of `parts`; how many bytes. Without `wait` only what needs no waiting (else `WouldBlock`); with it, an
    /// error of that kind means that not a byte could be sent for the time given when the stream was made. What was not taken comes first in
    /// the next call: it may be on its way already in another form.
    fn send(&self, parts: &[IoSlice<'_>], wait: bool) -> io::Result<usize>;
    /// Fills the front of `into` with what is there, at least a byte; 0 is the end. `WouldBlock` after a tick without a byte.
    fn receive(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
    /// Is there perhaps something to receive now?
    fn has_more(&self) -> bool {
        true
    }
    /// Ends both directions at once; whoever waits in the others returns.
    fn close(&self);
}

/// How long the calls of a stream wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits {
    /// A tick of the receiving side: deadlines are looked at that often on a silent stream.
    pub receive: Duration,
    /// The peer takes not a byte for so long.
    pub send: Duration,
}

/// A stream socket of either kind.
pub struct SocketStream {
    socket: Socket,
}

impl SocketStream {
    pub fn new(socket: Socket, waits: Waits) -> io::Result<SocketStream> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(waits.receive))?;
        socket.set_write_timeout(Some(waits.send))?;
        if socket.local_addr()?.is_ipv4() || socket.local_addr()?.is_ipv6() {
            // Frames are gathered before they are written; waiting for more would only cost time.
            socket.set_tcp_nodelay(true)?;
        } else if set_socket_send_buffer_size_force(&socket, UNIX_BUFFER).is_err() {
            // Who may not have more than the machine lets everybody has gets that.
            set_socket_send_buffer_size(&socket, UNIX_BUFFER)?;
        }
        Ok(SocketStream { socket })
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }
}

impl Transport for SocketStream {
    fn send(&self, parts: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let no_wait = if wait { 0 } else { rustix::net::SendFlags::DONTWAIT.bits() as i32 };
        let flags = no_wait | rustix::net::SendFlags::NOSIGNAL.bits() as i32;
        again(|| self.socket.send_vectored_with_flags(parts, flags))
    }

    fn receive(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        again(|| (&self.socket).read_vectored(into))
    }

    fn has_more(&self) -> bool {
        rustix::io::ioctl_fionread(&self.socket).is_ok_and(|bytes| bytes > 0)
    }

    fn close(&self) {
        // It may be closed by the peer already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// A signal that only woke the thread is not the call's business.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            other => return other,
        }
    }
}

/// A receiving or sending call came to the end of its wait.
pub(crate) fn is_wait_over(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Goal: a body of the largest kind goes into a Unix socket in one call that does not wait, though nobody reads. Method: one as large as the
    /// machine lets anybody have, at least.
    #[test]
    fn a_large_body_is_one_write() {
        let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
        let most: usize = most.trim().parse().unwrap();
        let (here, _there) = UnixStream::pair().unwrap();
        let waits = Waits { receive: Duration::from_secs(1), send: Duration::from_secs(1) };
        let stream = SocketStream::new(Socket::from(std::os::fd::OwnedFd::from(here)), waits).unwrap();
        let body = vec![7; most.min(4 << 20)];
        assert_eq!(stream.send(&[IoSlice::new(&body)], false).unwrap(), body.len());
    }
}
