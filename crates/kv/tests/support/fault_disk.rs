//! A disk in memory that fails, tears and loses.
//!
//! A file has what was synced (durable) and the writes since (pending). A power cut keeps of each pending write nothing,
//! all, or some bytes, in any combination, and of each pending name change either state. A kill keeps everything.
//! After either, every operation through handles made before fails: the process is gone.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use kv::{ApplyError, Batch, BootId, Disk, DiskFile, Engine, Lsn, MemoryEngine, Space};
use namespace::txn::{KvError, Visit};

/// What the next failing operation reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    Io,
    NoSpace,
}

#[derive(Default)]
struct State {
    files: BTreeMap<u64, Content>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    next_file: u64,
    /// Operations through handles of an earlier life fail.
    life: u64,
    operations: u64,
    fail_at: Option<(u64, Failure)>,
    /// Only every operation from `fail_at` on, or just that one.
    fail_for_good: bool,
    failed: u64,
    /// Bytes in use, as far as `space` tells.
    used: u64,
    /// Of it, by the file that keeps room.
    reserved: u64,
    /// Power cuts so far.
    boots: u8,
}

#[derive(Default, Clone)]
struct Content {
    durable: Vec<u8>,
    pending: Vec<(u64, Vec<u8>)>,
}

impl Content {
    fn current(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        self.pending.iter().for_each(|(offset, data)| put(&mut bytes, *offset, data));
        bytes
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset as usize..end].copy_from_slice(data);
}

/// One life of a process on the disk.
#[derive(Clone)]
pub struct FaultDisk {
    state: Arc<Mutex<State>>,
    life: u64,
}

impl FaultDisk {
    pub fn new() -> FaultDisk {
        FaultDisk { state: Arc::default(), life: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The process dies; what it wrote stays.
    pub fn kill(&self) -> FaultDisk {
        let mut state = self.lock();
        state.life += 1;
        state.fail_at = None;
        FaultDisk { state: Arc::clone(&self.state), life: state.life }
    }

    /// The machine dies. `random(n)` is below n.
    pub fn power_cut(&self, random: &mut dyn FnMut(u64) -> u64) -> FaultDisk {
        let mut state = self.lock();
        for content in state.files.values_mut() {
            for (offset, mut data) in std::mem::take(&mut content.pending) {
                let from = match random(3) {
                    0 => continue,
                    1 => 0,
                    _ => random(data.len() as u64 + 1) as usize,
                };
                let to = if random(2) == 0 {
                    data.len()
                } else {
                    from + random((data.len() - from) as u64 + 1) as usize
                };
                data.truncate(to);
                put(&mut content.durable, offset + from as u64, &data[from..]);
            }
        }
        let paths: BTreeSet<PathBuf> =
            state.names.keys().chain(state.durable_names.keys()).cloned().collect();
        for path in paths {
            let either = if random(2) == 0 { state.names.get(&path) } else { state.durable_names.get(&path) };
            match either.copied() {
                Some(file) => drop(state.durable_names.insert(path, file)),
                None => drop(state.durable_names.remove(&path)),
            }
        }
        state.names = state.durable_names.clone();
        state.boots += 1;
        drop(state);
        self.kill()
    }

    /// Everything was written, and yet the machine starts anew.
    pub fn reboot(&self) -> FaultDisk {
        self.lock().boots += 1;
        self.kill()
    }

    /// The operation number `n` from now on (0: the next) fails; with `for_good` all later ones too.
    pub fn fail_at(&self, n: u64, failure: Failure, for_good: bool) {
        let mut state = self.lock();
        state.fail_at = Some((state.operations + n, failure));
        state.fail_for_good = for_good;
        state.failed = 0;
    }

    /// How many operations were made to fail.
    pub fn failed(&self) -> u64 {
        self.lock().failed
    }

    /// From now on that much is free.
    pub fn set_free(&self, bytes: u64) {
        self.lock().used = u64::MAX - bytes;
    }

    /// All files' current bytes, to damage and put back.
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let state = self.lock();
        state.names.iter().map(|(path, file)| (path.clone(), state.files[file].current())).collect()
    }

    pub fn replace(&self, path: &Path, bytes: Vec<u8>) {
        let mut state = self.lock();
        let file = state.names[path];
        state.files.insert(file, Content { durable: bytes, pending: Vec::new() });
    }

    pub fn delete(&self, path: &Path) {
        let mut state = self.lock();
        state.names.remove(path);
        state.durable_names.remove(path);
    }

    /// A copy with the same content in the same boot, for another experiment.
    pub fn fork(&self) -> FaultDisk {
        let state = self.lock();
        let copy = State {
            files: state.files.clone(),
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            next_file: state.next_file,
            boots: state.boots,
            ..State::default()
        };
        FaultDisk { state: Arc::new(Mutex::new(copy)), life: 0 }
    }

    fn operate(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        if state.life != self.life {
            return Err(io::Error::other("the process is gone"));
        }
        let number = state.operations;
        state.operations += 1;
        if let Some((at, failure)) = state.fail_at
            && (number == at || (number > at && state.fail_for_good))
        {
            state.failed += 1;
            return Err(match failure {
                Failure::Io => io::Error::other("injected"),
                Failure::NoSpace => io::Error::from(io::ErrorKind::StorageFull),
            });
        }
        Ok(state)
    }
}

impl Disk for FaultDisk {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        self.operate().map(|_| ())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(self.operate()?.names.keys().filter(|p| p.parent() == Some(dir)).cloned().collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.operate()?;
        let file = state.next_file;
        state.next_file += 1;
        state.files.insert(file, Content::default());
        state.names.insert(path.to_owned(), file);
        Ok(Arc::new(FaultFile { disk: self.clone(), file }))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.operate()?;
        let file = state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(state.files[file].current())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        state.names.remove(path).map(|_| ()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut state = self.operate()?;
        state.durable_names = state.names.clone();
        Ok(())
    }

    fn open_or_create(&self, _path: &Path) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        let held = self.operate()?.reserved;
        Ok((Arc::new(Reserve(self.clone())), held))
    }

    fn space(&self, _dir: &Path) -> io::Result<Space> {
        self.operate().map(|state| Space { free: u64::MAX - state.used, total: u64::MAX })
    }

    fn boot_id(&self) -> Option<BootId> {
        Some(BootId([self.lock().boots + 1; 16]))
    }
}

struct FaultFile {
    disk: FaultDisk,
    file: u64,
}

impl FaultFile {
    fn write(&self, state: &mut State, bytes: &[u8], offset: u64) {
        if let Some(content) = state.files.get_mut(&self.file) {
            content.pending.push((offset, bytes.to_vec()));
        }
    }
}

impl DiskFile for FaultFile {
    /// A failing write leaves the whole, a half or nothing in the file: each third operation another.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.disk.operate() {
            Ok(mut state) => {
                self.write(&mut state, bytes, offset);
                Ok(())
            }
            Err(error) => {
                let mut state = self.disk.lock();
                if state.life == self.disk.life {
                    let written = [bytes.len(), bytes.len() / 2, 0][state.operations as usize % 3];
                    self.write(&mut state, &bytes[..written], offset);
                }
                Err(error)
            }
        }
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.disk.operate()?;
        let content = state.files.entry(self.file).or_default();
        if content.current().len() < (offset + len) as usize {
            content.pending.push((offset + len - 1, vec![0]));
        }
        Ok(())
    }

    fn shrink(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.operate()?;
        let content = state.files.entry(self.file).or_default();
        content.durable = content.current();
        content.durable.truncate(len as usize);
        content.pending.clear();
        Ok(())
    }

    /// After one that fails, a power cut still keeps anything of what was pending.
    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.operate()?;
        let content = state.files.entry(self.file).or_default();
        content.durable = content.current();
        content.pending.clear();
        Ok(())
    }
}

/// The reserve: nobody reads what is in it, so only its length is there.
struct Reserve(FaultDisk);

impl DiskFile for Reserve {
    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        self.0.operate().map(drop)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.0.operate()?;
        let more = (offset + len).saturating_sub(state.reserved);
        if more > u64::MAX - state.used {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.reserved += more;
        state.used += more;
        Ok(())
    }
    fn shrink(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.operate()?;
        state.used = state.used.saturating_sub(state.reserved - len);
        state.reserved = len;
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        self.0.operate().map(drop)
    }
}

/// A memory engine whose batches are operations of the disk, too.
pub struct FaultEngine {
    pub disk: FaultDisk,
    pub inner: MemoryEngine,
}

impl Engine for FaultEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn get(&self, key: &[u8]) -> Result<Option<bytes::Bytes>, KvError> {
        self.inner.get(key)
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.inner.scan(from, to, visit)
    }
    /// A failing batch is there or not: each second operation another.
    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        match self.disk.operate().map(|_| ()) {
            Ok(()) => self.inner.apply(batch, lsn),
            Err(error) => {
                let state = self.disk.lock();
                if state.life == self.disk.life && state.operations.is_multiple_of(2) {
                    self.inner.apply(batch, lsn)?;
                }
                Err(ApplyError::Unknown(KvError::Io(error.to_string())))
            }
        }
    }
    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        self.inner.applied_lsn()
    }
    fn approximate_bytes(&self) -> u64 {
        self.inner.approximate_bytes()
    }
    fn close(&self) -> Result<(), KvError> {
        self.disk.operate().map(|_| ()).map_err(|e| KvError::Io(e.to_string()))
    }
}
