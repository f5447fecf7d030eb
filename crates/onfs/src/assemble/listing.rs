//! Where the data of many files is: of those that are named, and of all names of a directory.

use types::{Errno, FileKind, Ino};

use super::{
    below::checked,
    gate::names_after,
    parts::{Parts, failed},
    permission::{Permission, Want},
    standing::Standings,
};
use crate::control::{ControlError, EntryReport, FileRef, ListReport};

pub(super) struct Listing<'a> {
    pub parts: &'a Parts,
    pub permission: &'a Permission<'a>,
}

impl Listing<'_> {
    pub fn states(&self, files: &[FileRef]) -> Result<Vec<EntryReport>, ControlError> {
        let standings = self.standings()?;
        let mut entries = Vec::new();
        for (ino, file) in checked(files)?.into_iter().zip(files) {
            let wrong = |errno| failed(&file.path, errno);
            let found = self.parts.mds.find(ino).map_err(wrong)?;
            self.permission.reach(&found).map_err(wrong)?;
            entries.push(standings.of(&found, file.path.clone()).map_err(wrong)?.0);
        }
        Ok(entries)
    }

    pub fn list(&self, dir: &FileRef, after: u64) -> Result<ListReport, ControlError> {
        let wrong = |errno| failed(&dir.path, errno);
        let ino = Ino::from_raw(dir.ino).ok_or_else(|| wrong(Errno::EINVAL))?;
        let found = self.parts.mds.find(ino).map_err(wrong)?;
        self.permission.reach(&found).map_err(wrong)?;
        if found.attr.kind != FileKind::Directory {
            return Err(wrong(Errno::ENOTDIR));
        }
        let may = |want| self.permission.may(&found, want).map_err(wrong);
        if !may(Want::Read)? || !may(Want::Search)? {
            return Err(wrong(Errno::EACCES));
        }
        if let Some(linked) = &self.parts.linked {
            // As whoever lists it by the mount.
            linked.visit_dir(ino).map_err(wrong)?;
        }
        let standings = self.standings()?;
        let names = names_after(self.parts, ino, after).map_err(wrong)?;
        let mut report = ListReport { entries: Vec::new(), next: names.last().map(|(.., at)| *at) };
        for (name, ino, _) in names {
            let name = String::from_utf8_lossy(&name).into_owned();
            let found = self.parts.mds.find(ino);
            match found.and_then(|found| standings.of(&found, name.clone())) {
                Ok((entry, _)) => report.entries.push(entry),
                // Removed meanwhile.
                Err(Errno::ESTALE | Errno::ENOENT) => {}
                Err(errno) => return Err(failed(&format!("{}/{name}", dir.path), errno)),
            }
        }
        Ok(report)
    }

    fn standings(&self) -> Result<Standings<'_>, ControlError> {
        Standings::new(self.parts).map_err(|errno| failed("conflicts", errno))
    }
}
