//! How servers are spoken to by hand, over sockets and over TLS.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use net::{Address, Bounds, Channel, Credentials, Server, Tuning, connect, tls::Purpose};
use wire::handshake::Roles;

use crate::support::*;

pub fn raw(server: &Server) -> TcpStream {
    let Address::Tcp(address) = server.address() else { panic!("no TCP address") };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// A socket, or TLS on one.
pub trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// How the tests' servers are spoken to.
pub struct Site {
    pub ca: Option<Ca>,
}

impl Site {
    /// The same must hold for both.
    pub fn both() -> [Site; 2] {
        [Site { ca: None }, Site { ca: Some(Ca::new()) }]
    }

    pub fn server(&self, tuning: Tuning, bounds: Bounds) -> (Server, Arc<Methods>) {
        server_with(self.ca.as_ref().and_then(Ca::server), tuning, bounds)
    }

    /// As far as a stranger comes who has a certificate.
    pub fn stream(&self, server: &Server) -> Box<dyn Stream> {
        let Some(ca) = &self.ca else { return Box::new(raw(server)) };
        Box::new(tls_by_hand(raw(server), &ca.files("client1", Purpose::Client, YEAR)))
    }

    pub fn credentials(&self, node: u64, key: u8) -> Credentials {
        let mut credentials = credentials(node, key);
        if let Some(ca) = &self.ca {
            credentials.tls = ca.client();
            credentials.me.roles = Roles::CLIENT;
        }
        credentials
    }

    pub fn channel(&self, server: &Server) -> Channel {
        let nobody = Arc::new(Methods::default());
        connect(&server.address(), &self.credentials(2, 1), WISH, nobody, &tuning()).unwrap()
    }

    pub fn is_well(&self, server: &Server) {
        self.channel(server).call(call(ECHO)).expect("others are served");
    }
}

/// The peer ends the stream, in time; what it said until then.
pub fn ends(mut stream: impl Read) -> Vec<u8> {
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    let late = soon(Duration::from_secs(10));
    loop {
        assert!(Instant::now() < late, "the server holds on to it");
        match stream.read(&mut buffer) {
            Ok(0) => return said,
            Ok(len) => said.extend(&buffer[..len]),
            // Without a farewell of TLS, or with an alert, it has ended as well.
            Err(error) if ENDS.contains(&error.kind()) => return said,
            Err(error) => panic!("{error}"),
        }
    }
}

const ENDS: [ErrorKind; 3] = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof, ErrorKind::InvalidData];
