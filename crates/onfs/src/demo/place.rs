//! The directory of a demo.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Removed when it goes.
#[derive(Debug)]
pub struct Place(PathBuf);

impl Place {
    /// Makes it; what is there already is somebody else's.
    pub fn make(dir: &Path) -> io::Result<Place> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().mode(0o755).create(dir)?;
        Ok(Place(dir.to_owned()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Never into something that is still mounted below it.
        let is_free = crate::mounts::mounts()
            .is_ok_and(|all| !all.iter().any(|one| one.mountpoint.starts_with(&self.0)));
        if is_free {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
