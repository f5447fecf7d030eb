//! `onfs fsck`: metadata against itself, residency maps against the objects, objects against their checksums.

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
    metadata::{open_metadata, recovery_line},
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
    check.metadata(&store)?;
    check.objects(config, &store)?;
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

    fn objects(&mut self, config: &Config, store: &MetaStore) -> Result<(), StartError> {
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
        let generation = superblock.memory_generation;
        let known = self.each_inode(store, &tiers, memory.is_some().then_some(generation))?;
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

    /// Every regular file's object. Returns the inodes that may have one.
    fn each_inode(
        &mut self,
        store: &MetaStore,
        tiers: &[Option<TierStore>; 3],
        generation: Option<u32>,
    ) -> Result<HashSet<Ino>, StartError> {
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
        let total = files.len() as u64;
        let mut known = HashSet::with_capacity(files.len());
        for (n, (ino, inode)) in files.into_iter().enumerate() {
            self.beat(n as u64, total, "objects")?;
            self.one_object(store, tiers, generation, ino, &inode)?;
            known.insert(ino);
        }
        self.report.objects = total;
        Ok(known)
    }

    fn one_object(
        &mut self,
        store: &MetaStore,
        tiers: &[Option<TierStore>; 3],
        generation: Option<u32>,
        ino: Ino,
        inode: &Inode,
    ) -> Result<(), StartError> {
        // Unlinked: its data may be gone already, and goes at the next mount.
        if inode.nlink == 0 {
            return Ok(());
        }
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
            let bytes = u64::from(sau.bytes_within(inode.size));
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

    /// Objects that no inode has: left by a crash between the removal of a file and that of its data.
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
