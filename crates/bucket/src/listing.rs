//! The names of a directory: one listing, and looks at what it does not tell enough of, several at once.

use std::{collections::BTreeMap, ops::ControlFlow};

use futures_util::{StreamExt, TryStreamExt, stream};
use link::{Found, Way};
use opendal::{Entry, options::ListOptions};
use types::Errno;

use crate::{
    error::told,
    key::{IDENTITY, is_name},
    known::Told,
    object,
    store::{Store, now},
};

/// Looks at once: a level of 1,000 objects takes 32 times as long as one look.
pub(crate) const LOOKS: usize = 32;
/// Names that are looked at before any is shown.
const BATCH: usize = 256;
/// Entries that come in one answer, and one deadline.
const PAGE: usize = 1000;

enum Listed {
    File(Told),
    Dir,
}

impl Store {
    pub(crate) fn list(
        &self,
        way: &Way,
        visit: &mut dyn FnMut(&[u8], Found) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let key = self.keys.dir(way)?;
        let names: Vec<(String, Listed)> = self.names(&key)?.into_iter().collect();
        for batch in names.chunks(BATCH) {
            let found = self.run(async {
                let looks = batch.iter().map(|(name, listed)| self.look_closer(&key, name, listed));
                stream::iter(looks).buffered(LOOKS).try_collect::<Vec<_>>().await
            })?;
            for ((name, _), found) in batch.iter().zip(found) {
                // One that went meanwhile is left out.
                let Some(found) = found else { continue };
                if visit(name.as_bytes(), found).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// By one listing, where it tells enough of them.
    pub(crate) fn look_at(&self, dir: &Way, of: &[Vec<u8>]) -> Result<Vec<Option<Found>>, Errno> {
        for name in of {
            self.keys.file(&[dir, std::slice::from_ref(name)].concat())?;
        }
        let key = self.keys.dir(dir)?;
        let names = self.names(&key)?;
        self.run(async {
            let looks = of.iter().map(async |name| {
                let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
                match names.get(name) {
                    Some(listed) => self.look_closer(&key, name, listed).await,
                    None => Ok(None),
                }
            });
            stream::iter(looks).buffered(LOOKS).try_collect().await
        })
    }

    /// All names, in order. `ENOENT`: there is no such directory.
    fn names(&self, key: &str) -> Result<BTreeMap<String, Listed>, Errno> {
        let path = if key.is_empty() { "/" } else { key };
        let mut entries = self.run(async {
            let lister = self.operator.lister_options(path, ListOptions::default()).await;
            lister.map_err(|error| told(&error, "list", key))
        })?;
        let (mut names, mut is_there) = (BTreeMap::new(), key.is_empty());
        loop {
            let page: Vec<Entry> = self.run(async {
                let page = entries.by_ref().take(PAGE).try_collect().await;
                page.map_err(|error| told(&error, "list", key))
            })?;
            is_there |= !page.is_empty();
            page.iter().for_each(|entry| self.take_name(key, entry, &mut names));
            if page.len() < PAGE {
                break;
            }
        }
        if is_there { Ok(names) } else { Err(Errno::ENOENT) }
    }

    fn take_name(&self, dir: &str, entry: &Entry, names: &mut BTreeMap<String, Listed>) {
        let path = entry.path();
        // The marker of the directory itself.
        if path == dir || path == "/" || path == IDENTITY {
            return;
        }
        let rest = path.strip_prefix(dir).unwrap_or(path);
        let (name, is_dir) = match rest.strip_suffix('/') {
            Some(name) => (name, true),
            None => (rest, false),
        };
        if !is_name(name) {
            return self.leave_out(path, "its key is not made of names");
        }
        match names.get(name) {
            Some(Listed::Dir) => self.leave_out(&format!("{dir}{name}"), "a directory has its name"),
            Some(Listed::File(_)) | None if is_dir => {
                if names.insert(name.to_owned(), Listed::Dir).is_some() {
                    self.leave_out(&format!("{dir}{name}"), "a directory has its name");
                }
            }
            Some(Listed::File(_)) | None => {
                names.insert(name.to_owned(), Listed::File(Told::of(entry.metadata())));
            }
        }
    }

    async fn look_closer(&self, dir: &str, name: &str, listed: &Listed) -> Result<Option<Found>, Errno> {
        match listed {
            Listed::Dir => {
                let key = format!("{dir}{name}/");
                if let Some(found) = self.known.dir(&key) {
                    return Ok(Some(found));
                }
                self.look_at_marker(&key).await.map(Some)
            }
            Listed::File(told) => {
                let key = format!("{dir}{name}");
                if let Some(found) = self.known.file(&key, told) {
                    return Ok(Some(found));
                }
                self.look_at_file(&key).await
            }
        }
    }

    pub(crate) async fn look_at_file(&self, key: &str) -> Result<Option<Found>, Errno> {
        let Some(metadata) = self.stat(key).await? else { return Ok(None) };
        let found = object::file(&metadata, self.owner);
        self.known.note_file(key, &metadata, found, now());
        Ok(Some(found))
    }

    /// Of a directory that is there.
    pub(crate) async fn look_at_marker(&self, key: &str) -> Result<Found, Errno> {
        let found = object::dir(key, self.marker(key).await?.as_ref(), self.owner);
        self.known.note_dir(key, found);
        Ok(found)
    }
}
