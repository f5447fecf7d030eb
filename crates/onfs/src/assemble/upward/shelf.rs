//! Histories on the disk: one file for each job of each user, in `history` of the state directory.
//!
//! Invariants: a file is replaced whole; damaged ones are left out, with a line in the log; number and age have bounds, and the
//! oldest go first. Only the daemon's user may read them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use plan::History;

use crate::config::fnv1a;

/// Jobs that are remembered, of all users; of one user a quarter. With their most files they take 350 MB of disk, and
/// usually some kilobytes each.
pub const JOBS_MAX: usize = 256;
const JOBS_PER_USER: usize = JOBS_MAX / 4;
const DAYS_MAX: u64 = 90;
const SUFFIX: &str = ".plan";

/// Whose job.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct JobKey {
    pub uid: u32,
    pub name: String,
}

#[derive(Debug)]
pub struct Shelf {
    dir: PathBuf,
    /// When each job's last run ended.
    known: BTreeMap<JobKey, u64>,
}

impl Shelf {
    /// Reads what is there. `now` is in seconds since 1970.
    pub fn open(dir: &Path, now: u64) -> io::Result<Shelf> {
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut shelf = Shelf { dir: dir.to_owned(), known: BTreeMap::new() };
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if !path.to_string_lossy().ends_with(SUFFIX) {
                continue;
            }
            if let Some(history) = read(&path) {
                shelf.known.insert(JobKey { uid: history.uid, name: history.name }, history.last_end);
            }
        }
        let old: Vec<JobKey> = shelf
            .known
            .iter()
            .filter(|(_, end)| *end + DAYS_MAX * 86_400 < now)
            .map(|(k, _)| k.clone())
            .collect();
        old.iter().for_each(|key| shelf.forget(key));
        Ok(shelf)
    }

    pub fn keys(&self) -> impl Iterator<Item = &JobKey> {
        self.known.keys()
    }

    pub fn load(&self, key: &JobKey) -> Option<History> {
        self.known.contains_key(key).then(|| read(&self.path(key))).flatten().filter(|h| key.is_of(h))
    }

    pub fn save(&mut self, history: &History) -> io::Result<()> {
        let key = JobKey { uid: history.uid, name: history.name.clone() };
        let path = self.path(&key);
        let aside = path.with_extension("new");
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(&history.encode())?;
        file.sync_data()?;
        fs::rename(&aside, &path)?;
        self.known.insert(key.clone(), history.last_end);
        let of_user = |k: &JobKey| k.uid == key.uid;
        while self.known.keys().filter(|k| of_user(k)).count() > JOBS_PER_USER {
            self.forget_oldest(of_user);
        }
        while self.known.len() > JOBS_MAX {
            self.forget_oldest(|_| true);
        }
        Ok(())
    }

    /// Also where it is not known.
    pub fn forget(&mut self, key: &JobKey) {
        self.known.remove(key);
        match fs::remove_file(self.path(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, name = key.name, "a job's history could not be removed");
            }
            Ok(()) | Err(_) => {}
        }
    }

    fn forget_oldest(&mut self, of: impl Fn(&JobKey) -> bool) {
        let oldest = self.known.iter().filter(|(key, _)| of(key)).min_by_key(|(_, end)| **end);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.forget(&key);
        }
    }

    fn path(&self, key: &JobKey) -> PathBuf {
        self.dir.join(format!("{}-{:016x}{SUFFIX}", key.uid, fnv1a(key.name.as_bytes())))
    }
}

impl JobKey {
    /// Two names may have one file name; the later one has it then.
    fn is_of(&self, history: &History) -> bool {
        self.uid == history.uid && self.name == history.name
    }
}

fn read(path: &Path) -> Option<History> {
    let mut bytes = Vec::new();
    let all =
        File::open(path).and_then(|file| file.take(History::BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    let history = match all {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => Err(error.to_string()),
        Ok(_) => History::decode(&bytes).map_err(|damaged| damaged.to_string()),
    };
    history.inspect_err(|why| tracing::warn!(file = %path.display(), why, "a job's history is left out")).ok()
}

#[cfg(test)]
mod tests {
    //! Goal: histories survive, damage is left out, and bounds hold. Method: a directory of the test.
    use super::*;

    fn history(uid: u32, name: &str, last_end: u64) -> History {
        History { last_end, runs: 1, ..History::new(uid, name.into()) }
    }

    #[test]
    fn histories_survive_and_damaged_ones_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("history");
        let mut shelf = Shelf::open(&place, 1000).unwrap();
        shelf.save(&history(1, "a", 1000)).unwrap();
        shelf.save(&history(1, "b", 1000)).unwrap();
        shelf.save(&history(2, "a", 900)).unwrap();
        let key = |uid, name: &str| JobKey { uid, name: name.into() };
        let path = shelf.path(&key(1, "b"));
        let mut bytes = fs::read(&path).unwrap();
        bytes[20] ^= 1;
        fs::write(&path, bytes).unwrap();
        let mut shelf = Shelf::open(&place, 1000).unwrap();
        assert_eq!(shelf.keys().collect::<Vec<_>>(), [&key(1, "a"), &key(2, "a")]);
        assert_eq!(shelf.load(&key(2, "a")), Some(history(2, "a", 900)));
        assert_eq!(shelf.load(&key(1, "b")), None);
        shelf.forget(&key(1, "a"));
        assert_eq!(shelf.load(&key(1, "a")), None);
        let shelf = Shelf::open(&place, 901 + DAYS_MAX * 86_400).unwrap();
        assert_eq!(shelf.keys().count(), 0, "too old");
    }

    #[test]
    fn no_user_takes_the_place_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut shelf = Shelf::open(&dir.path().join("history"), 0).unwrap();
        shelf.save(&history(2, "other", 0)).unwrap();
        for n in 0..JOBS_PER_USER as u64 + 10 {
            shelf.save(&history(1, &format!("job {n}"), 10 + n)).unwrap();
        }
        assert_eq!(shelf.keys().count(), JOBS_PER_USER + 1);
        let oldest = JobKey { uid: 1, name: "job 9".into() };
        assert!(
            shelf.load(&oldest).is_none() && shelf.load(&JobKey { uid: 2, name: "other".into() }).is_some()
        );
    }
}
