//! Attributes, sizes, extended attributes, and the space of all.

use std::sync::Arc;

use lease::coherence::rights::Claim;
use mds::{SetAttr, SetTime, SetXattr};
use proto::{
    Bad, Nothing,
    metadata::{self as asked, Entry, Length, Space, XattrMode},
    untouched::GetUntouched,
};
use types::{Errno, FileKind, Ino, XATTR_SIZE_MAX};

use super::{
    MetadataService,
    files::{File, State},
    layouts,
    session::Session,
    spreading,
    truths::Wanted,
};
use crate::answer::{Done, No, Outcome};

impl MetadataService {
    pub(super) fn get_attr(&self, session: &Session, asked: &asked::GetAttr) -> Outcome {
        let _looking = self.look_through(session, proto::attr::ino(asked.ino)?)?;
        let attr = self.complete(self.find_whole(proto::attr::ino(asked.ino)?)?)?;
        Ok(Done::new(&Entry { attr: Some(attr.into()), ino: 0 }))
    }

    /// Who made it says that he has written nothing.
    pub(super) fn get_untouched(&self, session: &Session, asked: &GetUntouched) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        let attr = self.locked(ino, |file, state| {
            let alone = state.begun && state.writers == 1;
            let is_maker = state.untouched == Some((session.id, asked.opening));
            let uncut = state.placed.as_ref().is_some_and(|placed| placed.cut.is_none());
            if alone && is_maker && uncut {
                Ok(self.mds.find(ino)?.attr)
            } else {
                self.complete_locked(file, state)
            }
        })?;
        Ok(Done::new(&Entry { attr: Some(attr.into()), ino: 0 }))
    }

    pub(super) fn set_attr(&self, session: &Arc<Session>, asked: &asked::SetAttr) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        let set = SetAttr::try_from(asked.changes.ok_or(Bad::Missing("changes"))?)?;
        let claim = if set.size.is_some() { Claim::Modify } else { Claim::Change };
        let _claimed = self.claim(session, ino, claim)?;
        let found = self.mds.find(ino)?;
        if found.attr.kind != FileKind::Regular {
            let found = self.mds.setattr(ino, &set)?;
            return Ok(Done::new(&Entry { attr: Some(found.attr.into()), ino: 0 }));
        }
        if set == (SetAttr { kill_suidgid: true, ..SetAttr::default() }) {
            self.mds.kill_privileges(ino, true)?;
            return self.get_attr(session, &asked::GetAttr { head: None, ino: asked.ino });
        }
        let attr = self.locked(ino, |file, state| {
            match set.size {
                Some(size) => self.resize(file, state, session, &set, (size, asked.grow_only))?,
                None => self.change(file, state, ino, &set)?,
            }
            self.complete_locked(file, state)
        })?;
        Ok(Done::new(&Entry { attr: Some(attr.into()), ino: 0 }))
    }

    /// Everything but the size.
    fn change(&self, file: &File, state: &mut State, ino: Ino, set: &SetAttr) -> Result<(), No> {
        if self.mds.find(ino)?.data.live && !state.begun {
            // A crash left it: settling it later would undo the time.
            self.settle_if_idle(file, state)?;
        }
        let live = self.mds.find(ino)?.data.live;
        let found = self.mds.setattr(ino, set)?;
        if set.mtime.is_some() && (live || state.to_tell.is_some()) {
            let told = self.tell_time(file, state, found.attr.mtime);
            // Of a settled file they are told that it is settled, sooner or later.
            if live {
                told?;
            }
        }
        Ok(())
    }

    /// Cuts or grows.
    fn resize(
        &self,
        file: &File,
        state: &mut State,
        session: &Session,
        set: &SetAttr,
        (size, grow_only): (u64, bool),
    ) -> Result<(), No> {
        let set = SetAttr { mtime: set.mtime.or(Some(SetTime::Now)), ..*set };
        let Some(placed) = state.placed.clone() else {
            let now = self.mds.find(file.ino)?.attr.size;
            let size = if grow_only { size.max(now) } else { size };
            self.mds.setattr(file.ino, &SetAttr { size: Some(size), ..set })?;
            return Ok(());
        };
        self.begin(file, state, session.node())?;
        let known = self.mds.find(file.ino)?.attr.size;
        // What grows beside it may come after it.
        let now = self.truth_of(Wanted { ino: file.ino, placed: &placed, known, at_rest: true })?.size;
        let found = if size < now && !grow_only {
            self.cut(file, state, &set, size)?
        } else {
            let size = size.max(now);
            let found = self.mds.setattr(file.ino, &SetAttr { size: Some(size), ..set })?;
            if size > now {
                self.grow_objects(file, &placed, size)?;
            }
            found
        };
        self.tell_time(file, state, found.attr.mtime)
    }

    pub(super) fn get_xattr(&self, asked: &asked::GetXattr, most: usize) -> Outcome {
        if asked.name == layouts::ATTRIBUTE {
            return with_value(self.layout_text(proto::attr::ino(asked.ino)?)?, most);
        }
        if asked.name == spreading::ATTRIBUTE {
            return with_value(self.spread_text(proto::attr::ino(asked.ino)?)?, most);
        }
        let value = self.mds.getxattr(proto::attr::ino(asked.ino)?, &asked.name)?.to_vec();
        with_value(value, most)
    }

    pub(super) fn list_xattr(&self, asked: &asked::ListXattr, most: usize) -> Outcome {
        with_value(self.mds.listxattr(proto::attr::ino(asked.ino)?)?, most)
    }

    pub(super) fn set_xattr(&self, session: &Session, asked: &asked::SetXattr, value: &[u8]) -> Outcome {
        let mode = XattrMode::try_from(asked.mode).map_err(|_| Bad::Range("mode of setting"))?;
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG.into());
        }
        let ino = proto::attr::ino(asked.ino)?;
        let _claimed = self.claim(session, ino, Claim::Change)?;
        if asked.name == layouts::ATTRIBUTE {
            return self.set_layout(ino, value);
        }
        if asked.name == spreading::ATTRIBUTE {
            return self.set_spread(ino, value);
        }
        let how = SetXattr { mode: mode.into(), kill_sgid: asked.kill_sgid };
        self.mds.setxattr(ino, &asked.name, value, how)?;
        Ok(Done::new(&Nothing {}))
    }

    pub(super) fn remove_xattr(&self, session: &Session, asked: &asked::RemoveXattr) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        let _claimed = self.claim(session, ino, Claim::Change)?;
        if asked.name == layouts::ATTRIBUTE {
            return self.remove_layout(ino);
        }
        if asked.name == spreading::ATTRIBUTE {
            return self.end_spread(ino);
        }
        self.mds.removexattr(ino, &asked.name)?;
        Ok(Done::new(&Nothing {}))
    }

    pub(super) fn stat_fs(&self, _: &asked::StatFs) -> Outcome {
        let (total, free) = self.nodes.space();
        Ok(Done::new(&Space { total, free, inodes: self.mds.statfs_usage().inodes }))
    }
}

fn with_value(value: Vec<u8>, most: usize) -> Outcome {
    if value.len() > most {
        return Err(Errno::ERANGE.into());
    }
    Ok(Done::with_body(&Length { bytes: value.len() as u32 }, value))
}
