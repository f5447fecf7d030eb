//! Keeping the session at the metadata servers: each hears by itself that it is there, whatever holds up what is asked of another.
//!
//! - I-RENEW-1: no renewal waits for another server, for a recovery or for what the mount gives back. What a renewal finds to be done (the session is to come
//!   back, or to say what it has) is done by another thread, one for each server, while renewals go on.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, atomic::Ordering},
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use proto::{Head, Reason, control};
use wire::frame::Body;

use crate::{
    Remote,
    duty::SLICE,
    finding::ask_line,
    held::Source,
    homes::{Came, Home, TELL},
    line::{Stop, Waits},
    routing::Lost,
    session::Session,
};

/// What is to be done for the session at a server.
enum Mend {
    /// It does not know it any more.
    Recover(Arc<Session>, Source),
    /// It took slots without what the session has there.
    Bring(Arc<Session>),
}

/// What a renewal came to.
#[derive(Default)]
struct Renewed {
    /// The own node that was told.
    told: Option<u64>,
    mend: Option<Mend>,
}

/// Of one server.
struct Task {
    renewed: Instant,
    told: u64,
    renewing: Option<JoinHandle<Renewed>>,
    mending: Option<JoinHandle<()>>,
}

/// The thread that does so, until the mount ends.
fn keep_homes(remote: &Weak<Remote>) {
    let mut tasks: BTreeMap<u64, Task> = BTreeMap::new();
    loop {
        let Some(remote) = remote.upgrade() else { return };
        if remote.pause() {
            break;
        }
        remote.tend_homes(&mut tasks);
    }
    for task in tasks.into_values() {
        let renewing = task.renewing.is_some_and(|thread| thread.join().is_err());
        if task.mending.is_some_and(|thread| thread.join().is_err()) || renewing {
            tracing::error!("a thread that keeps the session ended with a panic");
        }
    }
}

/// The same, of a mount with one metadata server.
fn keep_alone(remote: &Weak<Remote>) {
    let (mut renewed, mut mending) = (Instant::now(), None);
    loop {
        let Some(remote) = remote.upgrade() else { return };
        if remote.pause() {
            break;
        }
        remote.tend_alone(&mut renewed, &mut mending);
    }
    if mending.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("a thread that brings the session back ended with a panic");
    }
}

fn ended<V>(thread: &mut Option<JoinHandle<V>>) -> Option<V> {
    thread.take_if(|thread| thread.is_finished())?.join().ok()
}

impl Remote {
    pub(crate) fn begin_renewing(self: &Arc<Self>) -> Result<(), std::io::Error> {
        if self.has_homes() {
            self.begin_to_keep("remote-homes", keep_homes)
        } else {
            self.begin_to_keep("remote-renew", keep_alone)
        }
    }

    /// The only server hears of the session, also while that comes back or is made anew there, and while something that is given back waits.
    fn tend_alone(&self, renewed: &mut Instant, mending: &mut Option<JoinHandle<()>>) {
        ended(mending);
        let every = self.renew_every();
        let node = self.own_node();
        let is_told = self.told_node.load(Ordering::Relaxed) == node;
        // One that has come, or is no more, is told at once; if that fails, as often as all else.
        if renewed.elapsed() < if is_told { every } else { every.min(TELL) } {
            return;
        }
        *renewed = Instant::now();
        let (session, home) = (self.session(), self.duty());
        let on_its_way = Self::on_its_way(&home, &session);
        let head = on_its_way
            .map_or_else(|| session.head(), |came| Head { joined: came.joined, ..Head::of(came.id) });
        let renew = control::Renew { head: Some(head), node: Some(node), writes: false };
        let (sent, answer) = (Instant::now(), self.ask_control(&renew, every));
        if on_its_way.is_some() {
            if let Err(stop) = answer {
                tracing::debug!(errno = %stop.errno(), "a session on its way was not renewed");
            }
            return;
        }
        let here = Source { node: 0, joined: session.joined };
        match answer {
            Ok((answer, _)) => {
                self.told_node.store(node, Ordering::Relaxed);
                self.kept.lock().heard(here, sent, Instant::now());
                if answer.map_epoch != self.nodes.epoch() {
                    self.fetch_map();
                }
                self.forget_nameless(answer.nameless);
            }
            Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => {
                if mending.is_none() {
                    let mend = Mend::Recover(session, here);
                    *mending = self.spawn(home, move |remote, home| remote.mend(&home, mend));
                }
            }
            Err(Stop::Fault { fault, .. }) => {
                tracing::warn!(detail = fault.detail, "the session was not renewed");
            }
            Err(Stop::Silent { why, .. }) => tracing::debug!(why, "the session was not renewed"),
        }
    }

    /// All of them hear of the session, also those that have nothing of it yet: a slot may bring it there.
    fn tend_homes(&self, tasks: &mut BTreeMap<u64, Task>) {
        let (every, node) = (self.renew_every(), self.own_node());
        let id = self.session().id;
        let owners = self.nodes.owners();
        // And those without slots to which it came, or that had some before they were started anew: else it would be given up there.
        let others = self.nodes.metadata_servers().into_iter();
        let others = others.filter(|one| owners.iter().all(|owner| owner.node != one.node));
        let others: Vec<_> = others.filter(|one| self.homes.of(one).joined_as(id).is_some()).collect();
        for owner in owners.iter().chain(&others) {
            let home = self.homes.of(owner);
            let renewed = Instant::now();
            let none = Task { renewed, told: 0, renewing: None, mending: None };
            let task = tasks.entry(owner.node).or_insert(none);
            let Renewed { told, mend } = ended(&mut task.renewing).unwrap_or_default();
            task.told = told.unwrap_or(task.told);
            ended(&mut task.mending);
            if let Some(mend) = mend.filter(|_| task.mending.is_none()) {
                task.mending = self.spawn(home.clone(), move |remote, home| remote.mend(&home, mend));
            }
            // One that has come, or is no more, is told at once; if that fails, as often as all else.
            let due = if task.told == node { every } else { every.min(TELL) };
            if task.renewing.is_none() && task.renewed.elapsed() >= due {
                task.renewed = renewed;
                task.renewing = self.spawn(home, move |remote, home| remote.renew_at(&home, every, node));
            }
        }
    }

    /// `None`: there is no thread, so it is done later.
    fn spawn<V: Send + 'static>(
        &self,
        home: Arc<Home>,
        run: impl FnOnce(&Remote, Arc<Home>) -> V + Send + 'static,
    ) -> Option<JoinHandle<V>> {
        let remote = self.this.upgrade()?;
        let spawned = Builder::new().name("remote-renew".into()).spawn(move || run(&remote, home));
        spawned.inspect_err(|error| tracing::error!(%error, "no thread to renew the session with")).ok()
    }

    fn renew_at(&self, home: &Home, every: Duration, node: u64) -> Renewed {
        let (session, patience) = (self.session(), every.min(SLICE));
        let waits = Waits::of(patience, every);
        if let Some(came) = Self::on_its_way(home, &session) {
            let head = Some(Head { joined: came.joined, ..Head::of(came.id) });
            let renew = control::Renew { head, node: Some(node), writes: false };
            if let Err(stop) = ask_line(&home.control, &renew, Body::default(), waits) {
                tracing::debug!(node = home.node, errno = %stop.errno(), "a session on its way was not renewed");
            }
            return Renewed::default();
        }
        let mut at = Source { node: home.node, joined: 0 };
        let sent = Instant::now();
        let renewed = self.join_at(home, &session).and_then(|joined| {
            at.joined = joined;
            let head = Some(Head { joined, ..session.head() });
            let renew = control::Renew { head, node: Some(node), writes: false };
            ask_line(&home.control, &renew, Body::default(), waits)
        });
        match renewed {
            Ok((answer, _)) => {
                self.kept.lock().heard(at, sent, Instant::now());
                self.hear_what_is_asked_back(home);
                if answer.map_epoch > self.nodes.epoch() {
                    self.fetch_map_from(&home.control, patience);
                }
                self.forget_nameless(answer.nameless);
                // Before its time is over, also when no program asks for anything there.
                let bare = answer.bare > home.brought(session.id, at.joined);
                Renewed { told: Some(node), mend: bare.then_some(Mend::Bring(session)) }
            }
            Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => {
                let mend = match self.what_is_lost(home, at.joined) {
                    Lost::Nothing | Lost::NotKnown => None,
                    Lost::All => Some(Mend::Recover(session, at)),
                };
                Renewed { told: None, mend }
            }
            Err(stop) => {
                tracing::debug!(node = home.node, errno = %stop.errno(), "the session was not renewed there");
                self.fetch_map();
                Renewed::default()
            }
        }
    }

    /// Wherever the session is: what is granted with an answer that does not come is asked back, too, and who does not give it back is given up.
    fn hear_what_is_asked_back(&self, home: &Home) {
        if self.options.leases {
            self.listen_at(home.node);
        }
    }

    /// As which the session has come there that is just coming back, or that is being made in place of a lost one.
    fn on_its_way(home: &Home, session: &Session) -> Option<Came> {
        let coming = *home.coming.lock();
        coming.or_else(|| home.joined.try_lock_for(SLICE)?.filter(|came| came.serial > session.serial))
    }

    fn mend(&self, home: &Home, mend: Mend) {
        if *self.stopping.lock() {
            return;
        }
        match mend {
            Mend::Recover(session, at) => {
                if let Err(error) = self.recover(&session, at) {
                    tracing::warn!(%error, "no session in place of the lost one yet");
                }
            }
            Mend::Bring(session) => {
                if let Err(stop) = self.bring(home, &session, None) {
                    tracing::warn!(errno = %stop.errno(), "a new owner was not told what we have yet");
                }
            }
        }
    }
}
