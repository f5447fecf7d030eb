//! A directory of plain files as the linked side, and the least that keeps it: what was agreed on outlives the server, as
//! records would.

use super::{Site, ino};
use ds::{DataServer, Linked, Object, ObjectHint, Stub};
use kv::WriteSet;
use link::{Attributes, Found, Proof, Seen, Source, Version};
use std::{
    collections::HashMap,
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};
use types::{Errno, FileKind, Ino, Timestamp};

/// Where a publication ends, as if the process did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    Copied,
    Renamed,
    Agreed,
}

#[derive(Default)]
struct State {
    agreed: HashMap<Ino, Seen>,
    /// The version that is being made.
    begun: HashMap<Ino, u64>,
    sizes: HashMap<Ino, u64>,
    dies_at: Option<At>,
    on_copied: Option<Box<dyn FnMut() + Send>>,
}

/// How their files are read: what was asked for, and what waits.
#[derive(Default)]
pub struct Reads {
    /// Nothing is there without waiting.
    pub far: AtomicBool,
    log: Mutex<Vec<(u64, usize)>>,
    hook: Mutex<Option<Hook>>,
    held_from: Mutex<Option<u64>>,
    let_go: Condvar,
}

type Hook = Box<dyn FnMut(u64) + Send>;

impl Reads {
    /// Offsets and lengths, in the order in which they were asked for.
    pub fn log(&self) -> Vec<(u64, usize)> {
        self.log.lock().unwrap().clone()
    }
    pub fn bytes(&self) -> u64 {
        self.log().iter().map(|(_, len)| *len as u64).sum()
    }
    pub fn forget(&self) {
        self.log.lock().unwrap().clear();
    }
    /// Reads from this offset on wait until it is called again.
    pub fn hold_from(&self, offset: Option<u64>) {
        *self.held_from.lock().unwrap() = offset;
        self.let_go.notify_all();
    }
    /// Called before each read, with its offset.
    pub fn hook(&self, hook: impl FnMut(u64) + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    fn came(&self, offset: u64, len: usize) {
        self.log.lock().unwrap().push((offset, len));
        if let Some(hook) = &mut *self.hook.lock().unwrap() {
            hook(offset);
        }
        let held = self.held_from.lock().unwrap();
        let is_held = |from: &mut Option<u64>| from.is_some_and(|from| offset >= from);
        drop(self.let_go.wait_while(held, is_held).unwrap());
    }
}

pub struct LinkedDir {
    dir: tempfile::TempDir,
    state: Mutex<State>,
    publishing: Mutex<()>,
    trouble: Arc<Mutex<Option<Errno>>>,
    server: Mutex<Weak<DataServer>>,
    pub opened: AtomicU64,
    /// Publications that were asked for, and those that came to be.
    pub asked: AtomicU64,
    pub published: AtomicU64,
    pub read: Arc<AtomicU64>,
    pub reads: Arc<Reads>,
}

impl LinkedDir {
    pub fn new() -> Arc<LinkedDir> {
        Arc::new(LinkedDir {
            dir: tempfile::tempdir().unwrap(),
            state: Mutex::default(),
            publishing: Mutex::default(),
            trouble: Arc::default(),
            server: Mutex::default(),
            opened: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            published: AtomicU64::new(0),
            read: Arc::default(),
            reads: Arc::default(),
        })
    }

    pub fn path(&self, n: u64) -> PathBuf {
        self.dir.path().join(n.to_string())
    }
    pub fn bytes(&self, n: u64) -> Vec<u8> {
        std::fs::read(self.path(n)).unwrap()
    }
    pub fn serve(&self, site: &Site) {
        *self.server.lock().unwrap() = Arc::downgrade(site.server());
    }
    /// Every call fails with this.
    pub fn fail(&self, errno: Option<Errno>) {
        *self.trouble.lock().unwrap() = errno;
    }
    pub fn die_at(&self, at: Option<At>) {
        self.state.lock().unwrap().dies_at = at;
    }
    /// Between the snapshot and the rename of the next publication.
    pub fn on_copied(&self, then: impl FnMut() + Send + 'static) {
        self.state.lock().unwrap().on_copied = Some(Box::new(then));
    }
    pub fn note_size(&self, n: u64, size: u64) {
        self.state.lock().unwrap().sizes.insert(ino(n), size);
    }

    /// They write a file anew: aside, then renamed. It has a time of its own, long past, so that what is written to it later has another one,
    /// however coarse the clock of the file system is.
    pub fn replace(&self, n: u64, bytes: &[u8]) {
        static TIMES: AtomicU64 = AtomicU64::new(1_000_000);
        let aside = self.dir.path().join("theirs");
        std::fs::write(&aside, bytes).unwrap();
        let time = UNIX_EPOCH + Duration::from_secs(TIMES.fetch_add(1, Ordering::Relaxed));
        File::options().write(true).open(&aside).unwrap().set_modified(time).unwrap();
        std::fs::rename(aside, self.path(n)).unwrap();
    }
    /// What they have is agreed on.
    pub fn agree(&self, n: u64) -> u64 {
        let seen = seen(&File::open(self.path(n)).unwrap()).unwrap();
        self.state.lock().unwrap().agreed.insert(ino(n), seen);
        seen.size
    }
    pub fn import(&self, n: u64, bytes: &[u8]) {
        self.replace(n, bytes);
        let size = self.agree(n);
        self.note_size(n, size);
    }

    /// After the death of the process: was what was begun done?
    pub fn recover(&self) {
        let begun = std::mem::take(&mut self.state.lock().unwrap().begun);
        for (ino, fileid) in begun {
            let there = File::open(self.dir.path().join(name(ino))).and_then(|file| seen(&file));
            if let Some(seen) = there.ok().filter(|seen| seen.fileid == fileid) {
                self.state.lock().unwrap().agreed.insert(ino, seen);
            }
        }
    }

    pub fn hint(&self, site: &Site, n: u64) -> ObjectHint {
        let state = self.state.lock().unwrap();
        ObjectHint {
            size: state.sizes.get(&ino(n)).copied().unwrap_or(0),
            written: site.maps().get(&record_key(ino(n))).unwrap().is_some(),
            stale_live: false,
            memory_generation: site.generation(),
            linked: state.agreed.get(&ino(n)).map(|seen| seen.size),
        }
    }

    fn healthy(&self) -> Result<(), Errno> {
        self.trouble.lock().unwrap().map_or(Ok(()), Err)
    }
    fn reaches(&self, at: At) -> Result<(), Errno> {
        if self.state.lock().unwrap().dies_at == Some(at) { Err(Errno::EIO) } else { Ok(()) }
    }
    fn source(&self, ino: Ino) -> Result<TheirFile, Errno> {
        let file = File::open(self.dir.path().join(name(ino)))?;
        Ok(TheirFile {
            file,
            trouble: self.trouble.clone(),
            read: self.read.clone(),
            reads: self.reads.clone(),
        })
    }

    fn publish_now(&self, object: &Arc<Object>, stop: &dyn Fn() -> bool) -> Result<(), Errno> {
        let server = self.server.lock().unwrap().upgrade().ok_or(Errno::EIO)?;
        let _one = self.publishing.lock().unwrap();
        self.healthy()?;
        let ino = object.ino();
        let aside = self.dir.path().join(format!("{}.version", name(ino)));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&aside)?;
        let mut version = Box::new(AsideFile { file, trouble: self.trouble.clone() });
        let snapshot = server.copy_version(object, &mut *version, stop)?;
        self.state.lock().unwrap().begun.insert(ino, seen(&version.file)?.fileid);
        let then = self.state.lock().unwrap().on_copied.take();
        then.into_iter().for_each(|mut then| then());
        let now = Timestamp { sec: 0, nsec: 0 };
        let attributes = Attributes { mode: 0o644, uid: 0, gid: 0, atime: now, mtime: now, xattrs: &[] };
        version.finish(&attributes)?;
        self.reaches(At::Copied)?;
        std::fs::rename(&aside, self.dir.path().join(name(ino)))?;
        self.reaches(At::Renamed)?;
        let source = self.source(ino)?;
        {
            let mut state = self.state.lock().unwrap();
            state.agreed.insert(ino, source.look()?.seen);
            state.begun.remove(&ino);
        }
        self.reaches(At::Agreed)?;
        self.published.fetch_add(1, Ordering::Relaxed);
        server.note_published(snapshot, Arc::new(source))
    }
}

impl Linked for LinkedDir {
    fn stub(&self, ino: Ino) -> Result<Option<Stub>, Errno> {
        let state = self.state.lock().unwrap();
        let size = state.sizes.get(&ino).copied().unwrap_or(0);
        Ok(state.agreed.get(&ino).map(|seen| Stub { size, theirs: seen.size }))
    }

    fn open(&self, ino: Ino) -> Result<Arc<dyn Source>, Errno> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.healthy()?;
        let source = self.source(ino)?;
        let agreed = self.state.lock().unwrap().agreed.get(&ino).copied().ok_or(Errno::ENOENT)?;
        let now = source.look()?.seen;
        let same = (now.fileid, now.size, now.mtime) == (agreed.fileid, agreed.size, agreed.mtime);
        if same { Ok(Arc::new(source)) } else { Err(Errno::ESTALE) }
    }

    fn publish(&self, ino: Ino, stop: &dyn Fn() -> bool) -> Result<(), Errno> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let server = self.server.lock().unwrap().upgrade().ok_or(Errno::EIO)?;
        let object = server.object(ino).ok_or(Errno::ENOENT)?;
        drop(server);
        self.publish_now(&object, stop)
    }
}

struct TheirFile {
    file: File,
    trouble: Arc<Mutex<Option<Errno>>>,
    read: Arc<AtomicU64>,
    reads: Arc<Reads>,
}

impl Source for TheirFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.reads.came(offset, buf.len());
        if let Some(errno) = *self.trouble.lock().unwrap() {
            return Err(errno);
        }
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        self.read.fetch_add(done as u64, Ordering::Relaxed);
        Ok(done)
    }
    fn read_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>, Errno> {
        if self.reads.far.load(Ordering::Relaxed) { Ok(None) } else { self.read_at(buf, offset).map(Some) }
    }
    fn look(&self) -> Result<Found, Errno> {
        let seen = seen(&self.file)?;
        Ok(Found { seen, atime: seen.mtime, rdev: 0 })
    }
}

struct AsideFile {
    file: File,
    trouble: Arc<Mutex<Option<Errno>>>,
}

impl Version for AsideFile {
    fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Errno> {
        if let Some(errno) = *self.trouble.lock().unwrap() {
            return Err(errno);
        }
        Ok(self.file.write_all_at(data, offset)?)
    }
    fn set_len(&mut self, len: u64) -> Result<(), Errno> {
        Ok(self.file.set_len(len)?)
    }
    fn finish(self: Box<Self>, _: &Attributes<'_>) -> Result<Found, Errno> {
        self.file.sync_all()?;
        let seen = seen(&self.file)?;
        Ok(Found { seen, atime: seen.mtime, rdev: 0 })
    }
}

fn name(ino: Ino) -> String {
    ino.local().get().to_string()
}

fn seen(file: &File) -> std::io::Result<Seen> {
    let now = file.metadata()?;
    let time = |sec, nsec: i64| Timestamp { sec, nsec: nsec as u32 };
    Ok(Seen {
        kind: FileKind::Regular,
        fileid: now.ino(),
        birth: None,
        size: now.size(),
        mtime: time(now.mtime(), now.mtime_nsec()),
        ctime: time(now.ctime(), now.ctime_nsec()),
        mode: now.mode() & 0o7777,
        uid: now.uid(),
        gid: now.gid(),
        nlink: now.nlink() as u32,
        proof: Proof::Firm,
    })
}

pub fn seen_of(path: &std::path::Path) -> Seen {
    seen(&File::open(path).unwrap()).unwrap()
}

pub fn record_key(ino: Ino) -> Vec<u8> {
    [&ino.get().to_be_bytes()[..], b"O"].concat()
}

/// Deletes the record of an object of one chunk, as the end of a copy does.
pub fn end_record(site: &Site, n: u64) -> Result<u64, Errno> {
    let mut writes = WriteSet::new();
    writes.delete(&record_key(ino(n)));
    site.maps().commit(writes).map(|lsn| lsn.0).map_err(|_| Errno::EIO)
}
