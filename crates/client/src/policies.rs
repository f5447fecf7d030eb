//! What the policies of directories, and a file's own mode, mean for a file that is opened; and what is promised of it.
//!
//! Invariants:
//! - While no directory has a policy and the default is the data server's own, an open costs one relaxed load.
//! - A cached answer counts only in the generation that it was found in; each change of a policy and each move of a
//!   directory begins a new one after it is done, so nothing old outlives it.
//! - A policy that changes holds for what is opened afterwards.
//!
//! Refuses to know what the data server does with a policy, and who may set one.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ds::ObjectPolicy;
use mds::{CloseSync, DirPolicy, FileMode, Mds, Mode, Promote, WriteBehind};
use parking_lot::{Mutex, RwLock};
use types::{Errno, Ino};

/// Directories above one another that are walked; deeper ones count as the default.
const DEPTH_MAX: usize = 4096;
/// Answers kept; at more, all are found again.
const CACHED_MAX: usize = 1 << 16;
/// As long as the core can count: write-behind that never comes.
const NEVER: Duration = Duration::from_secs(49 * 24 * 3600);

/// What holds for a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    pub promote: Promote,
    /// Of a file never `Hybrid`.
    pub mode: Mode,
    /// `None`: as the mode has it.
    pub sync: Option<CloseSync>,
    pub write_behind: WriteBehind,
}

/// Where a file is to be before it counts as safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// In the linked directory.
    NearLine,
    /// In any tier that outlives the machine; where there is none, nowhere.
    Persistent,
    Nothing,
}

/// What fsync(2) and close(2) of a file wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Waits {
    /// For near-line, and no tier before it.
    pub through: bool,
    /// So does a close.
    pub at_close: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            promote: Promote::OnOpen,
            mode: Mode::Local,
            sync: None,
            write_behind: WriteBehind::After(Duration::from_secs(2)),
        }
    }
}

impl Policy {
    /// With what directories say.
    fn with(self, said: DirPolicy) -> Policy {
        Policy {
            promote: said.promote.unwrap_or(self.promote),
            mode: said.mode.unwrap_or(self.mode),
            sync: said.sync.or(self.sync),
            write_behind: said.write_behind.unwrap_or(self.write_behind),
        }
    }

    /// Of a file in such a directory that says this itself. What is in a transient directory is transient.
    fn of_file(self, own: Option<FileMode>) -> Policy {
        let mode = match (self.mode, own) {
            (Mode::Transient, _) => Mode::Transient,
            (_, Some(own)) => own.into(),
            (Mode::Hybrid, None) => Mode::Local,
            (Mode::Global | Mode::Local, None) => self.mode,
        };
        Policy { mode, ..self }
    }

    pub fn is_transient(&self) -> bool {
        self.mode == Mode::Transient
    }

    /// Whether a close waits: without a word, only where all goes through.
    pub fn sync(&self) -> CloseSync {
        let of_mode = if self.mode == Mode::Global { CloseSync::Forced } else { CloseSync::Normal };
        self.sync.unwrap_or(of_mode)
    }

    fn waits(&self, linked: bool) -> Waits {
        let through = linked && self.mode == Mode::Global;
        Waits { through, at_close: !self.is_transient() && self.sync() == CloseSync::Forced }
    }

    fn promise(&self, linked: bool) -> Promise {
        match self.mode {
            Mode::Global if linked => Promise::NearLine,
            Mode::Global | Mode::Local | Mode::Hybrid => Promise::Persistent,
            Mode::Transient => Promise::Nothing,
        }
    }

    /// In the data server's words. Its settings have this default already: the tiers of promotion, and the delay.
    fn for_object(self, said: DirPolicy, own: Option<FileMode>) -> ObjectPolicy {
        let holds = self.with(said).of_file(own);
        ObjectPolicy {
            transient: holds.is_transient(),
            promote: said.promote.map(|promote| promote == Promote::OnOpen),
            write_behind_delay: match holds.write_behind {
                WriteBehind::Never => Some(NEVER),
                WriteBehind::After(_) if holds.write_behind == self.write_behind => None,
                WriteBehind::After(delay) => Some(delay.min(NEVER)),
            },
        }
    }
}

/// The policies of one mount.
pub struct Policies {
    mds: Arc<Mds>,
    default: Policy,
    linked: bool,
    /// Some file may have another policy than the data server's default, now or since an earlier open.
    active: AtomicBool,
    own: RwLock<HashMap<Ino, DirPolicy>>,
    changing: Mutex<()>,
    generation: AtomicU64,
    /// What directories and those above them say, and the generation in which that was so.
    found: RwLock<HashMap<Ino, (u64, DirPolicy)>>,
}

impl Policies {
    /// `linked`: near-line is a linked directory.
    pub(crate) fn load(mds: Arc<Mds>, default: Policy, linked: bool) -> Result<Policies, Errno> {
        let own: HashMap<Ino, DirPolicy> = mds.policy_list()?.into_iter().collect();
        let active = !own.is_empty()
            || default.for_object(DirPolicy::default(), None) != ObjectPolicy::default()
            || default.of_file(None).waits(linked) != Waits::default();
        Ok(Policies {
            mds,
            default,
            linked,
            active: AtomicBool::new(active),
            own: RwLock::new(own),
            changing: Mutex::default(),
            generation: AtomicU64::new(0),
            found: RwLock::default(),
        })
    }

    /// What the directory says itself.
    pub fn own(&self, dir: Ino) -> DirPolicy {
        self.own.read().get(&dir).copied().unwrap_or_default()
    }

    /// What holds in a directory: its own word, then those above it, then the default.
    pub fn holds_in(&self, dir: Ino) -> Result<Policy, Errno> {
        Ok(self.default.with(self.said_in(dir)?))
    }

    /// What holds for a file: its own word for its mode, and what holds in the directory where it was last named. The default
    /// when that is gone.
    pub fn holds_for(&self, file: Ino) -> Result<Policy, Errno> {
        let own = self.mds.find(file)?.data.mode;
        Ok(self.default.with(self.said_for(file)?).of_file(own))
    }

    /// Where the file is promised to be, once it is flushed.
    pub fn promised(&self, file: Ino) -> Result<Promise, Errno> {
        Ok(self.holds_for(file)?.promise(self.linked))
    }

    /// Changes what a directory says. Durable with the next sync; it holds for files opened from now on.
    pub fn change(&self, dir: Ino, change: impl FnOnce(&mut DirPolicy)) -> Result<(), Errno> {
        let _one = self.changing.lock();
        let mut policy = self.own(dir);
        change(&mut policy);
        self.mds.policy_set(dir, &policy)?;
        if policy.is_empty() {
            self.own.write().remove(&dir);
        } else {
            self.own.write().insert(dir, policy);
            self.active.store(true, Ordering::Release);
        }
        self.forget();
        Ok(())
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// A directory moved, with all that is below it.
    pub(crate) fn forget(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn object_policy(&self, file: Ino) -> Result<ObjectPolicy, Errno> {
        self.of_opened(file, self.mds.find(file)?.data.mode).map(|(policy, _)| policy)
    }

    /// What holds for a file that is opened and says `own` of its mode.
    pub(crate) fn of_opened(&self, file: Ino, own: Option<FileMode>) -> Result<(ObjectPolicy, Waits), Errno> {
        let said = self.said_for(file)?;
        let waits = self.default.with(said).of_file(own).waits(self.linked);
        Ok((self.default.for_object(said, own), waits))
    }

    fn said_for(&self, file: Ino) -> Result<DirPolicy, Errno> {
        match self.mds.parent(file) {
            Ok(dir) => self.said_in(dir),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(DirPolicy::default()),
            Err(errno) => Err(errno),
        }
    }

    fn said_in(&self, dir: Ino) -> Result<DirPolicy, Errno> {
        // Read first: what is found below is at least as new.
        let generation = self.generation.load(Ordering::Acquire);
        if self.own.read().is_empty() {
            return Ok(DirPolicy::default());
        }
        if let Some(said) = self.cached(dir, generation) {
            return Ok(said);
        }
        let (mut said, mut at) = (DirPolicy::default(), dir);
        for _ in 0..DEPTH_MAX {
            said = said.or(self.own(at));
            if at == Ino::ROOT {
                break;
            }
            at = match self.mds.parent(at) {
                Ok(above) => above,
                // The directory was removed: nothing above it speaks for it.
                Err(Errno::ENOENT | Errno::ESTALE) => break,
                Err(errno) => return Err(errno),
            };
            if let Some(above) = self.cached(at, generation) {
                said = said.or(above);
                break;
            }
        }
        let mut found = self.found.write();
        if found.len() >= CACHED_MAX {
            found.clear();
        }
        found.insert(dir, (generation, said));
        Ok(said)
    }

    fn cached(&self, dir: Ino, generation: u64) -> Option<DirPolicy> {
        self.found.read().get(&dir).filter(|(then, _)| *then == generation).map(|(_, said)| *said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: words mean to the data server what they say, and the default means nothing. Method: a table.
    #[test]
    fn words_become_object_policies() {
        let default = Policy::default();
        let plain = ObjectPolicy::default();
        let said = DirPolicy::default();
        let object = |policy: Policy, said| policy.for_object(said, None);
        assert_eq!(object(default, said), plain);
        let write_behind = |w| object(default, DirPolicy { write_behind: Some(w), ..said });
        assert_eq!(write_behind(default.write_behind), plain);
        assert_eq!(write_behind(WriteBehind::Never).write_behind_delay, Some(NEVER));
        assert_eq!(write_behind(WriteBehind::After(Duration::MAX)).write_behind_delay, Some(NEVER));
        let short = Duration::from_millis(5);
        assert_eq!(write_behind(WriteBehind::After(short)).write_behind_delay, Some(short));
        let promote = |p| object(default, DirPolicy { promote: Some(p), ..said }).promote;
        assert_eq!((promote(Promote::OnOpen), promote(Promote::OnRequest)), (Some(true), Some(false)));
        let never = Policy { mode: Mode::Transient, write_behind: WriteBehind::Never, ..default };
        assert!(object(never, said).transient && object(never, said) != plain);
        let kept = DirPolicy { mode: Some(Mode::Local), write_behind: Some(default.write_behind), ..said };
        let delay = Some(Duration::from_secs(2));
        assert_eq!(object(never, kept), ObjectPolicy { write_behind_delay: delay, ..plain });
        assert!(default.for_object(said, Some(FileMode::Transient)).transient);
    }

    /// Goal: each mode and word for closing waits for what it promises, with and without a linked directory, and a file's own
    /// word counts but in a transient directory. Method: a table.
    #[test]
    fn modes_promise_what_they_say() {
        use CloseSync::{Forced, Normal};
        let (near, ours, none) = (Promise::NearLine, Promise::Persistent, Promise::Nothing);
        let table = [
            (Mode::Global, None, None, (true, true, near), (false, true, ours)),
            (Mode::Global, Some(Normal), None, (true, false, near), (false, false, ours)),
            (Mode::Local, None, None, (false, false, ours), (false, false, ours)),
            (Mode::Local, Some(Forced), None, (false, true, ours), (false, true, ours)),
            (Mode::Hybrid, None, None, (false, false, ours), (false, false, ours)),
            (Mode::Hybrid, None, Some(FileMode::Global), (true, true, near), (false, true, ours)),
            (Mode::Hybrid, Some(Forced), Some(FileMode::Local), (false, true, ours), (false, true, ours)),
            (
                Mode::Hybrid,
                Some(Forced),
                Some(FileMode::Transient),
                (false, false, none),
                (false, false, none),
            ),
            (Mode::Transient, Some(Forced), None, (false, false, none), (false, false, none)),
            (Mode::Transient, None, Some(FileMode::Global), (false, false, none), (false, false, none)),
        ];
        for (mode, sync, own, linked, native) in table {
            for (is_linked, expected) in [(true, linked), (false, native)] {
                let said = DirPolicy { mode: Some(mode), sync, ..DirPolicy::default() };
                let holds = Policy::default().with(said).of_file(own);
                let waits = holds.waits(is_linked);
                assert_ne!(holds.mode, Mode::Hybrid);
                assert_eq!(
                    (waits.through, waits.at_close, holds.promise(is_linked)),
                    expected,
                    "{mode:?} {own:?}"
                );
            }
        }
    }
}
