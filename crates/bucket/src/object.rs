//! What an object is as a file.
//!
//! A store has no inode numbers. A file is told by the name that we gave it (`onfs-id`), which its copies keep, or by its ETag,
//! which no other content has; a directory by its key. Every replacement by others has another ETag and not our name, so it is seen
//! whatever the times say, and a look is always firm. The ETag is in the nanoseconds of the ctime besides, of which the store knows only
//! the seconds.

use link::{Found, Proof, Seen};
use opendal::Metadata;
use types::{FileKind, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

use crate::metadata::Stored;

const FILE_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

/// User and group of what carries none.
pub(crate) type Owner = (u32, u32);

/// An object that is no directory's marker.
pub(crate) fn file(metadata: &Metadata, owner: Owner) -> Found {
    let stored = stored(metadata);
    let etag = xxh3_64(metadata.etag().unwrap_or_default().as_bytes());
    let changed = last_modified(metadata);
    let kind = match stored.kind {
        // Of a file system that marks directories otherwise: what is below it makes it one.
        None | Some(FileKind::Directory) => FileKind::Regular,
        Some(kind) => kind,
    };
    // Content without a name of ours, of another length, is another one, even where the ETag says nothing.
    let unnamed = etag ^ metadata.content_length().rotate_left(32);
    let seen = Seen {
        kind,
        fileid: stored.id.unwrap_or(unnamed),
        birth: None,
        size: metadata.content_length(),
        mtime: stored.mtime.unwrap_or(changed),
        ctime: Timestamp { nsec: (etag % 1_000_000_000) as u32, ..changed },
        mode: stored.mode.unwrap_or(FILE_MODE),
        uid: stored.uid.unwrap_or(owner.0),
        gid: stored.gid.unwrap_or(owner.1),
        nlink: 1,
        proof: Proof::Firm,
    };
    Found { seen, atime: stored.atime.unwrap_or(seen.mtime), rdev: stored.rdev.unwrap_or(0) }
}

/// A directory. Without a marker it is there by what is below it, and has no times.
pub(crate) fn dir(key: &str, marker: Option<&Metadata>, owner: Owner) -> Found {
    let stored = marker.map(stored).unwrap_or_default();
    let changed = marker.map_or(Timestamp::EPOCH, last_modified);
    let seen = Seen {
        kind: FileKind::Directory,
        fileid: xxh3_64(key.as_bytes()),
        birth: None,
        size: 0,
        mtime: stored.mtime.unwrap_or(changed),
        ctime: changed,
        mode: stored.mode.unwrap_or(DIR_MODE),
        uid: stored.uid.unwrap_or(owner.0),
        gid: stored.gid.unwrap_or(owner.1),
        nlink: 2,
        proof: Proof::Firm,
    };
    Found { seen, atime: stored.atime.unwrap_or(seen.mtime), rdev: 0 }
}

/// What the marker of a directory that has none yet says: the same as none.
pub(crate) fn unmarked(owner: Owner) -> Stored {
    Stored {
        kind: Some(FileKind::Directory),
        mode: Some(DIR_MODE),
        uid: Some(owner.0),
        gid: Some(owner.1),
        mtime: Some(Timestamp::EPOCH),
        ..Stored::default()
    }
}

pub(crate) fn stored(metadata: &Metadata) -> Stored {
    metadata.user_metadata().map(Stored::parse).unwrap_or_default()
}

/// In whole seconds: a listing gives more, a look does not.
pub(crate) fn last_modified(metadata: &Metadata) -> Timestamp {
    let sec = metadata.last_modified().map_or(0, |time| time.into_inner().as_second());
    Timestamp { sec, nsec: 0 }
}

#[cfg(test)]
mod tests {
    //! Goal: each way of replacing an object is seen, a copy of ours is known again. Method: one difference at a time.
    use super::*;
    use link::{Change, compare};
    use std::collections::HashMap;

    fn object(etag: &str, size: u64, sec: i64, user: &[(&str, &str)]) -> Metadata {
        let user: HashMap<String, String> =
            user.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Metadata::new(opendal::EntryMode::FILE)
            .with_etag(etag.to_owned())
            .with_content_length(size)
            .with_last_modified(opendal::raw::Timestamp::from_second(sec).unwrap())
            .with_user_metadata(user)
    }

    fn change(a: &Metadata, b: &Metadata) -> Change {
        compare(&file(a, (0, 0)).seen, Some(&file(b, (0, 0)).seen))
    }

    #[test]
    fn every_replacement_is_seen() {
        let theirs = object("\"e\"", 5, 100, &[]);
        assert_eq!(change(&theirs, &theirs), Change::Nothing);
        assert_eq!(change(&theirs, &object("\"f\"", 5, 100, &[])), Change::Replaced, "in the same second");
        assert_eq!(change(&theirs, &object("\"e\"", 5, 101, &[])), Change::Data);
        let ours = object("\"e\"", 5, 100, &[("onfs-id", "00000000000000ab"), ("mtime", "7.5")]);
        assert_eq!(change(&ours, &object("\"f\"", 5, 101, &[])), Change::Replaced);
        assert_eq!(change(&ours, &object("\"f\"", 5, 101, &[("mtime", "7.5")])), Change::Replaced);
        let copied = object("\"e-2\"", 5, 105, &[("onfs-id", "00000000000000ab"), ("mtime", "7.5")]);
        assert_eq!(change(&ours, &copied), Change::Attributes);
        let touched = object("\"e\"", 5, 105, &[("onfs-id", "00000000000000ab"), ("mtime", "8")]);
        assert_eq!(change(&ours, &touched), Change::Data);
    }

    #[test]
    fn what_is_missing_has_defaults() {
        let found = file(&object("\"e\"", 5, 100, &[]), (7, 8));
        let seen = found.seen;
        assert_eq!((seen.kind, seen.mode, seen.uid, seen.gid), (FileKind::Regular, 0o644, 7, 8));
        assert_eq!((seen.mtime, seen.size), (Timestamp { sec: 100, nsec: 0 }, 5));
        let link = file(&object("\"e\"", 5, 100, &[("mode", "41471")]), (0, 0)).seen;
        assert_eq!((link.kind, link.mode), (FileKind::Symlink, 0o777));
        let unmarked_dir = dir("d/", None, (7, 8)).seen;
        assert_eq!((unmarked_dir.mode, unmarked_dir.uid, unmarked_dir.mtime), (0o755, 7, Timestamp::EPOCH));
        let mut user = HashMap::new();
        unmarked((7, 8)).put(&mut user);
        let marker = object("\"e\"", 0, 100, &[]).with_user_metadata(user);
        let marked = dir("d/", Some(&marker), (7, 8)).seen;
        assert_eq!(compare(&unmarked_dir, Some(&marked)), Change::Attributes, "no other names");
    }
}
