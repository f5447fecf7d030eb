//! Bytes that open files have grown by and that no settling has charged yet, so that many of them together
//! stay within their project's limit.
//!
//! Invariants: an entry exists only for files of projects with a limit, from their first growth to their settling.

use std::collections::{HashMap, HashSet};

use namespace::quota::Quota;
use parking_lot::Mutex;
use types::{Errno, Ino, ProjectId, Slot};

#[derive(Default)]
pub(crate) struct Reservations {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    files: HashMap<Ino, (ProjectId, u64)>,
    projects: HashMap<ProjectId, u64>,
}

impl Open {
    fn set(&mut self, ino: Ino, project: ProjectId, bytes: u64) {
        if let Some((old_project, old)) = self.files.remove(&ino)
            && let Some(total) = self.projects.get_mut(&old_project)
        {
            *total = total.saturating_sub(old);
            if *total == 0 {
                self.projects.remove(&old_project);
            }
        }
        if bytes > 0 {
            self.files.insert(ino, (project, bytes));
            *self.projects.entry(project).or_default() += bytes;
        }
    }
}

impl Reservations {
    /// `bytes` is what the file has beyond its recorded size; less than before changes nothing. The project's `quota` is read
    /// here, where nobody's growth can come in between. Returns what the file had before.
    pub(crate) fn reserve(
        &self,
        ino: Ino,
        project: ProjectId,
        bytes: u64,
        quota: impl FnOnce() -> Result<Option<Quota>, Errno>,
    ) -> Result<u64, Errno> {
        let mut open = self.open.lock();
        let own = open.files.get(&ino).map_or(0, |(_, bytes)| *bytes);
        if bytes <= own {
            return Ok(own);
        }
        let Some(quota) = quota()?.filter(|quota| quota.limits.bytes.is_some()) else { return Ok(own) };
        let others = open.projects.get(&project).map_or(0, |total| total.saturating_sub(own));
        if !quota.has_room_for(others.saturating_add(bytes)) {
            return Err(Errno::EDQUOT);
        }
        open.set(ino, project, bytes);
        Ok(own)
    }

    /// What was reserved last is not used: the file has `bytes` again.
    pub(crate) fn restore(&self, ino: Ino, bytes: u64) {
        let mut open = self.open.lock();
        if let Some((project, now)) = open.files.get(&ino).copied() {
            open.set(ino, project, now.min(bytes));
        }
    }

    /// `charged` more bytes of the file are in the record now. A closed file has no reservation.
    pub(crate) fn settle(&self, ino: Ino, charged: u64, still_open: bool) {
        let mut open = self.open.lock();
        if let Some((project, bytes)) = open.files.get(&ino).copied() {
            let left = if still_open { bytes.saturating_sub(charged) } else { 0 };
            open.set(ino, project, left);
        }
    }

    /// What the project's open files have beyond what is recorded.
    pub(crate) fn of_project(&self, project: ProjectId) -> u64 {
        self.open.lock().projects.get(&project).copied().unwrap_or(0)
    }

    /// These slots are another server's.
    pub(crate) fn forget(&self, slots: &HashSet<Slot>) {
        let mut open = self.open.lock();
        let gone: Vec<Ino> =
            open.files.keys().copied().filter(|ino| slots.contains(&ino.ugsd().slot())).collect();
        for ino in gone {
            open.set(ino, ProjectId::NONE, 0);
        }
    }

    pub(crate) fn drop_file(&self, ino: Ino) {
        self.settle(ino, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use namespace::quota::Limits;

    use super::*;

    /// Goal: open files share the room of their project. Method: two files, a limit, growth and settling.
    #[test]
    fn open_files_share_the_room() {
        let limits = Limits { bytes: Some(100), inodes: None };
        let quota = || Ok(Some(Quota { limits, bytes: 40, inodes: 2, ..Quota::default() }));
        let (a, b) = (Ino::from_raw(2).unwrap(), Ino::from_raw(3).unwrap());
        let (reservations, project) = (Reservations::default(), ProjectId(1));
        assert_eq!(reservations.reserve(a, project, 40, quota), Ok(0));
        assert_eq!(reservations.reserve(b, project, 21, quota), Err(Errno::EDQUOT));
        assert_eq!(reservations.reserve(b, project, 20, quota), Ok(0));
        assert_eq!(reservations.reserve(a, project, 41, quota), Err(Errno::EDQUOT));
        assert_eq!(reservations.of_project(project), 60);
        reservations.settle(a, 0, false);
        assert_eq!(reservations.of_project(project), 20);
        assert_eq!(reservations.reserve(b, project, 60, quota), Ok(20));
        reservations.restore(b, 20);
        assert_eq!(reservations.reserve(a, project, 40, quota), Ok(0));
    }
}
