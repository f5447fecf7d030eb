//! The daemon's end: who is let in, and one thread for each connection.

use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    access::Peer,
    frame::{Answer, AnswerBody, write_frame},
    held::Held,
    limits::Limits,
    message::{ControlError, ControlHandler, ErrorCode, VERSION},
    peer::peer_of,
    seldom::Lines,
    session::Session,
    socket,
};

/// What the server needs to know.
pub struct ServerOptions {
    pub socket: PathBuf,
    /// Other users may connect; what they may do is checked per request.
    pub open_to_all: bool,
    /// Privileged besides root: the user who mounted.
    pub owner_uid: u32,
    pub limits: Limits,
}

/// A listening server. [`Server::stop`] ends it; dropping it leaves its threads to the process's end.
pub struct Server {
    shared: Arc<Shared>,
    stop: OwnedFd,
    acceptor: JoinHandle<()>,
}

struct Shared {
    options: ServerOptions,
    handler: Arc<dyn ControlHandler>,
    connections: Mutex<Connections>,
    left: Condvar,
    held: Arc<Held>,
    lines: Lines,
}

#[derive(Default)]
struct Connections {
    next: u64,
    stopping: bool,
    open: BTreeMap<u64, Open>,
}

struct Open {
    /// For shutting down the reading side at the end.
    stream: UnixStream,
    /// `None`: root, or the user who mounted.
    user: Option<u32>,
}

impl Connections {
    /// Why there is no place for one more connection of `user`.
    fn refusal(&self, limits: &Limits, user: Option<u32>) -> Option<&'static str> {
        if self.stopping {
            return Some("the daemon is about to end");
        }
        let users = self.open.values().filter_map(|open| open.user);
        let full = "too many commands at the same time: try again";
        match user {
            _ if self.open.len() >= limits.connections => Some(full),
            Some(user) if users.clone().filter(|one| *one == user).count() >= limits.connections_per_user => {
                Some("too many commands of one user at the same time: try again when one of them has ended")
            }
            Some(_) if users.count() >= limits.connections.saturating_sub(limits.connections_kept) => {
                Some(full)
            }
            Some(_) | None => None,
        }
    }
}

impl Server {
    /// Binds the socket (replacing a dead one: the caller holds the state's lock) and starts to listen.
    pub fn start(options: ServerOptions, handler: Arc<dyn ControlHandler>) -> io::Result<Server> {
        let listener = socket::bind(&options.socket)?;
        let mode = if options.open_to_all { 0o666 } else { 0o600 };
        std::fs::set_permissions(&options.socket, std::fs::Permissions::from_mode(mode))?;
        listener.set_nonblocking(true)?;
        let (stopped, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let shared = Arc::new(Shared {
            held: Held::new(options.limits),
            options,
            handler,
            connections: Mutex::default(),
            left: Condvar::new(),
            lines: Lines::default(),
        });
        let acceptor = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("control".into())
                .spawn(move || accept_loop(&shared, &listener, &stopped))?
        };
        Ok(Server { shared, stop, acceptor })
    }

    pub fn socket(&self) -> &Path {
        &self.shared.options.socket
    }

    /// Takes no more connections and requests, and waits for the running ones until `patience` has passed.
    /// Removes the socket. False when a request was still running.
    pub fn stop(self, patience: Duration) -> bool {
        drop(self.stop);
        let _ = self.acceptor.join();
        let _ = std::fs::remove_file(&self.shared.options.socket);
        let end = Instant::now() + patience;
        let mut connections = self.shared.connections.lock();
        connections.stopping = true;
        for open in connections.open.values() {
            let _ = open.stream.shutdown(std::net::Shutdown::Read);
        }
        while !connections.open.is_empty() {
            if self.shared.left.wait_until(&mut connections, end).timed_out() {
                return connections.open.is_empty();
            }
        }
        true
    }
}

fn accept_loop(shared: &Arc<Shared>, listener: &UnixListener, stopped: &OwnedFd) {
    loop {
        let mut fds =
            [PollFd::new(listener, PollFlags::IN), PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "the control socket cannot be polled; commands will not work");
                return;
            }
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => admit(shared, stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // Out of descriptors, most likely. Pause, so that the loop does not spin.
                if let Some(left_out) = shared.lines.not_accepted.due(Instant::now()) {
                    tracing::warn!(%error, left_out, "a control connection could not be accepted");
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Gives the connection a thread, or refuses it when there are too many.
fn admit(shared: &Arc<Shared>, stream: UnixStream) {
    let dropped = |error: io::Error| tracing::warn!(%error, "a control connection was dropped");
    let peer = match stream.set_nonblocking(false).and_then(|()| peer_of(&stream, shared.options.owner_uid)) {
        Ok(peer) => peer,
        Err(error) => return dropped(error),
    };
    let id = match register(shared, &peer, &stream) {
        Ok(Ok(id)) => id,
        Ok(Err(why)) => {
            shared.lines.refusal(&peer, why);
            return refuse(stream, why);
        }
        Err(error) => return dropped(error),
    };
    let thread = {
        let shared = shared.clone();
        std::thread::Builder::new().name("control-conn".into()).spawn(move || {
            serve(&shared, peer, &stream);
            leave(&shared, id);
        })
    };
    if let Err(error) = thread {
        tracing::warn!(%error, "no thread for a control connection");
        leave(shared, id);
    }
}

/// The connection's number, or why it has no place.
fn register(shared: &Shared, peer: &Peer, stream: &UnixStream) -> io::Result<Result<u64, &'static str>> {
    let user = (!peer.privileged).then_some(peer.uid);
    let mut connections = shared.connections.lock();
    if let Some(why) = connections.refusal(&shared.options.limits, user) {
        return Ok(Err(why));
    }
    let id = connections.next;
    connections.next += 1;
    connections.open.insert(id, Open { stream: stream.try_clone()?, user });
    Ok(Ok(id))
}

fn leave(shared: &Shared, id: u64) {
    shared.connections.lock().open.remove(&id);
    shared.left.notify_all();
}

fn refuse(mut stream: UnixStream, why: &str) {
    let error = ControlError::new(ErrorCode::Busy, why);
    // Fits into the buffer of a new connection: nobody waits.
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = write_frame(&mut stream, &Answer { version: VERSION, body: AnswerBody::Error(error) });
}

fn serve(shared: &Shared, peer: Peer, stream: &UnixStream) {
    let handler = &*shared.handler;
    let (limits, held, lines) = (shared.options.limits, &shared.held, &shared.lines);
    Session { peer, handler, limits, held, lines }.run(stream);
}
