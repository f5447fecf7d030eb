//! Any back end, as slow as somebody wants it: so many bytes in a second, in reads and writes together, and so long for each call. For tests
//! and measurements of what waits for a slow one.
//!
//! Bytes go one after another, as over one link: a call that comes while others are under way waits for them. A link that was idle
//! has nothing saved up for a later burst, but for [`BURST`].

use std::{
    ops::ControlFlow,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use link::{
    Abilities, Attributes, Attrs, BackEnd, Clock, Detail, Found, Making, Over, Reachable, Source, Version,
    Way,
};
use parking_lot::Mutex;
use types::{Errno, FileKind};

/// Sleeps are not exact: what one was too long is made up for by the next.
const BURST: Duration = Duration::from_millis(10);

/// How slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// `None`: as fast as what is behind.
    pub bytes_per_second: Option<u64>,
    /// Of each call, beside the time for its bytes; calls wait for it side by side.
    pub latency: Duration,
}

/// See the module's documentation.
pub struct Limited<B> {
    inner: B,
    link: Arc<Link>,
}

struct Link {
    pace: Pace,
    /// When the last byte that was asked for is through.
    busy_until: Mutex<Instant>,
}

impl Link {
    fn wait(&self, bytes: usize) {
        let latency = self.pace.latency;
        let mut through = Instant::now();
        if let Some(rate) = self.pace.bytes_per_second.filter(|_| bytes > 0) {
            let takes = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            let mut busy = self.busy_until.lock();
            *busy = (*busy).max(through - BURST.min(takes)) + takes;
            through = *busy;
        }
        let left = (through + latency).saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::sleep(left);
        }
    }
}

impl<B: BackEnd> Limited<B> {
    pub fn new(inner: B, pace: Pace) -> Limited<B> {
        Limited { inner, link: Arc::new(Link { pace, busy_until: Mutex::new(Instant::now()) }) }
    }

    fn call<T>(&self, ask: impl FnOnce(&B) -> T) -> T {
        self.link.wait(0);
        ask(&self.inner)
    }

    fn version(&self, inner: Box<dyn Version>) -> Box<dyn Version> {
        Box::new(LimitedVersion { inner, link: self.link.clone() })
    }
}

impl<B: BackEnd> BackEnd for Limited<B> {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }
    fn root(&self) -> Reachable {
        self.call(|inner| inner.root())
    }
    fn clock(&self) -> Clock {
        self.inner.clock()
    }
    fn space(&self) -> Result<(u64, u64), Errno> {
        self.call(|inner| inner.space())
    }
    fn look(&self, way: &Way) -> Result<Option<Found>, Errno> {
        self.call(|inner| inner.look(way))
    }
    fn list(&self, way: &Way, visit: &mut dyn FnMut(&[u8], Found) -> ControlFlow<()>) -> Result<(), Errno> {
        self.call(|inner| inner.list(way, visit))
    }
    fn look_at(&self, dir: &Way, names: &[Vec<u8>]) -> Result<Vec<Option<Found>>, Errno> {
        self.call(|inner| inner.look_at(dir, names))
    }
    fn details(&self, dir: &Way, of: &[(Vec<u8>, FileKind)]) -> Result<Vec<Result<Detail, Errno>>, Errno> {
        self.call(|inner| inner.details(dir, of))
    }
    fn readlink(&self, way: &Way) -> Result<Vec<u8>, Errno> {
        self.call(|inner| inner.readlink(way))
    }
    fn xattrs(&self, way: &Way) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
        self.call(|inner| inner.xattrs(way))
    }
    fn open(&self, way: &Way) -> Result<(Box<dyn Source>, Found), Errno> {
        let (inner, found) = self.call(|inner| inner.open(way))?;
        Ok((Box::new(LimitedSource { inner, link: self.link.clone() }), found))
    }
    fn make(&self, way: &Way, what: &Making<'_>) -> Result<Found, Errno> {
        self.call(|inner| inner.make(way, what))
    }
    fn begin_version(&self, way: &Way) -> Result<Box<dyn Version>, Errno> {
        self.call(|inner| inner.begin_version(way)).map(|version| self.version(version))
    }
    fn begin_in_place(&self, way: &Way) -> Result<Box<dyn Version>, Errno> {
        self.call(|inner| inner.begin_in_place(way)).map(|version| self.version(version))
    }
    fn rename(&self, from: &Way, to: &Way, over: Over) -> Result<(), Errno> {
        self.call(|inner| inner.rename(from, to, over))
    }
    fn link(&self, from: &Way, to: &Way) -> Result<(), Errno> {
        self.call(|inner| inner.link(from, to))
    }
    fn unlink(&self, way: &Way) -> Result<(), Errno> {
        self.call(|inner| inner.unlink(way))
    }
    fn rmdir(&self, way: &Way) -> Result<(), Errno> {
        self.call(|inner| inner.rmdir(way))
    }
    fn set_attributes(&self, way: &Way, what: Attrs, to: &Attributes<'_>) -> Result<(), Errno> {
        self.call(|inner| inner.set_attributes(way, what, to))
    }
    fn set_xattr(&self, way: &Way, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        self.call(|inner| inner.set_xattr(way, name, value))
    }
    fn sync(&self, way: &Way) -> Result<(), Errno> {
        self.call(|inner| inner.sync(way))
    }
}

struct LimitedSource {
    inner: Box<dyn Source>,
    link: Arc<Link>,
}

impl Source for LimitedSource {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let length = self.inner.read_at(buf, offset)?;
        self.link.wait(length);
        Ok(length)
    }
    /// Nothing is near.
    fn read_nowait(&self, _: &mut [u8], _: u64) -> Result<Option<usize>, Errno> {
        Ok(None)
    }
    fn look(&self) -> Result<Found, Errno> {
        self.link.wait(0);
        self.inner.look()
    }
}

struct LimitedVersion {
    inner: Box<dyn Version>,
    link: Arc<Link>,
}

impl Version for LimitedVersion {
    fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Errno> {
        self.link.wait(data.len());
        self.inner.write_at(data, offset)
    }
    fn set_len(&mut self, len: u64) -> Result<(), Errno> {
        self.link.wait(0);
        self.inner.set_len(len)
    }
    fn finish(self: Box<Self>, attributes: &Attributes<'_>) -> Result<Found, Errno> {
        self.link.wait(0);
        self.inner.finish(attributes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::{Directory, Options};

    #[test]
    fn readers_share_the_pace_and_wait_for_the_latency_side_by_side() {
        // Goal: all readers together get the pace, and no more. Method: two threads, a wall clock; slower is allowed, since others work.
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), vec![7; 1 << 20]).unwrap();
        let pace = Pace { bytes_per_second: Some(20_000_000), latency: Duration::from_millis(20) };
        let limited = Limited::new(Directory::open(dir.path(), Options::default()).unwrap(), pace);
        let (source, found) = limited.open(&[b"f".to_vec()]).unwrap();
        assert_eq!(found.seen.size, 1 << 20);
        let began = Instant::now();
        thread::scope(|scope| {
            for half in 0..2u64 {
                let source = &source;
                scope.spawn(move || {
                    let mut buf = vec![0; 1 << 19];
                    assert_eq!(source.read_at(&mut buf, half << 19), Ok(1 << 19));
                    assert!(buf.iter().all(|byte| *byte == 7));
                });
            }
        });
        assert!(began.elapsed() >= Duration::from_millis(52 + 20 - 15), "{:?}", began.elapsed());
        assert_eq!(source.read_nowait(&mut [0; 10], 0), Ok(None));
    }
}
