//! What the lanes to one server know of each other: it may answer on one while another one still waits before it tries to connect again.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// How many answers came over all of them.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<AtomicU64>);

impl Heard {
    pub(crate) fn hear(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{os::unix::net::UnixListener, time::Duration};

    use net::{Address, Bounds, Credentials, Handler, Incoming, Reply, Server, Tuning};
    use prost::Message;
    use proto::control::{Facts, Hello};
    use wire::{
        connection::{Answer, Window},
        frame::{Body, Verdict},
        handshake::{Identity, Roles, Versions, Wish},
        key::ClusterKey,
        schema::Lane,
    };

    use super::*;
    use crate::line::{Common, Line, ask_at};

    /// Says who it is.
    struct Says;

    impl Handler for Says {
        fn asked(&self, _: Incoming, reply: Reply) {
            let facts = Facts { node: 1, ..Facts::default() };
            let meta = facts.encode_to_vec().into();
            reply.answer(Answer { verdict: Verdict::Done, meta, body: Body::default(), epoch: 0 }).unwrap();
        }
    }

    fn credentials(node: u64) -> Credentials {
        let me = Identity {
            cluster: [1; 16],
            node,
            roles: Roles::MDS,
            build: "test".into(),
            versions: Versions::OURS,
            takes: Window::default(),
        };
        Credentials { me, key: ClusterKey::new([1; 32]), tls: None }
    }

    /// Goal: a server that is there again is reached over each lane as soon as it was heard over one. Method: one that takes connections and drops
    /// them, until a lane waits for more than a second and a half before it tries again; how long a call may wait is less.
    #[test]
    fn regression_who_is_heard_on_one_lane_is_not_away_on_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let address: Address = format!("unix:{}", path.display()).parse().unwrap();
        let common = Common { credentials: credentials(2), tuning: Tuning::default(), meter: Arc::default() };
        let heard = Heard::default();
        let lane =
            |lane| Line::beside(&heard, std::slice::from_ref(&address), Wish { lane, node: None }, &common);
        let (control, metadata) = (lane(Lane::Control), lane(Lane::Metadata));
        let listener = UnixListener::bind(&path).unwrap();
        let dropped = Arc::new(AtomicU64::new(0));
        let count = dropped.clone();
        let dropper = std::thread::spawn(move || {
            // The pauses are 50 ms, and twice as long each time, or half of that.
            while count.fetch_add(1, Ordering::AcqRel) < 7 {
                drop(listener.accept().unwrap());
            }
        });
        while dropped.load(Ordering::Acquire) < 8 {
            assert!(ask_at(&control, &Hello {}, Duration::from_millis(100)).is_err());
        }
        dropper.join().unwrap();
        assert!(control.away().is_some());
        std::fs::remove_file(&path).unwrap();
        let (says, bounds) = (Arc::new(Says), Bounds::default());
        let _server = Server::start(&address, credentials(1), says, Tuning::default(), bounds).unwrap();
        assert!(ask_at(&control, &Hello {}, Duration::from_millis(100)).is_err(), "it waits");
        let patience = Duration::from_secs(1);
        ask_at(&metadata, &Hello {}, patience).unwrap();
        assert_eq!(ask_at(&control, &Hello {}, patience).unwrap().0.node, 1);
        assert!(control.away().is_none());
    }
}
