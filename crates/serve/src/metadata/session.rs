//! Sessions: who they are, what they have, and which of their operations were answered how.
//!
//! - I-SESSION-1: what a session refers to or has open is given back once, by itself or when it is given up.
//! - I-SESSION-2: an operation with a number is carried out once, as long as the session lives. (What was answered is in memory: the place for
//!   a durable record is the commit of the operation itself.)

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cluster::NodeId;
use lease::coherence::message::{Joined, Party};
use parking_lot::Mutex;
use proto::{Head, Reason, SessionId};
use types::{Errno, Ino};
use wire::schema::Retry;

use super::verdicts::Presence;
use crate::answer::{No, Outcome};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionLimits {
    pub sessions: usize,
    pub openings: usize,
    pub references: usize,
    /// Answers that are kept until they are acknowledged: as many operations may be under way.
    pub operations: usize,
    /// A session that asks nothing for so long is given up.
    pub silence: Duration,
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits {
            sessions: 4096,
            openings: 1 << 20,
            references: 4 << 20,
            operations: 1024,
            silence: Duration::from_secs(30),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opening {
    pub ino: Ino,
    pub write: bool,
}

/// What became of an operation.
enum Operation {
    UnderWay,
    Answered(Outcome),
}

#[derive(Default)]
struct Operations {
    /// All below are acknowledged.
    floor: u64,
    kept: BTreeMap<u64, Operation>,
}

#[derive(Default)]
pub(crate) struct Has {
    pub references: HashMap<Ino, u64>,
    pub openings: HashMap<u64, Opening>,
    /// It was given up while a request of its own was still under way: nothing is added.
    pub over: bool,
}

/// How far a session was told of what has no name ([`super::nameless`]).
#[derive(Default)]
pub(super) struct ToldNameless {
    pub behind: u64,
    /// The beginning of this round.
    pub began: Option<Instant>,
}

pub(crate) struct Session {
    pub id: SessionId,
    pub host: String,
    /// 0: none.
    node: AtomicU64,
    /// The scheduler's, if it said so.
    job: Mutex<String>,
    /// What the client calls itself on its connections.
    pub client: u64,
    began: Instant,
    /// Milliseconds since then.
    asked: AtomicU64,
    /// As which it was known by its coming.
    joined: Joined,
    /// That it is there has a durable record, and what that says that it may have.
    pub recorded: Mutex<Option<Presence>>,
    /// It asked something since that was last looked at.
    heard: AtomicBool,
    pub has: Mutex<Has>,
    /// In slots up to this number it said what it has: see `owners::bares`.
    brought: AtomicU64,
    pub(super) told_nameless: Mutex<ToldNameless>,
    operations: Mutex<Operations>,
}

/// May the operation be carried out, or was it?
pub(crate) enum Turn {
    First,
    Again(Outcome),
}

impl Session {
    pub(crate) fn new(by: Party, host: &str, (node, client): (u64, u64)) -> Session {
        Session {
            id: by.session,
            host: host.to_owned(),
            node: AtomicU64::new(node),
            job: Mutex::default(),
            client,
            began: Instant::now(),
            asked: AtomicU64::new(0),
            joined: by.joined,
            recorded: Mutex::default(),
            heard: AtomicBool::new(false),
            has: Mutex::default(),
            brought: AtomicU64::new(0),
            told_nameless: Mutex::default(),
            operations: Mutex::default(),
        }
    }

    /// For how long it is there, and asked nothing.
    pub(crate) fn times(&self) -> (Duration, Duration) {
        let since = self.began.elapsed();
        (since, since.saturating_sub(Duration::from_millis(self.asked.load(Ordering::Relaxed))))
    }

    /// The client's own node; 0: none.
    pub(crate) fn node(&self) -> u64 {
        self.node.load(Ordering::Relaxed)
    }

    /// A data server came to where the client is, or one is no more.
    pub(crate) fn is_at(&self, node: u64) {
        self.node.store(node, Ordering::Relaxed);
    }

    pub(crate) fn is_of_job(&self, job: &str) {
        job.clone_into(&mut self.job.lock());
    }

    fn job(&self) -> Option<String> {
        Some(self.job.lock().clone()).filter(|job| !job.is_empty())
    }

    pub(crate) fn party(&self) -> Party {
        Party { session: self.id, joined: self.joined }
    }

    pub(crate) fn brought(&self) -> u64 {
        self.brought.load(Ordering::Acquire)
    }

    pub(crate) fn has_brought(&self, up_to: u64) {
        self.brought.fetch_max(up_to, Ordering::AcqRel);
    }

    /// An operation with a number comes.
    pub(crate) fn begin(&self, head: &Head, kept_max: usize) -> Result<Turn, No> {
        let mut operations = self.operations.lock();
        if head.acknowledged > operations.floor {
            operations.floor = head.acknowledged;
            operations.kept = operations.kept.split_off(&head.acknowledged);
        }
        if head.number == 0 {
            return Ok(Turn::First);
        }
        match operations.kept.get(&head.number) {
            Some(Operation::Answered(outcome)) => return Ok(Turn::Again(outcome.clone())),
            Some(Operation::UnderWay) => return Err(No::later("it is being carried out")),
            None => (),
        }
        if head.number < operations.floor {
            let retry = Retry::Never;
            return Err(No::new(Errno::EIO, retry, Reason::AnswerGone, "the operation was acknowledged"));
        }
        if operations.kept.len() >= kept_max {
            return Err(No::later("as many answers as it keeps"));
        }
        operations.kept.insert(head.number, Operation::UnderWay);
        Ok(Turn::First)
    }

    /// What it came to. What was not even begun is no answer: it may be asked again.
    pub(crate) fn answered(&self, head: &Head, outcome: &Outcome) {
        if head.number == 0 {
            return;
        }
        let mut operations = self.operations.lock();
        let kept = match outcome {
            // Answers with bodies are of requests that change nothing.
            Ok(done) => done.body.is_empty(),
            Err(no) => !matches!(no.errno(), Errno::EAGAIN | Errno::EREMOTE),
        };
        if !kept || head.number < operations.floor {
            operations.kept.remove(&head.number);
        } else {
            operations.kept.insert(head.number, Operation::Answered(outcome.clone()));
        }
    }
}

impl Session {
    /// Answers that it may ask for again.
    pub(crate) fn kept(&self) -> Vec<(u64, Outcome)> {
        let operations = self.operations.lock();
        let answered = operations.kept.iter().filter_map(|(number, operation)| match operation {
            Operation::Answered(outcome) => Some((*number, outcome.clone())),
            Operation::UnderWay => None,
        });
        answered.collect()
    }

    /// Another server answered an operation of this session.
    pub(crate) fn learn(&self, number: u64, outcome: &Outcome) {
        let mut operations = self.operations.lock();
        if number >= operations.floor {
            operations.kept.entry(number).or_insert_with(|| Operation::Answered(outcome.clone()));
        }
    }
}

#[derive(Default)]
pub(crate) struct Sessions {
    table: Mutex<HashMap<SessionId, Arc<Session>>>,
}

impl Sessions {
    /// The session, made if it is not there. It has joined.
    pub(crate) fn mount(&self, by: Party, host: &str, (node, client): (u64, u64)) {
        let mut table = self.table.lock();
        if table.get(&by.session).is_some_and(|session| session.joined == by.joined) {
            return;
        }
        table.insert(by.session, Arc::new(Session::new(by, host, (node, client))));
    }

    /// The session that asks; it was heard of.
    pub(crate) fn asking(&self, head: Option<&Head>) -> Result<Arc<Session>, No> {
        let head = head.ok_or(proto::Bad::Missing("head"))?;
        let table = self.table.lock();
        let session = table.get(&head.session()).ok_or_else(No::session_gone)?;
        if head.joined != 0 && head.joined != session.joined.0 {
            return Err(No::session_gone());
        }
        session.heard.store(true, Ordering::Relaxed);
        session.asked.store(session.began.elapsed().as_millis() as u64, Ordering::Relaxed);
        Ok(session.clone())
    }

    pub(crate) fn remove(&self, id: SessionId) -> Option<Arc<Session>> {
        self.table.lock().remove(&id)
    }

    /// Nodes of the jobs that this node has a part of, with itself.
    pub(crate) fn with_jobs_of(&self, node: u64) -> BTreeSet<NodeId> {
        if node == 0 {
            return BTreeSet::new();
        }
        let table = self.table.lock();
        let on_it = table.values().filter(|session| session.node() == node);
        let jobs: BTreeSet<String> = on_it.filter_map(|session| session.job()).collect();
        if jobs.is_empty() {
            return BTreeSet::new();
        }
        let of_them = |session: &&Arc<Session>| session.job().is_some_and(|job| jobs.contains(&job));
        let nodes = table.values().filter(of_them).map(|session| session.node());
        nodes.filter(|node| *node != 0).map(NodeId).collect()
    }

    /// Those that asked something since this was asked last.
    pub(crate) fn take_heard(&self) -> Vec<Party> {
        let table = self.table.lock();
        let heard = table.values().filter(|session| session.heard.swap(false, Ordering::Relaxed));
        heard.map(|session| session.party()).collect()
    }

    /// Runs with those that are there and for how long each asked nothing; nobody is heard meanwhile.
    pub(crate) fn with_silence<R>(
        &self,
        run: impl FnOnce(&mut dyn Iterator<Item = (SessionId, Duration)>) -> R,
    ) -> R {
        let table = self.table.lock();
        run(&mut table.values().map(|session| (session.id, session.times().1)))
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        self.table.lock().get(&id).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.table.lock().values().cloned().collect()
    }
}
