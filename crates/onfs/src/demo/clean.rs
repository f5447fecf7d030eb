//! Takes down what demos have left that were killed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    database::end_left,
    network::{PREFIX, all, delete, processes},
    plan::DATABASE_DIR,
};
use crate::{
    exit::{Failure, Outcome, system_text},
    mounts,
};

/// Below `parent`, where demos have their directories. Returns what was removed.
pub fn clean(parent: &Path) -> Outcome<Vec<String>> {
    let namespaces = all()?;
    let dirs: Vec<String> = fs::read_dir(parent)
        .map_err(|error| Failure::failed(format!("{}: {}", parent.display(), system_text(&error))))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(PREFIX))
        .collect();
    let owners: BTreeSet<u32> = namespaces.iter().chain(&dirs).filter_map(|name| owner(name)).collect();
    let mut removed = Vec::new();
    for dead in owners.into_iter().filter(|pid| !is_demo(*pid)) {
        let dir = parent.join(format!("{PREFIX}{dead}"));
        for name in namespaces.iter().filter(|name| owner(name) == Some(dead)) {
            let there = processes(name)?;
            end_left(&dir.join(DATABASE_DIR), |pid| there.contains(&pid));
            for pid in processes(name)?.into_iter().filter_map(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
            delete(name)?;
            removed.push(name.clone());
        }
        if remove(&dir)? {
            removed.push(dir.display().to_string());
        }
    }
    Ok(removed)
}

/// The demo that made what has this name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// It runs; or its number went to another `onfs`, and the next time is early enough.
fn is_demo(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "onfs")
}

fn remove(dir: &Path) -> Outcome<bool> {
    let failed =
        |error: std::io::Error| Failure::failed(format!("{}: {}", dir.display(), system_text(&error)));
    let mounted = mounts::mounts().map_err(failed)?;
    let mut places: Vec<PathBuf> =
        mounted.into_iter().map(|one| one.mountpoint).filter(|place| place.starts_with(dir)).collect();
    // What is mounted on another one first.
    places.sort_by_key(|place| std::cmp::Reverse(place.components().count()));
    for place in places {
        mounts::detach(&place, true).map_err(failed)?;
    }
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: only what demos made is taken for theirs. Method: a table.
    use super::*;

    #[test]
    fn a_name_says_whose_it_is() {
        assert_eq!(owner("onfs-demo-47-meta"), Some(47));
        assert_eq!(owner("onfs-demo-47"), Some(47));
        assert_eq!(owner("onfs-demo-x"), None);
        assert_eq!(owner("other-47"), None);
    }
}
