//! Reads: a key, a range. Each is tried again while the database is away, until its deadline.
//!
//! A range is read in pages. One that fits into the first page is one statement; a longer one is read in a transaction that
//! sees one state of the database. If its connection breaks, the rest comes from the state after: what is there all the while is
//! visited once in either case.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{StreamExt, pin_mut};
use namespace::txn::{KvError, Visit};

use crate::{
    connection::{Session, within},
    error::Failure,
    patience::patience,
    pool::{Place, Visiting},
    schema::SHORT_KEY_MAX,
    shared::Shared,
};

const FIRST_PAGE: usize = 128;
const PAGE: usize = 2048;
/// A page ends early with as much; so one holds that and a value at most.
const PAGE_BYTES: usize = 4 << 20;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);

struct Page {
    entries: Vec<(Bytes, Bytes)>,
    /// Nothing follows in the range.
    last: bool,
}

impl Shared {
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.read(async |session: &Session| {
            let Some(reads) = &session.reads else { return Err(not_a_reader()) };
            let statement = if key.len() > SHORT_KEY_MAX { &reads.get_long } else { &reads.get };
            let row = session.client.query_opt(statement, &[&key]).await?;
            Ok(row.map(|row| row.try_get::<_, &[u8]>(0).map(Bytes::copy_from_slice)).transpose()?)
        })
    }

    pub(crate) fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        if from >= to {
            return Ok(());
        }
        let first = self.read(async |session: &Session| page(session, from, to, FIRST_PAGE).await)?;
        if first.last {
            // A break ends it just so.
            let (ControlFlow::Continue(()) | ControlFlow::Break(())) = show(&first, visit);
            return Ok(());
        }
        let mut from = from.to_vec();
        loop {
            // None of it was shown yet: it comes again, of the same state as what follows.
            let mut view = self.view(&from, to)?;
            loop {
                if let Some((key, _)) = view.page.entries.last() {
                    from = [key, &[0][..]].concat();
                }
                if show(&view.page, visit).is_break() || view.page.last {
                    view.end(self);
                    return Ok(());
                }
                match self.next_page(&view, &from, to) {
                    Ok(page) => view.page = page,
                    Err(failure) if failure.is_passing() => break,
                    Err(failure) => return Err(failure.into()),
                }
            }
        }
    }

    /// Runs `work` on a connection, until it gives an answer or the deadline has come.
    pub(crate) fn read<T>(&self, work: impl AsyncFn(&Session) -> Result<T, Failure>) -> Result<T, KvError> {
        let began = Instant::now();
        self.retry(began, || {
            let mut place = self.pool.place(self.wait_left(began))?;
            self.ask(&mut place, &work)
        })
    }

    fn retry<T>(
        &self,
        began: Instant,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, KvError> {
        loop {
            let failure = match attempt() {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let until = self.reach.give_up_at(began, self.read_wait());
            if !failure.is_passing() || Instant::now() + PAUSE > until {
                return Err(failure.into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn read_wait(&self) -> Duration {
        patience(self.options.tuning.read_wait)
    }

    fn wait_left(&self, began: Instant) -> Duration {
        self.read_wait().saturating_sub(began.elapsed())
    }

    /// A server that says nothing at all is not waited for longer than one that is away.
    fn answer_wait(&self) -> Duration {
        self.options.tuning.answer_wait.min(self.read_wait())
    }

    /// One try. An idle connection may be of a server that is gone: then a fresh one is tried at once.
    fn ask<T>(
        &self,
        place: &mut Place<'_>,
        work: &impl AsyncFn(&Session) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Some(session) = place.usable() {
            match self.ask_one(session, work) {
                Err(Failure::Away(_)) => self.pool.forget_idle(),
                other => return other,
            }
        }
        let connecting = within(self.answer_wait(), Session::reader(&self.options));
        let connected = self.runtime.block_on(connecting);
        self.reach.note(&connected);
        place.put(connected?);
        match place.usable() {
            Some(session) => {
                let result = self.ask_one(session, work);
                self.reach.note(&result);
                result
            }
            None => Err(Failure::Away("the connection ended".to_owned())),
        }
    }

    fn ask_one<T>(
        &self,
        session: &Session,
        work: &impl AsyncFn(&Session) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let result = self.runtime.block_on(within(self.answer_wait(), work(session)));
        if matches!(result, Err(Failure::Away(_))) {
            session.give_up();
        }
        result
    }

    /// A transaction that sees one state, with its first page.
    fn view(&self, from: &[u8], to: &[u8]) -> Result<View<'_>, KvError> {
        const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let began = Instant::now();
        self.retry(began, || {
            let mut place = self.pool.place(self.wait_left(began))?;
            let result = self.ask(&mut place, &async |session: &Session| {
                session.client.batch_execute(BEGIN).await?;
                page(session, from, to, PAGE).await
            });
            match result {
                Ok(page) => Ok(View { place, page, ended: false }),
                Err(failure) => {
                    // In a transaction, or not: not for others.
                    if let Some(session) = place.usable() {
                        session.give_up();
                    }
                    Err(failure)
                }
            }
        })
    }

    fn next_page(&self, view: &View<'_>, from: &[u8], to: &[u8]) -> Result<Page, Failure> {
        let Some(session) = view.place.usable() else {
            return Err(Failure::Away("the connection ended".to_owned()));
        };
        self.ask_one(session, &async |session: &Session| page(session, from, to, PAGE).await)
    }
}

/// A range that is being read.
struct View<'a> {
    place: Place<'a>,
    page: Page,
    ended: bool,
}

impl View<'_> {
    fn end(mut self, shared: &Shared) {
        if let Some(session) = self.place.usable() {
            let done = shared.ask_one(session, &async |session: &Session| {
                Ok(session.client.batch_execute("COMMIT").await?)
            });
            self.ended = done.is_ok();
        }
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.place.usable().filter(|_| !self.ended) {
            session.give_up();
        }
    }
}

async fn page(session: &Session, from: &[u8], to: &[u8], rows_max: usize) -> Result<Page, Failure> {
    let Some(reads) = &session.reads else { return Err(not_a_reader()) };
    let limit = rows_max as i64;
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&from, &to, &limit];
    let rows = session.client.query_raw(&reads.scan, params).await?;
    pin_mut!(rows);
    let (mut entries, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next().await {
        let row = row?;
        let column = |n: usize| row.try_get::<_, &[u8]>(n).map(Bytes::copy_from_slice);
        let (key, value) = (column(0)?, column(1)?);
        bytes += key.len() + value.len();
        entries.push((key, value));
        if bytes > PAGE_BYTES {
            // The rest is thrown away as it comes, before the connection's next answer.
            return Ok(Page { entries, last: false });
        }
    }
    let last = entries.len() < rows_max;
    Ok(Page { entries, last })
}

fn show(page: &Page, visit: Visit<'_>) -> ControlFlow<()> {
    let _visiting = Visiting::begin();
    for (key, value) in &page.entries {
        visit(key, value)?;
    }
    ControlFlow::Continue(())
}

fn not_a_reader() -> Failure {
    Failure::Refused("this connection has no prepared reads".to_owned())
}
