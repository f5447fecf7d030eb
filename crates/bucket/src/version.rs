//! A version that is being filled: in a file without a name on a disk of this machine until it is whole, since parts of it may be written
//! again and an upload goes forward only. Then it is uploaded, in parts if it is long, and is there whole or not at all.
//!
//! Each part has the deadline of a call. The store compares each with its CRC-32C.

use std::{collections::HashMap, fs::File, os::unix::fs::FileExt, sync::Arc};

use link::{Attributes, Found, Version};
use opendal::{Writer, options::WriteOptions};
use types::{Errno, FileKind};

use crate::{error::told, metadata::Stored, store::Store};

const PART_BYTES: u64 = 8 << 20;
/// A store takes 10,000.
const PARTS_MAX: u64 = 9_000;
/// Parts under way at once.
const PARTS_AT_ONCE: usize = 4;

/// Fills a piece with what is at its offset.
type Read<'a> = dyn FnMut(&mut [u8], u64) -> Result<(), Errno> + 'a;

pub(crate) struct Filling {
    store: Arc<Store>,
    key: String,
    spool: File,
}

impl Filling {
    pub fn new(store: Arc<Store>, key: String) -> Result<Filling, Errno> {
        let spool = tempfile::tempfile_in(&store.spool).map_err(|error| of_disk(&error))?;
        Ok(Filling { store, key, spool })
    }
}

impl Version for Filling {
    fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Errno> {
        self.spool.write_all_at(data, offset).map_err(|error| of_disk(&error))
    }

    fn set_len(&mut self, len: u64) -> Result<(), Errno> {
        self.spool.set_len(len).map_err(|error| of_disk(&error))
    }

    fn finish(self: Box<Self>, attributes: &Attributes<'_>) -> Result<Found, Errno> {
        let size = self.spool.metadata().map_err(|error| of_disk(&error))?.len();
        let id = self.store.fresh_id();
        let mut metadata = HashMap::new();
        Stored::of(FileKind::Regular, id, 0, attributes).put(&mut metadata);
        let read = |piece: &mut [u8], offset| {
            self.spool.read_exact_at(piece, offset).map_err(|error| of_disk(&error))
        };
        self.store.upload(&self.key, size, kept(metadata), read)?;
        let found = self.store.run(self.store.look_at_file(&self.key))?.ok_or(Errno::ESTALE)?;
        // Another one writes under this name of ours, or the store lost something.
        if found.seen.fileid == id && found.seen.size == size { Ok(found) } else { Err(Errno::ESTALE) }
    }
}

/// With this metadata and nothing else.
fn kept(metadata: HashMap<String, String>) -> WriteOptions {
    WriteOptions { user_metadata: Some(metadata), ..WriteOptions::default() }
}

impl Store {
    /// An object of so many bytes, which `read` gives.
    pub(crate) fn upload(
        &self,
        key: &str,
        size: u64,
        options: WriteOptions,
        mut read: impl FnMut(&mut [u8], u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.known.forget(key);
        let part = PART_BYTES.max(size.div_ceil(PARTS_MAX)).next_multiple_of(1 << 20);
        let options = WriteOptions { chunk: Some(part as usize), concurrent: PARTS_AT_ONCE, ..options };
        let mut writer = self.run(async {
            self.operator.writer_options(key, options).await.map_err(|error| told(&error, "write", key))
        })?;
        let done = self.send_parts(&mut writer, (key, size, part), &mut read);
        if done.is_err() {
            // What is left of it is the store's to remove: that has no error anybody could take.
            let _ = self.run(async { writer.abort().await.map_err(|error| told(&error, "abort", key)) });
        }
        // An upload that the store does not know any more is not an object that is not there.
        done.map_err(|errno| if errno == Errno::ENOENT { Errno::EIO } else { errno })
    }

    fn send_parts(
        &self,
        writer: &mut Writer,
        (key, size, part): (&str, u64, u64),
        read: &mut Read<'_>,
    ) -> Result<(), Errno> {
        let mut offset = 0;
        while offset < size {
            let mut piece = vec![0; part.min(size - offset) as usize];
            read(&mut piece, offset)?;
            offset += piece.len() as u64;
            self.run(async { writer.write(piece).await.map_err(|error| told(&error, "write", key)) })?;
        }
        // The store puts the parts together; OpenDAL gives each try the deadline.
        self.run_long(async { writer.close().await.map_err(|error| told(&error, "write", key)) }).map(|_| ())
    }
}

fn of_disk(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
