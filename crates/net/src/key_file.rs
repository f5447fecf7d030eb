//! The file with the cluster key, and others with secrets: made for their owner alone, and refused when anybody else can read them.

use std::{
    fs::OpenOptions,
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use thiserror::Error;
use wire::key::{ClusterKey, KEY_LEN, NoKey};

/// More than a key's text is none.
const FILE_MAX: u64 = 256;
const FOR_OTHERS: u32 = 0o077;

#[derive(Debug, Error)]
pub enum KeyFileError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} can be used by others (mode {mode:04o}): chmod 600 it, and make a new key if they may have read it", path = path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{path} belongs to user {owner}, who is neither this process's user nor root", path = path.display())]
    Owner { path: PathBuf, owner: u32 },
    #[error("{path} is no ordinary file", path = path.display())]
    NoFile { path: PathBuf },
    #[error("{path}: {source}", path = path.display())]
    Text { path: PathBuf, source: NoKey },
}

/// Reads the key.
pub fn read(path: &Path) -> Result<ClusterKey, KeyFileError> {
    let text = secret(path, FILE_MAX)?;
    ClusterKey::parse(&text).map_err(|source| KeyFileError::Text { path: path.to_path_buf(), source })
}

/// The text of a file that nobody else may read, its first `most` bytes. What is checked is the file that was opened, not the name.
pub(crate) fn secret(path: &Path, most: u64) -> Result<String, KeyFileError> {
    let path_buf = || path.to_path_buf();
    let io = |source| KeyFileError::Io { path: path_buf(), source };
    // A pipe must not hold us up.
    let no_wait = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(no_wait).open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(KeyFileError::NoFile { path: path_buf() });
    }
    let mode = meta.mode() & 0o7777;
    if mode & FOR_OTHERS != 0 {
        return Err(KeyFileError::Open { path: path_buf(), mode });
    }
    let us = rustix::process::geteuid().as_raw();
    if meta.uid() != us && meta.uid() != 0 {
        return Err(KeyFileError::Owner { path: path_buf(), owner: meta.uid() });
    }
    let mut text = String::new();
    file.take(most).read_to_string(&mut text).map_err(io)?;
    Ok(text)
}

/// Makes a key and its file, which must not be there yet.
pub fn create(path: &Path) -> Result<ClusterKey, KeyFileError> {
    let random = crate::random::<KEY_LEN>();
    let key =
        ClusterKey::new(random.map_err(|source| KeyFileError::Io { path: path.to_path_buf(), source })?);
    write_new(path, &key.to_text(), 0o600)?;
    Ok(key)
}

/// A file that was not there.
pub(crate) fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), KeyFileError> {
    let io = |source| KeyFileError::Io { path: path.to_path_buf(), source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)?;
    file.sync_all().map_err(io)
}

/// A file in place of one that may be there: whoever reads it finds the one or the other.
pub(crate) fn write_anew(path: &Path, text: &str, mode: u32) -> Result<(), KeyFileError> {
    let io = |source| KeyFileError::Io { path: path.to_path_buf(), source };
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        Ok(()) | Err(_) => (),
    }
    write_new(&new, text, mode)?;
    std::fs::rename(&new, path).map_err(io)
}

#[cfg(test)]
mod tests {
    //! Goal: a key that others can read is never used. Method: files of every mode, and what is no key.
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn only_its_owner_reads_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = create(&path).unwrap();
        assert_eq!(read(&path).unwrap(), key);
        assert!(matches!(create(&path), Err(KeyFileError::Io { .. })), "a key is not overwritten");
        for mode in 0..0o1000 {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = read(&path);
            let open = matches!(&found, Err(KeyFileError::Open { mode: m, .. }) if *m == mode);
            // One that its owner cannot read is an error of its own, or fine for root.
            assert_eq!(open, mode & 0o077 != 0 && (mode & 0o400 != 0 || is_root()), "{mode:o}");
        }
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn what_is_no_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let write = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            read(&path).unwrap_err().to_string()
        };
        assert!(write(b"").ends_with("64 hexadecimal digits is wanted"));
        assert!(write(&[0xff; 90]).contains("UTF-8"));
        let long = ClusterKey::new([1; 32]).to_text().repeat(20);
        assert!(write(long.as_bytes()).contains("not a cluster key"));
        assert!(matches!(read(dir.path()), Err(KeyFileError::NoFile { .. })));
    }
}
