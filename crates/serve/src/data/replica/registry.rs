//! All objects of two copies that were asked for here, and the threads that work for them.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use cluster::{
    NodeId,
    replica::{Member, copy::Patience},
};
use net::{Credentials, Queue};
use parking_lot::Mutex;
use proto::{
    control::{NodeReport, NodeReported},
    data::Object,
};
use types::{Errno, Ino};

use super::{
    object::{Replica, World},
    peers::{Peers, Question},
    pieces::Pieces,
    words::Words,
};
use crate::answer::No;

/// A slow device or a loaded machine is not taken for one that is gone.
const SENT: Patience = Patience {
    again: Duration::from_millis(500),
    complain: Duration::from_secs(3),
    done: Duration::from_millis(20),
};
/// What waits to be sent or stored by nobody's own thread. What does not fit is done when it is due again.
const JOBS_MAX: usize = 4096;

/// What the threads do.
pub(super) enum Job {
    /// Something of it is to be sent or stored.
    Flush(Arc<Replica>),
    /// What one may do has changed.
    Wake,
    /// Another data server says that we do not have these any more.
    LeftOut(Member, Vec<Object>),
    Adopt(Object),
    Ask(Question),
}

pub(in crate::data) struct Registry {
    node: AtomicU64,
    pub(super) life: u64,
    pub(super) peers: Peers,
    pub(super) words: Words,
    replicas: Mutex<HashMap<Ino, Arc<Replica>>>,
    /// Those of which something is under way.
    pub(super) busy: Mutex<HashMap<Ino, Arc<Replica>>>,
    pub(super) jobs: Arc<Queue<Job>>,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    pub(super) pieces: Pieces,
    pub(super) copied: AtomicU64,
    pub(super) ends: AtomicBool,
}

impl Registry {
    pub fn new(rate: u64) -> io::Result<Registry> {
        let mut life = [0; 8];
        getrandom::fill(&mut life).map_err(io::Error::other)?;
        Ok(Registry {
            node: AtomicU64::new(0),
            life: u64::from_le_bytes(life) | 1,
            peers: Peers::new(),
            words: Words::default(),
            replicas: Mutex::default(),
            busy: Mutex::default(),
            jobs: Arc::new(Queue::new(JOBS_MAX)),
            threads: Mutex::default(),
            pieces: Pieces::new(rate),
            copied: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        })
    }

    /// With which it asks others. Without them it takes part in no second copies.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.node.store(credentials.me.node, Ordering::Release);
        self.peers.set_credentials(credentials);
    }

    pub(super) fn me(&self) -> Member {
        Member { node: NodeId(self.node.load(Ordering::Acquire)), life: self.life }
    }

    pub(super) fn world(&self) -> World<'_> {
        World {
            me: self.me(),
            patience: SENT,
            peers: &self.peers,
            words: &self.words,
            room: &self.pieces.room,
        }
    }

    /// A program reads or writes something here.
    pub fn is_used(&self) {
        self.pieces.is_used();
    }

    pub fn report(&self, about: &mut NodeReport) {
        if self.me().node == NodeId(0) {
            return;
        }
        about.life = self.life;
        about.copy_words = self.words.now();
        about.peers_epoch = self.peers.epoch();
        about.copied = self.copied.load(Ordering::Relaxed);
    }

    pub fn reported(&self, reported: &NodeReported) {
        self.peers.know(reported.map_epoch, &reported.peers);
    }

    pub(super) fn find(&self, ino: Ino) -> Option<Arc<Replica>> {
        self.replicas.lock().get(&ino).cloned()
    }

    pub(super) fn get_or_make(&self, object: &Object) -> Result<Arc<Replica>, No> {
        let ino = proto::attr::ino(object.ino)?;
        let world = self.world();
        if world.me.node == NodeId(0) {
            return Err(Errno::ENOSYS.into());
        }
        let mut replicas = self.replicas.lock();
        let replica = replicas.entry(ino).or_insert_with(|| Arc::new(Replica::new(*object, ino, &world)));
        if replica.object.generation != object.generation {
            return Err(No::moved());
        }
        Ok(replica.clone())
    }

    /// It has two copies, as far as anybody asked for it.
    pub fn has(&self, ino: Ino) -> bool {
        self.replicas.lock().contains_key(&ino)
    }

    /// It was removed.
    pub fn forget(&self, ino: Ino) {
        self.busy.lock().remove(&ino);
        self.words.forget(ino, u64::MAX);
        if let Some(replica) = self.replicas.lock().remove(&ino) {
            replica.changed.notify_all();
        }
    }

    pub(super) fn is_busy(&self, replica: &Arc<Replica>) {
        let is_new = self.busy.lock().insert(replica.ino, replica.clone()).is_none();
        if is_new {
            self.peers.wake();
        }
    }

    pub fn shutdown(&self) {
        self.ends.store(true, Ordering::Release);
        self.jobs.close();
        self.pieces.queue.close();
        self.peers.wake();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread that works for second copies ended with a panic");
            }
        }
    }
}
