//! Goal: who comes beyond the bounds is refused at no cost. Method: thousands of connections. It counts the threads of its process, so no other test is here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "tests")]

#[path = "support/site.rs"]
mod site;
mod support;

use std::{net::TcpStream, sync::Arc, time::Duration};

use net::{Bounds, ConnectError, Tuning, connect, tls::TlsTrouble};
use site::*;
use support::*;

#[test]
fn connections_beyond_the_bounds_are_refused_by_the_thousand() {
    for site in Site::both() {
        let bounds = Bounds { connections: 20, strangers: 8 };
        let (server, _) = site.server(Tuning { connect_wait: Duration::from_secs(60), ..tuning() }, bounds);
        let kept: Vec<_> = (0..10).map(|_| site.channel(&server)).collect();
        // Who was answered is a stranger no more.
        for channel in &kept {
            channel.call(call(ECHO)).expect("who is in is served");
        }
        // Nobody is let go meanwhile because he says nothing. 10 places are left, 8 of them for strangers; who has none is told so.
        let silent: Vec<TcpStream> = (0..8).map(|_| raw(&server)).collect();
        let nobody = || Arc::new(Methods::default());
        until("the strangers' places are taken", || {
            let refused = connect(&server.address(), &site.credentials(2, 1), WISH, nobody(), &tuning());
            match refused {
                Err(ConnectError::Handshake(error)) => error.may_pass(),
                Err(ConnectError::Tls(trouble)) => matches!(trouble, TlsTrouble::Busy),
                _ => false,
            }
        });
        let before = threads();
        let mut streams = Vec::new();
        for n in 0..2000 {
            streams.push(raw(&server));
            if n % 100 == 99 {
                for stream in streams.drain(..) {
                    ends(stream);
                }
            }
        }
        assert!(threads() <= before + 8, "{} threads, {before} before", threads());
        for channel in &kept {
            channel.call(call(ECHO)).expect("who is in is served");
        }
        drop(silent);
        until("there is room again", || {
            connect(&server.address(), &site.credentials(2, 1), WISH, nobody(), &tuning()).is_ok()
        });
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}
