//! The file that says what a directory is.

use crate::{
    error::{StoreError, errno},
    id::{FsUuid, InstanceId},
};
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::{
    io::{Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

pub(crate) const FORMAT: u32 = 1;
/// Longer files are no markers of ours.
const MARKER_BYTES_MAX: u64 = 4096;

/// What a marker holds. Unknown fields are refused, a newer format first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Marker {
    pub format: u32,
    pub file_system: FsUuid,
    pub tier: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub instance: Option<InstanceId>,
}

#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// Reads a marker and gives its open file, writable if asked; `None` when there is none.
pub(crate) fn read(
    dir: BorrowedFd<'_>,
    dir_path: &Path,
    name: &str,
    writable: bool,
) -> Result<Option<(Marker, OwnedFd)>, StoreError> {
    let path = dir_path.join(name);
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(fd) => std::fs::File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(e @ (rustix::io::Errno::ROFS | rustix::io::Errno::ACCESS | rustix::io::Errno::PERM)) => {
            return Err(StoreError::NotWritable { path: dir_path.to_owned(), errno: errno(e) });
        }
        Err(e) => return Err(StoreError::io(&path, "open")(e)),
    };
    let mut text = Vec::new();
    (&file).take(MARKER_BYTES_MAX + 1).read_to_end(&mut text).map_err(|e| StoreError::Io {
        path: path.clone(),
        action: "read",
        errno: e.into(),
    })?;
    parse(&text, &path).map(|marker| Some((marker, file.into())))
}

pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<Marker, StoreError> {
    let damaged = |detail: String| StoreError::DamagedMarker { path: path.to_owned(), detail };
    if bytes.len() as u64 > MARKER_BYTES_MAX {
        return Err(damaged("too long".into()));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text".into()))?;
    let format = toml::from_str::<FormatOnly>(text).map_err(|e| damaged(e.message().into()))?.format;
    if format > FORMAT {
        return Err(StoreError::NewerFormat { path: path.to_owned(), found: format, known: FORMAT });
    }
    if format != FORMAT {
        return Err(damaged(format!("format {format}")));
    }
    toml::from_str(text).map_err(|e| damaged(e.message().into()))
}

/// Writes a marker so that a crash leaves either none or a whole one.
pub(crate) fn write(
    dir: BorrowedFd<'_>,
    dir_path: &Path,
    name: &str,
    marker: &Marker,
) -> Result<(), StoreError> {
    let fresh = format!("{name}.new");
    let unwritable = |e| StoreError::NotWritable { path: dir_path.to_owned(), errno: errno(e) };
    let text = toml::to_string(marker)
        .map_err(|e| StoreError::DamagedMarker { path: dir_path.join(name), detail: e.to_string() })?;
    match rustix::fs::unlinkat(dir, &fresh, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(unwritable(e)),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file =
        std::fs::File::from(rustix::fs::openat(dir, &fresh, flags, Mode::from(0o600)).map_err(unwritable)?);
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|e| StoreError::Io {
        path: dir_path.join(&fresh),
        action: "write",
        errno: e.into(),
    })?;
    rustix::fs::renameat(dir, &fresh, dir, name).map_err(unwritable)?;
    rustix::fs::fsync(dir).map_err(StoreError::io(dir_path, "sync"))
}

/// Opens a directory; the errors say what is wrong with it.
pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd, StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        rustix::io::Errno::NOENT => StoreError::Missing { path: path.to_owned() },
        rustix::io::Errno::NOTDIR => StoreError::NotADirectory { path: path.to_owned() },
        e => StoreError::io(path, "open")(e),
    })
}

/// Does the directory hold nothing but what `ours` says is from us (and `lost+found`)?
pub(crate) fn is_vacant(
    dir: impl AsFd,
    path: &Path,
    ours: impl Fn(&[u8]) -> bool,
) -> Result<bool, StoreError> {
    let listing = rustix::fs::Dir::read_from(dir).map_err(StoreError::io(path, "list"))?;
    for entry in listing {
        let entry = entry.map_err(StoreError::io(path, "list"))?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b".." | b"lost+found") && !ours(name) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuzzing::{as_it_is, fuzz};

    /// Goal: no bytes in a marker make its reader panic; what is refused is called damaged or newer; what is taken can be
    /// written and read again. Method: [`fuzzing`] of both kinds of marker.
    #[test]
    fn fuzz_marker() {
        let good = [None, Some(InstanceId([3; 16]))].map(|instance| {
            let tier = "memory".to_owned();
            let marker = Marker { format: FORMAT, file_system: FsUuid([7; 16]), tier, instance };
            toml::to_string(&marker).unwrap().into_bytes()
        });
        let path = Path::new("/marker");
        fuzz("marker", &good, as_it_is, |bytes| match parse(bytes, path) {
            Ok(marker) => {
                assert_eq!(marker.format, FORMAT);
                let again = toml::to_string(&marker).unwrap();
                // A name may take more room escaped than it took as it was.
                if again.len() as u64 <= MARKER_BYTES_MAX {
                    assert_eq!(parse(again.as_bytes(), path).unwrap(), marker);
                }
            }
            Err(
                StoreError::DamagedMarker { path: named, .. } | StoreError::NewerFormat { path: named, .. },
            ) => {
                assert_eq!(named, path);
            }
            Err(other) => panic!("{other} is neither damage nor another version"),
        });
    }
}
