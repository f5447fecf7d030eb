//! What the database's errors mean here. Each class is mapped on purpose; what no class names is told as it is.

use kv::OpenError;
use namespace::txn::KvError;
use tokio_postgres::error::{Error, Severity, SqlState};

/// Why a request to the database failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// No server that takes writes can be reached, or it broke off: it may come back.
    #[error("the metadata database cannot be reached: {0}")]
    Away(String),
    /// Others were in the way: the same may work when it is tried again.
    #[error("the metadata database is busy: {0}")]
    Busy(String),
    /// No space at the server.
    #[error("the metadata database has no space left: {0}")]
    Full(String),
    /// Another one owns what was to be written. Trying again is no use.
    #[error("the metadata belong to another writer now: {0}")]
    Fenced(String),
    /// What the server has stored is wrong.
    #[error("the metadata database is damaged: {0}")]
    Damaged(String),
    /// A newer release made the tables.
    #[error("the tables have version {found}, this release knows {known}")]
    Newer { found: u32, known: u32 },
    /// Another process has this state directory open.
    #[error("{0}")]
    InUse(String),
    /// The database, or the namespace, is another state directory's.
    #[error("{0}")]
    Stranger(String),
    /// Anything else: wrong password, missing rights, missing tables.
    #[error("the metadata database refused: {0}")]
    Refused(String),
}

impl Failure {
    /// May the same request work a moment later?
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Failure::Away(_) | Failure::Busy(_) | Failure::InUse(_) => true,
            Failure::Full(_)
            | Failure::Stranger(_)
            | Failure::Fenced(_)
            | Failure::Damaged(_)
            | Failure::Newer { .. }
            | Failure::Refused(_) => false,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error.as_db_error() {
            Some(db) => by_state(db.code(), format!("{} ({})", db.message(), db.code().code())),
            None => without_answer(&error),
        }
    }
}

impl From<Failure> for KvError {
    fn from(failure: Failure) -> KvError {
        let text = failure.to_string();
        match failure {
            Failure::Full(_) => KvError::Full,
            Failure::Damaged(_) => KvError::Corrupt(text),
            Failure::Away(_)
            | Failure::Busy(_)
            | Failure::Fenced(_)
            | Failure::Newer { .. }
            | Failure::InUse(_)
            | Failure::Stranger(_)
            | Failure::Refused(_) => KvError::Io(text),
        }
    }
}

/// At an opening; `place` names the database and the namespace.
pub(crate) fn of_open(place: &str, failure: Failure) -> OpenError {
    match failure {
        Failure::Newer { found, known } => OpenError::Newer { path: place.into(), found, known },
        Failure::Full(_) => OpenError::Io { path: place.into(), full: true, detail: failure.to_string() },
        Failure::InUse(_) => OpenError::Locked { path: format!("{place} ({failure})").into(), pid: None },
        Failure::Refused(_) | Failure::Stranger(_) => OpenError::Refused(format!("{place}: {failure}")),
        Failure::Away(_) | Failure::Busy(_) | Failure::Fenced(_) | Failure::Damaged(_) => {
            OpenError::Engine(failure.into())
        }
    }
}

/// Did the server end more than the request: the connection, or itself? Then what it said of the request is not the last word.
pub(crate) fn is_fatal(error: &Error) -> bool {
    error.as_db_error().is_none_or(|db| match db.parsed_severity() {
        Some(Severity::Fatal | Severity::Panic) => true,
        Some(
            Severity::Error
            | Severity::Warning
            | Severity::Notice
            | Severity::Debug
            | Severity::Info
            | Severity::Log,
        ) => false,
        // In another language: the classes that end a connection.
        None => by_state(db.code(), String::new()) == Failure::Away(String::new()),
    })
}

/// Errors of the library have no class but their words. What is wrong with what we bring is no outage: a password that is missing,
/// or one that the server's way of asking does not take. Anything else may pass, and is tried again until the deadline.
fn without_answer(error: &Error) -> Failure {
    use std::error::Error as _;
    let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
    let words = error.to_string();
    if words.starts_with("invalid configuration") || words.starts_with("authentication error") {
        return Failure::Refused(format!("{words}{cause}"));
    }
    if words.starts_with("error performing TLS handshake") && tls_is_refused(error) {
        return Failure::Refused(format!(
            "no TLS with the database{cause}: see sslmode and sslrootcert of its address, and ssl of the server"
        ));
    }
    Failure::Away(format!("{words}{cause}"))
}

/// Waiting helps against a server that broke off in the middle, and not against one without TLS or with a certificate that is not taken.
fn tls_is_refused(error: &Error) -> bool {
    use std::error::Error as _;
    let Some(cause) = error.source() else { return false };
    match cause.downcast_ref::<std::io::Error>() {
        Some(io) => io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        None => true,
    }
}

fn by_state(state: &SqlState, text: String) -> Failure {
    if *state == SqlState::DISK_FULL {
        Failure::Full(text)
    } else if AWAY.contains(state) || state.code().starts_with("08") {
        Failure::Away(text)
    } else if BUSY.contains(state) {
        Failure::Busy(text)
    } else if [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].contains(state) {
        Failure::Damaged(text)
    } else {
        Failure::Refused(text)
    }
}

/// The server stops, starts, is a standby, or ended the connection.
const AWAY: [SqlState; 7] = [
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::TOO_MANY_CONNECTIONS,
    SqlState::READ_ONLY_SQL_TRANSACTION,
    SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    SqlState::IDLE_SESSION_TIMEOUT,
];

const BUSY: [SqlState; 6] = [
    SqlState::T_R_SERIALIZATION_FAILURE,
    SqlState::T_R_DEADLOCK_DETECTED,
    SqlState::LOCK_NOT_AVAILABLE,
    SqlState::QUERY_CANCELED,
    SqlState::OUT_OF_MEMORY,
    SqlState::OBJECT_IN_USE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_mapped_on_purpose() {
        type Kind = fn(String) -> Failure;
        let rows: [(&str, Kind); 17] = [
            ("53100", Failure::Full),
            ("08006", Failure::Away),
            ("08P01", Failure::Away),
            ("57P01", Failure::Away),
            ("57P02", Failure::Away),
            ("57P03", Failure::Away),
            ("53300", Failure::Away),
            ("25006", Failure::Away),
            ("25P03", Failure::Away),
            ("40001", Failure::Busy),
            ("40P01", Failure::Busy),
            ("55P03", Failure::Busy),
            ("57014", Failure::Busy),
            ("XX001", Failure::Damaged),
            ("XX002", Failure::Damaged),
            ("28P01", Failure::Refused),
            ("42P01", Failure::Refused),
        ];
        for (code, kind) in rows {
            assert_eq!(by_state(&SqlState::from_code(code), "why".into()), kind("why".into()), "{code}");
        }
        assert_eq!(KvError::from(Failure::Full(String::new())), KvError::Full);
        assert!(matches!(KvError::from(Failure::Damaged(String::new())), KvError::Corrupt(_)));
        assert!(matches!(KvError::from(Failure::Away(String::new())), KvError::Io(_)));
    }
}
