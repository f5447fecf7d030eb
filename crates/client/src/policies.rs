//! What the policies of directories mean for a file that is opened.
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
use mds::{DirPolicy, Mds, Promote, WriteBehind};
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
    pub transient: bool,
    pub write_behind: WriteBehind,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            promote: Promote::OnOpen,
            transient: false,
            write_behind: WriteBehind::After(Duration::from_secs(2)),
        }
    }
}

impl Policy {
    /// With what directories say.
    fn with(self, said: DirPolicy) -> Policy {
        Policy {
            promote: said.promote.unwrap_or(self.promote),
            transient: said.transient.unwrap_or(self.transient),
            write_behind: said.write_behind.unwrap_or(self.write_behind),
        }
    }

    /// In the data server's words. Its settings have this default already: the tiers of promotion, and the delay.
    fn for_object(self, said: DirPolicy) -> ObjectPolicy {
        let holds = self.with(said);
        ObjectPolicy {
            transient: holds.transient,
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
    /// Some file may have another policy than the data server's default, now or since an earlier open.
    active: AtomicBool,
    own: RwLock<HashMap<Ino, DirPolicy>>,
    changing: Mutex<()>,
    generation: AtomicU64,
    /// What directories and those above them say, and the generation in which that was so.
    found: RwLock<HashMap<Ino, (u64, DirPolicy)>>,
}

impl Policies {
    pub(crate) fn load(mds: Arc<Mds>, default: Policy) -> Result<Policies, Errno> {
        let own: HashMap<Ino, DirPolicy> = mds.policy_list()?.into_iter().collect();
        let active = !own.is_empty() || default.for_object(DirPolicy::default()) != ObjectPolicy::default();
        Ok(Policies {
            mds,
            default,
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

    /// What holds for a file: what holds in the directory where it was last named. The default when that is gone.
    pub fn holds_for(&self, file: Ino) -> Result<Policy, Errno> {
        Ok(self.default.with(self.said_for(file)?))
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
        Ok(self.default.for_object(self.said_for(file)?))
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
        assert_eq!(default.for_object(said), plain);
        let write_behind = |w| default.for_object(DirPolicy { write_behind: Some(w), ..said });
        assert_eq!(write_behind(default.write_behind), plain);
        assert_eq!(write_behind(WriteBehind::Never).write_behind_delay, Some(NEVER));
        assert_eq!(write_behind(WriteBehind::After(Duration::MAX)).write_behind_delay, Some(NEVER));
        let short = Duration::from_millis(5);
        assert_eq!(write_behind(WriteBehind::After(short)).write_behind_delay, Some(short));
        let promote = |p| default.for_object(DirPolicy { promote: Some(p), ..said }).promote;
        assert_eq!((promote(Promote::OnOpen), promote(Promote::OnRequest)), (Some(true), Some(false)));
        let never = Policy { transient: true, write_behind: WriteBehind::Never, ..default };
        assert!(never.for_object(said).transient && never.for_object(said) != plain);
        let kept = DirPolicy { transient: Some(false), write_behind: Some(default.write_behind), ..said };
        let delay = Some(Duration::from_secs(2));
        assert_eq!(never.for_object(kept), ObjectPolicy { write_behind_delay: delay, ..plain });
    }
}
