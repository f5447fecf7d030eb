//! What a file system knows of its tiers from mount to mount: which directories, and which memory tier was last.
//!
//! One text file in the state directory, `tiers.toml`, replaced whole and durably. The one before stays beside it: the next is written
//! over it and the two change names, so that a disk that has become full does not keep the file system from being mounted.

use std::{
    fmt::Display,
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use store::InstanceId;
use types::TierId;

use crate::running::StartError;

const FILE: &str = "tiers.toml";
const FORMAT: u32 = 1;
/// Five paths of `PATH_MAX` fit, escaped.
const BYTES_MAX: u64 = 128 << 10;

#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssd: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nearline: Option<PathBuf>,
    /// The linked directory, if near-line is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_instance: Option<InstanceId>,
    /// The last mount ended with nothing that only memory held, and gave the memory back.
    #[serde(default)]
    memory_released: bool,
}

pub(crate) struct Site {
    path: PathBuf,
    stored: Stored,
}

/// The format comes first: a newer one may have fields that this version does not know.
fn parse(bytes: &[u8]) -> Result<Stored, String> {
    let damaged = |detail: &dyn Display| format!("is damaged: {detail}");
    if bytes.len() as u64 > BYTES_MAX {
        return Err(damaged(&"it is too long"));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| damaged(&e))?;
    let format = toml::from_str::<FormatOnly>(text).map_err(|e| damaged(&e.message()))?.format;
    match format {
        FORMAT => toml::from_str(text).map_err(|e| damaged(&e.message())),
        0 => Err(damaged(&"there is no format 0")),
        newer => Err(format!("has format {newer}; this version knows {FORMAT}")),
    }
}

impl Site {
    pub fn load(state: &Path) -> Result<Site, StartError> {
        let path = state.join(FILE);
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Site { path, stored: Stored { format: FORMAT, ..Stored::default() } });
            }
            Err(e) => return Err(StartError::Failed(format!("{}: {e}", path.display()))),
        }
        let stored =
            parse(&bytes).map_err(|detail| StartError::Damaged(format!("{} {detail}", path.display())))?;
        Ok(Site { path, stored })
    }

    pub fn tier(&self, tier: TierId) -> Option<&Path> {
        match tier {
            TierId::Memory => self.stored.memory.as_deref(),
            TierId::Ssd => self.stored.ssd.as_deref(),
            TierId::Nearline => self.stored.nearline.as_deref(),
        }
    }

    pub fn set_tier(&mut self, tier: TierId, dir: &Path) -> Result<(), StartError> {
        let slot = match tier {
            TierId::Memory => &mut self.stored.memory,
            TierId::Ssd => &mut self.stored.ssd,
            TierId::Nearline => &mut self.stored.nearline,
        };
        if slot.as_deref() == Some(dir) {
            return Ok(());
        }
        *slot = Some(dir.to_owned());
        self.save()
    }

    pub fn link(&self) -> Option<&Path> {
        self.stored.link.as_deref()
    }

    pub fn set_link(&mut self, dir: &Path) -> Result<(), StartError> {
        if self.stored.link.as_deref() == Some(dir) {
            return Ok(());
        }
        self.stored.link = Some(dir.to_owned());
        self.save()
    }

    /// Has it a near-line tier of its own?
    pub fn is_native(&self) -> bool {
        self.stored.nearline.is_some()
    }

    pub fn memory_instance(&self) -> Option<InstanceId> {
        self.stored.memory_instance
    }

    pub fn memory_was_empty(&self) -> bool {
        self.stored.memory_released
    }

    pub fn set_memory_instance(&mut self, instance: InstanceId) -> Result<(), StartError> {
        if self.stored.memory_instance == Some(instance) && !self.stored.memory_released {
            return Ok(());
        }
        self.stored.memory_instance = Some(instance);
        self.stored.memory_released = false;
        self.save()
    }

    pub fn set_memory_released(&mut self) -> Result<(), StartError> {
        self.stored.memory_released = true;
        self.save()
    }

    fn save(&self) -> Result<(), StartError> {
        let failed = |e: std::io::Error| StartError::Failed(format!("{}: {e}", self.path.display()));
        let text = toml::to_string(&self.stored).map_err(|e| StartError::Failed(e.to_string()))?;
        let other = self.path.with_extension("other");
        let mut file =
            File::options().write(true).create(true).truncate(false).open(&other).map_err(failed)?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.set_len(text.len() as u64))
            .and_then(|()| file.sync_all())
            .map_err(failed)?;
        exchange(&other, &self.path).map_err(failed)?;
        let dir = self.path.parent().unwrap_or(Path::new("."));
        File::open(dir).and_then(|d| d.sync_all()).map_err(failed)
    }
}

/// The content of `new` gets the name `path`, and the one that had it the name `new`, if the file system can do that.
fn exchange(new: &Path, path: &Path) -> std::io::Result<()> {
    match renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // There is none yet, or it cannot.
        Err(_) => std::fs::rename(new, path),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a damaged list of tiers, and one of a newer version, are refused as such; no bytes make the reader panic; a
    //! change takes no room on the disk. Method: each case by hand; [`fuzzing`]; the numbers of the files after changes.
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use fuzzing::{as_it_is, fuzz};

    fn good() -> Vec<u8> {
        let stored = Stored {
            format: FORMAT,
            ssd: Some("/a \"quoted\" path".into()),
            memory: Some("/m".into()),
            memory_instance: Some(InstanceId([9; 16])),
            ..Stored::default()
        };
        toml::to_string(&stored).unwrap().into_bytes()
    }

    fn refusal(bytes: &[u8]) -> String {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join(FILE), bytes).unwrap();
        match Site::load(state.path()) {
            Ok(_) => panic!("taken: {}", bytes.escape_ascii()),
            Err(StartError::Damaged(text)) => text,
            Err(other) => panic!("{other:?} is not the error of damage"),
        }
    }

    #[test]
    fn damage_and_newer_versions_are_told_apart() {
        let newer = refusal(b"format = 2\nracks = [\"one\"]\n");
        assert!(
            newer.contains("tiers.toml") && newer.contains("format 2") && newer.contains("knows 1"),
            "{newer}"
        );
        let long = [&good()[..], &[b'#'; 200_000]].concat();
        for bad in
            [&b"\xff\xfe"[..], b"", b"format = 0", b"format = -1", b"format = 1\nrack = 2\n", b"\0", &long]
        {
            let text = refusal(bad);
            assert!(text.contains("tiers.toml is damaged"), "{text}");
        }
        assert_eq!(parse(&good()).unwrap().ssd, Some("/a \"quoted\" path".into()));
    }

    #[test]
    fn two_files_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let mut site = Site::load(dir.path()).unwrap();
        site.set_tier(TierId::Ssd, Path::new("/a/rather/long/name/of/a/directory")).unwrap();
        site.set_tier(TierId::Nearline, Path::new("/slow")).unwrap();
        let inodes = || {
            let mut inodes: Vec<u64> = std::fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().metadata().unwrap().ino())
                .collect();
            inodes.sort_unstable();
            inodes
        };
        site.set_tier(TierId::Ssd, Path::new("/b")).unwrap();
        let before = inodes();
        assert_eq!(before.len(), 2);
        for n in 0..5 {
            let place = format!("/{n}");
            site.set_tier(TierId::Ssd, Path::new(&place)).unwrap();
            assert_eq!(inodes(), before);
            let loaded = Site::load(dir.path()).unwrap();
            assert_eq!(loaded.tier(TierId::Ssd), Some(Path::new(&place)));
            assert_eq!(loaded.tier(TierId::Nearline), Some(Path::new("/slow")));
        }
    }

    #[test]
    fn fuzz_site() {
        let empty = Stored { format: FORMAT, ..Stored::default() };
        let good = [good(), toml::to_string(&empty).unwrap().into_bytes()];
        fuzz("site", &good, as_it_is, |bytes| {
            if let Ok(stored) = parse(bytes) {
                assert_eq!(stored.format, FORMAT);
                let again = toml::to_string(&stored).unwrap();
                assert_eq!(toml::to_string(&parse(again.as_bytes()).unwrap()).unwrap(), again);
            }
        });
    }
}
