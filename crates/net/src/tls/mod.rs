//! Mutual TLS 1.3 on TCP connections, with certificates of the cluster's own CA on both sides.
//!
//! What is verified: both certificates are signed by the CA in `ca`, and hold now; a server's has the host name or number by which it was
//! reached; and who says in the handshake behind it that it is a server has a certificate that is not for clients alone. A client's name is not
//! verified, only shown. The cluster key is proved as before, inside. No session is resumed: each connection verifies anew.
//!
//! The files are looked at again for each new connection and each hour, so a renewed certificate needs no restart; files that are wrong then
//! are said in the log, and what was good before is used on.

mod authority;
mod files;
mod stream;
mod trouble;
mod validity;

use std::{
    io::IoSlice,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection, pki_types::ServerName,
};
use wire::handshake::RolesTaken;

pub use authority::{AuthorityError, Purpose, Wanted, create_authority, sign};
pub use files::{TlsFileError, TlsFiles};
pub use trouble::TlsTrouble;
pub use validity::Validity;

pub(crate) use stream::TlsStream;
pub(crate) use trouble::begins_tls;

use crate::transport::{SocketStream, Transport};
use files::{Loaded, Stamp};

/// What who comes without TLS is told.
pub(crate) const WANTED: &str = "this node takes TLS only: set cluster.tls_ca_file, cluster.tls_certificate_file and \
                                 cluster.tls_key_file (onfs cluster certificate makes the files)";
/// How often a process that makes no connection looks at its files.
const LOOK: Duration = Duration::from_secs(3600);

/// What this process shows, and what it verifies others with.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stamp: Stamp,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    validity: Validity,
    warned: Option<Instant>,
    looked: Instant,
}

impl Tls {
    /// Reads the files. Certificates that do not hold now are an error.
    pub fn open(files: TlsFiles) -> Result<Arc<Tls>, TlsFileError> {
        let stamp = files.stamp();
        let Loaded { client, server, validity } = files.load(SystemTime::now())?;
        let mut state = State { stamp, client, server, validity, warned: None, looked: Instant::now() };
        state.warn(&files);
        Ok(Arc::new(Tls { files, state: Mutex::new(state) }))
    }

    /// Reads anew what has changed, and warns of an end that is near, both not more often than it is of use.
    pub(crate) fn look(&self) {
        let mut state = self.state.lock();
        if state.looked.elapsed() >= LOOK {
            self.renew(&mut state);
        }
    }

    fn renew(&self, state: &mut State) {
        state.looked = Instant::now();
        let stamp = self.files.stamp();
        if stamp != state.stamp {
            // Said once: the same files are wrong the next time, too.
            state.stamp = stamp;
            match self.files.load(SystemTime::now()) {
                Ok(Loaded { client, server, validity }) => {
                    (state.client, state.server, state.validity) = (client, server, validity);
                    state.warned = None;
                    tracing::info!(certificate = %self.files.certificate.display(), "new TLS files are used from now on");
                }
                Err(error) => tracing::warn!(%error, "the new TLS files are not used"),
            }
        }
        state.warn(&self.files);
    }

    /// A session with the host of an address.
    pub(crate) fn connect(
        &self,
        socket: SocketStream,
        host: &str,
        wait: Duration,
    ) -> Result<TlsStream, TlsTrouble> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| TlsTrouble::Theirs(format!("{host:?} can be the name of none")))?;
        let config = {
            let mut state = self.state.lock();
            self.renew(&mut state);
            state.client.clone()
        };
        let session = ClientConnection::new(config, name).map_err(TlsTrouble::Protocol)?;
        let mut session = Connection::from(session);
        let came = stream::shake(&socket, &mut session, wait)?;
        Ok(TlsStream::new(socket, session, came))
    }

    /// A session with who has connected. The socket comes back with an error, so that the peer can be told.
    pub(crate) fn accept(
        &self,
        socket: SocketStream,
        wait: Duration,
    ) -> Result<TlsStream, (TlsTrouble, SocketStream)> {
        let config = {
            let mut state = self.state.lock();
            self.renew(&mut state);
            state.server.clone()
        };
        let mut session = match ServerConnection::new(config) {
            Ok(session) => Connection::from(session),
            Err(error) => return Err((TlsTrouble::Protocol(error), socket)),
        };
        match stream::shake(&socket, &mut session, wait) {
            Ok(came) => Ok(TlsStream::new(socket, session, came)),
            Err(error) => Err((error, socket)),
        }
    }
}

impl State {
    fn warn(&mut self, files: &TlsFiles) {
        let Some(left) = self.validity.ends_soon(SystemTime::now()) else { return };
        if self.warned.is_some_and(|at| at.elapsed() < 24 * LOOK) {
            return;
        }
        self.warned = Some(Instant::now());
        let (days, certificate) = (days(left), files.certificate.display());
        tracing::warn!(%certificate, days, "a certificate ends soon, and no new connection is possible then: make a new one");
    }
}

/// What its certificate allows a peer to be. That it ends soon is said here, too: this log is read where the cluster is kept.
pub(crate) fn roles(stream: &TlsStream, from: &str) -> RolesTaken {
    let Some(certificate) = stream.peer_certificate() else { return RolesTaken::ClientOnly };
    if let Some(left) = Validity::of(&certificate).and_then(|v| v.ends_soon(SystemTime::now())) {
        tracing::warn!(from, days = days(left), "the certificate of a peer ends soon: make a new one");
    }
    if validity::is_for_servers(&certificate) { RolesTaken::All } else { RolesTaken::ClientOnly }
}

/// Tells somebody who has said nothing yet that there is no place, in the one word that TLS has for that.
pub(crate) fn turn_away(socket: &SocketStream) {
    let _ = socket.send(&[IoSlice::new(&trouble::BUSY_ALERT)], false);
    socket.close();
}

fn days(left: Duration) -> u64 {
    left.as_secs() / (24 * 3600)
}
