//! Telling a supervisor (systemd, `Type=notify`) how the daemon in the foreground goes: one datagram to the socket that
//! NOTIFY_SOCKET names. Without one nothing happens, and nothing here can fail the daemon.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

pub(super) const READY: &str = "READY=1";

pub(super) fn tell(what: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&name, what) {
        tracing::warn!(%error, "the supervisor was not told {what}");
    }
}

fn send(name: &OsStr, what: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    //! Goal: the datagram arrives, at a path and at an abstract name. Method: a socket of each sort.
    use super::*;

    #[test]
    fn the_supervisor_hears_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        let mut buf = [0; 32];
        let n = socket.recv(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"READY=1");

        let name = format!("onfs-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), READY).unwrap();
        let n = socket.recv(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"READY=1");
        assert!(send(OsStr::new("/nowhere/socket"), READY).is_err());
    }
}
