//! Who we are to the database: kept beside the journal, so that a state directory and its rows find each other again.
//!
//! ```text
//! WRITER       "onfs-postgresql 1", "writer <32 hexadecimal digits>", "namespace <name>", "address <url>", one line each
//! WRITER.name  the name of a writer alone, from before the database hears it for the first time
//! APPLIED      "applied <20 digits>": a batch that the database has had for certain; a hint, so not synced
//! ```
//!
//! A database that has less than `APPLIED` says was put back to an earlier state, and is refused.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use kv::{Lsn, OpenError};

const VERSION: u32 = 1;
const FILE: &str = "WRITER";
/// The name that was chosen at the first opening, until the database and [`FILE`] have it.
const INTENDED: &str = "WRITER.name";
const APPLIED: &str = "APPLIED";
const BYTES_MAX: u64 = 64 << 10;

/// What the file `WRITER` says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub writer: String,
    pub namespace: String,
    /// Without a password.
    pub url: String,
}

/// Of the engine in the state directory `dir`/engine, if there is one.
pub fn identity_of(engine_dir: &Path) -> Result<Option<Identity>, OpenError> {
    let path = engine_dir.join(FILE);
    let failed = |e: &io::Error| io_error(&path, e);
    let mut content = Vec::new();
    match File::open(&path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut content)) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(&e)),
    }
    parse(&content, &path).map(Some)
}

/// Durable when it returns.
pub(crate) fn store(engine_dir: &Path, identity: &Identity) -> Result<(), OpenError> {
    let (path, new) = (engine_dir.join(FILE), engine_dir.join("WRITER.new"));
    let write = || -> io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(text(identity).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        File::open(engine_dir)?.sync_all()
    };
    write().map_err(|e| io_error(&path, &e))
}

/// The name of a writer that has none: the same one when the first opening was cut short after the database had heard it.
pub(crate) fn intended(engine_dir: &Path) -> Result<String, OpenError> {
    let path = engine_dir.join(INTENDED);
    if let Ok(name) = std::fs::read_to_string(&path)
        && is_name(&name)
    {
        return Ok(name);
    }
    let name = fresh_name()?;
    let write = || -> io::Result<()> {
        let mut file = File::create(&path)?;
        file.write_all(name.as_bytes())?;
        file.sync_all()?;
        File::open(engine_dir)?.sync_all()
    };
    write().map_err(|e| io_error(&path, &e))?;
    Ok(name)
}

fn is_name(text: &str) -> bool {
    text.len() == 32 && text.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase())
}

/// 16 random bytes as text.
pub(crate) fn fresh_name() -> Result<String, OpenError> {
    let mut random = [0; 16];
    let source = Path::new("/dev/urandom");
    File::open(source).and_then(|mut file| file.read_exact(&mut random)).map_err(|e| io_error(source, &e))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn text(identity: &Identity) -> String {
    let Identity { writer, namespace, url } = identity;
    format!("onfs-postgresql {VERSION}\nwriter {writer}\nnamespace {namespace}\naddress {url}\n")
}

fn parse(content: &[u8], path: &Path) -> Result<Identity, OpenError> {
    let damaged =
        |detail: &str| OpenError::Damaged { path: path.to_owned(), offset: 0, detail: detail.to_owned() };
    let content = std::str::from_utf8(content).map_err(|_| damaged("it is not text"))?;
    let mut lines = content.lines();
    let version = lines.next().and_then(|line| line.strip_prefix("onfs-postgresql ")?.parse::<u32>().ok());
    match version {
        None => return Err(damaged("the first line is not \"onfs-postgresql\" and a number")),
        Some(found) if found > VERSION => {
            return Err(OpenError::Newer { path: path.to_owned(), found, known: VERSION });
        }
        Some(_) => {}
    }
    let mut value = |name: &str| {
        let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map(str::to_owned).ok_or_else(|| damaged(&format!("the line {name:?} is missing")))
    };
    let identity =
        Identity { writer: value("writer")?, namespace: value("namespace")?, url: value("address")? };
    if !is_name(&identity.writer) {
        return Err(damaged("the writer is not 32 hexadecimal digits"));
    }
    crate::check_namespace(&identity.namespace).map_err(|why| damaged(&why))?;
    Ok(identity)
}

/// The file `APPLIED`.
pub(crate) struct AppliedNote {
    path: PathBuf,
    file: Option<File>,
}

impl AppliedNote {
    pub(crate) fn open(engine_dir: &Path) -> (AppliedNote, Lsn) {
        let path = engine_dir.join(APPLIED);
        let mut content = Vec::new();
        let found = File::open(&path)
            .and_then(|file| file.take(BYTES_MAX).read_to_end(&mut content))
            .ok()
            .and_then(|_| parse_applied(&content));
        (AppliedNote { path, file: None }, found.unwrap_or_default())
    }

    /// A hint: one that cannot be written is an older one.
    pub(crate) fn put(&mut self, lsn: Lsn) {
        if self.file.is_none() {
            let opened = File::options().write(true).create(true).truncate(false).open(&self.path);
            self.file = opened.ok();
        }
        let written = self.file.as_ref().map(|file| file.write_all_at(applied_text(lsn).as_bytes(), 0));
        if !matches!(written, Some(Ok(()))) {
            tracing::debug!(path = %self.path.display(), "not written");
        }
    }
}

fn applied_text(lsn: Lsn) -> String {
    format!("applied {:020}\n", lsn.0)
}

fn parse_applied(content: &[u8]) -> Option<Lsn> {
    let number = content.strip_prefix(b"applied ")?.strip_suffix(b"\n").filter(|n| n.len() == 20)?;
    std::str::from_utf8(number).ok()?.parse().ok().map(Lsn)
}

fn io_error(path: &Path, error: &io::Error) -> OpenError {
    let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    OpenError::Io { path: path.to_owned(), full, detail: error.to_string() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity() -> Identity {
        Identity {
            writer: "0123456789abcdef0123456789abcdef".into(),
            namespace: "onfs".into(),
            url: "postgresql://onfs@db1,db2/meta".into(),
        }
    }

    #[test]
    fn golden() {
        let golden = "onfs-postgresql 1\nwriter 0123456789abcdef0123456789abcdef\nnamespace onfs\n\
                      address postgresql://onfs@db1,db2/meta\n";
        assert_eq!(text(&identity()), golden);
        assert_eq!(parse(golden.as_bytes(), Path::new("W")), Ok(identity()));
        assert_eq!(applied_text(Lsn(42)), "applied 00000000000000000042\n");
        assert_eq!(parse_applied(b"applied 00000000000000000042\n"), Some(Lsn(42)));
        assert_eq!(parse_applied(b"applied 0000000000000000004"), None);
    }

    #[test]
    fn what_is_not_ours_is_told_apart() {
        let newer = parse(b"onfs-postgresql 2\n", Path::new("W"));
        assert_eq!(newer, Err(OpenError::Newer { path: "W".into(), found: 2, known: 1 }));
        for bad in ["", "onfs-postgresql x", "onfs-postgresql 1\nwriter 12\nnamespace onfs\naddress x\n"] {
            assert!(
                matches!(parse(bad.as_bytes(), Path::new("W")), Err(OpenError::Damaged { .. })),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn stored_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(identity_of(dir.path()), Ok(None));
        store(dir.path(), &identity()).unwrap();
        assert_eq!(identity_of(dir.path()), Ok(Some(identity())));
        let name = intended(dir.path()).unwrap();
        assert!(is_name(&name) && intended(dir.path()).unwrap() == name);
        let (mut note, first) = AppliedNote::open(dir.path());
        assert_eq!(first, Lsn(0));
        note.put(Lsn(7));
        note.put(Lsn(8));
        assert_eq!(AppliedNote::open(dir.path()).1, Lsn(8));
    }

    proptest! {
        #[test]
        fn any_bytes(noise in prop::collection::vec(any::<u8>(), 0..120), at: prop::sample::Index, byte: u8) {
            let mut good = text(&identity()).into_bytes();
            let at = at.index(good.len());
            good[at] = byte;
            for bytes in [noise, good] {
                let _ = (parse(&bytes, Path::new("W")), parse_applied(&bytes));
            }
        }
    }
}
