//! A large file: several threads copy its pieces, then read them back.
//!
//! First the pieces that an earlier run recorded are compared with what is there; then the missing ones are copied; then,
//! when all is settled, all are read back. Who ends the last piece of a stage does what stands between it and the next.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::{copying::Copying, queue::Divided, trouble::Trouble};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// It was recorded: is it there?
    Check(u32),
    Copy(u32),
    ReadBack(u32),
}

/// What the thread that ended a piece has to do.
#[derive(Debug)]
pub enum Turn {
    /// Others are at it still.
    Nothing,
    /// All is written.
    Settle,
    /// All was read back.
    Finish,
    Fail(Trouble),
}

pub struct Large {
    pub copying: Copying,
    state: Mutex<State>,
}

struct State {
    waiting: VecDeque<Part>,
    /// Pieces in hand.
    out: u32,
    sums: Vec<Option<u64>>,
    reading_back: bool,
    trouble: Option<Trouble>,
    over: bool,
}

impl Large {
    /// `recorded`: pieces that an earlier run copied, with their checksums.
    pub fn new(copying: Copying, recorded: &[(u32, u64)]) -> Large {
        let state = State::new(copying.pieces.count(), recorded);
        Large { copying, state: Mutex::new(state) }
    }

    /// The checksum that the piece was copied, or recorded, with.
    pub fn sum(&self, piece: u32) -> Option<u64> {
        self.state.lock().sums.get(piece as usize).copied().flatten()
    }

    pub fn sums(&self) -> Vec<u64> {
        self.state.lock().sums.iter().copied().flatten().collect()
    }

    pub fn ended(&self, part: Part, result: Result<u64, Trouble>) -> Turn {
        self.state.lock().ended(part, result)
    }

    pub fn read_back(&self) {
        self.state.lock().read_back();
    }

    pub fn over(&self) {
        self.state.lock().over = true;
    }
}

impl Divided for Large {
    type Part = Part;

    fn part(&self) -> Option<Part> {
        self.state.lock().part()
    }

    fn is_over(&self) -> bool {
        self.state.lock().over
    }
}

impl State {
    fn new(pieces: u32, recorded: &[(u32, u64)]) -> State {
        let mut sums = vec![None; pieces as usize];
        let mut waiting = VecDeque::new();
        for (piece, sum) in recorded {
            if let Some(place) = sums.get_mut(*piece as usize) {
                *place = Some(*sum);
                waiting.push_back(Part::Check(*piece));
            }
        }
        let missing = (0..pieces).filter(|n| sums[*n as usize].is_none());
        waiting.extend(missing.map(Part::Copy));
        State { waiting, out: 0, sums, reading_back: false, trouble: None, over: false }
    }

    fn part(&mut self) -> Option<Part> {
        let part = self.waiting.pop_front()?;
        self.out += 1;
        Some(part)
    }

    fn ended(&mut self, part: Part, result: Result<u64, Trouble>) -> Turn {
        self.out -= 1;
        match (part, result) {
            (Part::Check(piece), Ok(sum)) => {
                if self.sums[piece as usize] != Some(sum) {
                    self.sums[piece as usize] = None;
                    self.waiting.push_back(Part::Copy(piece));
                }
            }
            (Part::Copy(piece), Ok(sum)) => self.sums[piece as usize] = Some(sum),
            (Part::ReadBack(_), Ok(_)) => {}
            // Several may fail for one reason: the first is told.
            (Part::Check(_) | Part::Copy(_) | Part::ReadBack(_), Err(trouble)) => {
                self.trouble.get_or_insert(trouble);
                self.waiting.clear();
            }
        }
        if self.out > 0 || !self.waiting.is_empty() {
            return Turn::Nothing;
        }
        match self.trouble.take() {
            Some(trouble) => Turn::Fail(trouble),
            None if self.reading_back => Turn::Finish,
            None => Turn::Settle,
        }
    }

    fn read_back(&mut self) {
        self.reading_back = true;
        self.waiting = (0..self.sums.len() as u32).map(Part::ReadBack).collect();
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each piece is copied once, in any order of ending, and the turns come once. Method: the state alone, driven by
    //! one thread that ends pieces in a shuffled order.
    use proptest::prelude::*;

    use super::*;

    /// Ends what is out in an order of its own; pieces that were recorded wrongly are copied.
    fn drive(pieces: u32, recorded: &[(u32, u64)], order: &[usize]) -> (Vec<Part>, u32) {
        let mut state = State::new(pieces, recorded);
        let (mut out, mut done, mut turns) = (Vec::new(), Vec::new(), 0);
        let mut order = order.iter().cycle();
        loop {
            while out.len() < 3
                && let Some(part) = state.part()
            {
                out.push(part);
            }
            let part = out.swap_remove(order.next().unwrap() % out.len());
            done.push(part);
            let (Part::Check(n) | Part::Copy(n) | Part::ReadBack(n)) = part;
            match state.ended(part, Ok(u64::from(n) + 100)) {
                Turn::Nothing => {}
                Turn::Settle => {
                    turns += 1;
                    state.read_back();
                }
                Turn::Finish => {
                    assert!(out.is_empty());
                    let wanted: Vec<_> = (0..pieces).map(|n| Some(u64::from(n) + 100)).collect();
                    assert_eq!(state.sums, wanted);
                    return (done, turns);
                }
                Turn::Fail(trouble) => panic!("{trouble}"),
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_are_copied_once(
            pieces in 1u32..9,
            right in proptest::collection::vec(any::<Option<bool>>(), 9),
            order in proptest::collection::vec(0usize..3, 1..40),
        ) {
            let recorded: Vec<(u32, u64)> = (0..pieces)
                .filter_map(|n| Some((n, u64::from(n) + if right[n as usize]? { 100 } else { 7 })))
                .collect();
            let (done, turns) = drive(pieces, &recorded, &order);
            prop_assert_eq!(turns, 1);
            for n in 0..pieces {
                let copies = done.iter().filter(|part| **part == Part::Copy(n)).count();
                prop_assert_eq!(copies, usize::from(right[n as usize] != Some(true)));
                prop_assert_eq!(done.iter().filter(|part| **part == Part::ReadBack(n)).count(), 1);
            }
        }
    }

    #[test]
    fn a_failure_is_told_when_nobody_is_at_it_any_more() {
        let mut state = State::new(5, &[]);
        let (one, two) = (state.part().unwrap(), state.part().unwrap());
        assert!(matches!(state.ended(one, Err(Trouble::Changed)), Turn::Nothing));
        assert_eq!(state.part(), None, "no further pieces");
        assert!(matches!(state.ended(two, Ok(1)), Turn::Fail(Trouble::Changed)));
    }
}
