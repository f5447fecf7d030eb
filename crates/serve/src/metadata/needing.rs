//! Operations that take names away, where what they need is in several slots: those are here before it is looked at what the names name.
//!
//! - I-NEEDS-1: what such an operation lacks is noted and not waited for; its claims and turns end, the slots are brought, and it begins again. So what
//!   a name names when it is carried out is what was claimed, and nobody waits for slots with a claim.
//!
//! Operations that only make names wait where they are: nothing is named yet.

use std::{cell::RefCell, collections::BTreeSet};

use types::{Errno, Ino, Slot};

use super::{MetadataService, owners::Inside};
use crate::answer::{No, Outcome};

/// Each round brings more of what is needed; slots that came may have gone again.
const ROUNDS_MAX: usize = 16;

thread_local! {
    /// What the operation of this thread lacks, if that is noted.
    static LACKS: RefCell<Option<BTreeSet<Slot>>> = const { RefCell::new(None) };
}

/// Notes what the thread's operation lacks. False: it is to be waited for.
pub(super) fn note(slots: &[Slot]) -> bool {
    LACKS.with_borrow_mut(|lacks| lacks.as_mut().map(|lacks| lacks.extend(slots)).is_some())
}

/// What it came to, and what it lacked.
fn noting(run: impl FnOnce() -> Outcome) -> (Outcome, BTreeSet<Slot>) {
    LACKS.set(Some(BTreeSet::new()));
    let outcome = run();
    (outcome, LACKS.take().unwrap_or_default())
}

impl MetadataService {
    /// Carries an operation out that takes names away.
    pub(super) fn with_needed(&self, run: impl Fn() -> Outcome) -> Outcome {
        let Some(owners) = &self.owners else { return run() };
        let mut needed = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let (outcome, lacks) = noting(&run);
            if lacks.is_empty() || outcome.is_ok() {
                return outcome;
            }
            needed.extend(lacks);
            let missing: Vec<Slot> = needed.iter().copied().filter(|slot| !self.mds.serves(*slot)).collect();
            self.bring_needed(owners, &missing)?;
        }
        Err(Errno::EAGAIN.into())
    }

    /// Goes into the slots of these directories; what is not here is needed.
    pub(super) fn enter_needed(&self, dirs: impl Iterator<Item = Ino>) -> Result<Option<Inside<'_>>, No> {
        if self.owners.is_none() {
            return Ok(None);
        }
        let dirs: Vec<Ino> = dirs.collect();
        let slots = dirs.iter().map(|dir| dir.ugsd().slot());
        let missing: Vec<Slot> = slots.filter(|slot| !self.mds.serves(*slot)).collect();
        if !missing.is_empty() && note(&missing) {
            return Err(Errno::EAGAIN.into());
        }
        self.enter(dirs)
    }
}
