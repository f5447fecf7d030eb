//! The tables of a namespace, and how they came to be: a migration per version, each in the transaction that notes it.
//!
//! Two that open at once take turns (an advisory lock of the namespace). A newer release's tables are refused.

use crate::{connection::Session, error::Failure, options::Options};

/// In order; never changed once released. Each ends with the version of its place, from 1.
const MIGRATIONS: [&str; 2] = [VERSION_1, VERSION_2];

/// Keys are compared byte by byte (the type's own order). An index holds no more than 2704 bytes of a key, so longer ones, which no
/// file system of ours has, are apart. Writers and slots: see [`crate::lease`].
const VERSION_1: &str = "
CREATE TABLE entry (key bytea PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE long_entry (digest bytea PRIMARY KEY, key bytea NOT NULL, value bytea NOT NULL);
CREATE TABLE writer (
    id text PRIMARY KEY,
    label text NOT NULL,
    holder text NOT NULL,
    session bigint NOT NULL,
    applied bigint NOT NULL,
    lease_until timestamptz NOT NULL
);
CREATE TABLE slot (
    slot integer PRIMARY KEY CHECK (slot BETWEEN 0 AND 4095),
    owner text,
    epoch bigint NOT NULL
);
INSERT INTO slot SELECT n, NULL, 0 FROM generate_series(0, 4095) AS n;
";

/// What each writer's copy of its journal's end is worth ([`cluster::tail::row`]; without a row there never was one), whether somebody went on in
/// its place and it was not told yet; and each time that somebody did, for who asks again.
const VERSION_2: &str = "
CREATE TABLE tail (
    writer text PRIMARY KEY,
    standby text,
    copy bigint NOT NULL,
    complete boolean NOT NULL,
    taken_over boolean NOT NULL DEFAULT false
);
CREATE TABLE take_over (
    writer text NOT NULL,
    copy bigint NOT NULL,
    taker text NOT NULL,
    PRIMARY KEY (writer, copy)
);
";

/// Keys of more bytes are in `long_entry`.
pub(crate) const SHORT_KEY_MAX: usize = 2000;

/// Brings the namespace to this release's version.
pub(crate) async fn migrate(session: &Session, options: &Options) -> Result<(), Failure> {
    migrate_with(session, &options.namespace, &MIGRATIONS).await
}

/// Was the namespace ever made?
pub(crate) async fn is_there(session: &Session, options: &Options) -> Result<bool, Failure> {
    Ok(found(session, &options.namespace, MIGRATIONS.len() as u32).await? > 0)
}

async fn migrate_with(session: &Session, namespace: &str, migrations: &[&str]) -> Result<(), Failure> {
    let known = migrations.len() as u32;
    if found(session, namespace, known).await? == known {
        return Ok(());
    }
    let lock = |call: &str| format!("SELECT {call}(hashtextextended('onfs namespace {namespace}', 0))");
    // Of the session, not of the transaction: one that begins after it is had sees what the others made meanwhile.
    session.client.batch_execute(&lock("pg_advisory_lock")).await?;
    session.client.batch_execute("BEGIN").await?;
    let result = migrate_locked(session, namespace, migrations).await;
    session.client.batch_execute(if result.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
    session.client.batch_execute(&lock("pg_advisory_unlock")).await?;
    result
}

async fn migrate_locked(session: &Session, namespace: &str, migrations: &[&str]) -> Result<(), Failure> {
    let client = &session.client;
    // Somebody else may have been faster.
    let version = found(session, namespace, migrations.len() as u32).await?;
    if version == 0 {
        // Whoever has no right to make one may be given one.
        let there = client.query_opt("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&namespace]).await?;
        if there.is_none() {
            client.batch_execute(&format!("CREATE SCHEMA {namespace}")).await?;
        }
        client
            .batch_execute(
                "CREATE TABLE version (version integer PRIMARY KEY, made timestamptz NOT NULL DEFAULT now())",
            )
            .await?;
    }
    for (n, migration) in migrations.iter().enumerate().skip(version as usize) {
        client.batch_execute(migration).await?;
        client.execute("INSERT INTO version (version) VALUES ($1)", &[&(n as i32 + 1)]).await?;
    }
    Ok(())
}

/// The version that is there; 0: none.
async fn found(session: &Session, namespace: &str, known: u32) -> Result<u32, Failure> {
    let client = &session.client;
    let table = format!("{namespace}.version");
    if client.query_one("SELECT to_regclass($1) IS NULL", &[&table]).await?.try_get(0)? {
        return Ok(0);
    }
    let version: i32 =
        client.query_one("SELECT coalesce(max(version), 0) FROM version", &[]).await?.try_get(0)?;
    match u32::try_from(version) {
        Ok(found) if found > known => Err(Failure::Newer { found, known }),
        Ok(found) => Ok(found),
        Err(_) => Err(Failure::Damaged(format!("the tables have version {version}"))),
    }
}
