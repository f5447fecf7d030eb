//! A program on a client: one call at a time, at most one open file, at most one lock.

use std::{collections::BTreeSet, time::Duration};

use lease::coherence::rights::Claim;
use types::{Ino, Slot};

use crate::message::{CallId, NameOp};

#[derive(Debug)]
pub(crate) enum What {
    Names {
        slot: Slot,
        #[expect(dead_code, reason = "for the trace")]
        op: NameOp,
    },
    Open {
        slot: Slot,
        ino: Ino,
        claim: Claim,
        number: u64,
    },
    Close {
        slot: Slot,
    },
    Lock {
        slot: Slot,
        number: u64,
    },
    Unlock {
        slot: Slot,
    },
    /// `drops`: what was read is worth keeping if nothing was dropped since.
    Read {
        cell: u64,
        on_way: bool,
        drops: u64,
    },
    Write {
        cell: u64,
        value: u64,
        begun: bool,
        on_way: bool,
    },
    /// Servers that have not answered.
    Sync {
        left: BTreeSet<usize>,
        flushed: bool,
        on_way: BTreeSet<usize>,
    },
    Cut {
        left: BTreeSet<usize>,
        begun: bool,
        on_way: BTreeSet<usize>,
    },
}

#[derive(Debug)]
pub(crate) struct Doing {
    pub(crate) call: CallId,
    pub(crate) called: Duration,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) slot: Slot,
    pub(crate) ino: Ino,
    pub(crate) claim: Claim,
    /// Of its opening.
    pub(crate) number: u64,
}

#[derive(Default, Debug)]
pub(crate) struct Program {
    pub(crate) doing: Option<Doing>,
    pub(crate) file: Option<File>,
    pub(crate) next: Duration,
}

impl Program {
    pub(crate) fn open(&mut self, slot: Slot, ino: Ino, claim: Claim, number: u64) {
        self.file = Some(File { slot, ino, claim, number });
    }

    /// A session is over: its open file and lock are lost, and so is the call that is about them. Whether there was one.
    pub(crate) fn lose(&mut self, slot: Slot) -> bool {
        let data_of = self.file.is_some_and(|file| file.slot == slot);
        let ends = self.doing.as_ref().is_some_and(|doing| match &doing.what {
            What::Names { slot: of, .. }
            | What::Open { slot: of, .. }
            | What::Close { slot: of }
            | What::Lock { slot: of, .. }
            | What::Unlock { slot: of } => *of == slot,
            What::Read { .. } | What::Write { .. } | What::Sync { .. } | What::Cut { .. } => data_of,
        });
        if ends {
            self.doing = None;
        }
        self.file = self.file.filter(|file| file.slot != slot);
        ends
    }

    /// It waits for all that is kept to be written back.
    pub(crate) fn flushes(&self, slot: Slot) -> bool {
        let of = self.file.is_some_and(|file| file.slot == slot);
        let waits = self.doing.as_ref().is_some_and(|doing| {
            matches!(
                doing.what,
                What::Sync { flushed: false, .. }
                    | What::Cut { begun: false, .. }
                    | What::Write { begun: false, .. }
            )
        });
        of && waits
    }
}
