//! What a file system knows of its tiers from mount to mount: which directories, and which memory tier was last.
//!
//! One text file in the state directory, `tiers`, replaced whole and durably.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use store::InstanceId;
use types::TierId;

use crate::running::StartError;

const FILE: &str = "tiers.toml";
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssd: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nearline: Option<PathBuf>,
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

impl Site {
    pub fn load(state: &Path) -> Result<Site, StartError> {
        let path = state.join(FILE);
        let stored = match std::fs::read_to_string(&path) {
            Ok(text) => {
                let stored: Stored = toml::from_str(&text)
                    .map_err(|e| StartError::Damaged(format!("{} is damaged: {e}", path.display())))?;
                if stored.format > FORMAT {
                    let found = stored.format;
                    let text = format!("{} has format {found}; this version knows {FORMAT}", path.display());
                    return Err(StartError::Damaged(text));
                }
                stored
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Stored { format: FORMAT, ..Stored::default() }
            }
            Err(e) => return Err(StartError::Failed(format!("{}: {e}", path.display()))),
        };
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
        let new = self.path.with_extension("new");
        let mut file = File::create(&new).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        std::fs::rename(&new, &self.path).map_err(failed)?;
        let dir = self.path.parent().unwrap_or(Path::new("."));
        File::open(dir).and_then(|d| d.sync_all()).map_err(failed)
    }
}
