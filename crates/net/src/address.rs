//! Where a peer listens: `HOST:PORT`, or `unix:PATH`.

use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    path::PathBuf,
    str::FromStr,
    time::{Duration, Instant},
};

use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Address {
    /// A name or number, a colon, a port; an IPv6 number stands in brackets.
    Tcp(String),
    Unix(PathBuf),
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0:?} is no address: HOST:PORT or unix:/PATH is wanted")]
pub struct NoAddress(String);

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Address, NoAddress> {
        let wrong = || NoAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Address::Unix(path.into())) } else { Err(wrong()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').map_or(Some(host), |h| h.strip_suffix(']')).unwrap_or_default();
        let bracketed = bare.len() != host.len();
        if bare.is_empty() || (bare.contains(':') && !bracketed) || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        Ok(Address::Tcp(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(text) => f.write_str(text),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// The name or number, without brackets; what the certificate of who listens there is to have. None on this machine.
    pub(crate) fn host(&self) -> Option<&str> {
        match self {
            Address::Tcp(text) => {
                let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
                Some(host.trim_start_matches('[').trim_end_matches(']'))
            }
            Address::Unix(_) => None,
        }
    }

    /// Is it one of this machine, which is called `name`? A number is one if it can be bound here. No resolver is asked.
    pub fn is_here(&self, name: &str) -> bool {
        match self {
            Address::Unix(path) => path.exists(),
            Address::Tcp(text) => match text.parse::<SocketAddr>() {
                Ok(at) => !at.ip().is_unspecified() && UdpSocket::bind((at.ip(), 0)).is_ok(),
                Err(_) => self.host().is_some_and(|host| {
                    host == "localhost" || !name.is_empty() && host.eq_ignore_ascii_case(name)
                }),
            },
        }
    }

    fn resolve(&self) -> io::Result<Vec<SockAddr>> {
        match self {
            Address::Tcp(text) => Ok(text.to_socket_addrs()?.map(SockAddr::from).collect()),
            Address::Unix(path) => Ok(vec![SockAddr::unix(path)?]),
        }
    }

    /// Tries each of the address's numbers in turn, together not longer than `wait`. Asking the resolver for a name has its own bound.
    pub(crate) fn connect(&self, wait: Duration) -> io::Result<Socket> {
        let until = Instant::now() + wait;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.resolve()? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let socket = Socket::new(address.domain(), Type::STREAM, None)?;
            match socket.connect_timeout(&address, left) {
                Ok(()) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// A listening socket. The file of a Unix socket that nobody listens at any more is replaced.
    pub fn listen(&self, backlog: i32) -> io::Result<Socket> {
        let socket = self.bind()?;
        socket.listen(backlog)?;
        Ok(socket)
    }

    /// The same; the file of a Unix socket is its owner's alone before anybody can connect.
    pub(crate) fn listen_alone(&self, backlog: i32) -> io::Result<Socket> {
        use std::os::unix::fs::PermissionsExt;
        let socket = self.bind()?;
        if let Address::Unix(path) = self {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        }
        socket.listen(backlog)?;
        Ok(socket)
    }

    fn bind(&self) -> io::Result<Socket> {
        let address = self.resolve()?.into_iter().next();
        let address = address.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such name"))?;
        let socket = Socket::new(address.domain(), Type::STREAM, None)?;
        if address.domain() != Domain::UNIX {
            socket.set_reuse_address(true)?;
        }
        match socket.bind(&address) {
            Ok(()) => (),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && self.is_left_over() => {
                if let Address::Unix(path) = self {
                    std::fs::remove_file(path)?;
                }
                socket.bind(&address)?;
            }
            Err(error) => return Err(error),
        }
        Ok(socket)
    }

    fn is_left_over(&self) -> bool {
        use std::os::unix::{fs::FileTypeExt, net::UnixStream};
        match self {
            Address::Tcp(_) => false,
            Address::Unix(path) => {
                let is_socket = path.symlink_metadata().is_ok_and(|m| m.file_type().is_socket());
                let refused =
                    UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
                is_socket && refused
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_shown() {
        for good in ["node7:7400", "10.0.0.1:1", "[::1]:7400", "unix:/run/onfs/7.sock"] {
            assert_eq!(good.parse::<Address>().map(|a| a.to_string()), Ok(good.to_owned()));
        }
        let host = |text: &str| text.parse::<Address>().unwrap().host().map(str::to_owned);
        assert_eq!(host("node7:7400").as_deref(), Some("node7"));
        assert_eq!(host("[::1]:7400").as_deref(), Some("::1"));
        assert_eq!(host("unix:/run/7"), None);
        let here = |text: &str| text.parse::<Address>().unwrap().is_here("node7");
        for (text, expected) in [
            ("127.0.0.1:7", true),
            ("node7:7400", true),
            ("NODE7:1", true),
            ("localhost:1", true),
            ("unix:/", true),
            ("node8:7400", false),
            // For documentation: nobody's.
            ("192.0.2.1:7", false),
            ("0.0.0.0:7", false),
            ("unix:/no/such", false),
        ] {
            assert_eq!(here(text), expected, "{text}");
        }
        for bad in ["", "node7", ":7", "node:", "node:70000", "::1:7400", "[::1:7", "unix:", "unix:run"] {
            assert_eq!(bad.parse::<Address>(), Err(NoAddress(bad.to_owned())), "{bad}");
        }
    }
}
