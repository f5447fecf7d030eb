//! Making an object's bytes safe on request: fsync, flush.

use crate::{
    DataServer,
    copy::{Choice, Copier, CopyPlan, CopyStop},
    object::Object,
};
use tier::{Admit, Need};
use types::{Errno, TierId};

/// How often a copy that others interrupted is begun again.
const ATTEMPTS: usize = 100;

struct SyncCopier<'a> {
    object: &'a Object,
    progress: &'a mut dyn FnMut(u64),
}

impl Copier for SyncCopier<'_> {
    fn must_stop(&self) -> bool {
        self.object.is_wanted()
    }
    fn copied(&mut self, bytes: u64) {
        (self.progress)(bytes);
    }
}

impl DataServer {
    /// fsync: when it returns, everything written before is in a persistent tier, and durable there. The caller
    /// syncs the journal afterwards. Without a persistent tier, and for transient files, there is nothing to do: such
    /// data is declared not to outlive the memory.
    ///
    /// A file that is synced while open is homed in the persistent tier from then on, so that its next fsync costs a
    /// flush and not a copy.
    pub fn sync(&self, object: &Object) -> Result<(), Errno> {
        self.make_safe(object, object.is_open_for_write(), &mut |_| {})
    }

    /// As fsync, but the file goes on in memory.
    pub fn flush(&self, object: &Object, progress: &mut dyn FnMut(u64)) -> Result<(), Errno> {
        self.make_safe(object, false, progress)
    }

    fn make_safe(
        &self,
        object: &Object,
        sync_mode: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Errno> {
        let Some(first) = self.first_persistent() else { return Ok(()) };
        self.counters.syncs.add(1);
        let mut safe = false;
        for _ in 0..ATTEMPTS {
            {
                let mut state = object.state.write();
                if state.transient {
                    return Ok(());
                }
                state.sync_mode |= sync_mode && state.in_place.is_none();
                if !state.map.is_dirty() {
                    // Without a record a later life of the memory tier would take all of it for lost.
                    if !state.recorded && !state.removed {
                        self.save_map(object, &mut state)?;
                    }
                    safe = true;
                    break;
                }
            }
            let _copier = object.stop_copier();
            let to = self.tier_for_copy(object, first)?;
            let plan = CopyPlan { choice: Choice::Dirty, to, free: None };
            let copied = self.copy_object(object, plan, &mut SyncCopier { object, progress });
            // What was asked for and not used.
            self.settle_charge(object, &mut object.state.write(), to);
            match copied {
                Ok(_) => {
                    self.tell_clean(object);
                    safe = true;
                    break;
                }
                Err(CopyStop::Cancelled) => {}
                Err(CopyStop::Gone) => return Ok(()),
                Err(CopyStop::NoSpace) => self.refresh_limit(to),
                Err(CopyStop::Failed(errno)) => return Err(errno),
            }
        }
        // Others interrupted it again and again: better no answer of success than a wrong one.
        if safe { self.sync_object_devices(object) } else { Err(Errno::EIO) }
    }

    /// The first persistent tier that has room for what is only in memory.
    fn tier_for_copy(&self, object: &Object, first: TierId) -> Result<TierId, Errno> {
        let bytes = {
            let state = object.state.read();
            state.map.bytes_at_risk(state.size)
        };
        for tier in self.present().iter().filter(|t| *t >= first) {
            let need = Need { ino: object.ino(), bytes, sync: true, waited: std::time::Duration::MAX };
            if self.driver.admit(tier, need) == Admit::Yes {
                object.state.write().charged[tier.index()] += bytes;
                return Ok(tier);
            }
        }
        Err(Errno::ENOSPC)
    }
}
