//! One connection: how it is set up, and what the server must be like for it.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinHandle,
};
use tokio_postgres::{
    AsyncMessage, Client, Connection, NoTls, Socket, Statement, error::Severity, tls::TlsStream,
};

use crate::{error::Failure, options::Options, tls::Tls};

/// What a statement waits for a lock. Those who hold one for longer are paused, and the server ends them.
const LOCK_WAIT: Duration = Duration::from_secs(12);

pub(crate) struct Session {
    pub client: Client,
    /// Of a reader.
    pub reads: Option<Reads>,
    warnings: Arc<AtomicU64>,
    broken: AtomicBool,
    driver: JoinHandle<()>,
}

/// Prepared.
pub(crate) struct Reads {
    pub get: Statement,
    pub get_long: Statement,
    pub scan: Statement,
}

impl Session {
    /// One that reads, and says that we live.
    pub(crate) async fn reader(options: &Options) -> Result<Session, Failure> {
        let mut session = Session::connect(options).await?;
        let client = &session.client;
        // All that it writes is the lease, which guards nothing by itself: that need not wait for a standby, with the row locked.
        client.batch_execute("SET synchronous_commit TO local").await?;
        session.reads = Some(Reads {
            get: client.prepare("SELECT value FROM entry WHERE key = $1").await?,
            get_long: client
                .prepare("SELECT value FROM long_entry WHERE digest = sha256($1) AND key = $1")
                .await?,
            scan: client
                .prepare(
                    "SELECT key, value FROM entry WHERE key >= $1 AND key < $2 UNION ALL \
                     SELECT key, value FROM long_entry WHERE key >= $1 AND key < $2 ORDER BY key LIMIT $3",
                )
                .await?,
        });
        Ok(session)
    }

    /// One whose commits are worth something, or none.
    pub(crate) async fn writer(options: &Options) -> Result<Session, Failure> {
        let session = Session::connect(options).await?;
        let row = session
            .client
            .query_one(
                "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')",
                &[],
            )
            .await?;
        let setting = |n: usize| row.try_get::<_, String>(n);
        if setting(0)? == "off" {
            let text = "the server runs with fsync = off, so its commits do not survive a crash of its machine: switch it on";
            return Err(Failure::Refused(text.to_owned()));
        }
        if setting(1)? == "off" {
            tracing::warn!(
                "the metadata database runs with full_page_writes = off: is its file system fit for that?"
            );
        }
        if setting(2)? != "remote_apply" {
            session.client.batch_execute("SET synchronous_commit TO on").await?;
        }
        Ok(session)
    }

    async fn connect(options: &Options) -> Result<Session, Failure> {
        let warnings = Arc::new(AtomicU64::new(0));
        let (client, driver) = match &options.tls {
            None => {
                let (client, connection) = options.config.connect(NoTls).await?;
                (client, tokio::spawn(drive(connection, Arc::clone(&warnings))))
            }
            Some(Tls(tls)) => {
                let (client, connection) = options.config.connect(tls.clone()).await?;
                (client, tokio::spawn(drive(connection, Arc::clone(&warnings))))
            }
        };
        let session = Session { client, reads: None, warnings, broken: AtomicBool::new(false), driver };
        let ms = |wait: Duration| wait.as_millis();
        // A statement's time is bounded on our side only: the server would end a commit's wait for its standby, too, and call it done.
        let settings = format!(
            "SET search_path TO {}; SET statement_timeout TO 0; SET lock_timeout TO {}; \
             SET idle_in_transaction_session_timeout TO {}; SET default_transaction_isolation TO 'read committed'; \
             SET client_min_messages TO warning; \
             SELECT set_config(name, '5s', false) FROM pg_settings WHERE name = 'client_connection_check_interval'",
            options.namespace,
            ms(LOCK_WAIT.max(options.tuning.idle_wait + Duration::from_secs(2))),
            ms(options.tuning.idle_wait),
        );
        session.client.batch_execute(&settings).await?;
        Ok(session)
    }

    /// So many warnings came. One during a commit may mean that it was not confirmed by the standby.
    pub(crate) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::Acquire)
    }

    /// It must not be used again, nor ended in order: something may be waited for in it.
    pub(crate) fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.broken.load(Ordering::Acquire) && !self.client.is_closed()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.broken.load(Ordering::Acquire) {
            self.driver.abort();
        }
    }
}

/// Until the connection ends. Its error is told to whoever waits for an answer.
async fn drive<T>(mut connection: Connection<Socket, T>, warnings: Arc<AtomicU64>)
where
    T: TlsStream + AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let AsyncMessage::Notice(notice) = message
            && !matches!(
                notice.parsed_severity(),
                Some(Severity::Notice | Severity::Info | Severity::Log | Severity::Debug)
            )
        {
            warnings.fetch_add(1, Ordering::AcqRel);
            tracing::warn!(message = notice.message(), "the metadata database warns");
        }
    }
}

/// `work`, or [`Failure::Away`] when it takes longer than `wait`.
pub(crate) async fn within<T>(
    wait: Duration,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = || Failure::Away(format!("no answer for {wait:?}"));
    tokio::time::timeout(wait, work).await.unwrap_or_else(|_| Err(late()))
}
