//! How many bytes of requests the daemon holds, in all and for each user.
//!
//! A request counts from the arrival of its bytes to its answer. A small one is free: their number is bounded by that of
//! the connections, and nobody's large requests keep them out.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use super::{access::Peer, limits::Limits};

/// Bytes of each connection that are not counted.
pub const FREE_BYTES: u64 = 64 << 10;

pub struct Held {
    limits: Limits,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    all: u64,
    /// Of ordinary users; none has 0.
    users: BTreeMap<u32, u64>,
}

/// What one request holds; gives it back when dropped.
pub struct Holding {
    held: Arc<Held>,
    /// `None`: root, or the user who mounted.
    user: Option<u32>,
    bytes: u64,
}

impl Held {
    pub fn new(limits: Limits) -> Arc<Held> {
        Arc::new(Held { limits, now: Mutex::default() })
    }

    /// For a request that is about to arrive.
    pub fn begin(self: &Arc<Held>, peer: &Peer) -> Holding {
        Holding { held: self.clone(), user: (!peer.privileged).then_some(peer.uid), bytes: 0 }
    }
}

impl Holding {
    /// Takes room for a request of so many bytes, as far as it has come; false: there is none.
    pub fn grow_to(&mut self, len: u64) -> bool {
        let limits = &self.held.limits;
        let more = len.saturating_sub(FREE_BYTES).saturating_sub(self.bytes);
        if more == 0 {
            return true;
        }
        let mut now = self.held.now.lock();
        if now.all + more > limits.held_bytes {
            return false;
        }
        if let Some(user) = self.user {
            let others = now.users.values().sum::<u64>();
            let own = now.users.get(&user).copied().unwrap_or(0);
            let for_users = limits.held_bytes - limits.held_bytes / 4;
            if own + more > limits.held_bytes_per_user || others + more > for_users {
                return false;
            }
            now.users.insert(user, own + more);
        }
        now.all += more;
        self.bytes += more;
        true
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut now = self.held.now.lock();
        now.all -= self.bytes;
        if let Some(user) = self.user
            && let Some(own) = now.users.get_mut(&user)
        {
            *own -= self.bytes;
            if *own == 0 {
                now.users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: no user, and not all of them together, can take the room of root and the mount's owner, nor of small requests.
    //! Method: requests that arrive until they are refused.
    use super::*;

    const MIB: u64 = 1 << 20;

    fn peer(uid: u32) -> Peer {
        Peer { pid: 1, uid, gid: uid, groups: Vec::new(), privileged: uid == 0 }
    }

    #[test]
    fn users_and_their_sum_are_bounded() {
        let limits = Limits { held_bytes: 16 * MIB, held_bytes_per_user: 5 * MIB, ..Limits::default() };
        let held = Held::new(limits);
        let mut all = Vec::new();
        let mut ask = |uid, len| {
            let mut holding = held.begin(&peer(uid));
            let room = holding.grow_to(len);
            all.push(holding);
            room
        };
        assert!(ask(1, 4 * MIB));
        assert!(!ask(1, 4 * MIB), "one user's bound");
        assert!(ask(1, FREE_BYTES), "a small request has room");
        assert!(ask(2, 4 * MIB));
        assert!(ask(3, 4 * MIB));
        assert!(!ask(4, 4 * MIB), "all users' bound");
        assert!(ask(4, FREE_BYTES));
        assert!(ask(0, 4 * MIB), "kept for root");
        assert!(!ask(0, 4 * MIB), "the bound of all");
        all.clear();
        let now = held.now.lock();
        assert_eq!((now.all, now.users.len()), (0, 0), "all is given back");
    }

    #[test]
    fn a_request_that_grows_counts_once() {
        let held = Held::new(Limits::default());
        let mut holding = held.begin(&peer(7));
        for len in 1..=32 {
            assert!(holding.grow_to(len * FREE_BYTES));
        }
        assert_eq!(held.now.lock().all, 31 * FREE_BYTES);
    }
}
