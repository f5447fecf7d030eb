//! The standby's side: copies of others' journals in files, and who may be gone on for.
//!
//! What an owner sends is in the file when it is answered. A copy whose file fails is given up: nothing is taken for it any more, and the owner
//! begins another.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use cluster::{
    NodeId,
    tail::{
        Terms,
        row::{Refused, Row},
        standby::{Effect, Input, Standby},
    },
};
use kv::{CopyFile, CopyName, CopyRecord, Entry, Lsn, entries_of};
use parking_lot::Mutex;
use prost::Message;
use proto::tail::{TailHas, TailRecord};

use super::{
    clock::now,
    known::{ANSWERS, Known},
    rows::TailView,
};

const PREFIX: &str = "copy-";
/// Copies with which this server went on, or was about to: what they know of operations is known after a start, too.
const TAKEN: &str = "taken-";
/// After so long nobody asks for an operation of then any more.
const TAKEN_FOR: Duration = Duration::from_secs(86400);
/// A file is written anew without what the engine has, when it is that large.
const FILE_BYTES: u64 = 16 << 20;

/// As they were in the journal.
pub(crate) type Commits = Vec<(Lsn, Vec<Entry>)>;

struct Copying {
    machine: Standby,
    path: PathBuf,
    file: Option<CopyFile>,
    /// What the machine asks of others.
    look: bool,
    take: Option<(u64, u64)>,
    served: bool,
}

/// What can be gone on with.
pub(crate) struct Taking {
    pub writer: String,
    pub copy: u64,
    pub commits: Commits,
    pub known: Known,
}

pub(crate) struct Copies {
    dir: PathBuf,
    me: NodeId,
    terms: Terms,
    /// By the owner's name in the database. One for each metadata server that there ever was.
    all: Mutex<BTreeMap<String, Arc<Mutex<Copying>>>>,
}

impl Copies {
    /// With what a process before this one had stored.
    pub(crate) fn open(dir: &Path, me: NodeId, terms: Terms) -> io::Result<Copies> {
        std::fs::create_dir_all(dir)?;
        let mut all = BTreeMap::new();
        for entry in std::fs::read_dir(dir)? {
            let name = entry?.file_name();
            let Some(writer) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
            if writer.ends_with(".new") {
                continue;
            }
            let path = dir.join(&name);
            let found = match CopyFile::find(&path) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    // Its owner begins another one.
                    tracing::error!(%error, "a copy of another server's journal cannot be used");
                    continue;
                }
            };
            let (CopyName { copy, base }, records) = found;
            let stored = records.last().map_or(base, |record| record.number);
            let machine = Standby::found(terms, me, now(), (copy, base, stored));
            all.insert(writer.to_owned(), Arc::new(Mutex::new(Copying::new(machine, path))));
        }
        Ok(Copies { dir: dir.to_owned(), me, terms, all: Mutex::new(all) })
    }

    fn of(&self, writer: &str) -> Arc<Mutex<Copying>> {
        let mut all = self.all.lock();
        let new = || {
            let machine = Standby::new(self.terms, self.me, now());
            Arc::new(Mutex::new(Copying::new(machine, self.dir.join(format!("{PREFIX}{writer}")))))
        };
        all.entry(writer.to_owned()).or_insert_with(new).clone()
    }

    pub(crate) fn begun(&self, writer: &str, (copy, beat, base): (u64, u64, u64)) -> TailHas {
        let copying = self.of(writer);
        let mut copying = copying.lock();
        copying.machine.handle(now(), Input::Begun { copy, beat, base });
        self.carry_on(&mut copying, &[])
    }

    pub(crate) fn came(
        &self,
        writer: &str,
        (copy, beat): (u64, u64),
        (from, up_to, applied): (u64, u64, u64),
        records: &[Bytes],
    ) -> TailHas {
        let numbered = numbered(records).filter(|all| all.iter().map(|one| one.number).eq(from..=up_to));
        let (from, up_to, records) = match numbered {
            Some(records) => (from, up_to, records),
            None => (from, from.saturating_sub(1), Vec::new()),
        };
        let copying = self.of(writer);
        let mut copying = copying.lock();
        copying.machine.handle(now(), Input::Came { copy, beat, from, up_to, applied });
        self.carry_on(&mut copying, &records)
    }

    /// Does what the machine says. Returns what the owner is told.
    fn carry_on(&self, copying: &mut Copying, records: &[CopyRecord]) -> TailHas {
        let mut has = TailHas::default();
        while let Some(effect) = copying.machine.poll_effect() {
            let done = match effect {
                Effect::Start { copy, base } => copying.begin(copy, base),
                Effect::Keep { copy, from, up_to } => copying.keep(copy, (from, up_to), records),
                Effect::Trim { copy, up_to } => copying.trim(copy, up_to),
                Effect::Stored { copy, beat, up_to } => {
                    has = TailHas { copy, beat, up_to, refused: false };
                    Ok(())
                }
                Effect::Refused { copy } => {
                    has = TailHas { copy, refused: true, ..TailHas::default() };
                    Ok(())
                }
                Effect::Look => {
                    copying.look = true;
                    Ok(())
                }
                Effect::Take { copy, up_to } => {
                    copying.take = Some((copy, up_to));
                    Ok(())
                }
                Effect::Serve => {
                    copying.served = true;
                    Ok(())
                }
            };
            if let Err(error) = done {
                let path = copying.path.display();
                tracing::error!(%error, %path, "the copy of another server's journal is given up");
                copying.machine = Standby::new(self.terms, self.me, now());
                copying.file = None;
                return TailHas::default();
            }
        }
        has
    }

    /// Of whom the database is to be asked now.
    pub(crate) fn to_look_at(&self) -> Vec<String> {
        let all: Vec<_> = self.all.lock().iter().map(|(name, one)| (name.clone(), one.clone())).collect();
        let mut names = Vec::new();
        for (name, one) in all {
            let mut copying = one.lock();
            if copying.machine.next_deadline().is_some_and(|at| now() >= at) {
                copying.machine.handle_deadline(now());
                self.carry_on(&mut copying, &[]);
            }
            if std::mem::take(&mut copying.look) {
                names.push(name);
            }
        }
        names
    }

    /// What the database says, as our own name has it there.
    pub(crate) fn seen(&self, writer: &str, view: &TailView, ours: &str) {
        let standby = view.row.standby.as_deref();
        let standby = standby.map(|name| if name == ours { self.me } else { NodeId(0) });
        let row = Row { standby, copy: view.row.copy, complete: view.row.complete };
        let copying = self.of(writer);
        let mut copying = copying.lock();
        copying.machine.handle(now(), Input::Seen { row, ended: view.ended });
        self.carry_on(&mut copying, &[]);
    }

    /// Those that are to be gone on for now.
    pub(crate) fn to_take(&self) -> Vec<Taking> {
        let all: Vec<_> = self.all.lock().iter().map(|(name, one)| (name.clone(), one.clone())).collect();
        let mut taking = Vec::new();
        for (writer, one) in all {
            let mut copying = one.lock();
            let Some((copy, up_to)) = copying.take.take() else { continue };
            match copying.read(copy, up_to) {
                Ok((commits, known)) => taking.push(Taking { writer, copy, commits, known }),
                Err(error) => {
                    let path = copying.path.display();
                    tracing::error!(%error, %path, "the copy of a dead server's journal cannot be read");
                }
            }
        }
        taking
    }

    /// What became of it. True: its slots are ours from now on.
    pub(crate) fn took(&self, writer: &str, outcome: Result<(), Refused>) -> bool {
        let copying = self.of(writer);
        let mut copying = copying.lock();
        copying.machine.handle(now(), Input::Took(outcome));
        self.carry_on(&mut copying, &[]);
        std::mem::take(&mut copying.served)
    }

    /// What is known of operations of servers in whose place an earlier process went on.
    pub(crate) fn of_before(&self) -> io::Result<Known> {
        let mut known = Known::default();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(|name| name.starts_with(TAKEN)) {
                continue;
            }
            let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
            match find(&entry.path())? {
                Some((_, records)) if age < TAKEN_FOR => {
                    decoded(&records)?.iter().for_each(|record| known.add(record));
                }
                Some(_) | None => std::fs::remove_file(entry.path())?,
            }
        }
        Ok(known)
    }

    /// In whose place is forgotten after a day.
    pub(crate) fn went_on(&self) -> bool {
        let here = format!("{TAKEN}here");
        let is = |name: &str| name.starts_with(TAKEN) && name != here;
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_str().is_some_and(is))
    }

    /// What this process answered, for the next one.
    pub(crate) fn leave(&self, records: &[TailRecord]) -> io::Result<()> {
        let records: Vec<CopyRecord> = records.iter().map(to_keep).collect();
        let name = CopyName { copy: 0, base: 0 };
        CopyFile::begin(&self.dir.join(format!("{TAKEN}here")), name, &records).map(drop)
    }

    /// It is about to be gone on with: a start after this knows of it.
    pub(crate) fn note(&self, writer: &str) -> io::Result<()> {
        let noted = self.dir.join(format!("{TAKEN}{writer}"));
        let _ = std::fs::remove_file(&noted);
        std::fs::hard_link(self.dir.join(format!("{PREFIX}{writer}")), noted)
    }

    /// It was not.
    pub(crate) fn unnote(&self, writer: &str) {
        // Left over it says what is true.
        let _ = std::fs::remove_file(self.dir.join(format!("{TAKEN}{writer}")));
    }
}

impl Copying {
    fn new(machine: Standby, path: PathBuf) -> Copying {
        Copying { machine, path, file: None, look: false, take: None, served: false }
    }

    fn begin(&mut self, copy: u64, base: u64) -> io::Result<()> {
        self.file = Some(CopyFile::begin(&self.path, CopyName { copy, base }, &[])?);
        self.machine.handle(now(), Input::Kept { copy, up_to: base });
        Ok(())
    }

    fn keep(&mut self, copy: u64, (from, up_to): (u64, u64), records: &[CopyRecord]) -> io::Result<()> {
        let new = records.partition_point(|record| record.number < from)
            ..records.partition_point(|record| record.number <= up_to);
        let file = self.file.as_mut().ok_or_else(|| io::Error::other("its file is not open"))?;
        file.append(&records[new])?;
        self.machine.handle(now(), Input::Kept { copy, up_to });
        Ok(())
    }

    /// The same copy without what the engine has, when that is much; what was answered stays.
    fn trim(&mut self, copy: u64, up_to: u64) -> io::Result<()> {
        if self.file.as_ref().is_none_or(|file| file.bytes() < FILE_BYTES) {
            return Ok(());
        }
        let Some((name, records)) = find(&self.path)?.filter(|(name, _)| name.copy == copy) else {
            return Err(io::Error::other("its file is another's"));
        };
        let (gone, rest): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.number <= up_to.max(name.base));
        let mut known = Known::default();
        decoded(&gone)?.iter().for_each(|record| known.add(record));
        let base = up_to.max(name.base);
        let known = known.records(ANSWERS).into_iter();
        let known = known.map(|record| to_keep(&TailRecord { number: base, ..record }));
        let records: Vec<CopyRecord> = known.chain(rest).collect();
        self.file = Some(CopyFile::begin(&self.path, CopyName { copy, base }, &records)?);
        Ok(())
    }

    fn read(&self, copy: u64, up_to: u64) -> io::Result<(Commits, Known)> {
        let found = find(&self.path)?.filter(|(name, _)| name.copy == copy);
        let (name, records) = found.ok_or_else(|| io::Error::other("it is not there"))?;
        if records.last().map_or(name.base, |record| record.number) < up_to {
            return Err(io::Error::other(format!("it does not go up to record {up_to}")));
        }
        let (mut commits, mut known) = (Vec::new(), Known::default());
        let records = decoded(&records)?;
        for record in records.iter().filter(|record| record.number <= up_to) {
            known.add(record);
            for commit in &record.commits {
                let entries = entries_of(&commit.body);
                let entries = entries.ok_or_else(|| io::Error::other("it has what is no commit"))?;
                commits.push((Lsn(commit.lsn), entries));
            }
        }
        Ok((commits, known))
    }
}

fn find(path: &Path) -> io::Result<Option<(CopyName, Vec<CopyRecord>)>> {
    CopyFile::find(path).map_err(io::Error::other)
}

fn to_keep(record: &TailRecord) -> CopyRecord {
    CopyRecord { number: record.number, lsn: None, bytes: record.encode_to_vec().into() }
}

/// As they came, if each can be read when it is needed.
fn numbered(records: &[Bytes]) -> Option<Vec<CopyRecord>> {
    let numbered = |bytes: &Bytes| {
        let number = TailRecord::decode(&bytes[..]).ok()?.number;
        Some(CopyRecord { number, lsn: None, bytes: bytes.clone() })
    };
    records.iter().map(numbered).collect()
}

/// Their bytes are under a checksum: what cannot be read was not written by this program.
fn decoded(records: &[CopyRecord]) -> io::Result<Vec<TailRecord>> {
    let decode = |record: &CopyRecord| {
        let decoded = TailRecord::decode(&record.bytes[..]).map_err(io::Error::other);
        decoded.map(|decoded| TailRecord { number: record.number, ..decoded })
    };
    records.iter().map(decode).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proto::{
        Head, SessionId,
        owners::AnswerState,
        tail::{TailAnswer, TailCommit, TailOperation},
    };

    use super::*;

    /// A commit of a MiB, by an operation that was answered, or only begun.
    fn record(n: u64) -> CopyRecord {
        let (key, value) = (n.to_be_bytes(), vec![n as u8; 1 << 20]);
        let lens = [&1_u32.to_le_bytes()[..], &8_u16.to_le_bytes(), &(value.len() as u32).to_le_bytes()];
        let commits = vec![TailCommit { lsn: n, body: [&lens.concat()[..], &key, &value].concat() }];
        let operation = TailOperation::of(&Head::operation(SessionId(5), n, 0));
        let answer = Some(AnswerState { meta: vec![n as u8], ..AnswerState::default() });
        let answered = TailAnswer { operation, acknowledged: 0, answer };
        let is_answered = n.is_multiple_of(2);
        let begun = if is_answered { Vec::new() } else { vec![operation] };
        to_keep(&TailRecord {
            number: n,
            commits,
            answers: is_answered.then_some(answered).into_iter().collect(),
            begun,
            given_up: vec![Head::of(SessionId(n.into()))],
        })
    }

    fn lsns(commits: &Commits) -> Vec<u64> {
        commits.iter().map(|(lsn, _)| lsn.0).collect()
    }

    /// Goal: a file that is long loses what the engine has, and nothing else: no later commit, and nothing that is known of operations. Method: more
    /// than its bound, and what is read before and after.
    #[test]
    fn a_long_copy_is_written_anew_without_what_the_engine_has() {
        let dir = tempfile::tempdir().unwrap();
        let machine = || Standby::new(Terms::default(), NodeId(1), now());
        let mut copying = Copying::new(machine(), dir.path().join("copy-one"));
        copying.begin(7, 0).unwrap();
        let bytes = |copying: &Copying| copying.file.as_ref().unwrap().bytes();
        for n in 1..=15 {
            copying.keep(7, (n, n), &[record(n)]).unwrap();
        }
        copying.trim(7, 9).unwrap();
        assert_eq!(lsns(&copying.read(7, 15).unwrap().0), (1..=15).collect::<Vec<_>>(), "it is short enough");
        copying.keep(7, (16, 17), &[record(16), record(17)]).unwrap();
        assert!(bytes(&copying) > FILE_BYTES);
        let (_, known) = copying.read(7, 17).unwrap();
        copying.trim(7, 15).unwrap();
        assert!(bytes(&copying) < FILE_BYTES / 4);
        assert_eq!(
            copying.read(7, 17).map(|(commits, known)| (lsns(&commits), known)).unwrap(),
            (vec![16, 17], known)
        );
        // It goes on, and the next life finds it.
        copying.keep(7, (18, 18), &[record(18)]).unwrap();
        let next = Copying::new(machine(), copying.path.clone());
        let (commits, mut known) = next.read(7, 18).unwrap();
        assert_eq!(lsns(&commits), [16, 17, 18]);
        let mut asked = |n| known.take(&Head::operation(SessionId(5), n, 0));
        assert_eq!(asked(3), Some(None), "it was carried out, and the answer is not known");
        assert_eq!(asked(4).flatten().unwrap().meta, [4]);
        assert_eq!(asked(18).flatten().unwrap().meta, [18]);
        assert_eq!(asked(19), None);
    }
}
