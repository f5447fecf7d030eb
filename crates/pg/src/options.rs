//! Which database, and how long to wait for it. What cannot be honoured is refused here, before anything is asked.

use std::{path::PathBuf, str::FromStr, time::Duration};

use tokio_postgres::config::{Config, Host, SslMode, TargetSessionAttrs};

use crate::{
    address::{self, TlsWanted, Verify},
    passfile::{self, Wanted},
    tls::Tls,
};

/// Of an attempt to connect to one host, unless the address has `connect_timeout`.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const NAMESPACE_BYTES_MAX: usize = 40;
/// PostgreSQL's own.
const PORT: u16 = 5432;

/// Who else may write to the namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Nobody: all slots are taken at the opening, and a namespace with another writer in it is refused.
    Alone,
    /// Others, each to its own slots: [`crate::PgEngine::take`].
    Shared,
}

/// Times. The defaults are meant to be used; tests have shorter ones.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// A writer's slots may be taken by others when nothing was heard of it for so long, by the database's clock.
    pub lease: Duration,
    /// The longest that a reader waits for a database that went away; who comes later gets what is left of it.
    pub read_wait: Duration,
    /// The longest that a batch, or an opening, waits for it.
    pub apply_wait: Duration,
    /// One answer.
    pub answer_wait: Duration,
    /// The server ends a writer's transaction that waits for its writer, so that one that is paused cannot hold its locks.
    pub idle_wait: Duration,
    /// Run by `apply` when all is written and nothing committed: for tests, to stop there.
    pub before_commit: Option<fn()>,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            lease: Duration::from_secs(30),
            read_wait: Duration::from_secs(20),
            apply_wait: Duration::from_secs(30),
            answer_wait: Duration::from_secs(30),
            idle_wait: Duration::from_secs(10),
            before_commit: None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    /// The library's `Debug` hides the password.
    pub(crate) config: Config,
    /// `None`: in clear.
    pub(crate) tls: Option<Tls>,
    pub(crate) verify: Option<Verify>,
    pub(crate) url: String,
    pub(crate) namespace: String,
    pub(crate) sharing: Sharing,
    pub(crate) tuning: Tuning,
}

impl Options {
    /// `url` as libpq has it, with one host or several, without a password: that comes from `password_file`. The error says
    /// what to change, and never the password.
    pub fn new(
        url: &str,
        namespace: &str,
        password_file: Option<PathBuf>,
        sharing: Sharing,
    ) -> Result<Options, String> {
        check_namespace(namespace)?;
        let (mut config, wanted_tls) = understood(url)?;
        let tls = Tls::new(&wanted_tls)?;
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        // A standby takes no writes, and may be behind.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.application_name("onfs");
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WAIT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(30));
        }
        config.keepalives_idle(Duration::from_secs(30));
        if let Some(path) = password_file {
            let password = passfile::password(&path, &wanted(&config)).map_err(|e| e.to_string())?;
            config.password(password);
        }
        Ok(Options {
            config,
            tls,
            verify: wanted_tls.verify,
            url: url.to_owned(),
            namespace: namespace.to_owned(),
            sharing,
            tuning: Tuning::default(),
        })
    }

    pub fn tuned(mut self, tuning: Tuning) -> Options {
        self.tuning = tuning;
        self
    }

    /// For messages.
    pub fn place(&self) -> String {
        format!("PostgreSQL at {}, database {}, namespace {}", self.hosts(), self.database(), self.namespace)
    }

    /// As in the address, with ports other than PostgreSQL's own.
    pub fn hosts(&self) -> String {
        let ports = self.config.get_ports();
        let port = |n: usize| ports.get(n).or_else(|| ports.first()).copied().unwrap_or(PORT);
        let text = |(n, host): (usize, &Host)| match port(n) {
            PORT => host_text(host),
            port => format!("{}:{port}", host_text(host)),
        };
        self.config.get_hosts().iter().enumerate().map(text).collect::<Vec<_>>().join(",")
    }

    pub fn database(&self) -> &str {
        self.config.get_dbname().or(self.config.get_user()).unwrap_or("(the user's own)")
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What others on the network may do, if they may.
    pub(crate) fn open_to_others(&self) -> Option<&'static str> {
        match self.verify {
            _ if !self.is_remote() => None,
            None => {
                Some("the metadata database is reached over a network, and nothing is encrypted: see sslmode")
            }
            Some(Verify::Nothing) => Some(
                "the metadata database is reached over a network, and its certificate is not verified: see sslrootcert",
            ),
            Some(Verify::Chain | Verify::ChainAndName) => None,
        }
    }

    /// Is something said over a network that others may listen to?
    fn is_remote(&self) -> bool {
        self.config.get_hosts().iter().any(|host| match host {
            Host::Unix(_) => false,
            Host::Tcp(name) => !["localhost", "127.0.0.1", "::1"].contains(&name.as_str()),
        })
    }
}

/// An address that can be used? The error says what to change, and has nothing of a password in it.
pub fn check_address(url: &str) -> Result<(), String> {
    understood(url).map(drop)
}

fn understood(url: &str) -> Result<(Config, TlsWanted), String> {
    let not_understood = |error: String| format!("the database's address is not understood: {error}");
    let (rest, mut tls) = address::split(url).map_err(not_understood)?;
    // The library's words do not have the address in them; its cause may.
    let config = Config::from_str(&rest).map_err(|error| not_understood(error.to_string()))?;
    if config.get_password().is_some() {
        let text = "the database's address must not have a password in it: put it into a password file";
        return Err(text.to_owned());
    }
    if config.get_hosts().is_empty() {
        return Err("the database's address names no host (nor the directory of a socket)".to_owned());
    }
    // As libpq has it: a socket's bytes leave no machine, and its server offers no TLS there.
    if config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_))) {
        tls = TlsWanted::default();
    }
    Ok((config, tls))
}

/// Small letters, digits and underscores, so that it needs no quotes anywhere.
pub fn check_namespace(name: &str) -> Result<(), String> {
    let fine = |(n, c): (usize, char)| matches!(c, 'a'..='z' | '_') || (n > 0 && c.is_ascii_digit());
    let all = !name.is_empty() && name.len() <= NAMESPACE_BYTES_MAX && name.chars().enumerate().all(fine);
    if !all || name.starts_with("pg_") {
        return Err(format!(
            "{name:?} cannot be a namespace: small letters, digits and _, no digit first, not pg_, {NAMESPACE_BYTES_MAX} at most"
        ));
    }
    Ok(())
}

fn wanted(config: &Config) -> Wanted {
    let user = config.get_user().unwrap_or_default().to_owned();
    Wanted {
        host: config.get_hosts().first().map(host_text).unwrap_or_default(),
        port: config.get_ports().first().copied().unwrap_or(PORT),
        database: config.get_dbname().unwrap_or(&user).to_owned(),
        user,
    }
}

fn host_text(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(url: &str) -> Result<Options, String> {
        Options::new(url, "onfs", None, Sharing::Alone)
    }

    #[test]
    fn addresses() {
        for url in [
            "postgresql://onfs@db1/meta",
            "postgresql://onfs@db1:5432,db2:5433/meta?target_session_attrs=any&connect_timeout=3",
            "postgresql://onfs@%2Frun%2Fpostgresql/meta",
            "host=/run/postgresql user=onfs dbname=meta sslmode=disable",
        ] {
            let options = new(url).unwrap();
            assert_eq!(options.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
            assert!(options.place().contains("database meta"), "{}", options.place());
        }
        assert!(new("postgresql://db1/meta?sslmode=require").unwrap().tls.is_some());
        assert!(new("host=/run/postgresql sslmode=require dbname=meta").unwrap().tls.is_none());
        let two = new("postgresql://onfs@db1:5432,db2:5433/meta").unwrap();
        assert_eq!((two.hosts().as_str(), two.database()), ("db1,db2:5433", "meta"));
        for (url, words) in [
            ("postgresql://onfs:secret@db1/meta", "password file"),
            ("postgresql://db1/meta?password=secret", "password file"),
            ("postgresql://db1/meta?sslmode=verify-full&sslrootcert=/nowhere/ca", "/nowhere/ca"),
            ("postgresql://db1/meta?sslmode=verify-full", "sslmode"),
            ("mysql://db1", "address"),
            ("postgresql:///meta", "host"),
        ] {
            let error = new(url).unwrap_err();
            assert!(error.contains(words) && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn namespaces() {
        for good in ["onfs", "a", "_x9", "a_long_one"] {
            check_namespace(good).unwrap();
        }
        for bad in ["", "9a", "A", "a-b", "a\"b", "pg_x", "ä", "a b", &"a".repeat(41)] {
            check_namespace(bad).unwrap_err();
        }
    }
}
