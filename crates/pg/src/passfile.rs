//! The password, from a file as libpq has it: lines `host:port:database:user:password`, `*` for any, `\` before `:` and `\`.
//!
//! A file that others can read is refused. Nothing of the content reaches a message.

use std::{
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

const BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PassfileError {
    #[error("the password file {} can be read by others: chmod 600 it", .0.display())]
    Open(PathBuf),
    #[error("the password file {}: {detail}", path.display())]
    Io { path: PathBuf, detail: String },
    #[error("the password file {} has no line for {wanted}", path.display())]
    NoLine { path: PathBuf, wanted: String },
}

/// What a line is chosen by.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub host: String,
    pub port: u16,
    pub database: String,
    pub user: String,
}

pub(crate) fn password(path: &Path, wanted: &Wanted) -> Result<Vec<u8>, PassfileError> {
    let failed = |e: io::Error| PassfileError::Io { path: path.to_owned(), detail: e.to_string() };
    let mut file = std::fs::File::open(path).map_err(failed)?;
    // Of what was opened, so that it cannot be another one.
    if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
        return Err(PassfileError::Open(path.to_owned()));
    }
    let mut content = Vec::new();
    file.by_ref().take(BYTES_MAX).read_to_end(&mut content).map_err(failed)?;
    let found = content.split(|byte| *byte == b'\n').find_map(|line| of_line(line, wanted));
    found.ok_or_else(|| {
        let Wanted { host, port, database, user } = wanted;
        PassfileError::NoLine { path: path.to_owned(), wanted: format!("{host}:{port}:{database}:{user}") }
    })
}

fn of_line(line: &[u8], wanted: &Wanted) -> Option<Vec<u8>> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.starts_with(b"#") {
        return None;
    }
    let mut fields = vec![Vec::new()];
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => fields.last_mut()?.extend(bytes.next()),
            b':' if fields.len() < 5 => fields.push(Vec::new()),
            _ => fields.last_mut()?.push(*byte),
        }
    }
    let [host, port, database, user, password] = <[Vec<u8>; 5]>::try_from(fields).ok()?;
    let fits = |field: &[u8], value: &str| field == b"*" || field == value.as_bytes();
    // As libpq: a socket's directory is "localhost" there.
    let host_fits = fits(&host, &wanted.host) || (wanted.host.starts_with('/') && host == b"localhost");
    let all = host_fits
        && fits(&port, &wanted.port.to_string())
        && fits(&database, &wanted.database)
        && fits(&user, &wanted.user);
    (all && !password.is_empty()).then_some(password)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted() -> Wanted {
        Wanted { host: "db1".into(), port: 5432, database: "onfs".into(), user: "o:n".into() }
    }

    #[test]
    fn the_first_line_that_fits_counts() {
        for (text, found) in [
            ("db1:5432:onfs:o\\:n:se\\:cr\\\\et", Some("se:cr\\et")),
            ("#db1:5432:onfs:o\\:n:x\nother:*:*:*:no\n*:*:*:*:yes\r\n*:*:*:*:late", Some("yes")),
            ("db1:5433:*:*:x", None),
            ("db1:5432:onfs:o\\:n", None),
            ("*:*:*:*:with:colons", Some("with:colons")),
            ("", None),
        ] {
            let got = text.as_bytes().split(|b| *b == b'\n').find_map(|line| of_line(line, &wanted()));
            assert_eq!(got.as_deref(), found.map(str::as_bytes), "{text}");
        }
        let socket = Wanted { host: "/run/postgresql".into(), ..wanted() };
        assert!(of_line(b"localhost:*:*:*:x", &socket).is_some());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pass");
        std::fs::write(&path, "*:*:*:*:secret\n").unwrap();
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(password(&path, &wanted()).is_ok(), fine, "{mode:o}");
        }
        let missing = password(&dir.path().join("none"), &wanted()).unwrap_err().to_string();
        assert!(missing.contains("none"));
    }

    proptest! {
        #[test]
        fn any_line(line in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = of_line(&line, &wanted());
        }
    }
}
