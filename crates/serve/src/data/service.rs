//! The service: requests in, answers out; when an object becomes live and when it is settled.

use std::{
    io,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use ds::{DataServer, Object, ObjectHint, OpenKind};
use kv::{MetaStore, WriteSet};
use namespace::key;
use net::{Handler, Incoming, Reply};
use parking_lot::{Condvar, Mutex};
use proto::{
    control::{NodeReport, NodeReported},
    data as asked,
};
use types::{Errno, Ino, Timestamp};

use super::{
    Record,
    admission::Admission,
    attempt::Arriving,
    first::FirstRecords,
    followed::Leaving,
    held_up::HeldUp,
    lent::Lending,
    pressure::Pressed,
    record::refused,
    removed::Removed,
    replica::Registry,
    table::{Held, State, Table},
    under_way::UnderWay,
    vouched::Vouched,
};
use crate::{
    answer::{No, Outcome},
    workers::{Bounds, Serve, Workers},
};

/// Further threads while a device holds all others up: a thread that waits costs little more than its stack.
const SPARE: usize = 112;

/// How the data server sees the use of an object by clients.
pub(super) const USE: OpenKind = OpenKind { read: true, write: true };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataOptions {
    pub bounds: Bounds,
    /// An object that nobody asked about for so long is closed.
    pub idle: Duration,
    /// In use at once: each has up to three files open.
    pub objects_max: usize,
    /// Who waits for room, or for his bytes to be safe, waits so long without anything leaving.
    pub patience: Duration,
    /// Where there is only memory a closed object goes to another data server after so long. `None`: it stays.
    pub leave_after: Option<Duration>,
    /// Bytes a second at which second copies are made anew.
    pub copy_rate: u64,
}

impl Default for DataOptions {
    fn default() -> DataOptions {
        DataOptions {
            bounds: Bounds { spare: SPARE, ..Bounds::default() },
            idle: Duration::from_secs(5),
            objects_max: 65_536,
            patience: Duration::from_secs(20),
            leave_after: Some(Duration::from_secs(30)),
            copy_rate: super::source::BYTES_PER_SECOND,
        }
    }
}

/// See the module's page. Every method may be called from any thread.
pub struct DataService {
    pub(super) me: Weak<DataService>,
    pub(super) ds: Arc<DataServer>,
    pub(super) store: Arc<MetaStore>,
    first: Arc<FirstRecords>,
    pub(super) table: Table,
    removed: Removed,
    pub(super) leaving: Leaving,
    pub(super) arriving: Arriving,
    pub(super) under_way: UnderWay,
    pub(super) admission: Admission,
    pub(super) vouched: Vouched,
    pub(super) lending: Lending,
    pub(super) pressed: Pressed,
    pub(super) held_up: HeldUp,
    /// Objects with two copies.
    pub(super) replicas: Registry,
    workers: Workers,
    /// Of what data servers ask each other about those: who waits for another one there must not keep it from being answered here.
    among: Workers,
    options: DataOptions,
    /// Of its memory; what is answered says it.
    pub(super) life: u64,
    pub(super) ended: Arc<(Mutex<bool>, Condvar)>,
}

impl DataService {
    pub fn start(
        ds: Arc<DataServer>,
        store: Arc<MetaStore>,
        first: Arc<FirstRecords>,
        options: DataOptions,
    ) -> io::Result<Arc<DataService>> {
        let life = super::life::life(&store)?;
        let workers = Workers::start("data", options.bounds)?;
        let among = Workers::start("copies-asked", options.bounds)?;
        let replicas = Registry::new(options.copy_rate)?;
        let service = Arc::new_cyclic(|me| DataService {
            me: me.clone(),
            ds,
            store,
            first,
            table: Table::new(options.objects_max),
            removed: Removed::default(),
            leaving: Leaving::default(),
            arriving: Arriving::default(),
            under_way: UnderWay::default(),
            admission: Admission::default(),
            vouched: Vouched::default(),
            lending: Lending::default(),
            pressed: Pressed::new(options.patience, options.leave_after),
            held_up: HeldUp::new(options.bounds.threads + options.bounds.spare),
            replicas,
            workers,
            among,
            options,
            life,
            ended: Arc::default(),
        });
        service.read_marks()?;
        service.start_lending()?;
        service.start_copies()?;
        let (weak, ended) = (Arc::downgrade(&service), service.ended.clone());
        std::thread::Builder::new().name("data-idle".into()).spawn(move || close_idle(&weak, &ended))?;
        Ok(service)
    }

    /// Settles and closes all objects; requests that come later are refused.
    pub fn shutdown(&self) {
        self.end();
        self.workers.shutdown();
        self.among.shutdown();
        self.replicas.shutdown();
        self.end_copying();
        for held in self.table.all() {
            if let Err(error) = self.leave(&held, true) {
                tracing::warn!(ino = held.ino.get(), errno = %error.errno(), "an object was not settled");
            }
        }
    }

    /// Ends as a kill does: nothing is settled.
    pub fn abandon(&self) {
        self.end();
        self.workers.shutdown();
        self.among.shutdown();
        self.replicas.shutdown();
        self.end_copying();
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.0.lock()
    }

    fn end(&self) {
        *self.ended.0.lock() = true;
        self.ended.1.notify_all();
    }

    /// Objects whose files clients on this machine read by themselves.
    pub fn lent(&self) -> usize {
        self.lending.len()
    }

    /// Objects that are open here.
    pub fn in_use(&self) -> usize {
        self.table.all().len()
    }

    /// All and free bytes of the tiers.
    pub fn space(&self) -> (u64, u64) {
        super::space::space(&self.ds.tiers())
    }

    /// Those who carry its requests out.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Says how it is in a report to a metadata server, which is this node; 0: the one that there is, or it is not known yet.
    pub fn report(&self, about: &mut NodeReport, server: u64) {
        let tiers = self.ds.tiers();
        (about.total, about.free) = super::space::space(&tiers);
        about.tiers = tiers.iter().map(super::space::tier_now).collect();
        about.only_in_memory = self.ds.dirty().1;
        about.waiting = self.workers.meter().waiting();
        about.busy = super::space::busy(&tiers, about.waiting, self.options.bounds.threads);
        about.copies = self.copies_unjudged();
        about.pressure = Some(self.pressure());
        self.replicas.report(about);
        (about.refuses, about.roster) = (true, self.admission.kept(server));
    }

    /// The report that was sent at `sent` was answered. True: there is something new that the next report says to be known.
    pub(crate) fn reported(&self, sent: Instant, reported: &NodeReported) -> bool {
        self.vouched.taken();
        self.replicas.reported(reported);
        self.admission.heard(sent, reported)
    }

    /// Runs with the object, attached, beside other readers and writers.
    pub(super) fn shared<R>(
        &self,
        object: &asked::Object,
        run: impl FnOnce(&State, &Object) -> Result<R, No>,
    ) -> Result<R, No> {
        let ino = proto::attr::ino(object.ino)?;
        loop {
            let held = self.place(ino)?;
            {
                let state = held.state.read();
                if let (false, Some(there)) = (state.gone, &state.object) {
                    same_generation(&state, object)?;
                    return run(&state, there);
                }
            }
            self.attach(&held)?;
        }
    }

    /// As [`DataService::shared`], of an object whose writing has begun.
    pub(super) fn writing<R>(
        &self,
        object: &asked::Object,
        run: impl FnOnce(&Object) -> Result<R, No>,
    ) -> Result<R, No> {
        let mut run = Some(run);
        loop {
            let done = self.shared(object, |state, there| match run.take_if(|_| state.begun) {
                Some(run) => run(there).map(Some),
                None => Ok(None),
            })?;
            match done {
                Some(done) => return Ok(done),
                None => self.alone(object, |state, there| self.begin(state, there, object, true))?,
            }
        }
    }

    /// Runs with the object, attached, and nobody beside.
    pub(super) fn alone<R>(
        &self,
        object: &asked::Object,
        run: impl FnOnce(&mut State, &Object) -> Result<R, No>,
    ) -> Result<R, No> {
        let ino = proto::attr::ino(object.ino)?;
        loop {
            let held = self.place(ino)?;
            {
                let mut state = held.state.write();
                if let (false, Some(there)) = (state.gone, state.object.clone()) {
                    same_generation(&state, object)?;
                    return run(&mut state, &there);
                }
            }
            self.attach(&held)?;
        }
    }

    pub(super) fn place(&self, ino: Ino) -> Result<Arc<Held>, No> {
        if let Some(held) = self.table.get_or_make(ino) {
            return Ok(held);
        }
        // Rather than refuse: whoever waited longest goes.
        let Some(oldest) = self.table.idle(Duration::ZERO).into_iter().next() else {
            return Err(No::later("as many objects in use as it takes"));
        };
        self.leave(&oldest, false)?;
        self.table.get_or_make(ino).ok_or_else(|| No::later("as many objects in use as it takes"))
    }

    pub(super) fn attach(&self, held: &Held) -> Result<(), No> {
        let mut state = held.state.write();
        if state.gone || state.object.is_some() {
            return Ok(());
        }
        let loaded = self.load(held.ino).and_then(|record| {
            if record.is_some_and(|record| record.gone.is_some()) {
                return Err(No::moved());
            }
            let hint = record.unwrap_or_default();
            let hint = ObjectHint {
                size: hint.size,
                written: record.is_some(),
                stale_live: hint.live,
                memory_generation: hint.memory_generation,
                linked: None,
            };
            Ok((record, self.ds.attach(held.ino, &hint)?))
        });
        let (record, object) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                state.gone = true;
                self.table.remove(held.ino);
                return Err(error);
            }
        };
        self.ds.open(&object, USE);
        self.pressed.opened(held.ino);
        state.begun = record.is_some_and(|r| r.live && r.memory_generation == self.ds.memory_generation());
        state.record = record;
        state.object = Some(object);
        Ok(())
    }

    /// The record as it is stored.
    pub(super) fn load(&self, ino: Ino) -> Result<Option<Record>, No> {
        let stored = self.store.get(&key::held(ino)).map_err(|error| refused(ino, &error))?;
        let Some(bytes) = stored else {
            self.vouched.may_say_nothing()?;
            return Ok(None);
        };
        let record = Record::decode(&bytes).ok_or_else(|| {
            tracing::error!(%ino, "the record of an object cannot be read");
            No::from(Errno::EIO)
        })?;
        Ok(Some(record))
    }

    /// Stores the record; `room`: it takes none that was not there, so a full disk does not refuse it.
    pub(super) fn save(&self, ino: Ino, record: &Record, room: bool) -> Result<(), No> {
        let mut writes = WriteSet::new();
        if room {
            writes.use_reserve();
        }
        writes.put(&key::held(ino), Bytes::from(record.encode()));
        self.store.commit(writes).map(|_| ()).map_err(|error| refused(ino, &error).into())
    }

    /// To be called before anything of the object changes; `writes`: by bytes, whose first record says it too.
    pub(super) fn begin(
        &self,
        state: &mut State,
        object: &Object,
        asked: &asked::Object,
        writes: bool,
    ) -> Result<(), No> {
        let ino = object.ino();
        if state.begun {
            if !writes && self.ds.first_record_is_late(object) {
                self.save(ino, &state.record.unwrap_or_default(), false)?;
                self.first_record_came(object);
            }
            return Ok(());
        }
        if self.removed.has(ino) {
            return Err(Errno::ESTALE.into());
        }
        let before = state.record;
        let record = Record {
            live: true,
            generation: asked.generation,
            memory_generation: self.ds.memory_generation(),
            ..before.unwrap_or_default()
        };
        if writes && self.ds.joins_first_record(object) {
            self.first.pending.lock().insert(ino, record);
        } else {
            if let Some(mtime) = before.and_then(|before| before.mtime) {
                // What is found after a crash is the object's time: it begins with the one that is shown.
                self.ds.set_mtime(object, mtime)?;
            }
            self.save(ino, &record, false)?;
        }
        state.record = Some(record);
        state.begun = true;
        Ok(())
    }

    fn first_record_came(&self, object: &Object) {
        self.ds.first_record_came(object);
        self.first.pending.lock().remove(&object.ino());
    }

    /// Settles an object and closes it; `wait` for those who use it now, or leave it.
    pub(super) fn leave(&self, held: &Held, wait: bool) -> Result<(), No> {
        if !wait && self.lending.is_stored_to(held.ino) {
            // Its times come from its file.
            return Ok(());
        }
        let mut state = match wait {
            true => held.state.write(),
            false => match held.state.try_write() {
                Some(state) => state,
                None => return Ok(()),
            },
        };
        if state.gone { Ok(()) } else { self.leave_locked(held, &mut state) }
    }

    fn leave_locked(&self, held: &Held, state: &mut State) -> Result<(), No> {
        self.settle(state)?;
        if let Some(object) = state.object.take() {
            self.ds.close(&object, USE);
        }
        self.pressed.closed(held.ino);
        state.gone = true;
        self.table.remove(held.ino);
        Ok(())
    }

    /// As [`DataService::leave`], and the time of the last write, if it is this one, is the asker's from now on.
    pub(super) fn forget(&self, ino: Ino, mtime: Option<Timestamp>) -> Result<(), No> {
        loop {
            let held = self.place(ino)?;
            let mut state = held.state.write();
            if state.gone {
                continue;
            }
            self.leave_locked(&held, &mut state)?;
            // Nobody else has begun anything: who comes now waits for the lock, and looks for the object anew.
            return match self.load(ino)? {
                Some(record) if record.gone.is_some() => Err(No::moved()),
                Some(record) if !record.live && record.mtime.is_some() && record.mtime == mtime => {
                    self.may_change(ino)?;
                    self.save(ino, &Record { mtime: None, ..record }, true)
                }
                Some(_) | None => Ok(()),
            };
        }
    }

    /// Records what a live object came to.
    pub(super) fn settle(&self, state: &mut State) -> Result<(), No> {
        // One that a crash left live is settled as well, or it would be looked for at each question.
        let unsettled = state.begun || state.record.is_some_and(|record| record.live);
        let (true, Some(object)) = (unsettled, state.object.clone()) else { return Ok(()) };
        if self.ds.first_record_is_late(&object) {
            // Not a byte came.
            state.record = None;
        } else {
            let live = self.ds.live(&object);
            let before = state.record.unwrap_or_default();
            let record = Record {
                live: false,
                size: live.size,
                blocks: live.blocks,
                mtime: live.mtime.or(before.mtime),
                ..before
            };
            self.save(object.ino(), &record, true)?;
            state.record = Some(record);
        }
        self.first.pending.lock().remove(&object.ino());
        self.ds.settled(&object);
        state.begun = false;
        Ok(())
    }

    /// What is stored of an object goes, with its bytes.
    pub(super) fn remove(&self, ino: Ino) -> Result<(), No> {
        // First: who has not begun by now does not begin any more.
        self.removed.add(ino);
        self.replicas.forget(ino);
        self.remove_held(ino)
    }

    pub(super) fn remove_held(&self, ino: Ino) -> Result<(), No> {
        self.leaving.forget(ino);
        self.pressed.gone(ino);
        loop {
            // Its place even when nobody uses it: who comes meanwhile would find what is being removed, and settle it later.
            let held = self.place(ino)?;
            let mut state = held.state.write();
            if state.gone {
                continue;
            }
            if let Some(object) = state.object.take() {
                self.ds.close(&object, USE);
            }
            let removed = self.remove_alone(ino);
            state.gone = true;
            self.table.remove(ino);
            return removed;
        }
    }

    fn remove_alone(&self, ino: Ino) -> Result<(), No> {
        self.remove_bytes(ino)?;
        let mut writes = WriteSet::new();
        writes.use_reserve();
        writes.delete(&key::object(ino));
        writes.delete(&key::held(ino));
        self.unmark(ino, &mut writes);
        self.store.commit(writes).map_err(|error| refused(ino, &error))?;
        self.ds.forget_removed(&[ino]);
        Ok(())
    }

    pub(super) fn remove_bytes(&self, ino: Ino) -> Result<(), No> {
        // Who reads the file still has it: it is no object's any more.
        self.lending.forget(&self.ds, ino);
        self.ds.remove(ino)?;
        self.first.pending.lock().remove(&ino);
        Ok(())
    }
}

/// Another layout's object under the same name is not the one that is asked for.
pub(super) fn same_generation(state: &State, object: &asked::Object) -> Result<(), No> {
    match &state.record {
        Some(record) if record.generation != object.generation => Err(No::moved()),
        Some(_) | None => Ok(()),
    }
}

impl Serve for DataService {
    fn serve(&self, incoming: &mut Incoming) -> Outcome {
        self.carry_out(incoming)
    }
}

impl Handler for DataService {
    fn asked(&self, incoming: Incoming, reply: Reply) {
        // Without it the reply says that it was dropped.
        if let Some(me) = self.me.upgrade() {
            let is_of_copies = self.is_of_copies(&incoming);
            if !is_of_copies && self.is_for_here(&incoming) {
                return self.workers.take_here(me, incoming, reply);
            }
            let workers = if is_of_copies { &self.among } else { &self.workers };
            workers.take(me, incoming, reply);
        }
    }
}

fn close_idle(service: &Weak<DataService>, ended: &(Mutex<bool>, Condvar)) {
    let mut over = ended.0.lock();
    while !*over {
        let Some(there) = service.upgrade() else { return };
        let idle = there.options.idle;
        parking_lot::MutexGuard::unlocked(&mut over, || {
            for held in there.table.idle(idle) {
                if let Err(error) = there.leave(&held, false) {
                    tracing::warn!(ino = held.ino.get(), errno = %error.errno(), "an object was not settled");
                }
            }
            // The last reference may be this one.
            drop(there);
        });
        if !*over {
            ended.1.wait_for(&mut over, idle / 4 + Duration::from_millis(10));
        }
    }
}
