//! `onfs fsck`: metadata against itself, residency maps against the objects, objects against their checksums.
//!
//! Of the state of a server of a cluster the objects are known by their own records, and nothing is removed that has none: which files
//! they belong to is known elsewhere ([`super::held`]).

use std::{
    collections::HashSet,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use kv::{MetaStore, OpenError};
use layout::{Sau, SauIndex};
use namespace::{Inode, InodeFlags, key, superblock, txn::KvError};
use store::{FsUuid, ScanEntry, TierStore, TierStoreOptions};
use types::{FileKind, Ino, TierId, Timestamp};

use super::{
    held::{Held, held},
    metadata::{has_names, open_metadata, recovery_line},
    refusals::of_open,
    site::Site,
    tree::Names,
};
use crate::{
    check::{Finding, FsckReport, Severity},
    config::Config,
    control::{Progress, ProgressSink, Unit},
    running::StartError,
};

/// In the marker file of a memory tier.
const MEMORY_MARKER: &str = "onfs-memory.toml";

/// Checks the state of an unmounted file system; the caller holds the state's lock. Without `repair` nothing is
/// changed.
pub fn fsck(
    config: &Config,
    repair: bool,
    progress: &mut dyn ProgressSink,
) -> Result<FsckReport, StartError> {
    let mut check =
        Check { report: FsckReport::default(), subjects: Vec::new(), repair, linked: false, progress };
    check.report.state_dir = config.mount.state.display().to_string();
    let store = match open_metadata(config, 0, repair) {
        Ok(store) => store,
        Err(error @ (OpenError::Damaged { .. } | OpenError::Engine(KvError::Corrupt(_)))) => {
            let what = format!(
                "{error}; nothing else can be checked before that is repaired (fsck --repair opens what comes before the damage)"
            );
            check.add(Severity::Damage, "metadata store".to_owned(), what, false);
            return Ok(check.report);
        }
        Err(error @ OpenError::EngineDamaged { .. }) => {
            let what =
                format!("{error}; there is no repair for that: put back a copy of meta/ if there is one");
            check.add(Severity::Damage, "metadata store".to_owned(), what, false);
            return Ok(check.report);
        }
        Err(error) => return Err(of_open(error)),
    };
    if let Some(line) = recovery_line(&store) {
        // Opening has cut it off already, as a mount would.
        check.add(Severity::Damage, "journal".to_owned(), line, true);
    }
    let held = held(&store).map_err(|e| StartError::Damaged(e.to_string()))?;
    check.report.server = held.is_some();
    check.scope(config);
    check.metadata(&store)?;
    check.objects(config, &store, held)?;
    check.name_subjects(&store);
    store.close().map_err(|e| StartError::Failed(e.to_string()))?;
    Ok(check.report)
}

struct Check<'a> {
    report: FsckReport,
    /// Findings, by their place in the report, that are about an inode.
    subjects: Vec<(usize, Ino)>,
    repair: bool,
    /// Near-line is a linked directory.
    linked: bool,
    progress: &'a mut dyn ProgressSink,
}

impl Check<'_> {
    fn add(&mut self, severity: Severity, place: String, what: String, repaired: bool) {
        self.report.findings.push(Finding { severity, place, what, repaired });
    }

    fn add_about(&mut self, ino: Ino, severity: Severity, what: String, repaired: bool) {
        self.subjects.push((self.report.findings.len(), ino));
        self.add(severity, format!("inode {ino}"), what, repaired);
    }

    /// What of a cluster is not looked at here.
    fn scope(&mut self, config: &Config) {
        if !self.report.server {
            return;
        }
        let what = "of a server of a cluster: its own records, objects and checksums are checked. Whether a file has each object is known to the metadata servers alone, so none is removed";
        self.add(Severity::Note, "state".to_owned(), what.to_owned(), false);
        if has_names(&config.mount.state) {
            let what = "the names that this metadata server shares with others are in their database, and are not checked here";
            self.add(Severity::Note, "names".to_owned(), what.to_owned(), false);
        }
    }

    /// Puts paths in the place of inode numbers.
    fn name_subjects(&mut self, store: &MetaStore) {
        let mut names = Names::new(store, usize::MAX);
        let nameless: HashSet<Ino> = self
            .subjects
            .iter()
            .map(|(_, ino)| *ino)
            .filter(|ino| !names.is_removed(*ino) && names.path(*ino).is_none())
            .collect();
        if !nameless.is_empty() {
            names.search(&nameless);
        }
        for (n, ino) in &self.subjects {
            let Some(finding) = self.report.findings.get_mut(*n) else { continue };
            finding.place = match names.path(*ino) {
                Some(path) => format!("{} (inode {ino})", path.display()),
                None if names.is_removed(*ino) => format!("inode {ino} (unlinked, waits for its removal)"),
                None if self.report.server => format!("object {ino}"),
                None => format!("inode {ino} (it has no name)"),
            };
        }
    }

    /// A linked directory's file is compared with what was agreed on when somebody reads it.
    fn is_theirs(&self, tier: TierId) -> bool {
        tier == TierId::Nearline && self.linked
    }

    fn beat(&mut self, done: u64, total: u64, what: &str) -> Result<(), StartError> {
        let progress = Progress { done, total, unit: Unit::Items, what: what.to_owned() };
        self.progress.report(progress).map_err(|e| StartError::Failed(e.to_string()))
    }

    fn metadata(&mut self, store: &MetaStore) -> Result<(), StartError> {
        self.beat(0, 0, "metadata")?;
        let mut lines = Vec::new();
        let mut note =
            |finding: &namespace::check::Finding| lines.push((finding.to_string(), finding.subject()));
        let outcome = mds::fsck(store, now(), self.repair, &mut note)
            .map_err(|e| StartError::Damaged(e.to_string()))?;
        let all_repaired = self.repair && outcome.left == 0;
        for (line, subject) in lines {
            match subject {
                Some(ino) => self.add_about(ino, Severity::Repairable, line, all_repaired),
                None => self.add(Severity::Repairable, "metadata".to_owned(), line, all_repaired),
            }
        }
        if self.repair && outcome.left > 0 {
            let what = format!("{} findings cannot be put right", outcome.left);
            self.add(Severity::Damage, "metadata".to_owned(), what, false);
        }
        Ok(())
    }

    fn objects(&mut self, config: &Config, store: &MetaStore, held: Option<Held>) -> Result<(), StartError> {
        let failed = |e: &dyn std::fmt::Display| StartError::Damaged(e.to_string());
        let superblock = match superblock::read(store).map_err(|e| failed(&e))? {
            superblock::Stored::Here(superblock) => superblock,
            superblock::Stored::OtherFormat { .. } | superblock::Stored::Nothing => return Ok(()),
        };
        let site = Site::load(&config.mount.state)?;
        self.linked = site.link().is_some();
        let uuid = FsUuid(superblock.uuid);
        let mut tiers: [Option<TierStore>; 3] = [None, None, None];
        for tier in [TierId::Ssd, TierId::Nearline] {
            if let Some(dir) = site.tier(tier) {
                tiers[tier.index()] = self.tier(tier, dir, uuid);
            }
        }
        let memory = memory_path(config, &site);
        if let Some(dir) = &memory {
            tiers[TierId::Memory.index()] = self.tier(TierId::Memory, dir, uuid);
        }
        let generation = memory.is_some().then_some(superblock.memory_generation);
        let files = self.written_files(store)?;
        let known = match held {
            None => self.each_file(store, &tiers, generation, files)?,
            Some(held) => self.each_held(store, &tiers, generation, held)?,
        };
        self.strangers(&tiers, &known)
    }

    fn tier(&mut self, tier: TierId, dir: &Path, uuid: FsUuid) -> Option<TierStore> {
        let mut options = TierStoreOptions::new(tier, uuid);
        options.create = false;
        match TierStore::open(dir, options) {
            Ok(store) => Some(store),
            Err(error) => {
                let what = format!("cannot be checked: {error}");
                self.add(Severity::Damage, format!("{tier} tier in {}", dir.display()), what, false);
                None
            }
        }
    }

    /// The regular files that may have an object; all inodes are counted.
    fn written_files(&mut self, store: &MetaStore) -> Result<Vec<(Ino, Inode)>, StartError> {
        let mut files = Vec::new();
        let mut inodes = 0;
        store
            .scan(&[0], &[0xff; 9], &mut |key, value| {
                if key.len() == key::PREFIX_BYTES && key[8] == key::INODE {
                    inodes += 1;
                    let ino = key.first_chunk::<8>().and_then(|n| Ino::from_raw(u64::from_be_bytes(*n)));
                    let inode = Inode::decode(value).filter(|i| i.kind == FileKind::Regular);
                    if let (Some(ino), Some(inode)) = (ino, inode)
                        && inode.flags.contains(InodeFlags::WRITTEN)
                    {
                        files.push((ino, inode));
                    }
                }
                ControlFlow::Continue(())
            })
            .map_err(|e| StartError::Damaged(e.to_string()))?;
        self.report.inodes = inodes;
        Ok(files)
    }

    /// Every regular file's object. Returns the inodes that may have one.
    fn each_file(
        &mut self,
        store: &MetaStore,
        tiers: &[Option<TierStore>; 3],
        generation: Option<u32>,
        files: Vec<(Ino, Inode)>,
    ) -> Result<HashSet<Ino>, StartError> {
        let total = files.len() as u64;
        let mut known = HashSet::with_capacity(files.len());
        for (n, (ino, inode)) in files.into_iter().enumerate() {
            self.beat(n as u64, total, "objects")?;
            // Unlinked: its data may be gone already, and goes at the next mount.
            if inode.nlink > 0 {
                self.one_object(store, tiers, generation, (ino, Some(inode.size)))?;
            }
            known.insert(ino);
        }
        self.report.objects = total;
        Ok(known)
    }

    /// Every object that a server holds for others. Returns their numbers.
    fn each_held(
        &mut self,
        store: &MetaStore,
        tiers: &[Option<TierStore>; 3],
        generation: Option<u32>,
        held: Held,
    ) -> Result<HashSet<Ino>, StartError> {
        let total = held.records.len() as u64;
        let mut known: HashSet<Ino> = held.without_record.iter().copied().collect();
        for ino in held.without_record {
            let what = "it has a map of places and no record: nobody can read it";
            self.add_about(ino, Severity::Damage, what.to_owned(), false);
        }
        for (n, (ino, record)) in held.records.into_iter().enumerate() {
            self.beat(n as u64, total, "objects")?;
            known.insert(ino);
            match record {
                // What is left of it goes at the next start.
                Ok(record) if record.gone.is_some() => {}
                Ok(record) => {
                    let size = (!record.live).then_some(record.size);
                    self.one_object(store, tiers, generation, (ino, size))?;
                }
                Err(_) => {
                    let what = "its record is damaged: reads give EIO";
                    self.add_about(ino, Severity::Damage, what.to_owned(), false);
                }
            }
        }
        self.report.objects = total;
        Ok(known)
    }

    /// Its size, unless its bytes know it better.
    fn one_object(
        &mut self,
        store: &MetaStore,
        tiers: &[Option<TierStore>; 3],
        generation: Option<u32>,
        (ino, size): (Ino, Option<u64>),
    ) -> Result<(), StartError> {
        let stored = ds::load_record(store, ino).map_err(|e| StartError::Damaged(e.to_string()))?;
        let map = match stored {
            Some(Ok(record)) => {
                let mut map = record.map;
                if Some(record.memory_generation) != generation {
                    map.forget_memory();
                }
                // A cut that a crash interrupted is finished when the file is next used.
                if let Some(size) = record.pending_truncate {
                    map.truncate_to(size);
                }
                map
            }
            Some(Err(error)) => {
                let what = format!("its map of places is damaged: {error}");
                self.add_about(ino, Severity::Damage, what, false);
                return Ok(());
            }
            // The record comes before the first byte.
            None => return Ok(()),
        };
        let mut lost = 0;
        let mut damaged = 0;
        for (sau, state) in map.iter() {
            let bytes = u64::from(sau.bytes_within(size.unwrap_or(u64::MAX)));
            if state.lost {
                lost += bytes.max(1);
                continue;
            }
            let mut good = false;
            for tier in state.valid.iter() {
                let intact = self.is_theirs(tier)
                    || tiers[tier.index()].as_ref().is_some_and(|t| is_intact(t, ino, sau, state));
                good |= intact;
                damaged += u64::from(!intact);
            }
            if !good {
                lost += bytes;
            }
        }
        if damaged > 0 {
            let what = match damaged {
                1 => "a copy of a piece of it is missing or does not match its checksum".to_owned(),
                n => format!("{n} copies of its pieces are missing or do not match their checksum"),
            };
            self.add_about(ino, Severity::Damage, what, false);
        }
        if lost > 0 {
            self.report.lost_bytes += lost;
            let what = format!(
                "{lost} bytes are lost: they were only in memory, or their copy is damaged; reads give EIO"
            );
            self.add_about(ino, Severity::Damage, what, false);
        }
        Ok(())
    }

    /// Objects that no inode has: left by a crash between the removal of a file and that of its data. On a server those without a
    /// record: they are told of, and stay.
    fn strangers(&mut self, tiers: &[Option<TierStore>; 3], known: &HashSet<Ino>) -> Result<(), StartError> {
        for tier in tiers.iter().flatten() {
            let mut found = Vec::new();
            tier.scan(&mut |entry| {
                match entry {
                    ScanEntry::Object { ino, blocks, .. } if !known.contains(&ino) => {
                        found.push((ino, blocks * 512))
                    }
                    ScanEntry::Object { .. } | ScanEntry::Stranger(_) => {}
                }
                ControlFlow::Continue(())
            })
            .map_err(|e| StartError::Failed(format!("{}: {e}", tier.path().display())))?;
            for (ino, bytes) in found {
                if self.report.server {
                    let what = format!("object {ino} ({bytes} bytes) has no record here, and stays");
                    self.add(Severity::Note, format!("{} tier", tier.tier()), what, false);
                    continue;
                }
                let repaired = self.repair && tier.remove(ino).is_ok();
                let place = format!("{} tier", tier.tier());
                let what = format!("object {ino} ({bytes} bytes) belongs to no file");
                self.add(Severity::Repairable, place, what, repaired);
            }
        }
        Ok(())
    }
}

fn is_intact(tier: &TierStore, ino: Ino, sau: SauIndex, state: Sau) -> bool {
    let Ok(Some(object)) = tier.open_object(ino, false) else { return false };
    match state.seal {
        Some(seal) => object.checksum(sau.start(), u64::from(seal.len)).is_ok_and(|crc| crc == seal.crc),
        None => true,
    }
}

/// Where the memory tier of the last mount still is, if it is.
fn memory_path(config: &Config, site: &Site) -> Option<PathBuf> {
    let instance = site.memory_instance().filter(|_| !site.memory_was_empty())?.to_string();
    let has_marker = |dir: &Path| {
        std::fs::read_to_string(dir.join(MEMORY_MARKER)).is_ok_and(|text| text.contains(&instance))
    };
    let last = site.tier(TierId::Memory).into_iter();
    last.chain([config.memory.dir.as_path()]).find(|dir| has_marker(dir)).map(Path::to_owned)
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    //! Goal: what a server holds for others is checked and stays, whatever its state says of names. Method: a server's stores in a temporary
    //! directory, with an object that files elsewhere are made of; then the check, with repair, and what is left.
    use super::*;
    use crate::{
        assemble::{
            cluster_roles::first_records,
            held::note_server,
            stores::{Closing, Opening, Stores},
        },
        config::{Host, Settings},
        control::ControlError,
    };
    use ds::{ObjectHint, OpenKind};
    use kv::WriteSet;
    use serve::data::Record;

    struct Silent;

    impl ProgressSink for Silent {
        fn report(&mut self, _: Progress) -> Result<(), ControlError> {
            Ok(())
        }
        fn deadline(&self) -> Option<std::time::Instant> {
            None
        }
    }

    struct Here {
        root: tempfile::TempDir,
        memory: tempfile::TempDir,
    }

    impl Here {
        fn new() -> Here {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir(root.path().join("state")).unwrap();
            Here { root, memory: tempfile::tempdir_in("/dev/shm").unwrap() }
        }
        fn config(&self) -> Config {
            let mut settings = Settings::defaults();
            let mut set =
                |name: &str, dir: &Path| settings.apply_flag(name, dir.to_str().unwrap(), "test").unwrap();
            set("mount.state", &self.root.path().join("state"));
            set("memory.dir", self.memory.path());
            set("ssd.dir", &self.root.path().join("ssd"));
            Config::resolve(&settings, &Host::detect(), Path::new("/mnt/onfs")).unwrap()
        }
        fn open(&self) -> Stores {
            let mut made = None;
            let mut first = first_records(&mut made);
            let opening = Opening { owner_uid: 0, buffers: 0, first: &mut first };
            let stores = Stores::open(&self.config(), opening, &mut |_| {}).unwrap();
            stores.ds().release();
            stores
        }
        fn close(&self, stores: Stores) {
            let ds = stores.ds();
            let Stores { store, mds, linked, tiers } = stores;
            drop(tiers);
            let state = self.root.path().join("state");
            Closing { store, mds, ds, linked, state }.close(|| true).unwrap();
        }
        fn check(&self, repair: bool) -> FsckReport {
            fsck(&self.config(), repair, &mut Silent).unwrap()
        }
        fn write(&self, ino: Ino, bytes: &[u8]) {
            let stores = self.open();
            // As the data service does before the first byte.
            let record = Record { live: true, generation: 1, ..Record::default() };
            let mut writes = WriteSet::new();
            writes.put(&key::held(ino), record.encode().into());
            stores.store.commit(writes).unwrap();
            let ds = stores.ds();
            let hint =
                ObjectHint { size: 0, written: true, stale_live: false, memory_generation: 0, linked: None };
            let object = ds.attach(ino, &hint).unwrap();
            ds.open(&object, OpenKind { read: true, write: true });
            assert_eq!(ds.write(&object, 0, bytes), Ok(bytes.len()));
            ds.sync(&object).unwrap();
            ds.close(&object, OpenKind { read: true, write: true });
            drop((object, ds));
            self.close(stores);
        }
        fn files_of_objects(&self) -> usize {
            let files = walkdir::WalkDir::new(self.root.path().join("ssd")).into_iter().flatten();
            files.filter(|file| file.file_type().is_file() && file.metadata().unwrap().len() > 1000).count()
        }
    }

    fn lines(report: &FsckReport, severity: Severity) -> Vec<&str> {
        report.findings.iter().filter(|f| f.severity == severity).map(|f| &f.what[..]).collect()
    }

    #[test]
    fn regression_objects_of_a_data_server_are_no_strangers() {
        let here = Here::new();
        let ino = Ino::from_raw(1 << 40 | 7).unwrap();
        here.write(ino, &[5; 5000]);
        assert_eq!(here.files_of_objects(), 1);
        let report = here.check(true);
        assert_eq!((report.is_clean(), report.server, report.objects), (true, true, 1), "{report:?}");
        assert!(report.findings.iter().all(|f| f.severity == Severity::Note && !f.repaired), "{report:?}");
        assert_eq!(here.files_of_objects(), 1, "what files elsewhere are made of is not removed");

        // Its record is gone: nobody here knows whether a file has it.
        let stores = here.open();
        note_server(&stores.store).unwrap();
        let mut writes = WriteSet::new();
        writes.delete(&key::held(ino));
        writes.delete(&key::object(ino));
        stores.store.commit(writes).unwrap();
        here.close(stores);
        let report = here.check(true);
        assert!(lines(&report, Severity::Note).iter().any(|what| what.contains("has no record here")));
        assert!(report.is_clean() && here.files_of_objects() == 1, "{report:?}");
    }

    #[test]
    fn damage_of_objects_of_a_data_server_is_found() {
        let here = Here::new();
        let (ino, other) = (Ino::from_raw(1 << 40 | 7).unwrap(), Ino::from_raw(1 << 40 | 9).unwrap());
        here.write(ino, &[5; 5000]);
        let stores = here.open();
        let mut writes = WriteSet::new();
        writes.put(&key::held(other), vec![99].into());
        stores.store.commit(writes).unwrap();
        here.close(stores);
        let mut files = walkdir::WalkDir::new(here.root.path().join("ssd")).into_iter().flatten();
        let file = files.find(|f| f.file_type().is_file() && f.metadata().unwrap().len() == 5000);
        std::fs::write(file.unwrap().path(), [6; 5000]).unwrap();
        let report = here.check(true);
        let damage = lines(&report, Severity::Damage).join("; ");
        assert!(damage.contains("5000 bytes are lost") || damage.contains("bytes are lost"), "{damage}");
        assert!(damage.contains("its record is damaged"), "{damage}");
        assert!(!report.is_clean() && report.lost_bytes > 0);
    }
}
