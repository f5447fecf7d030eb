//! A listener: takes connections up to a bound, lets peers prove themselves, and runs each on a thread of its own.

use std::{
    collections::BTreeMap,
    io, panic,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockAddr, Socket};
use wire::{
    frame::Limits,
    handshake::{Handshake, RolesTaken},
    schema::Reason,
};

use crate::{
    address::Address,
    channel::{Channel, Tuning},
    client::Credentials,
    greet::{ConnectError, greet, turn_away},
    hatch::{self, Hatch},
    newest::{Newest, Turn},
    reader::Handler,
    tls::{self, Tls, TlsTrouble},
    transport::{SocketStream, Transport},
};

/// How often the listener looks whether it shall end, and how long it rests when there are no descriptors.
const TICK: Duration = Duration::from_millis(200);

/// How many at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub connections: usize,
    /// Of those who have not proved themselves yet: what strangers can hold, for the time of a handshake.
    pub strangers: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { connections: 4096, strangers: 64 }
    }
}

struct Shared {
    credentials: Credentials,
    handler: Arc<dyn Handler>,
    tuning: Tuning,
    bounds: Bounds,
    ending: AtomicBool,
    strangers: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    newest: Arc<Newest>,
    /// By the numbers of their marks.
    channels: Mutex<BTreeMap<u64, Arc<Channel>>>,
}

/// Where somebody came in.
#[derive(Clone)]
enum Way {
    /// With the credentials' TLS, if they have one.
    Tcp,
    Unix,
    /// A second way, for clients on this machine: see [`Server::also_at`].
    Near(Arc<dyn Hatch>),
}

/// One that listens.
struct Listener {
    address: SockAddr,
    thread: Option<JoinHandle<()>>,
}

/// Ends with all its connections when it is dropped; [`Server::close`] ends them in order.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
}

/// One of a bounded number.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(of: &Arc<AtomicUsize>, most: usize) -> Option<Place> {
        let taken = of.fetch_update(SeqCst, SeqCst, |n| (n < most).then_some(n + 1));
        taken.is_ok().then(|| Place(of.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Server {
    pub fn start(
        address: &Address,
        credentials: Credentials,
        handler: Arc<dyn Handler>,
        tuning: Tuning,
        bounds: Bounds,
    ) -> io::Result<Server> {
        let socket = address.listen(1024)?;
        let shared = Arc::new(Shared {
            credentials,
            handler,
            tuning,
            bounds,
            ending: AtomicBool::new(false),
            strangers: Arc::default(),
            connections: Arc::default(),
            newest: Arc::default(),
            channels: Mutex::default(),
        });
        let mut server = Server { shared, listeners: Vec::new() };
        server.listen(socket, if address.host().is_some() { Way::Tcp } else { Way::Unix })?;
        Ok(server)
    }

    /// Listens for clients on this machine, too, at a Unix socket that only its owner opens. Connections of both ways take each other's place.
    pub fn also_at(&mut self, path: &Path, hatch: Arc<dyn Hatch>) -> io::Result<()> {
        let socket = Address::Unix(path.into()).listen_alone(1024)?;
        self.listen(socket, Way::Near(hatch))
    }

    fn listen(&mut self, socket: Socket, way: Way) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let (address, shared) = (socket.local_addr()?, self.shared.clone());
        let thread = thread::Builder::new().name("net-listen".into());
        let thread = thread.spawn(move || listen(&shared, &socket, &way))?;
        self.listeners.push(Listener { address, thread: Some(thread) });
        Ok(())
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> Address {
        let first = self.listeners.first().map(|listener| &listener.address);
        match first.and_then(SockAddr::as_socket) {
            Some(tcp) => Address::Tcp(tcp.to_string()),
            None => Address::Unix(first.and_then(SockAddr::as_pathname).unwrap_or(Path::new("")).into()),
        }
    }

    /// Connections whose peers have proved themselves.
    pub fn connections(&self) -> usize {
        self.shared.channels.lock().len()
    }

    /// The newest connection of a node, over which it can be asked.
    pub fn channel_of(&self, node: u64) -> Option<Arc<Channel>> {
        self.shared.channels.lock().values().rfind(|c| c.peer().node == node && c.is_open()).cloned()
    }

    /// Takes no more, and ends all connections in order; those that do not end within `wait` are cut.
    pub fn close(mut self, wait: Duration) {
        let until = Instant::now() + wait;
        self.stop();
        let channels: Vec<Arc<Channel>> = self.shared.channels.lock().values().cloned().collect();
        // First all are told, then each is waited for.
        for channel in &channels {
            channel.close(Duration::ZERO);
        }
        for channel in &channels {
            channel.close(until.saturating_duration_since(Instant::now()));
        }
    }

    fn stop(&mut self) {
        self.shared.ending.store(true, SeqCst);
        for listener in &mut self.listeners {
            if let Some(thread) = listener.thread.take()
                && let Err(payload) = thread.join()
            {
                panic::resume_unwind(payload);
            }
            if let Some(path) = listener.address.as_pathname() {
                // A later start would remove it as well.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.listeners.iter().any(|listener| listener.thread.is_some()) {
            self.stop();
        }
        // The reader threads hold the links; without the channels they end.
        let channels = std::mem::take(&mut *self.shared.channels.lock());
        for channel in channels.values() {
            channel.cut();
        }
    }
}

fn listen(shared: &Arc<Shared>, socket: &Socket, way: &Way) {
    let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
    while !shared.ending.load(SeqCst) {
        if let Some(tls) = &shared.credentials.tls {
            tls.look();
        }
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&tick)), Ok(1)) {
            continue;
        }
        match socket.accept() {
            Ok((stream, from)) => admit(shared, stream, shown(&from), way.clone()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(error) => {
                // Who gave up already, or no descriptors: the others wait in the kernel's queue.
                tracing::warn!(%error, "cannot take a connection");
                thread::sleep(TICK);
            }
        }
    }
}

/// Where a peer comes from, for the log.
fn shown(from: &SockAddr) -> String {
    from.as_socket().map_or_else(|| "this machine".to_owned(), |tcp| tcp.to_string())
}

/// Gives a stream a thread, if there is a place.
fn admit(shared: &Arc<Shared>, stream: Socket, from: String, way: Way) {
    let socket = match SocketStream::new(stream, shared.tuning.waits()) {
        Ok(socket) => socket,
        Err(error) => return tracing::debug!(%error, "a connection was gone at once"),
    };
    let stranger = Place::take(&shared.strangers, shared.bounds.strangers);
    let connection = Place::take(&shared.connections, shared.bounds.connections);
    let (Some(stranger), Some(connection)) = (stranger, connection) else {
        return match shared.tls(&way) {
            Some(_) => tls::turn_away(&socket),
            None => turn_away(&socket, Reason::Busy, "as many connections as it takes"),
        };
    };
    let for_thread = shared.clone();
    let served = thread::Builder::new()
        .name("net-serve".into())
        .spawn(move || serve(&for_thread, socket, (&from, &way), stranger, connection));
    if let Err(error) = served {
        tracing::warn!(%error, "no thread for a connection");
    }
}

impl Shared {
    /// One that is not there yet looks at its mark when it is.
    fn cut(&self, number: u64) {
        let before = self.channels.lock().get(&number).cloned();
        if let Some(before) = before {
            tracing::debug!(peer = before.peer().node, "a newer connection takes the place of an older one");
            before.cut();
        }
    }

    fn tls(&self, way: &Way) -> Option<&Arc<Tls>> {
        self.credentials.tls.as_ref().filter(|_| matches!(way, Way::Tcp))
    }

    /// The stream as it goes on, and what its peer may be. `None`: it was turned away.
    fn secure(
        &self,
        socket: SocketStream,
        (from, way): (&str, &Way),
    ) -> Option<(Box<dyn Transport>, RolesTaken)> {
        if let Way::Near(hatch) = way {
            if hatch::is_asked(socket.socket(), self.tuning.connect_wait) {
                if let Err(error) = hatch::serve(socket.socket(), hatch.as_ref()) {
                    tracing::debug!(%error, "a descriptor was not handed out");
                }
                return None;
            }
            return Some((Box::new(socket), RolesTaken::ClientOnly));
        }
        let Some(tls) = self.tls(way) else { return Some((Box::new(socket), RolesTaken::All)) };
        match tls.accept(socket, self.tuning.connect_wait) {
            Ok(stream) => {
                let roles = tls::roles(&stream, from);
                Some((Box::new(stream), roles))
            }
            Err((error, socket)) => {
                tracing::warn!(from, %error, "a peer was refused");
                if let TlsTrouble::Plain = error {
                    turn_away(&socket, Reason::Tls, tls::WANTED);
                } else {
                    socket.close();
                }
                None
            }
        }
    }
}

fn serve(
    shared: &Shared,
    socket: SocketStream,
    (from, way): (&str, &Way),
    stranger: Place,
    connection: Place,
) {
    let begun = Instant::now();
    let Some((transport, roles)) = shared.secure(socket, (from, way)) else { return };
    let mut turn = Turn::new(&shared.newest, matches!(way, Way::Near(_)));
    let greeted = crate::random().map_err(ConnectError::from).and_then(|nonce| {
        let me = shared.credentials.identity(&shared.tuning);
        let handshake = Handshake::respond(me, shared.credentials.key.clone(), nonce).takes(roles);
        let limits: Limits = shared.tuning.limits;
        let left = shared.tuning.connect_wait.saturating_sub(begun.elapsed());
        greet(transport.as_ref(), handshake, limits, left, |session| {
            if let Some(before) = turn.take(session) {
                shared.cut(before);
            }
        })
    });
    drop(stranger);
    let greeted = match greeted {
        Ok(greeted) => greeted,
        Err(error) => {
            tracing::warn!(from, %error, "a peer was refused");
            if let ConnectError::OnlyTls = error {
                return turn_away(transport.as_ref(), Reason::Tls, "this node speaks without TLS");
            }
            return transport.close();
        }
    };
    // A session that was agreed on has one.
    let Some(mark) = &turn.mark else { return };
    match Channel::start(transport, greeted, shared.handler.clone(), &shared.tuning, mark.clone()) {
        Ok((channel, reader)) => {
            let channel = Arc::new(channel);
            shared.channels.lock().insert(mark.number, channel.clone());
            if shared.ending.load(SeqCst) || mark.is_superseded() {
                channel.cut();
            }
            reader();
            shared.channels.lock().remove(&mark.number);
        }
        Err(error) => tracing::warn!(%error, "no thread for a connection"),
    }
    drop(connection);
}
