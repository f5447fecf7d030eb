//! Policies of directories: stored as an attribute of the directory, inherited by everything below it.

use std::{collections::HashMap, sync::Arc};

use ds::ObjectPolicy;
use mds::{Mds, SetXattr, XattrMode};
use parking_lot::RwLock;
use types::{Errno, Ino};

use crate::{
    config::PolicyConfig,
    policy::{DirPolicy, PolicyChange, Promote, WriteBehind},
};

/// Where a directory's own policy is, as JSON. The kernel lets only root read and set `trusted.` attributes.
const ATTRIBUTE: &[u8] = b"trusted.onfs.policy";
/// Directories above one another that are walked, and no more.
const DEPTH_MAX: usize = 4096;

/// What holds for a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Effective {
    pub promote: Promote,
    pub transient: bool,
    pub write_behind: WriteBehind,
}

impl Effective {
    pub fn for_object(&self, default: &Effective) -> ObjectPolicy {
        let delay = match self.write_behind {
            WriteBehind::After(_) if self.write_behind == default.write_behind => None,
            WriteBehind::After(span) => Some(span.0),
            // As long as the core can count.
            WriteBehind::Never => Some(std::time::Duration::from_secs(49 * 24 * 3600)),
        };
        ObjectPolicy {
            transient: self.transient,
            promote: self.promote == Promote::OnOpen,
            write_behind_delay: delay,
        }
    }
}

pub(crate) struct Policies {
    mds: Arc<Mds>,
    default: Effective,
    /// Own policies of the directories looked at so far.
    own: RwLock<HashMap<Ino, DirPolicy>>,
}

impl Policies {
    pub fn load(mds: Arc<Mds>, config: &PolicyConfig) -> Policies {
        let default = Effective {
            promote: config.promote,
            transient: config.transient,
            write_behind: config.write_behind,
        };
        Policies { mds, default, own: RwLock::default() }
    }

    pub fn default(&self) -> &Effective {
        &self.default
    }

    /// What the directory sets itself.
    pub fn own(&self, dir: Ino) -> Result<DirPolicy, Errno> {
        if let Some(policy) = self.own.read().get(&dir) {
            return Ok(*policy);
        }
        let policy = match self.mds.getxattr(dir, ATTRIBUTE) {
            Ok(json) => serde_json::from_slice(&json).map_err(|error| {
                tracing::error!(%dir, %error, "the directory's policy cannot be read");
                Errno::EIO
            })?,
            Err(Errno::ENODATA) => DirPolicy::default(),
            Err(errno) => return Err(errno),
        };
        self.own.write().insert(dir, policy);
        Ok(policy)
    }

    /// What holds in a directory: its own policy, then those above it, then the configuration.
    pub fn effective(&self, dir: Ino) -> Result<Effective, Errno> {
        let mut sum = DirPolicy::default();
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            let own = self.own(at)?;
            sum.promote = sum.promote.or(own.promote);
            sum.transient = sum.transient.or(own.transient);
            sum.write_behind = sum.write_behind.or(own.write_behind);
            if at == Ino::ROOT {
                break;
            }
            at = self.mds.parent(at)?;
        }
        Ok(Effective {
            promote: sum.promote.unwrap_or(self.default.promote),
            transient: sum.transient.unwrap_or(self.default.transient),
            write_behind: sum.write_behind.unwrap_or(self.default.write_behind),
        })
    }

    pub fn change(&self, dir: Ino, changes: &[PolicyChange]) -> Result<(), Errno> {
        let mut policy = self.own(dir)?;
        changes.iter().for_each(|change| policy.apply(*change));
        if policy.is_empty() {
            match self.mds.removexattr(dir, ATTRIBUTE) {
                Ok(()) | Err(Errno::ENODATA) => {}
                Err(errno) => return Err(errno),
            }
        } else {
            let json = serde_json::to_vec(&policy).map_err(|_| Errno::EINVAL)?;
            let how = SetXattr { mode: XattrMode::Set, ..SetXattr::default() };
            self.mds.setxattr(dir, ATTRIBUTE, &json, how)?;
        }
        self.own.write().insert(dir, policy);
        Ok(())
    }
}
