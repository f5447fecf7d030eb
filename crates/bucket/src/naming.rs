//! Names that are given, changed and taken away.
//!
//! A store does not rename: the object is copied by the store, with its metadata, and the old key is deleted. Between the two it has
//! both names, with the same `onfs-id`; done again, the rename comes to its end. A directory is not renamed, since each key below it
//! would have to be.

use std::collections::HashMap;

use link::{Attributes, Attrs, Found, Making, Over, Way};
use opendal::{
    Metadata,
    options::{ReadOptions, WriteOptions},
};
use types::{Errno, FileKind};

use crate::{error::told, metadata::Stored, object, store::Store};

/// The store copies no longer ones in one request.
const COPY_BYTES_MAX: u64 = 5 << 30;

impl Store {
    /// A directory, or what has no data of its own: a link's target is its content.
    pub(crate) async fn make(&self, way: &Way, what: &Making<'_>) -> Result<Found, Errno> {
        let (file, dir) = (self.keys.file(way)?, self.keys.dir(way)?);
        let (there, is_dir) = futures_util::try_join!(self.stat(&file), self.is_dir(&dir))?;
        if there.is_some() || is_dir {
            return Err(Errno::EEXIST);
        }
        self.parent_is_there(way).await?;
        let mut metadata = HashMap::new();
        Stored::of(what.kind, self.fresh_id(), what.rdev, what.with).put(&mut metadata);
        match what.kind {
            FileKind::Regular => Err(Errno::EINVAL),
            FileKind::Directory => {
                self.known.forget(&dir);
                self.signed.put_empty(&dir, &metadata, false).await?;
                self.look_at_marker(&dir).await
            }
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => {
                self.known.forget(&file);
                let options = WriteOptions { user_metadata: Some(metadata), ..WriteOptions::default() };
                let written = self.operator.write_options(&file, what.target.to_vec(), options).await;
                written.map_err(|error| told(&error, "write", &file))?;
                self.look_at_file(&file).await?.ok_or(Errno::ESTALE)
            }
        }
    }

    /// `ENOENT`: it is not.
    pub(crate) async fn parent_is_there(&self, way: &Way) -> Result<(), Errno> {
        let (_, dir) = way.split_last().ok_or(Errno::EINVAL)?;
        if self.is_dir(&self.keys.dir(dir)?).await? { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// A file. `EXDEV`: a directory, whoever wants it elsewhere has to copy it.
    pub(crate) async fn look_for_rename(&self, from: &Way, to: &Way, over: Over) -> Result<Metadata, Errno> {
        let (old, new) = (self.keys.file(from)?, self.keys.file(to)?);
        let (there, target, target_is_dir) =
            futures_util::try_join!(self.stat(&old), self.stat(&new), self.is_dir_at(to))?;
        let Some(there) = there else {
            return Err(if self.is_dir_at(from).await? { Errno::EXDEV } else { Errno::ENOENT });
        };
        let in_same_dir = from.split_last().map(|(_, dir)| dir) == to.split_last().map(|(_, dir)| dir);
        match over {
            Over::Nothing if target.is_some() || target_is_dir => Err(Errno::EEXIST),
            Over::Replace if target_is_dir => Err(Errno::EISDIR),
            Over::Nothing | Over::Replace => {
                if target.is_none() && !in_same_dir {
                    self.parent_is_there(to).await?;
                }
                Ok(there)
            }
        }
    }

    async fn is_dir_at(&self, way: &Way) -> Result<bool, Errno> {
        self.is_dir(&self.keys.dir(way)?).await
    }

    pub(crate) fn rename(&self, from: &Way, to: &Way, over: Over) -> Result<(), Errno> {
        let there = self.run(self.look_for_rename(from, to, over))?;
        let (old, new) = (self.keys.file(from)?, self.keys.file(to)?);
        if old == new {
            return Ok(());
        }
        self.known.forget(&new);
        if there.content_length() <= COPY_BYTES_MAX {
            self.run_long(self.copy(&old, &new, &there, over))?;
        } else {
            self.copy_by_us(&old, &new, &there, object::stored(&there))?;
        }
        self.run(async {
            // What is in the directory of the new name keeps it.
            if from.split_last().map(|(_, dir)| dir) != to.split_last().map(|(_, dir)| dir) {
                self.keep_dir(from).await?;
            }
            self.delete(&old).await
        })
    }

    async fn copy(&self, old: &str, new: &str, there: &Metadata, over: Over) -> Result<(), Errno> {
        match self.signed.copy(old, there, new, over == Over::Nothing).await {
            // The server knows no such condition: nothing was there just before.
            Err(Errno::EOPNOTSUPP | Errno::EINVAL) if over == Over::Nothing => {
                self.signed.copy(old, there, new, false).await
            }
            other => other,
        }
    }

    /// Through this machine, where the store does not copy.
    fn copy_by_us(&self, old: &str, new: &str, there: &Metadata, stored: Stored) -> Result<(), Errno> {
        let mut user = there.user_metadata().cloned().unwrap_or_default();
        stored.put(&mut user);
        let options = WriteOptions {
            user_metadata: Some(user),
            content_type: there.content_type().map(str::to_owned),
            cache_control: there.cache_control().map(str::to_owned),
            content_disposition: there.content_disposition().map(str::to_owned),
            content_encoding: there.content_encoding().map(str::to_owned),
            ..WriteOptions::default()
        };
        let read = |piece: &mut [u8], offset: u64| {
            let range = ReadOptions {
                range: (offset..offset + piece.len() as u64).into(),
                if_match: there.etag().map(str::to_owned),
                ..ReadOptions::default()
            };
            let bytes = self.run(async {
                self.operator.read_options(old, range).await.map_err(|error| told(&error, "read", old))
            })?;
            if bytes.len() != piece.len() {
                return Err(Errno::EIO);
            }
            piece.copy_from_slice(&bytes.to_vec());
            Ok(())
        };
        self.upload(new, there.content_length(), options, read)
    }

    pub(crate) async fn unlink(&self, way: &Way) -> Result<(), Errno> {
        let key = self.keys.file(way)?;
        if self.stat(&key).await?.is_none() {
            return Err(if self.is_dir_at(way).await? { Errno::EISDIR } else { Errno::ENOENT });
        }
        self.keep_dir(way).await?;
        self.delete(&key).await
    }

    pub(crate) async fn rmdir(&self, way: &Way) -> Result<(), Errno> {
        let key = self.keys.dir(way)?;
        if key.is_empty() {
            return Err(Errno::EBUSY);
        }
        let below = self.some_below(&key, 2).await?;
        if below.iter().any(|below| *below != key) {
            return Err(Errno::ENOTEMPTY);
        }
        if below.is_empty() {
            let is_file = self.stat(&self.keys.file(way)?).await?.is_some();
            return Err(if is_file { Errno::ENOTDIR } else { Errno::ENOENT });
        }
        self.keep_dir(way).await?;
        self.delete(&key).await
    }

    /// `EOPNOTSUPP`: the store does not change them of such an object.
    pub(crate) async fn set_attributes(
        &self,
        way: &Way,
        what: Attrs,
        to: &Attributes<'_>,
    ) -> Result<(), Errno> {
        if !way.is_empty()
            && let Some(head) = self.signed.head(&self.keys.file(way)?).await?
        {
            let key = self.keys.file(way)?;
            let there = head.metadata(&key)?;
            if there.content_length() > COPY_BYTES_MAX {
                return Err(Errno::EOPNOTSUPP);
            }
            let user = with(&there, FileKind::Regular, what, to);
            self.known.forget(&key);
            return self.signed.set_metadata(&key, &head, &user).await;
        }
        let key = self.keys.dir(way)?;
        if !self.is_dir(&key).await? {
            return Err(Errno::ENOENT);
        }
        if key.is_empty() && self.location.prefix.is_empty() {
            return Err(Errno::EOPNOTSUPP);
        }
        let marker = self.marker(&key).await?.unwrap_or_else(|| Metadata::new(opendal::EntryMode::DIR));
        let user = with(&marker, FileKind::Directory, what, to);
        self.known.forget(&key);
        self.signed.put_empty(&key, &user, false).await
    }
}

/// The user metadata of an object with these attributes; what others put there stays.
fn with(there: &Metadata, kind: FileKind, what: Attrs, to: &Attributes<'_>) -> HashMap<String, String> {
    let mut user = there.user_metadata().cloned().unwrap_or_default();
    let mut stored = Stored::parse(&user);
    if what.contains(Attrs::MODE) {
        stored.kind = stored.kind.or(Some(kind));
        stored.mode = Some(to.mode);
    }
    if what.contains(Attrs::OWNER) {
        (stored.uid, stored.gid) = (Some(to.uid), Some(to.gid));
    }
    if what.contains(Attrs::TIMES) {
        (stored.mtime, stored.atime) = (Some(to.mtime), Some(to.atime));
    }
    stored.put(&mut user);
    user
}
