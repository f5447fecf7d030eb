//! How long a striped file is at one moment, though its stripes say how long they are one after the other, and grow meanwhile.
//!
//! What each said once is not enough: of two writes to two stripes, the second made when the first was answered, the second may be seen and not the first,
//! and the file never was that long. So the others are asked once more, unless the longest had its length before anybody was asked.
//!
//! - I-SIZE-1: what comes out is the file's size at some moment between the first question and the last answer, if nothing is cut meanwhile and
//!   it does not grow beyond what was said in each of [`ROUNDS_MAX`] rounds.

use std::time::Duration;

use crate::striping::Striped;

/// Who writes to all stripes at once is not followed for ever.
pub const ROUNDS_MAX: u32 = 4;

/// How long a stripe said to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    pub stripe: usize,
    /// Of its object.
    pub size: u64,
    /// For how long at least it did not grow.
    pub still: Duration,
}

#[derive(Clone, Debug)]
pub struct Sizing {
    striped: Striped,
    /// Those that are asked.
    stripes: Vec<usize>,
    /// The largest end so far.
    size: u64,
    /// Whose that is, and for how long.
    longest: Option<Said>,
    grew: bool,
    /// A file of so many bytes is long enough: how much longer it is does not matter.
    enough: u64,
    rounds: u32,
    rounds_max: u32,
}

impl Sizing {
    /// Of all stripes of a file that has `known` bytes at least.
    pub fn new(striped: Striped, known: u64) -> Sizing {
        let stripes = (0..striped.count()).collect();
        let (longest, grew, enough) = (None, false, u64::MAX);
        Sizing { striped, stripes, size: known, longest, grew, enough, rounds: 0, rounds_max: ROUNDS_MAX }
    }

    /// Only of these: the others end within what is known, and what they say later is no matter.
    #[must_use]
    pub fn of(self, stripes: Vec<usize>) -> Sizing {
        Sizing { stripes, ..self }
    }

    #[must_use]
    pub fn up_to(self, enough: u64) -> Sizing {
        Sizing { enough, ..self }
    }

    /// Nobody writes: each is asked once.
    #[must_use]
    pub fn at_rest(self) -> Sizing {
        Sizing { rounds_max: 1, ..self }
    }

    /// Who is to be asked next; nobody: [`Sizing::size`] it is. `since`: for how long it has been asked.
    pub fn ask(&mut self, since: Duration) -> Vec<usize> {
        let first = self.rounds == 0;
        let grew = std::mem::take(&mut self.grew);
        if !first
            && (!grew || self.was_so(since) || self.size >= self.enough || self.rounds >= self.rounds_max)
        {
            return Vec::new();
        }
        self.rounds += 1;
        let longest = self.longest.map(|said| said.stripe);
        self.stripes.iter().copied().filter(|stripe| Some(*stripe) != longest).collect()
    }

    pub fn came(&mut self, said: Said) {
        let end = self.striped.file_end(said.stripe, said.size);
        if end > self.size {
            (self.size, self.longest, self.grew) = (end, Some(said), true);
        }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Was it so long before anybody was asked? After the first round, in which all say what they are.
    pub fn was_so(&self, since: Duration) -> bool {
        self.rounds == 1 && self.longest.is_some_and(|said| said.still >= since)
    }
}
