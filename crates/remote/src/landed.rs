//! Which parts of a write are where they belong, over all attempts at it. Pure.
//!
//! - I-LANDED-1: a part that a data server answered is not sent again, whatever becomes of the others: somebody may have written over it since. A stripe that
//!   moves takes it along.

use cluster::striping::Part;

#[derive(Default)]
pub(crate) struct Landed {
    /// By where they begin.
    parts: Vec<(u64, u64)>,
}

impl Landed {
    pub(crate) fn lacks(&self, part: &Part) -> bool {
        !self.parts.contains(&(part.offset, part.len))
    }

    pub(crate) fn has(&mut self, part: &Part) {
        if self.lacks(part) {
            self.parts.push((part.offset, part.len));
        }
    }

    /// How many bytes of a range in these parts there are, from its beginning on.
    pub(crate) fn bytes_of(&self, parts: &[Part]) -> u64 {
        parts.iter().take_while(|part| !self.lacks(part)).map(|part| part.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(stripe: usize, offset: u64, len: u64) -> Part {
        Part { stripe, object_offset: offset, offset, len }
    }

    #[test]
    fn regression_what_was_answered_is_not_sent_again() {
        let parts = [part(0, 10, 5), part(1, 15, 7), part(0, 22, 1)];
        let mut landed = Landed::default();
        landed.has(&parts[1]);
        landed.has(&parts[1]);
        let lacking = |landed: &Landed| parts.iter().filter(|part| landed.lacks(part)).count();
        assert_eq!((landed.bytes_of(&parts), lacking(&landed)), (0, 2));
        landed.has(&parts[0]);
        assert_eq!((landed.bytes_of(&parts), lacking(&landed)), (12, 1));
        landed.has(&parts[2]);
        assert_eq!((landed.bytes_of(&parts), lacking(&landed)), (13, 0));
    }
}
