//! What clients of a cluster do together: files of their own, one file of all, many small files. Each byte is known from its file and
//! its offset, and is checked by another client than the one that wrote it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Instant,
};

use serde::Serialize;

const MIB: usize = 1 << 20;
/// A record of the strided pattern: of no power of two, as those of real programs.
const RECORD: usize = 47_008;
const SMALL: usize = 4096;
/// Of words, in a file's number.
const FILE_SHIFT: u32 = 40;

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WorkloadRow {
    pub name: String,
    pub operations: u64,
    pub bytes: u64,
    pub seconds: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amount {
    /// Bytes that each client writes at a time.
    pub size: u64,
    /// Small files of each client.
    pub files: u32,
}

/// Over the mounts of all clients.
#[derive(Debug)]
pub struct Workload {
    pub mounts: Vec<PathBuf>,
    pub amount: Amount,
}

type Part = fn(&Workload, usize) -> io::Result<Done>;

const PARTS: [(&str, Part); 7] = [
    ("each client writes a file of its own", Workload::write_own),
    ("each reads and checks the file of the next", Workload::read_next),
    ("all write one file in strides of 47 008 bytes", Workload::write_strided),
    ("each reads and checks all of it", Workload::read_shared),
    ("each makes small files", Workload::make_small),
    ("each lists and looks at those of the next", Workload::list_next),
    ("each reads and checks those of the next", Workload::read_small),
];

#[derive(Clone, Copy, Default)]
struct Done {
    operations: u64,
    bytes: u64,
}

impl Workload {
    /// `step` gets the name of each part before it runs; an error of it ends the run.
    pub fn run(&self, step: &mut dyn FnMut(&str) -> io::Result<()>) -> io::Result<Vec<WorkloadRow>> {
        let timed = PARTS.iter().map(|(name, part)| {
            step(name)?;
            self.timed(name, *part)
        });
        timed.collect()
    }

    /// What a run made.
    pub fn remove(&self) -> io::Result<WorkloadRow> {
        self.timed("each removes its own", Workload::remove_own)
    }

    fn timed(&self, name: &str, part: Part) -> io::Result<WorkloadRow> {
        let begun = Instant::now();
        let Done { operations, bytes } = self.together(part)?;
        Ok(WorkloadRow { name: name.to_owned(), operations, bytes, seconds: begun.elapsed().as_secs_f64() })
    }

    /// One thread for each client.
    fn together(&self, part: Part) -> io::Result<Done> {
        std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..self.mounts.len()).map(|client| scope.spawn(move || part(self, client))).collect();
            let mut sum = Done::default();
            for one in all {
                let done =
                    one.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the workload ended")))?;
                sum.operations += done.operations;
                sum.bytes += done.bytes;
            }
            Ok(sum)
        })
    }

    fn next(&self, client: usize) -> usize {
        (client + 1) % self.mounts.len()
    }

    fn own(&self, at: usize, of: usize) -> PathBuf {
        self.mounts[at].join(format!("own-{of}"))
    }

    fn small(&self, at: usize, of: usize) -> PathBuf {
        self.mounts[at].join(format!("small-{of}"))
    }

    fn shared(&self, at: usize) -> PathBuf {
        self.mounts[at].join("shared")
    }

    /// Whole records of all clients.
    fn records(&self) -> u64 {
        self.amount.size / RECORD as u64
    }

    fn write_own(&self, client: usize) -> io::Result<Done> {
        let file = File::create(self.own(client, client))?;
        let mut buffer = vec![0; MIB];
        let count = self.amount.size / MIB as u64;
        for n in 0..count {
            fill(client as u64, n * MIB as u64, &mut buffer);
            file.write_all_at(&buffer, n * MIB as u64)?;
        }
        file.sync_all()?;
        Ok(Done { operations: count, bytes: count * MIB as u64 })
    }

    fn read_next(&self, client: usize) -> io::Result<Done> {
        let next = self.next(client);
        let length = self.amount.size / MIB as u64 * MIB as u64;
        check(&self.own(client, next), next as u64, length)
    }

    fn write_strided(&self, client: usize) -> io::Result<Done> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(self.shared(client))?;
        let mut buffer = vec![0; RECORD];
        let clients = self.mounts.len() as u64;
        for n in 0..self.records() {
            let offset = (n * clients + client as u64) * RECORD as u64;
            fill(self.shared_number(), offset, &mut buffer);
            file.write_all_at(&buffer, offset)?;
        }
        file.sync_all()?;
        Ok(Done { operations: self.records(), bytes: self.records() * RECORD as u64 })
    }

    fn shared_number(&self) -> u64 {
        self.mounts.len() as u64
    }

    fn read_shared(&self, client: usize) -> io::Result<Done> {
        let length = self.records() * RECORD as u64 * self.mounts.len() as u64;
        check(&self.shared(client), self.shared_number(), length)
    }

    fn small_number(&self, of: usize, n: u32) -> u64 {
        self.shared_number() + 1 + of as u64 * u64::from(self.amount.files) + u64::from(n)
    }

    fn make_small(&self, client: usize) -> io::Result<Done> {
        let dir = self.small(client, client);
        fs::create_dir(&dir)?;
        let mut buffer = vec![0; SMALL];
        for n in 0..self.amount.files {
            fill(self.small_number(client, n), 0, &mut buffer);
            fs::write(dir.join(n.to_string()), &buffer)?;
        }
        Ok(self.all_small())
    }

    fn all_small(&self) -> Done {
        let files = u64::from(self.amount.files);
        Done { operations: files, bytes: files * SMALL as u64 }
    }

    fn list_next(&self, client: usize) -> io::Result<Done> {
        let dir = self.small(client, self.next(client));
        let mut seen = 0;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let length = entry.metadata()?.len();
            if length != SMALL as u64 {
                return Err(wrong(&entry.path(), &format!("it has {length} bytes, {SMALL} were written")));
            }
            seen += 1;
        }
        if seen != self.amount.files {
            return Err(wrong(&dir, &format!("{seen} files are listed, {} were made", self.amount.files)));
        }
        Ok(Done { operations: seen.into(), bytes: 0 })
    }

    fn read_small(&self, client: usize) -> io::Result<Done> {
        let next = self.next(client);
        for n in 0..self.amount.files {
            check(&self.small(client, next).join(n.to_string()), self.small_number(next, n), SMALL as u64)?;
        }
        Ok(self.all_small())
    }

    fn remove_own(&self, client: usize) -> io::Result<Done> {
        fs::remove_file(self.own(client, client))?;
        if client == 0 {
            fs::remove_file(self.shared(client))?;
        }
        fs::remove_dir_all(self.small(client, client))?;
        Ok(Done { operations: u64::from(self.amount.files) + 2, bytes: 0 })
    }
}

/// Reads a file to its end and compares.
fn check(path: &Path, number: u64, length: u64) -> io::Result<Done> {
    let file = File::open(path)?;
    let (mut got, mut want) = (vec![0; MIB], vec![0; MIB]);
    let mut done = Done::default();
    loop {
        let read = file.read_at(&mut got, done.bytes)?;
        if read == 0 {
            break;
        }
        // Words begin at multiples of 8; a read may end anywhere.
        let from = done.bytes % 8;
        let want = &mut want[..];
        let most = read.min(want.len() - from as usize);
        fill(number, done.bytes - from, want);
        if let Some(at) = got[..most].iter().zip(&want[from as usize..]).position(|(got, want)| got != want) {
            return Err(wrong(path, &format!("byte {} is not what was written", done.bytes + at as u64)));
        }
        done = Done { operations: done.operations + 1, bytes: done.bytes + most as u64 };
    }
    if done.bytes != length {
        return Err(wrong(path, &format!("{} bytes were read, {length} were written", done.bytes)));
    }
    Ok(done)
}

fn wrong(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

/// The bytes of a file from `offset`, a multiple of 8, on: no two words of all files are alike (splitmix64).
fn fill(number: u64, offset: u64, buffer: &mut [u8]) {
    for (n, word) in (offset / 8..).zip(buffer.chunks_mut(8)) {
        let mut x = (number << FILE_SHIFT | n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        let bytes = x.to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the workload sees wrong bytes, and leaves nothing. Method: two "clients" of one directory; then a byte is changed.
    use super::*;

    const AMOUNT: Amount = Amount { size: 3 << 20, files: 5 };

    #[test]
    fn it_runs_on_any_directory_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let work = Workload { mounts: vec![dir.path().to_owned(), dir.path().to_owned()], amount: AMOUNT };
        let mut steps = 0;
        let rows = work
            .run(&mut |_| {
                steps += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!((rows.len(), steps), (7, 7));
        assert_eq!(work.remove().unwrap().operations, 14);
        assert_eq!((rows[0].bytes, rows[1].bytes), (6 << 20, 6 << 20));
        assert_eq!(rows[3].bytes, 2 * rows[2].bytes);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_wrong_byte_or_end_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let work = Workload { mounts: vec![dir.path().to_owned()], amount: AMOUNT };
        work.write_own(0).unwrap();
        work.read_next(0).unwrap();
        let file = OpenOptions::new().write(true).open(work.own(0, 0)).unwrap();
        let mut byte = [0];
        File::open(work.own(0, 0)).unwrap().read_exact_at(&mut byte, 1_234_567).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 1_234_567).unwrap();
        let error = work.read_next(0).err().unwrap().to_string();
        assert!(error.contains("byte 1234567 "), "{error}");
        file.write_all_at(&byte, 1_234_567).unwrap();
        work.read_next(0).unwrap();
        file.set_len(3_000_000).unwrap();
        assert!(work.read_next(0).is_err());
    }
}
