//! Goal: I-SIZE-1. Method: stripes that grow between any two questions, by chance, and the sizes that the file had; the one case that
//! asking once gets wrong, by hand.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use cluster::{
    sizing::{ROUNDS_MAX, Said, Sizing},
    striping::Striped,
};
use proptest::prelude::*;

/// A file whose stripes grow, with a clock that ticks at each step.
struct Growing {
    striped: Striped,
    sizes: Vec<u64>,
    grown: Vec<u64>,
    now: u64,
    /// Of the file, since it was asked.
    had: Vec<u64>,
}

impl Growing {
    fn new(striped: Striped, sizes: Vec<u64>) -> Growing {
        let grown = vec![0; sizes.len()];
        let mut file = Growing { striped, sizes, grown, now: 1, had: Vec::new() };
        file.had.push(file.size());
        file
    }
    fn size(&self) -> u64 {
        let ends = self.sizes.iter().enumerate().map(|(stripe, size)| self.striped.file_end(stripe, *size));
        ends.max().unwrap()
    }
    fn write(&mut self, stripe: usize, size: u64) {
        self.now += 1;
        if size > self.sizes[stripe] {
            (self.sizes[stripe], self.grown[stripe]) = (size, self.now);
        }
        self.had.push(self.size());
    }
    fn say(&mut self, stripe: usize) -> Said {
        self.now += 1;
        let still = Duration::from_secs(self.now - self.grown[stripe]);
        Said { stripe, size: self.sizes[stripe], still }
    }
}

#[test]
fn regression_a_size_is_one_that_the_file_had() {
    let striped = Striped::new(4, 2).unwrap();
    let mut file = Growing::new(striped, vec![0, 0]);
    let (mut sizing, begun) = (Sizing::new(striped, 0), file.now);
    assert_eq!(sizing.ask(Duration::ZERO), [0, 1]);
    sizing.came(file.say(0));
    // To the end of the third unit, and, when that was answered, to the second.
    file.write(0, 8);
    file.write(1, 1);
    sizing.came(file.say(1));
    assert_eq!((sizing.size(), file.had.contains(&5)), (5, false));
    assert_eq!(sizing.ask(Duration::from_secs(file.now - begun)), [0]);
    sizing.came(file.say(0));
    assert_eq!(sizing.ask(Duration::from_secs(file.now - begun)), [1]);
    sizing.came(file.say(1));
    assert_eq!(sizing.ask(Duration::from_secs(file.now - begun)), []);
    assert_eq!(sizing.size(), 12);
}

#[test]
fn who_did_not_grow_is_asked_once() {
    let striped = Striped::new(4, 3).unwrap();
    for (known, still, again) in [(0, 5, 0), (5, 0, 0), (0, 4, 2), (4, 4, 2)] {
        let mut sizing = Sizing::new(striped, known);
        assert_eq!(sizing.ask(Duration::ZERO).len(), 3);
        for (stripe, size) in [2, 1, 0].into_iter().enumerate() {
            sizing.came(Said { stripe, size, still: Duration::from_secs(still) });
        }
        assert_eq!(sizing.ask(Duration::from_secs(5)).len(), again, "{known} {still}");
        assert_eq!(sizing.size(), 5);
    }
    let mut one = Sizing::new(striped, 0).at_rest();
    assert_eq!(one.ask(Duration::ZERO).len(), 3);
    one.came(Said { stripe: 1, size: 1, still: Duration::ZERO });
    assert_eq!((one.ask(Duration::ZERO), one.size()), (vec![], 5));
}

proptest! {
    #[test]
    fn it_is_a_size_that_the_file_had(
        count in 1usize..5,
        before in prop::collection::vec((0usize..4, 1u64..20), 0..4),
        known_of in prop::option::of(0usize..4),
        order in any::<u64>(),
        writes in prop::collection::vec(prop::collection::vec((0usize..4, 1u64..20), 0..3), 0..16),
    ) {
        let striped = Striped::new(4, count).unwrap();
        let mut file = Growing::new(striped, vec![0; count]);
        before.iter().for_each(|(stripe, size)| file.write(stripe % count, *size));
        let known = known_of.map_or(0, |stripe| striped.file_end(stripe % count, file.sizes[stripe % count]));
        file.now += 1;
        file.had = vec![file.size()];
        let (mut sizing, begun) = (Sizing::new(striped, known), file.now);
        // In the last round nothing grows: then it is known.
        let (mut writes, mut rounds) = (writes.into_iter(), 0);
        loop {
            let mut asked = sizing.ask(Duration::from_secs(file.now - begun));
            if asked.is_empty() {
                break;
            }
            rounds += 1;
            let turn = order as usize % asked.len();
            asked.rotate_left(turn);
            for stripe in asked {
                sizing.came(file.say(stripe));
                if rounds + 1 < ROUNDS_MAX {
                    writes.next().into_iter().flatten().for_each(|(stripe, size)| file.write(stripe % count, size));
                }
            }
        }
        prop_assert!(file.had.contains(&sizing.size()), "{} of {:?}", sizing.size(), file.had);
    }
}
