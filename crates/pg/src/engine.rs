//! The engine: opening it, and the thread that says that we live.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use kv::{ApplyError, Batch, Engine, Lsn, OpenError};
use namespace::txn::{KvError, Visit};
use parking_lot::{Condvar, Mutex};

use crate::{
    Identity, SLOTS,
    connection::{Session, within},
    error::{Failure, of_open},
    options::{Options, Sharing},
    ownership::{From, Rights, Taken, others_have},
    pool::Pool,
    reach::Reach,
    schema,
    shared::{Shared, Writer},
    writer::{self, AppliedNote, identity_of},
};

/// As in the FORMAT file.
pub const ENGINE_NAME: &str = "postgresql";
/// They only move bytes between sockets and those who wait.
const RUNTIME_THREADS: usize = 2;
/// While the database is away, somebody looks so often whether it is back.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(200);

pub struct PgEngine {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl PgEngine {
    /// Opens the namespace for the state directory's writer, whose name is in `dir`. Makes what is not there yet.
    pub fn open(dir: &Path, options: Options) -> Result<PgEngine, OpenError> {
        let place = options.place();
        if let Some(open) = options.open_to_others() {
            tracing::warn!("{open}");
        }
        let stored = identity_of(dir)?;
        if let Some(Identity { namespace, .. }) = &stored
            && *namespace != options.namespace
        {
            let text = format!("this state directory's namespace is {namespace}, not {}", options.namespace);
            return Err(OpenError::Refused(text));
        }
        let name = match &stored {
            Some(found) => found.writer.clone(),
            None => writer::intended(dir)?,
        };
        let identity =
            Identity { writer: name, namespace: options.namespace.clone(), url: options.url.clone() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .thread_name("pg")
            .enable_all()
            .build()
            .map_err(|e| OpenError::Engine(KvError::Io(format!("cannot start threads: {e}"))))?;
        let (note, applied) = AppliedNote::open(dir);
        let writer = Writer { session: None, number: 0, applied, doubt: false, fenced: None, note };
        let shared = Arc::new(Shared {
            runtime,
            holder: writer::fresh_name()?,
            pool: Pool::default(),
            reach: Reach::default(),
            writer: Mutex::new(writer),
            epochs: Mutex::default(),
            bytes: AtomicU64::new(0),
            stop: (Mutex::new(false), Condvar::new()),
            options,
            identity,
        });
        let known = stored.is_some();
        let found = shared.patiently(|| shared.begin(known, dir));
        found.map_err(|failure| of_open(&place, failure))?;
        if stored.as_ref() != Some(&shared.identity) {
            writer::store(dir, &shared.identity)?;
        }
        if shared.options.sharing == Sharing::Alone {
            let all: Vec<u16> = (0..SLOTS as u16).collect();
            let taken = shared
                .patiently(|| shared.take(&all, From::Ended))
                .map_err(|failure| of_open(&place, failure))?;
            others_have(&taken).map_or(Ok(()), Err)?;
        } else {
            shared.patiently(|| shared.resume_slots()).map_err(|failure| of_open(&place, failure))?;
        }
        let keeping = Arc::clone(&shared);
        let keeper = std::thread::Builder::new()
            .name("pg-lease".to_owned())
            .spawn(move || keeping.keep())
            .map_err(|e| OpenError::Engine(KvError::Io(format!("cannot start a thread: {e}"))))?;
        Ok(PgEngine { shared, keeper: Mutex::new(Some(keeper)) })
    }

    /// Asks for slots. What another has stays there until its lease has ended.
    pub fn take(&self, slots: &[u16]) -> Result<Taken, KvError> {
        Ok(self.shared.patiently(|| self.shared.take(slots, From::Ended))?)
    }

    /// Gives slots back.
    pub fn release(&self, slots: &[u16]) -> Result<(), KvError> {
        Ok(self.shared.patiently(|| self.shared.release(slots))?)
    }

    /// For who manages slots while a store has the engine.
    pub fn rights(&self) -> Rights {
        Rights(Arc::clone(&self.shared))
    }

    /// Since when and why the database cannot be reached, or takes no batches; `None`: it is well.
    pub fn trouble(&self) -> Option<(SystemTime, String)> {
        self.shared.reach.trouble()
    }

    fn end(&self) {
        *self.shared.stop.0.lock() = true;
        self.shared.stop.1.notify_all();
        if let Some(keeper) = self.keeper.lock().take()
            && keeper.join().is_err()
        {
            tracing::error!("the thread that keeps the lease panicked");
        }
    }
}

impl Engine for PgEngine {
    fn name(&self) -> &'static str {
        ENGINE_NAME
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.shared.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.shared.scan(from, to, visit)
    }

    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        self.shared.apply(batch, lsn)
    }

    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        let mut writer = self.shared.writer.lock();
        self.shared.connect(&mut writer)?;
        Ok(writer.applied)
    }

    fn taken_over(&self) -> Result<bool, KvError> {
        self.shared.was_taken_over()
    }

    fn begin_anew(&self) -> Result<(), KvError> {
        Ok(self.shared.patiently(|| self.shared.begin_anew())?)
    }

    fn approximate_bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    fn trouble(&self) -> Option<(SystemTime, String)> {
        PgEngine::trouble(self)
    }

    fn close(&self) -> Result<(), KvError> {
        self.end();
        self.shared.end_lease()
    }
}

impl Drop for PgEngine {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// The same again while it may work, until the deadline.
    pub(crate) fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
        // Who died with a lease is waited for.
        let tuning = &self.options.tuning;
        let until = Instant::now() + tuning.apply_wait.max(tuning.lease + Duration::from_secs(2));
        loop {
            match attempt() {
                Err(failure) if failure.is_passing() && Instant::now() + PAUSE < until => {
                    std::thread::sleep(PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Tables, and this writer's row; then its first session.
    fn begin(&self, known: bool, dir: &Path) -> Result<(), Failure> {
        let wait = self.options.tuning.answer_wait;
        self.runtime.block_on(within(wait, async {
            let session = Session::writer(&self.options).await?;
            let result = self.introduce(&session, known, dir).await;
            if result.is_err() {
                session.give_up();
            }
            result
        }))?;
        let mut writer = self.writer.lock();
        self.connect(&mut writer)
    }

    async fn introduce(&self, session: &Session, known: bool, dir: &Path) -> Result<(), Failure> {
        if known && !schema::is_there(session, &self.options).await? {
            return Err(self.unknown_here());
        }
        schema::migrate(session, &self.options).await?;
        self.refuse_strangers(session).await?;
        let name = rustix::system::uname();
        let label = format!("{}:{}", name.nodename().to_string_lossy(), dir.display());
        if self.resume(session, &label).await? {
            return Ok(());
        }
        if known {
            return Err(self.unknown_here());
        }
        session.client.batch_execute("BEGIN; LOCK TABLE writer IN SHARE ROW EXCLUSIVE MODE").await?;
        // Of two that open a fresh namespace at once the later one sees the other's row here.
        self.refuse_strangers(session).await?;
        let insert = "INSERT INTO writer (id, label, holder, session, applied, lease_until) \
                      VALUES ($1, $2, $3, 0, 0, clock_timestamp())";
        session.client.execute(insert, &[&self.identity.writer, &label, &self.holder]).await?;
        session.client.batch_execute("COMMIT").await?;
        Ok(())
    }

    /// In a namespace that is to be ours alone.
    async fn refuse_strangers(&self, session: &Session) -> Result<(), Failure> {
        if self.options.sharing == Sharing::Shared {
            return Ok(());
        }
        let sql = "SELECT label FROM writer WHERE id <> $1 LIMIT 1";
        let Some(other) = session.client.query_opt(sql, &[&self.identity.writer]).await? else {
            return Ok(());
        };
        let label: String = other.try_get(0)?;
        Err(Failure::Stranger(format!(
            "the namespace {} belongs to another state directory ({label}): choose another metadata.namespace",
            self.options.namespace
        )))
    }

    /// Takes this writer's row, if there is one. The directory's lock keeps others of this machine out; the lease keeps out who has a
    /// copy of the directory elsewhere.
    async fn resume(&self, session: &Session, label: &str) -> Result<bool, Failure> {
        let (client, me) = (&session.client, &self.identity.writer);
        let set = "UPDATE writer SET holder = $2, label = $3 WHERE id = $1 AND (label = $3 OR lease_until <= clock_timestamp())";
        if client.execute(set, &[me, &self.holder, &label]).await? == 1 {
            return Ok(true);
        }
        let row = client.query_opt("SELECT label FROM writer WHERE id = $1", &[me]).await?;
        let Some(row) = row else { return Ok(false) };
        let other: String = row.try_get(0)?;
        Err(Failure::InUse(format!("this state directory, or a copy of it, is open as {other}")))
    }

    fn unknown_here(&self) -> Failure {
        Failure::Stranger(format!(
            "the namespace {} does not know this state directory: is it the right database, and was it put back from a copy?",
            self.options.namespace
        ))
    }

    /// Renews the lease, and so notices that the database went or came back.
    fn keep(&self) {
        let mut failing = false;
        loop {
            let renewed = self.renew();
            match &renewed {
                Ok(true) => failing = false,
                Ok(false) if !failing => {
                    failing = true;
                    tracing::error!(
                        "this state directory was opened elsewhere: nothing more can be written here"
                    );
                }
                Ok(false) => {}
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(%error, "the lease in the metadata database is not renewed");
                }
                Err(_) => {}
            }
            if renewed.is_ok() {
                self.look_at_size();
            }
            let period = if self.reach.is_away() { LOOK_PERIOD } else { self.options.tuning.lease / 3 };
            let mut stop = self.stop.0.lock();
            let until = Instant::now() + period;
            while !*stop && !self.stop.1.wait_until(&mut stop, until).timed_out() {}
            if *stop {
                return;
            }
        }
    }

    fn look_at_size(&self) {
        let size = self.read(async |session: &Session| {
            let sql = "SELECT pg_total_relation_size('entry') + pg_total_relation_size('long_entry')";
            Ok(session.client.query_one(sql, &[]).await?.try_get::<_, i64>(0)?)
        });
        if let Ok(size) = size {
            self.bytes.store(u64::try_from(size).unwrap_or(0), Ordering::Relaxed);
        }
    }
}
