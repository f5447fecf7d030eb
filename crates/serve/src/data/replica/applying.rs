//! Changes of an object, done to the bytes that are here.

use proto::data::{Allocate, AllocateMode, Object, Truncate};

use super::change::Change;
use crate::{answer::No, data::DataService};

impl DataService {
    /// Does it to the bytes that are here.
    pub(super) fn carry_out_change(&self, object: &Object, change: &Change) -> Result<(), No> {
        match change {
            Change::Bytes { from, to, bytes } => {
                self.put(object, *from, bytes)?;
                self.make_zero(object, *from + bytes.len() as u64, *to)
            }
            Change::Zero { from, to } => self.make_zero(object, *from, *to),
            Change::Cut { size, lost } => {
                let cut = Truncate { object: Some(*object), size: *size, grow_only: false };
                self.resize(&cut, object)?;
                self.lose_saus(object, lost)
            }
            Change::Lost { from, to } => self.lose_range(object, (*from, *to)),
            // Of a piece that is compared nothing is stored.
            Change::Same { .. } => Ok(()),
            Change::Grow { size } => {
                let grow = Truncate { object: Some(*object), size: *size, grow_only: true };
                self.resize(&grow, object).map(drop)
            }
            Change::Time { mtime } => self.set_time_of(object, *mtime).map(drop),
            Change::Reserve { from, to } => self.allot_range(object, AllocateMode::Reserve, *from, *to),
        }
    }

    /// Up to the object's end.
    fn make_zero(&self, object: &Object, from: u64, to: u64) -> Result<(), No> {
        self.allot_range(object, AllocateMode::Zero, from, to)
    }

    fn allot_range(&self, object: &Object, mode: AllocateMode, from: u64, to: u64) -> Result<(), No> {
        if from >= to {
            return Ok(());
        }
        let (mode, length) = (mode.into(), to - from);
        let asked = Allocate { object: Some(*object), mode, offset: from, length, joined: 0, server: 0 };
        self.allot(&asked, object).map(drop)
    }
}
