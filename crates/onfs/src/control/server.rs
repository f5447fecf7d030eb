//! The daemon's end: one thread per connection, a bound on connections, and signs of life while a request runs.

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
    access::{Peer, groups_of_status},
    frame::{Answer, AnswerBody, write_frame},
    message::{ControlError, ControlHandler, ErrorCode, VERSION},
    session::{Limits, Session},
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
}

#[derive(Default)]
struct Connections {
    next: u64,
    stopping: bool,
    /// For shutting down the reading side at the end.
    open: BTreeMap<u64, UnixStream>,
}

impl Server {
    /// Binds the socket (replacing a dead one: the caller holds the state's lock) and starts to listen.
    pub fn start(options: ServerOptions, handler: Arc<dyn ControlHandler>) -> io::Result<Server> {
        let listener = socket::bind(&options.socket)?;
        let mode = if options.open_to_all { 0o666 } else { 0o600 };
        std::fs::set_permissions(&options.socket, std::fs::Permissions::from_mode(mode))?;
        listener.set_nonblocking(true)?;
        let (stopped, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let shared =
            Arc::new(Shared { options, handler, connections: Mutex::default(), left: Condvar::new() });
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
        for stream in connections.open.values() {
            let _ = stream.shutdown(std::net::Shutdown::Read);
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
                tracing::warn!(%error, "a control connection could not be accepted");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Gives the connection a thread, or refuses it when there are too many.
fn admit(shared: &Arc<Shared>, stream: UnixStream) {
    let registered = (|| -> io::Result<Option<u64>> {
        stream.set_nonblocking(false)?;
        let mut connections = shared.connections.lock();
        if connections.stopping || connections.open.len() >= shared.options.limits.connections {
            return Ok(None);
        }
        let id = connections.next;
        connections.next += 1;
        connections.open.insert(id, stream.try_clone()?);
        Ok(Some(id))
    })();
    let id = match registered {
        Ok(Some(id)) => id,
        Ok(None) => return refuse(stream),
        Err(error) => return tracing::warn!(%error, "a control connection was dropped"),
    };
    let thread = {
        let shared = shared.clone();
        std::thread::Builder::new().name("control-conn".into()).spawn(move || {
            serve(&shared, stream);
            leave(&shared, id);
        })
    };
    if let Err(error) = thread {
        tracing::warn!(%error, "no thread for a control connection");
        leave(shared, id);
    }
}

fn leave(shared: &Shared, id: u64) {
    shared.connections.lock().open.remove(&id);
    shared.left.notify_all();
}

fn refuse(mut stream: UnixStream) {
    let error = ControlError::new(ErrorCode::Busy, "too many commands at the same time: try again");
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = write_frame(&mut stream, &Answer { version: VERSION, body: AnswerBody::Error(error) });
}

fn serve(shared: &Shared, stream: UnixStream) {
    match peer_of(&stream, shared.options.owner_uid) {
        Ok(peer) => {
            let session = Session { peer, handler: &*shared.handler, limits: shared.options.limits };
            session.run(stream);
        }
        Err(error) => tracing::warn!(%error, "a control connection without credentials was dropped"),
    }
}

fn peer_of(stream: &UnixStream, owner_uid: u32) -> io::Result<Peer> {
    let cred = rustix::net::sockopt::socket_peercred(stream)?;
    let (pid, uid, gid) = (cred.pid.as_raw_nonzero().get(), cred.uid.as_raw(), cred.gid.as_raw());
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let privileged = uid == 0 || uid == owner_uid;
    Ok(Peer { pid, uid, gid, groups: groups_of_status(&status), privileged })
}
