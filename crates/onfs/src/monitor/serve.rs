//! The listener: connections up to a bound, each with a thread of its own and a time within which it has asked and was answered.
//!
//! Who asks slowly, or never reads, holds one of a few places until that time is over; the file system's own work does not come this way.

use std::{
    io::{self, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use net::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

use super::{
    http::{Asked, HEAD_MAX, OPEN_METRICS, PLAIN, Page, Status, answer, asked, refusal},
    sample::Sample,
    table::Id,
};
use crate::running::MountedFs;

/// Several monitoring systems, and some who hang.
const CONNECTIONS_MAX: usize = 16;
/// For all of a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether it shall end.
const TICK: Duration = Duration::from_millis(200);

/// Ends when it is dropped.
pub struct Monitor {
    ending: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
    /// With the port that it got.
    address: Address,
}

impl Monitor {
    pub fn start(address: &Address, fs: Arc<dyn MountedFs>) -> io::Result<Monitor> {
        let socket = address.listen(64)?;
        socket.set_nonblocking(true)?;
        let own = match socket.local_addr()?.as_socket() {
            Some(tcp) => Address::Tcp(tcp.to_string()),
            None => address.clone(),
        };
        let ending = Arc::new(AtomicBool::new(false));
        let for_thread = ending.clone();
        let listener = thread::Builder::new().name("monitor".into());
        let shown = Arc::new(Shown { fs, started: SystemTime::now() });
        let listener = listener.spawn(move || listen(&socket, &for_thread, &shown))?;
        Ok(Monitor { ending, listener: Some(listener), address: own })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.ending.store(true, SeqCst);
        if let Some(listener) = self.listener.take()
            && listener.join().is_err()
        {
            tracing::error!("the thread that listens for monitoring ended with a panic");
        }
        if let Address::Unix(path) = &self.address {
            // A later start would remove it as well.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// One of a bounded number of connections.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn listen(socket: &Socket, ending: &AtomicBool, shown: &Arc<Shown>) {
    let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
    let taken: Arc<AtomicUsize> = Arc::default();
    while !ending.load(SeqCst) {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&tick)), Ok(1)) {
            continue;
        }
        match socket.accept() {
            Ok((stream, _)) => admit(stream, &taken, shown),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection for monitoring");
                thread::sleep(TICK);
            }
        }
    }
}

/// Beyond the bound a connection is closed without a word: who wants to know comes again.
fn admit(stream: Socket, taken: &Arc<AtomicUsize>, shown: &Arc<Shown>) {
    let place = Place(taken.clone());
    if taken.fetch_add(1, SeqCst) >= CONNECTIONS_MAX {
        tracing::debug!("as many connections for monitoring as it takes");
        return;
    }
    let shown = shown.clone();
    let served = thread::Builder::new().name("monitor-page".into()).spawn(move || {
        if let Err(error) = converse(&stream, &shown, Instant::now() + PATIENCE) {
            tracing::debug!(%error, "a connection for monitoring ended early");
        }
        drop(place);
    });
    if let Err(error) = served {
        tracing::warn!(%error, "no thread for a connection for monitoring");
    }
}

fn converse(stream: &Socket, shown: &Shown, until: Instant) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut head = Vec::with_capacity(1024);
    let bytes = loop {
        match asked(&head) {
            Asked::Part => {}
            Asked::Page { page, body } => break shown.page(page, body),
            Asked::Wrong(status) => break refusal(status),
        }
        let mut some = [0; 1024];
        stream.set_read_timeout(Some(left(until)?))?;
        let most = some.len().min(HEAD_MAX - head.len());
        match (&mut &*stream).read(&mut some[..most])? {
            0 => return Ok(()),
            got => head.extend_from_slice(&some[..got]),
        }
    };
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match (&mut &*stream).write(rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => rest = &rest[sent..],
        }
    }
    // Now, also while another thread's child has a copy of the descriptor.
    stream.shutdown(std::net::Shutdown::Both)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// What there is to be seen.
struct Shown {
    fs: Arc<dyn MountedFs>,
    started: SystemTime,
}

impl Shown {
    fn page(&self, page: Page, body: bool) -> Vec<u8> {
        let troubles = self.fs.troubles();
        match page {
            Page::Health if troubles.is_empty() => answer(Status::Ok, PLAIN, "ok\n", body),
            Page::Health => {
                let lines: String = troubles.iter().map(|trouble| format!("{trouble}\n")).collect();
                answer(Status::Unavailable, PLAIN, &lines, body)
            }
            Page::Metrics => match self.metrics(troubles.is_empty()).text() {
                Ok(text) => answer(Status::Ok, OPEN_METRICS, &text, body),
                Err(error) => {
                    tracing::error!(%error, "the metrics cannot be written down");
                    refusal(Status::Failed)
                }
            },
        }
    }

    fn metrics(&self, healthy: bool) -> Sample {
        let mut sample = Sample::default();
        sample.add(Id::Healthy, &[], u64::from(healthy));
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        sample.add_real(Id::Start, &[], started.as_secs_f64());
        self.fs.sample(&mut sample);
        sample
    }
}
