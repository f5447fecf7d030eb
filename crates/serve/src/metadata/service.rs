//! The service: what it is made of, its requests, and its clock.

use std::{
    collections::{BTreeSet, HashSet},
    io,
    sync::{Arc, Weak, atomic::AtomicBool},
    time::{Duration, Instant},
};

use cluster::Node;
use kv::MetaStore;
use mds::{Gather, Mds};
use net::{Credentials, Handler, Incoming, Reply};
use parking_lot::{Condvar, Mutex, MutexGuard};
use proto::{Head, Method, Request};
use types::{Errno, Ino, Slot};
use wire::handshake::Roles;

use super::{
    drains::Drains,
    files::Files,
    leaving::Leaving,
    owners::{Inside, Owners, Shared, Tails},
    replicas::Replicas,
    sendings::Sendings,
    session::{Session, SessionLimits, Sessions, Turn},
    terms::Terms,
    turns::Turns,
    verdicts,
};
use crate::{
    answer::{No, Outcome},
    nodes::Nodes,
    standing,
    states::States,
    workers::{AtOnce, Bounds, Owed, Serve, Workers},
};

/// What is done again and again.
type Tick = fn(&MetadataService);

/// How often what is due is looked at.
const TICK: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub struct MetadataOptions {
    pub bounds: Bounds,
    pub sessions: SessionLimits,
    /// A data server that did not report for so long gets no new files and is not waited for.
    pub node_silence: Duration,
    /// How long a data server's answer is waited for.
    pub patience: Duration,
    /// How often sessions and data servers are told to say that they are there.
    pub renew: Duration,
    pub report: Duration,
    /// This server's own node, for the map.
    pub me: Option<Node>,
}

impl Default for MetadataOptions {
    fn default() -> MetadataOptions {
        MetadataOptions {
            bounds: Bounds::default(),
            sessions: SessionLimits::default(),
            node_silence: Duration::from_secs(6),
            patience: Duration::from_secs(5),
            renew: Duration::from_secs(5),
            report: Duration::from_secs(2),
            me: None,
        }
    }
}

/// For hand-overs of slots, and for what waits for one.
fn slot_workers(bounds: Bounds) -> io::Result<[Workers; 2]> {
    let few = Bounds { threads: 2, ..bounds };
    Ok([Workers::start("slots", few)?, Workers::start("slots-wait", few)?])
}

/// See the module's page. Every method may be called from any thread.
pub struct MetadataService {
    pub(super) me: Weak<MetadataService>,
    pub(super) mds: Arc<Mds>,
    pub(super) store: Arc<MetaStore>,
    /// Lives and verdicts of this server.
    pub(super) notes: Arc<MetaStore>,
    pub(super) nodes: Nodes,
    pub(super) sessions: Sessions,
    pub(super) terms: Terms,
    pub(super) leaving: Leaving,
    pub(super) turns: Turns,
    pub(super) files: Files,
    pub(super) options: MetadataOptions,
    /// What nobody waits for: files to be settled, data servers to be told.
    pub(super) due: Mutex<BTreeSet<Ino>>,
    /// Inodes whose objects are being removed: nobody gets a reference to them.
    pub(super) dying: Mutex<HashSet<Ino>>,
    /// The next round of removing.
    pub(super) bury_after: Mutex<Instant>,
    /// Until then sessions of an earlier life may come back, or of a server in whose place this one goes on.
    pub(super) grace: Mutex<Instant>,
    /// Of this life.
    pub(super) incarnation: u64,
    pub(super) owners: Option<Owners>,
    /// Of several: without any slot.
    pub(super) began_empty: bool,
    pub(super) drains: Drains,
    /// A data server with a tier that outlives its machine has been there.
    pub(super) outlives: AtomicBool,
    /// Which state each data server has.
    pub(super) states: States,
    pub(super) sendings: Sendings,
    pub(super) replicas: Replicas,
    pub(super) workers: Workers,
    /// Hand-overs of slots, and what waits for one: neither waits for operations.
    slots: Option<[Workers; 2]>,
    /// What others' standby is told, over connections for that alone. It waits for no disk and no other server.
    copying: Option<AtOnce>,
    /// Messages that say that somebody is there never wait behind others.
    pub(super) control: Workers,
    ended: Arc<(Mutex<bool>, Condvar)>,
}

impl MetadataService {
    pub fn start(
        mds: Arc<Mds>,
        store: Arc<MetaStore>,
        credentials: Credentials,
        options: MetadataOptions,
    ) -> io::Result<Arc<MetadataService>> {
        MetadataService::start_among(mds, store, credentials, options, None)
    }

    /// As [`MetadataService::start`], beside other metadata servers: see [`super::join`].
    pub fn start_among(
        mds: Arc<Mds>,
        store: Arc<MetaStore>,
        credentials: Credentials,
        options: MetadataOptions,
        shared: Option<Shared>,
    ) -> io::Result<Arc<MetadataService>> {
        let workers = Workers::start("metadata", options.bounds)?;
        let control = Workers::start("control", Bounds { threads: 1, ..options.bounds })?;
        let slots = shared.as_ref().map(|_| slot_workers(options.bounds)).transpose()?;
        let copying = shared.as_ref().map(|_| AtOnce::default());
        // What concerns this server alone is in its own store.
        let notes = shared.as_ref().map_or_else(|| store.clone(), |shared| shared.notes.clone());
        let mut before = verdicts::begin_life(&notes).map_err(io::Error::other)?;
        let (life, writers) = (before.past.life, before.writers());
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        // A store that was just made has no earlier sessions.
        let tails = match &shared {
            Some(shared) => Tails::begin(&store, shared).map_err(io::Error::other)?,
            None => None,
        };
        before.past.fenced.extend(tails.iter().flat_map(Tails::given_up_before));
        let is_new = mds.epoch() == 1 || shared.as_ref().is_some_and(|shared| shared.is_new);
        let wait = if is_new { Duration::ZERO } else { options.sessions.silence };
        let found = shared.as_ref().map_or_else(Vec::new, |shared| shared.found.clone());
        let begun = shared.as_ref().map(Shared::slots);
        let outlives = AtomicBool::new(standing::outlives(&notes).map_err(io::Error::other)?);
        let states = States::load(notes.clone()).map_err(io::Error::other)?;
        let service = Arc::new_cyclic(|me| MetadataService {
            me: me.clone(),
            nodes: Nodes::new(credentials, options.me.clone(), options.node_silence, options.patience),
            sessions: Sessions::default(),
            terms: Terms::new(&options.sessions, (before.past, before.present), begun),
            leaving: Leaving::new(life, before.given_up, writers),
            turns: Turns::default(),
            files: Files::default(),
            due: Mutex::default(),
            dying: Mutex::default(),
            bury_after: Mutex::new(Instant::now()),
            grace: Mutex::new(Instant::now() + wait),
            incarnation: u64::from_le_bytes(random),
            began_empty: shared.as_ref().is_some_and(|shared| shared.is_new),
            owners: shared.map(|shared| Owners::new(shared, tails)),
            drains: Drains::default(),
            outlives,
            states,
            sendings: Sendings::default(),
            replicas: Replicas::default(),
            slots,
            copying,
            mds,
            store,
            notes,
            options,
            workers,
            control,
            ended: Arc::default(),
        });
        service.begin_among(&found)?;
        service.begin_standings()?;
        if service.owners.is_some() {
            let gatherer: Arc<dyn Gather> = service.clone();
            let set = service.mds.set_gatherer(&gatherer);
            set.map_err(|errno| io::Error::other(errno.to_string()))?;
        }
        service.start_clocks()?;
        Ok(service)
    }

    /// Who is not on duty is told which data servers are taken out.
    fn begin_standings(&self) -> io::Result<()> {
        if self.owners.as_ref().is_none_or(Owners::is_on_duty) {
            self.nodes.know(standing::load(self.standings_store()).map_err(io::Error::other)?);
        }
        Ok(())
    }

    fn start_clocks(self: &Arc<Self>) -> io::Result<()> {
        // A data server that hangs holds up what is due, and not the sessions' end.
        let mut clocks: Vec<(&str, Tick)> = vec![
            ("metadata-due", MetadataService::tend_files),
            ("metadata-clock", MetadataService::tend_terms),
        ];
        clocks.push(("metadata-moves", MetadataService::tend_moves));
        clocks.push(("metadata-full", MetadataService::tend_pressure));
        clocks.push(("metadata-views", MetadataService::tend_replicas));
        if self.owners.is_some() {
            clocks.push(("metadata-slots", MetadataService::tend_slots));
            clocks.push(("metadata-map", MetadataService::follow));
            clocks.push(("metadata-circles", MetadataService::tend_circles));
            clocks.push(("metadata-copies", MetadataService::tend_copies));
            clocks.push(("metadata-standby", MetadataService::tend_tail));
            self.start_tails()?;
        }
        for (name, tick) in clocks {
            let (weak, ended) = (Arc::downgrade(self), self.ended.clone());
            std::thread::Builder::new().name(name.into()).spawn(move || run(&weak, &ended, tick))?;
        }
        Ok(())
    }

    /// Takes no more requests, and ends those that are under way.
    pub fn shutdown(&self) {
        *self.ended.0.lock() = true;
        self.ended.1.notify_all();
        self.tell_listeners();
        self.workers.shutdown();
        self.slots.iter().flatten().for_each(Workers::shutdown);
        self.control.shutdown();
        // Until here answers waited for the standby.
        self.end_tails();
        self.copying.iter().for_each(AtOnce::shutdown);
        self.end_moves();
    }

    /// As [`MetadataService::shutdown`], without a word to anybody: as if it were killed.
    pub fn abandon(&self) {
        self.fall_silent();
        self.shutdown();
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.0.lock()
    }

    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// For how long nobody is heard who makes the map, if that is long.
    pub fn without_duty(&self) -> Option<Duration> {
        let owners = self.owners.as_ref().filter(|owners| !owners.is_on_duty())?;
        owners.following.silence()
    }

    /// How many sessions there are, and files that are open or not settled.
    pub fn in_use(&self) -> (usize, usize) {
        (self.sessions.len(), self.files.len())
    }

    /// Sessions of an earlier life may still come back with what they had.
    pub(super) fn in_grace(&self) -> bool {
        Instant::now() < *self.grace.lock()
    }

    /// Sessions may come back from now on, as after a start. Returns until when they could before, and can now.
    pub(super) fn begin_grace(&self) -> [Instant; 2] {
        let until = Instant::now() + self.options.sessions.silence;
        [std::mem::replace(&mut *self.grace.lock(), until), until]
    }

    /// What it was begun for did not come.
    pub(super) fn undo_grace(&self, [before, until]: [Instant; 2]) {
        let mut grace = self.grace.lock();
        if *grace == until {
            *grace = before;
        }
    }

    /// Where there are others: who makes the map, and what operations need of the others' slots.
    fn begin_among(&self, found: &[Slot]) -> io::Result<()> {
        let Some(owners) = &self.owners else { return Ok(()) };
        // In the first life of all nobody had anything.
        if self.mds.epoch() > 1 {
            self.expect_sessions(owners, found, false);
        }
        self.expect_of_before(owners);
        if owners.is_on_duty() {
            let cluster = self.nodes.map().cluster();
            let map = owners.first_map(cluster, self.mds.epoch()).map_err(io::Error::other)?;
            self.nodes.make_maps(map);
        } else {
            self.nodes.follow(false);
        }
        Ok(())
    }

    /// Goes into the slots of a request's homes, if they are ours.
    pub(super) fn enter(&self, homes: impl IntoIterator<Item = Ino>) -> Result<Option<Inside<'_>>, No> {
        let Some(owners) = &self.owners else { return Ok(None) };
        let mut slots: Vec<Slot> = homes.into_iter().map(|ino| ino.ugsd().slot()).collect();
        slots.sort_unstable();
        slots.dedup();
        let inside = owners.gates().enter(slots.iter().copied());
        let inside = inside.ok_or_else(|| No::later("the slot is on its way to another server"))?;
        if slots.iter().all(|slot| self.mds.serves(*slot)) {
            Ok(Some(inside))
        } else {
            Err(No::wrong_owner(self.nodes.epoch()))
        }
    }

    fn tend_files(&self) {
        self.do_due();
        if !self.in_grace() {
            self.bury();
        }
    }

    /// A request of a session: carried out, unless it was.
    fn of_session<R: Request>(&self, meta: &[u8], run: impl FnOnce(&Arc<Session>, &R) -> Outcome) -> Outcome {
        let mut request: R = proto::decode(meta)?;
        let head = request.head().copied().unwrap_or_default();
        let session = self.sessions.asking(Some(&head))?;
        let mut homes = Vec::new();
        if self.owners.is_some() {
            request.homes(&mut |ino| homes.extend(Ino::from_raw(ino)));
        }
        let slots: Vec<Slot> = homes.iter().map(|ino: &Ino| ino.ugsd().slot()).collect();
        let _inside = self.enter(homes)?;
        if !is_brought(R::METHOD) {
            self.not_bare(&session, &slots)?;
        }
        // What changes nothing is not kept.
        let head = if is_read(R::METHOD) { Head { number: 0, ..head } } else { head };
        match session.begin(&head, self.options.sessions.operations)? {
            Turn::Again(outcome) => outcome,
            Turn::First => {
                // Of locks what holds now is said: those that were had are brought by who had them.
                let known = (!is_of_locks(R::METHOD)).then(|| self.answered_before(&head)).flatten();
                if let Some(outcome) = known {
                    session.answered(&head, &outcome);
                    return outcome;
                }
                let unspread = self.look_for_parts(&mut request);
                let carry_out = || unspread.and_then(|()| run(&session, &request));
                let outcome = self.as_operation(&head, carry_out).map_err(|no| {
                    // It was not begun: a part of what it is about is another's, or did not come; it may the next time.
                    if no.errno() == Errno::EREMOTE && !no.is_spread() {
                        No::wrong_owner(self.nodes.epoch())
                    } else if no == No::from(Errno::EAGAIN) {
                        No::later("slots that it needs did not come")
                    } else {
                        no
                    }
                });
                session.answered(&head, &outcome);
                self.tell_standby(&head, &outcome);
                outcome
            }
        }
    }

    /// Who is there, and slots that go.
    #[expect(clippy::wildcard_enum_match_arm, reason = "one lane's methods, of many")]
    fn carry_out_control(&self, method: Method, incoming: &mut Incoming) -> Outcome {
        let most = incoming.header.answer_bytes_max as usize;
        let (meta, body) = (&incoming.meta, incoming.body());
        if is_among_servers(method) && !incoming.peer().roles.has(Roles::MDS) {
            return Err(Errno::EPERM.into());
        }
        match method {
            Method::Hello => self.hello(meta, most),
            Method::Mount => self.mount(meta, body, (incoming.peer().node, most)),
            Method::Unmount => self.unmount(meta),
            Method::Return => self.of_session(meta, |session, asked| self.give_back(session, asked)),
            Method::Renew => self.of_session(meta, |session, asked| self.renew(session, asked)),
            Method::MapSince => self.map_since(meta, most),
            Method::NodeReport => self.node_report(incoming.peer(), meta),
            Method::DrainNode => self.drain_node(meta),
            Method::RemoveNode => self.remove_node(meta),
            Method::Standings => self.standings(meta, most),
            Method::KnowStandings => self.know_standings(meta),
            Method::LookAtDrains => self.look_at_drains(meta),
            Method::JoinMetadata => self.join_metadata(meta),
            Method::LetGo => self.slots_let_go(meta),
            Method::StatePart => self.state_part(meta, most),
            Method::PutState => self.put_part(meta, body),
            Method::TakeOn => self.slots_take_on(meta),
            Method::Bring => self.bring_slots(meta),
            Method::SlotLoads => self.slot_loads(meta),
            Method::LockWaits => self.lock_waits(meta),
            Method::RefuseLock => self.refuse_lock(meta),
            Method::TailWho => self.tail_who(meta),
            Method::TailBegin => self.tail_begin(meta),
            Method::TailMore => self.tail_more(meta, body),
            Method::TailNow => self.tail_now(meta),
            Method::Leaving => self.let_leave(meta),
            Method::TakeDuty => self.take_duty(meta, body),
            Method::Bare => self.of_session(meta, |session, asked| self.bare(session, asked, body)),
            // No worker carries it out, or it is of who watches, which has a thread of its own.
            _ => Err(Errno::ENOSYS.into()),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "one lane's methods, of many")]
    fn carry_out(&self, incoming: &mut Incoming) -> Outcome {
        let most = incoming.header.answer_bytes_max as usize;
        let (meta, body) = (&incoming.meta, incoming.body());
        let Some(method) = Method::from_number(incoming.header.method) else {
            return Err(Errno::ENOSYS.into());
        };
        if method.lane() == wire::schema::Lane::Control {
            return self.carry_out_control(method, incoming);
        }
        match method {
            Method::Lookup => self.of_session(meta, |session, asked| self.lookup(session, asked)),
            Method::Look => self.of_session(meta, |session, asked| self.look(session, asked)),
            Method::GetAttr => self.of_session(meta, |session, asked| self.get_attr(session, asked)),
            Method::SetAttr => self.of_session(meta, |session, asked| self.set_attr(session, asked)),
            Method::ReadLink => self.of_session(meta, |_, asked| self.read_link(asked)),
            Method::ReadDir => self.of_session(meta, |session, asked| self.read_dir(session, asked, most)),
            Method::Create => self.of_session(meta, |session, asked| self.create(session, asked)),
            Method::Mkdir => self.of_session(meta, |session, asked| self.mkdir(session, asked)),
            Method::Mknod => self.of_session(meta, |session, asked| self.mknod(session, asked)),
            Method::Symlink => self.of_session(meta, |session, asked| self.symlink(session, asked)),
            Method::Link => self.of_session(meta, |session, asked| self.link(session, asked)),
            Method::Unlink => self.of_session(meta, |session, asked| self.unlink(session, asked)),
            Method::Rmdir => self.of_session(meta, |session, asked| self.rmdir(session, asked)),
            Method::Rename => self.of_session(meta, |session, asked| self.rename(session, asked)),
            Method::TmpFile => self.of_session(meta, |session, asked| self.tmp_file(session, asked)),
            Method::GetXattr => self.of_session(meta, |_, asked| self.get_xattr(asked, most)),
            Method::SetXattr => self.of_session(meta, |session, asked| self.set_xattr(session, asked, body)),
            Method::ListXattr => self.of_session(meta, |_, asked| self.list_xattr(asked, most)),
            Method::RemoveXattr => self.of_session(meta, |session, asked| self.remove_xattr(session, asked)),
            Method::Open => self.of_session(meta, |session, asked| self.open(session, asked)),
            Method::Close => self.of_session(meta, |session, asked| self.close(session, asked)),
            Method::CloseMany => self.of_session(meta, |session, asked| self.close_many(session, asked)),
            Method::Keep => self.of_session(meta, |session, asked| self.keep(session, asked)),
            Method::KeepWrites => self.of_session(meta, |session, asked| self.keep_writes(session, asked)),
            Method::GetUntouched => {
                self.of_session(meta, |session, asked| self.get_untouched(session, asked))
            }
            Method::FindSpread => self.of_session(meta, |_, asked| self.find_spread(asked)),
            Method::GetAlone => self.of_session(meta, |_, asked| self.get_alone(asked)),
            Method::ReadDots => self.of_session(meta, |_, asked| self.read_dots(asked)),
            Method::BeginWrite => self.of_session(meta, |session, asked| self.begin_write(session, asked)),
            Method::Append => self.of_session(meta, |session, asked| self.append(session, asked)),
            Method::Reserve => self.of_session(meta, |_, asked| self.reserve(asked)),
            Method::Fsync => self.of_session(meta, |_, asked| self.fsync(asked)),
            Method::Forget => self.of_session(meta, |session, asked| self.forget(session, asked)),
            Method::Hold => self.of_session(meta, |session, asked| self.hold_again(session, asked)),
            Method::StatFs => self.of_session(meta, |_, asked| self.stat_fs(asked)),
            Method::FindView => self.of_session(meta, |_, asked| self.find_view(asked)),
            Method::FindLayout => self.of_session(meta, |_, asked| self.find_layout(asked)),
            Method::Find => self.of_session(meta, |session, asked| self.find(session, asked)),
            Method::Lock => self.of_session(meta, |session, asked| self.lock(session, asked)),
            Method::Unlock => self.of_session(meta, |session, asked| self.unlock(session, asked)),
            Method::FindLock => self.of_session(meta, |session, asked| self.find_lock(session, asked)),
            Method::CancelLock => self.of_session(meta, |session, asked| self.cancel_lock(session, asked)),
            // The data service's, and those above.
            _ => Err(Errno::ENOSYS.into()),
        }
    }
}

/// Not for clients: with TLS only who has a server's certificate can say that it is one.
fn is_among_servers(method: Method) -> bool {
    matches!(
        method,
        Method::DrainNode
            | Method::RemoveNode
            | Method::KnowStandings
            | Method::LookAtDrains
            | Method::JoinMetadata
            | Method::LetGo
            | Method::StatePart
            | Method::PutState
            | Method::TakeOn
            | Method::Bring
            | Method::SlotLoads
            | Method::LockWaits
            | Method::RefuseLock
            | Method::TailWho
            | Method::TailBegin
            | Method::TailMore
            | Method::Leaving
            | Method::TakeDuty
    )
}

fn is_of_locks(method: Method) -> bool {
    matches!(method, Method::Lock | Method::Unlock)
}

/// By which a session says what it has.
fn is_brought(method: Method) -> bool {
    matches!(method, Method::Hold | Method::Open)
}

/// Those whose answers have bodies; a listing that refers is one of them, and takes its references again.
fn is_read(method: Method) -> bool {
    matches!(method, Method::ReadDir | Method::GetXattr | Method::ListXattr)
}

impl Serve for MetadataService {
    fn serve(&self, incoming: &mut Incoming) -> Outcome {
        self.carry_out(incoming)
    }

    fn answer(&self, owed: Owed, outcome: Outcome) {
        self.when_settled(owed, outcome);
    }
}

impl Handler for MetadataService {
    fn asked(&self, incoming: Incoming, reply: Reply) {
        let method = Method::from_number(incoming.header.method);
        if method == Some(Method::Listen) {
            return self.listen(&incoming, reply);
        }
        // These may wait for others.
        let waits = match method {
            Some(Method::Unmount | Method::DrainNode | Method::RemoveNode) => true,
            Some(Method::Standings) => self.owners.is_some(),
            Some(_) | None => false,
        };
        let is_control = method.is_some_and(|method| method.lane() == wire::schema::Lane::Control) && !waits;
        // Without it the reply says that it was dropped.
        if let Some(me) = self.me.upgrade() {
            if let (Some(Method::TailBegin | Method::TailMore), Some(copying)) = (method, &self.copying) {
                return copying.take(me, incoming, reply);
            }
            let workers = match (method, &self.slots) {
                (Some(Method::Bring | Method::Leaving), Some([_, waiting])) => waiting,
                (
                    Some(
                        Method::LetGo
                        | Method::StatePart
                        | Method::PutState
                        | Method::TakeOn
                        | Method::TakeDuty
                        | Method::SlotLoads
                        | Method::LockWaits
                        | Method::RefuseLock
                        | Method::KnowStandings,
                    ),
                    Some([slots, _]),
                ) => slots,
                _ if is_control => &self.control,
                _ => &self.workers,
            };
            workers.take(me, incoming, reply);
        }
    }
}

fn run(service: &Weak<MetadataService>, ended: &(Mutex<bool>, Condvar), tick: Tick) {
    let mut over = ended.0.lock();
    while !*over {
        let Some(there) = service.upgrade() else { return };
        MutexGuard::unlocked(&mut over, || {
            tick(&there);
            // The last reference may be this one.
            drop(there);
        });
        if !*over {
            ended.1.wait_for(&mut over, TICK);
        }
    }
}

impl No {
    /// The session has as much as it may.
    pub(super) fn too_much(what: &str) -> No {
        No::new(Errno::EMFILE, wire::schema::Retry::Never, proto::Reason::TooMuch, what)
    }
}
