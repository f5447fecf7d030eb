//! A bucket as a back end: see the crate's documentation.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use link::{
    Abilities, Attributes, Attrs, BackEnd, Clock, Detail, Found, Making, Over, Reachable, Source, Version,
    Way, is_on_the_way,
};
use types::{Errno, FileKind, Timestamp};

use crate::{
    error::told, listing::LOOKS, object, options::Options, source::Opened, store::Store, version::Filling,
};

/// A store says of no bucket how much more it takes.
const SPACE: u64 = 1 << 60;

/// See the crate's documentation.
pub struct Bucket {
    store: Arc<Store>,
}

impl Bucket {
    /// At the first mount the bucket has to answer, and gets its identity. Says why it cannot be linked.
    pub fn open(options: &Options) -> Result<Bucket, String> {
        let store = Arc::new(Store::new(options)?);
        if options.first {
            let known = store.run(async { Ok(store.make_known().await) });
            known.map_err(|errno| format!("{}: does not answer: {errno}", options.location))??;
        }
        Ok(Bucket { store })
    }

    async fn look_for(&self, way: &Way) -> Result<Option<Found>, Errno> {
        let store = &*self.store;
        let dir = store.keys.dir(way)?;
        if way.is_empty() {
            return store.look_at_marker(&dir).await.map(Some);
        }
        let file = store.keys.file(way)?;
        // A directory wins over an object of its name: more depends on it.
        let (is_dir, there) = futures_util::try_join!(store.is_dir(&dir), store.look_at_file(&file))?;
        if is_dir {
            return store.look_at_marker(&dir).await.map(Some);
        }
        if there.is_none() {
            store.parent_is_there(way).await?;
        }
        Ok(there)
    }

    async fn content(&self, way: &Way) -> Result<Vec<u8>, Errno> {
        let key = self.store.keys.file(way)?;
        let found = self.store.look_at_file(&key).await?.ok_or(Errno::ENOENT)?;
        if found.seen.kind != FileKind::Symlink {
            return Err(Errno::ENOENT);
        }
        // A path that is longer cannot be one.
        if found.seen.size > 4096 {
            return Err(Errno::EINVAL);
        }
        let read = self.store.operator.read(&key).await;
        read.map(|bytes| bytes.to_vec()).map_err(|error| told(&error, "read", &key))
    }
}

impl BackEnd for Bucket {
    fn abilities(&self) -> Abilities {
        Abilities {
            hard_links: false,
            atomic_rename: false,
            symlinks: true,
            special: true,
            attributes: true,
            xattrs: false,
            in_place: false,
            any_owner: true,
            directory_times: false,
            directory_rename: false,
        }
    }

    fn root(&self) -> Reachable {
        self.store.run(self.store.root()).unwrap_or(Reachable::No)
    }

    /// Of no importance: what is looked at is told by more than its times.
    fn clock(&self) -> Clock {
        Clock { at: Timestamp { sec: i64::MAX / 2, nsec: 0 }, step: Duration::ZERO }
    }

    fn space(&self) -> Result<(u64, u64), Errno> {
        Ok((SPACE, SPACE))
    }

    fn look(&self, way: &Way) -> Result<Option<Found>, Errno> {
        self.store.run(self.look_for(way))
    }

    fn list(&self, way: &Way, visit: &mut dyn FnMut(&[u8], Found) -> ControlFlow<()>) -> Result<(), Errno> {
        self.store.list(way, visit)
    }

    fn look_at(&self, dir: &Way, names: &[Vec<u8>]) -> Result<Vec<Option<Found>>, Errno> {
        self.store.look_at(dir, names)
    }

    fn details(&self, dir: &Way, of: &[(Vec<u8>, FileKind)]) -> Result<Vec<Result<Detail, Errno>>, Errno> {
        self.store.run(async {
            let details = of.iter().map(async |(name, kind)| {
                let mut detail = Detail::default();
                if *kind == FileKind::Symlink {
                    detail.target = self.content(&[dir, std::slice::from_ref(name)].concat()).await?;
                }
                Ok(detail)
            });
            Ok(stream::iter(details).buffered(LOOKS).collect().await)
        })
    }

    fn readlink(&self, way: &Way) -> Result<Vec<u8>, Errno> {
        self.store.run(self.content(way))
    }

    fn xattrs(&self, _way: &Way) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
        Ok(Vec::new())
    }

    fn open(&self, way: &Way) -> Result<(Box<dyn Source>, Found), Errno> {
        if way.is_empty() {
            return Err(Errno::EISDIR);
        }
        let key = self.store.keys.file(way)?;
        let there = self.store.run(self.store.stat(&key))?;
        let Some(there) = there else {
            let is_dir = self.store.run(self.store.is_dir(&self.store.keys.dir(way)?))?;
            return Err(if is_dir { Errno::EISDIR } else { Errno::ENOENT });
        };
        let found = object::file(&there, self.store.owner);
        if found.seen.kind != FileKind::Regular {
            return Err(Errno::ENOENT);
        }
        let etag = there.etag().map(str::to_owned);
        Ok((Box::new(Opened::new(self.store.clone(), key, etag, found)), found))
    }

    fn make(&self, way: &Way, what: &Making<'_>) -> Result<Found, Errno> {
        self.store.run(self.store.make(way, what))
    }

    fn begin_version(&self, way: &Way) -> Result<Box<dyn Version>, Errno> {
        let key = self.store.keys.file(way)?;
        if !way.last().is_some_and(|name| is_on_the_way(name)) {
            return Err(Errno::EINVAL);
        }
        self.store.run(self.store.parent_is_there(way))?;
        Ok(Box::new(Filling::new(self.store.clone(), key)?))
    }

    fn begin_in_place(&self, _way: &Way) -> Result<Box<dyn Version>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn rename(&self, from: &Way, to: &Way, over: Over) -> Result<(), Errno> {
        self.store.rename(from, to, over)
    }

    fn link(&self, _from: &Way, _to: &Way) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn unlink(&self, way: &Way) -> Result<(), Errno> {
        self.store.run(self.store.unlink(way))
    }

    fn rmdir(&self, way: &Way) -> Result<(), Errno> {
        self.store.run(self.store.rmdir(way))
    }

    fn set_attributes(&self, way: &Way, what: Attrs, to: &Attributes<'_>) -> Result<(), Errno> {
        self.store.run_long(self.store.set_attributes(way, what, to))
    }

    fn set_xattr(&self, _way: &Way, _name: &[u8], _value: Option<&[u8]>) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// What a store has said that it took, it has.
    fn sync(&self, _way: &Way) -> Result<(), Errno> {
        Ok(())
    }
}
