//! An object that is read, in ranges. Each read is of the object that was opened, or `ESTALE`: a store does not keep what is replaced.

use std::{ops::Range, sync::Arc};

use link::{Found, Source};
use opendal::{Buffer, options::ReadOptions};
use parking_lot::Mutex;
use types::Errno;

use crate::{error::told, object, store::Store};

pub(crate) struct Opened {
    store: Arc<Store>,
    key: String,
    etag: Mutex<Option<String>>,
    found: Found,
}

impl Opened {
    pub fn new(store: Arc<Store>, key: String, etag: Option<String>, found: Found) -> Opened {
        Opened { store, key, etag: Mutex::new(etag), found }
    }

    async fn read(&self, range: Range<u64>) -> Result<Buffer, Errno> {
        let etag = self.etag.lock().clone();
        let options = ReadOptions { range: range.into(), if_match: etag, ..ReadOptions::default() };
        let read = self.store.operator.read_options(&self.key, options).await;
        match read.map_err(|error| told(&error, "read", &self.key)) {
            Err(Errno::ENOENT | Errno::EEXIST) => Err(Errno::ESTALE),
            other => other,
        }
    }

    /// Other metadata may have given it another ETag. `ESTALE`: it is another object, or gone.
    async fn still_there(&self) -> Result<(), Errno> {
        let there = self.store.stat(&self.key).await?.ok_or(Errno::ESTALE)?;
        let (now, then) = (object::file(&there, self.store.owner).seen, &self.found.seen);
        if !now.is_same_object(then) || (now.size, now.mtime) != (then.size, then.mtime) {
            return Err(Errno::ESTALE);
        }
        *self.etag.lock() = there.etag().map(str::to_owned);
        Ok(())
    }
}

impl Source for Opened {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let there = self.found.seen.size.saturating_sub(offset);
        let length = buf.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        if length == 0 {
            return Ok(0);
        }
        let range = offset..offset + length as u64;
        let bytes = self.store.run(async {
            match self.read(range.clone()).await {
                Err(Errno::ESTALE) => {
                    self.still_there().await?;
                    self.read(range).await
                }
                other => other,
            }
        })?;
        if bytes.len() != length {
            return Err(Errno::EIO);
        }
        let mut rest = &mut buf[..length];
        for piece in bytes {
            let (now, later) = rest.split_at_mut(piece.len());
            now.copy_from_slice(&piece);
            rest = later;
        }
        Ok(length)
    }

    /// Every read asks the store.
    fn read_nowait(&self, _buf: &mut [u8], _offset: u64) -> Result<Option<usize>, Errno> {
        Ok(None)
    }

    fn look(&self) -> Result<Found, Errno> {
        let found = self.store.run(self.store.look_at_file(&self.key))?.ok_or(Errno::ESTALE)?;
        if found.seen.is_same_object(&self.found.seen) { Ok(found) } else { Err(Errno::ESTALE) }
    }
}
