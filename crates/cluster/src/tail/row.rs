//! What the database's row of an owner says about the copy of its tail. Pure: the row comes in, what it becomes goes out; whoever asks has
//! it locked meanwhile.
//!
//! A copy's number rises with each change but the last step to complete, so a write that comes late finds another number and changes
//! nothing.

/// `Id` names a server, as the database does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row<Id> {
    pub standby: Option<Id>,
    /// 0: there never was one.
    pub copy: u64,
    /// The standby has all that was answered and is not in the engine.
    pub complete: bool,
}

impl<Id> Default for Row<Id> {
    fn default() -> Row<Id> {
        Row { standby: None, copy: 0, complete: false }
    }
}

/// By the owner, in its present session of the database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change<Id> {
    /// Nobody has a copy that counts.
    Alone { copy: u64 },
    /// The standby is brought up to date.
    Begin { copy: u64, standby: Id },
    /// It is.
    Complete { copy: u64 },
}

/// Why a row is not changed, or nothing taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The number is not one that follows, or not that of the row.
    Copy,
    /// The row names another standby, or none.
    Standby,
    /// What is answered may be nowhere but in the owner's journal.
    Incomplete,
    /// The owner's lease has not ended.
    Lease,
}

impl<Id: Clone + PartialEq> Row<Id> {
    /// The same again is the same.
    pub fn change(&self, change: &Change<Id>) -> Result<Row<Id>, Refused> {
        let next = match change {
            Change::Alone { copy } => Row { standby: None, copy: *copy, complete: false },
            Change::Begin { copy, standby } => {
                Row { standby: Some(standby.clone()), copy: *copy, complete: false }
            }
            Change::Complete { copy } if *copy != self.copy => return Err(Refused::Copy),
            Change::Complete { .. } if self.standby.is_none() => return Err(Refused::Standby),
            Change::Complete { .. } => return Ok(Row { complete: true, ..self.clone() }),
        };
        if next.copy > self.copy || next == *self { Ok(next) } else { Err(Refused::Copy) }
    }

    /// `asker` has the copy of this number, and may go on in the owner's place? What the row is then.
    pub fn take_over(&self, asker: &Id, copy: u64, lease_ended: bool) -> Result<Row<Id>, Refused> {
        if self.standby.as_ref() != Some(asker) {
            Err(Refused::Standby)
        } else if self.copy != copy {
            Err(Refused::Copy)
        } else if !self.complete {
            Err(Refused::Incomplete)
        } else if !lease_ended {
            Err(Refused::Lease)
        } else {
            Ok(Row { standby: None, copy: self.copy + 1, complete: false })
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: who may take over, and what a late write does. Method: by hand.
    use super::*;

    #[test]
    fn only_a_complete_copy_is_taken_over() {
        let row: Row<u8> = Row::default();
        assert_eq!(row.take_over(&7, 0, true), Err(Refused::Standby));
        let begun = row.change(&Change::Begin { copy: 1, standby: 7 }).unwrap();
        assert_eq!(begun.change(&Change::Begin { copy: 1, standby: 7 }), Ok(begun.clone()));
        assert_eq!(begun.change(&Change::Begin { copy: 1, standby: 8 }), Err(Refused::Copy));
        assert_eq!(begun.take_over(&7, 1, true), Err(Refused::Incomplete));
        let complete = begun.change(&Change::Complete { copy: 1 }).unwrap();
        assert_eq!(complete.take_over(&8, 1, true), Err(Refused::Standby));
        assert_eq!(complete.take_over(&7, 2, true), Err(Refused::Copy));
        assert_eq!(complete.take_over(&7, 1, false), Err(Refused::Lease));
        let taken = complete.take_over(&7, 1, true).unwrap();
        assert_eq!(taken, Row { standby: None, copy: 2, complete: false });
        assert_eq!(taken.take_over(&7, 1, true), Err(Refused::Standby));
    }

    #[test]
    fn a_late_write_changes_nothing() {
        let row: Row<u8> = Row::default();
        let begun = row.change(&Change::Begin { copy: 1, standby: 7 }).unwrap();
        let alone = begun.change(&Change::Alone { copy: 2 }).unwrap();
        assert_eq!(alone.change(&Change::Complete { copy: 1 }), Err(Refused::Copy));
        assert_eq!(alone.change(&Change::Complete { copy: 2 }), Err(Refused::Standby));
        assert_eq!(alone.change(&Change::Begin { copy: 1, standby: 7 }), Err(Refused::Copy));
        assert_eq!(alone.change(&Change::Alone { copy: 2 }), Ok(alone.clone()));
    }
}
