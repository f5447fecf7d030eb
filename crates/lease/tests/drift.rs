//! Goal: in true time a client stops using what it has before somebody else may have it, whatever its clock and the server's do within the
//! bound. Method: both machines, each on a clock of its own, and messages that take no time, until the client hears and says nothing more.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::{collections::BTreeSet, time::Duration};

use cluster::tenure::{Terms, Time};
use lease::coherence::{
    client::{self, Client, ClientLimits},
    locks::LockLimits,
    message::{Had, Joined, Life, Party, Saying, Telling},
    rights::{Claim, Key, Rights},
    server::{self, Limits, Past, Server},
};
use proptest::prelude::*;
use proto::SessionId;
use types::Ino;

const HOUR: Duration = Duration::from_secs(3600);

fn terms(drift_one_in: u32) -> Terms {
    let ms = Duration::from_millis;
    Terms { lease: ms(1000), beat_every: ms(200), suspect_after: HOUR, drift_one_in }
}

/// Local time for true time.
#[derive(Clone, Copy)]
struct Clock(f64);

impl Clock {
    fn at(self, seconds: f64) -> Time {
        Duration::from_secs_f64(seconds * self.0)
    }

    fn truly(self, time: Time) -> f64 {
        time.as_secs_f64() / self.0
    }
}

struct Pair {
    server: Server,
    client: Client,
    clocks: (Clock, Clock),
    other: Party,
}

const SILENT: SessionId = SessionId(1);

impl Pair {
    /// Behind the grace, the client joined at 100 s and has all rights to the root.
    fn new(server_terms: Terms, clocks: (Clock, Clock)) -> Pair {
        let limits = Limits {
            terms: server_terms,
            silence: HOUR,
            recall: Duration::ZERO,
            rest: Duration::ZERO,
            sessions: 2,
            leases: 10,
            operations: 10,
            claims: 1,
            locks: LockLimits { locks: 0, session_locks: 0, waiters: 0 },
        };
        let past = Past { life: Life(1), from: Life(1), fenced: BTreeSet::new() };
        let mut server = Server::new(limits, past, Time::ZERO);
        server.handle_deadline(clocks.0.at(99.0));
        server.handle(clocks.0.at(99.0), server::Input::GraceEnded);
        let other = Party { session: SessionId(2), joined: Joined::default() };
        let join = Saying::Join { number: 1, life: Life(1), had: Had::default() };
        server.handle(clocks.0.at(99.0), server::Input::Said { by: other, saying: join });
        let mut joined = Joined::default();
        while let Some(effect) = server.poll_effect() {
            if let server::Effect::Tell { telling: Telling::Joined { joined: number, .. }, .. } = effect {
                joined = number;
            }
        }
        let limits = ClientLimits { terms: terms(2), stop_before: Time::ZERO, leases: 10, wants: 10 };
        let client = Client::new(limits, clocks.1.at(100.0));
        let other = Party { session: other.session, joined };
        let mut pair = Pair { server, client, clocks, other };
        (0..3).for_each(|_| pair.talk(100.0));
        let by = Party { session: SILENT, joined: pair.client.joined() };
        let claims = vec![(root(), Claim::Modify)];
        pair.server.handle(clocks.0.at(100.0), server::Input::Begin { by, operation: 1, claims });
        pair.client.handle(clocks.1.at(100.0), client::Input::Want { key: root(), rights: Rights::ALL });
        pair.talk(100.0);
        pair.server.handle(clocks.0.at(100.0), server::Input::End { by, operation: 1 });
        pair
    }

    /// What is due is said, and heard at once.
    fn talk(&mut self, seconds: f64) {
        let (server_now, client_now) = (self.clocks.0.at(seconds), self.clocks.1.at(seconds));
        self.client.handle_deadline(client_now);
        while let Some(effect) = self.client.poll_effect() {
            let (joined, saying) = match effect {
                client::Effect::Say { joined, saying } => (joined, saying),
                client::Effect::Join { before, number, life, .. } => {
                    (before, Saying::Join { number, life, had: Had::default() })
                }
                _ => continue,
            };
            let by = Party { session: SILENT, joined };
            self.server.handle(server_now, server::Input::Said { by, saying });
            while let Some(effect) = self.server.poll_effect() {
                if let server::Effect::Tell { to: SILENT, telling } = effect {
                    self.client.handle(client_now, client::Input::Told(telling));
                }
            }
        }
    }

    /// The client is not heard any more, and another wants to change what it has. When, truly, does that begin?
    fn other_begins(&mut self, seconds: f64) -> f64 {
        let mut now = self.clocks.0.at(seconds);
        let (by, claims) = (self.other, vec![(root(), Claim::Modify)]);
        self.server.handle(now, server::Input::Begin { by, operation: 1, claims });
        loop {
            while let Some(effect) = self.server.poll_effect() {
                match effect {
                    server::Effect::Fence(session) => self.server.handle(now, server::Input::Fenced(session)),
                    server::Effect::Begun { .. } => return self.clocks.0.truly(now),
                    _ => (),
                }
            }
            now = now.max(self.server.next_deadline().unwrap());
            self.server.handle_deadline(now);
        }
    }
}

fn root() -> Key {
    Key::Inode(Ino::ROOT)
}

/// When the client stops, and when the other begins.
fn times(server_terms: Terms, clocks: (Clock, Clock), heard_for: f64, wants_after: f64) -> (f64, f64) {
    let mut pair = Pair::new(server_terms, clocks);
    let mut seconds = 100.0;
    while seconds < 100.0 + heard_for {
        seconds += 0.05;
        pair.talk(seconds);
    }
    assert_eq!(pair.client.may(clocks.1.at(seconds), &root()), Rights::ALL);
    let stops = clocks.1.truly(pair.client.may_until().unwrap());
    (stops, pair.other_begins(seconds + wants_after))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_client_stops_first(n in 2..200u32, client in -1.0..=1.0f64, server in -1.0..=1.0f64, heard in 0.0..2.0f64, after in 0.0..3.0f64) {
        let clock = |part: f64| Clock(1.0 + part / f64::from(n));
        let (stops, begins) = times(terms(n), (clock(server), clock(client)), heard, after);
        // The slack is for the rounding of this sum.
        prop_assert!(stops <= begins * (1.0 + 1e-12), "{stops} {begins}");
    }
}

/// Goal: the test above sees something. Method: a server that believes that all clocks go as its own does.
#[test]
fn without_the_drift_the_client_is_late() {
    let (stops, begins) = times(terms(1_000_000), (Clock(1.05), Clock(0.95)), 0.5, 0.0);
    assert!(stops > begins, "{stops} {begins}");
}
