//! A stream whose reads, or writes, must all be done by one time: a peer that sends or takes a byte now and then gets no more
//! of it.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A frame that comes in: its first byte may take a while, the rest may not.
pub struct Incoming<'a> {
    stream: &'a UnixStream,
    end: Instant,
    frame: Duration,
    begun: bool,
}

impl<'a> Incoming<'a> {
    pub fn new(stream: &'a UnixStream, idle: Duration, frame: Duration) -> Incoming<'a> {
        Incoming { stream, end: Instant::now() + idle, frame, begun: false }
    }

    /// Has anything come?
    pub fn has_begun(&self) -> bool {
        self.begun
    }
}

impl Read for Incoming<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.end)?))?;
        let got = self.stream.read(buf)?;
        if !std::mem::replace(&mut self.begun, true) {
            self.end = Instant::now() + self.frame;
        }
        Ok(got)
    }
}

/// A frame that goes out.
pub struct Outgoing<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl<'a> Outgoing<'a> {
    pub fn new(stream: &'a UnixStream, frame: Duration) -> Outgoing<'a> {
        Outgoing { stream, end: Instant::now() + frame }
    }
}

impl Write for Outgoing<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.end)?))?;
        self.stream.write(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Would a small frame go out at once, or fail at once? The kernel says so while three quarters of its buffer are free.
pub fn takes_more(stream: &UnixStream) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0)
}
