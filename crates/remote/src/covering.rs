//! How many bytes of a range there are, and what is to be asked for that. Pure.
//!
//! Where an object is short there is a hole, or the file's end: which of them the other objects' sizes say, and they say it later. So where the file
//! came to reach further meanwhile what was short is read again: what is short then was a hole when the file was so long.
//!
//! - I-COVER-1: a range within one unit reads as it did at some moment between the first question and the last answer, if nothing is cut
//!   meanwhile and it does not grow each time that it is read, [`AGAIN_MAX`] times.

use std::time::Duration;

use cluster::{
    sizing::{Said, Sizing},
    striping::{Part, Striped},
};

const AGAIN_MAX: u32 = 4;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// These parts are to be read again.
    Read(Vec<usize>),
    /// These stripes are to say how long they are.
    Size(Vec<usize>),
    /// So many bytes there are.
    Is(usize),
}

/// What came of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Came {
    pub bytes: u64,
    /// Of the object.
    pub size: u64,
}

pub(crate) struct Covering<'a> {
    striped: Striped,
    parts: &'a [Part],
    came: Vec<Came>,
    /// Where the range begins and ends.
    from: u64,
    to: u64,
    /// The others are being asked.
    sizing: Option<Sizing>,
    /// The file had so many bytes before what was short was read last.
    known: u64,
    again: u32,
}

impl<'a> Covering<'a> {
    /// Of a range that was read once, in these parts.
    pub(crate) fn new(striped: Striped, parts: &'a [Part], came: Vec<Came>) -> Covering<'a> {
        let from = parts.first().map_or(0, |part| part.offset);
        let to = parts.last().map_or(0, |part| part.offset + part.len);
        Covering { striped, parts, came, from, to, sizing: None, known: 0, again: 0 }
    }

    fn is_short(&self, n: usize) -> bool {
        self.came[n].bytes < self.parts[n].len
    }

    /// By what was read.
    fn end(&self) -> u64 {
        let ends = self.parts.iter().zip(&self.came);
        ends.map(|(part, came)| self.striped.file_end(part.stripe, came.size)).max().unwrap_or(0)
    }

    /// `since`: for how long the range is being read.
    pub(crate) fn next(&mut self, since: Duration) -> Next {
        let there = |end: u64| Next::Is(end.min(self.to).saturating_sub(self.from) as usize);
        let short: Vec<usize> = (0..self.parts.len()).filter(|n| self.is_short(*n)).collect();
        let end = self.end();
        let Some(sizing) = &mut self.sizing else {
            if short.is_empty() || end.max(self.known) >= self.to {
                return there(self.to);
            }
            if self.again > 0 && end <= self.known || self.again >= AGAIN_MAX {
                return there(end.max(self.known));
            }
            let is_read = |stripe: &usize| self.parts.iter().any(|part| part.stripe == *stripe);
            let others = (0..self.striped.count()).filter(|stripe| !is_read(stripe)).collect();
            self.sizing = Some(Sizing::new(self.striped, end).of(others).up_to(self.to));
            return self.next(since);
        };
        let ask = sizing.ask(since);
        if !ask.is_empty() {
            return Next::Size(ask);
        }
        let (known, was_so) = (sizing.size(), sizing.was_so(since));
        self.sizing = None;
        if known <= end || self.again == 0 && was_so {
            return there(known);
        }
        (self.known, self.again) = (known, self.again + 1);
        Next::Read(short)
    }

    pub(crate) fn read(&mut self, n: usize, came: Came) {
        self.came[n] = came;
    }

    pub(crate) fn sized(&mut self, said: Said) {
        if let Some(sizing) = &mut self.sizing {
            sizing.came(said);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: I-COVER-1. Method: stripes that are written between any two questions, by chance, and what the range was; the case that a
    //! look at the sizes alone gets wrong, by hand.
    use proptest::prelude::*;

    use super::*;

    const UNIT: u64 = 4;

    /// Each byte that was written is not 0.
    struct Written {
        striped: Striped,
        objects: Vec<Vec<u8>>,
        grown: Vec<u64>,
        now: u64,
        part: Part,
        /// What the range was, since it was asked for.
        was: Vec<Vec<u8>>,
    }

    impl Written {
        fn new(count: usize, part: (u64, u64)) -> Written {
            let striped = Striped::new(UNIT, count).unwrap();
            let part = striped.parts(part.0, part.1).next().unwrap();
            let (objects, grown) = (vec![Vec::new(); count], vec![0; count]);
            Written { striped, objects, grown, now: 1, part, was: Vec::new() }
        }
        fn size(&self) -> u64 {
            let ends = self.objects.iter().enumerate();
            ends.map(|(stripe, object)| self.striped.file_end(stripe, object.len() as u64)).max().unwrap()
        }
        fn bytes(&self) -> Vec<u8> {
            let object = &self.objects[self.part.stripe];
            let there = self.size().saturating_sub(self.part.offset).min(self.part.len) as usize;
            let at = self.part.object_offset as usize;
            (at..at + there).map(|at| object.get(at).copied().unwrap_or(0)).collect()
        }
        fn note(&mut self) {
            let now = self.bytes();
            self.was.push(now);
        }
        fn write(&mut self, offset: u64, byte: u8) {
            self.now += 1;
            let (stripe, at) = self.striped.locate(offset);
            let (object, at) = (&mut self.objects[stripe], at as usize);
            if object.len() <= at {
                object.resize(at + 1, 0);
                self.grown[stripe] = self.now;
            }
            object[at] = byte;
            self.note();
        }
        fn read(&mut self) -> (Came, Vec<u8>) {
            self.now += 1;
            let object = &self.objects[self.part.stripe];
            let at = (self.part.object_offset as usize).min(object.len());
            let bytes = object[at..object.len().min(at + self.part.len as usize)].to_vec();
            (Came { bytes: bytes.len() as u64, size: object.len() as u64 }, bytes)
        }
        fn say(&mut self, stripe: usize) -> Said {
            self.now += 1;
            let still = Duration::from_secs(self.now - self.grown[stripe]);
            Said { stripe, size: self.objects[stripe].len() as u64, still }
        }

        /// Reads the range; something is written after each answer.
        fn cover(&mut self, mut meanwhile: impl FnMut(&mut Written, u32)) -> Vec<u8> {
            self.now += 1;
            (self.was, self.part) = (Vec::new(), self.part);
            self.note();
            let begun = self.now;
            let (came, mut bytes) = self.read();
            let parts = [self.part];
            let mut covering = Covering::new(self.striped, &parts, vec![came]);
            let mut asked = 0;
            meanwhile(self, asked);
            loop {
                match covering.next(Duration::from_secs(self.now - begun)) {
                    Next::Read(which) => {
                        assert_eq!(which, [0]);
                        let (came, now) = self.read();
                        covering.read(0, came);
                        bytes = now;
                        asked += 1;
                        meanwhile(self, asked);
                    }
                    Next::Size(stripes) => {
                        for stripe in stripes {
                            let said = self.say(stripe);
                            covering.sized(said);
                            asked += 1;
                            meanwhile(self, asked);
                        }
                    }
                    Next::Is(len) => {
                        bytes.resize(len, 0);
                        return bytes;
                    }
                }
            }
        }
    }

    #[test]
    fn regression_zeros_are_of_a_hole_that_the_file_had() {
        let mut file = Written::new(2, (1, 1));
        let read = file.cover(|file, asked| {
            if asked == 0 {
                // What is read, and when that was answered, what is behind it.
                file.write(1, 7);
                file.write(5, 8);
            }
        });
        assert_eq!(read, [7]);
        assert_eq!(file.cover(|_, _| ()), [7]);
    }

    #[test]
    fn what_nobody_writes_is_asked_for_once() {
        for (part, is, questions) in [((1, 2), 2, 2), ((12, 2), 0, 2), ((8, 2), 2, 0), ((10, 4), 2, 0)] {
            let mut file = Written::new(3, part);
            [0, 5, 9, 11].into_iter().for_each(|offset| file.write(offset, 9));
            let mut all = 0;
            assert_eq!(file.cover(|_, asked| all = asked).len(), is, "{part:?}");
            assert_eq!(all, questions, "{part:?}");
        }
    }

    proptest! {
        #[test]
        fn it_is_what_the_file_had(
            count in 1usize..4,
            unit in 0u64..6, within in 0u64..4,
            before in prop::collection::vec(0u64..24, 0..4),
            writes in prop::collection::vec(prop::collection::vec(0u64..24, 0..3), 0..6),
        ) {
            let mut file = Written::new(count, (unit * UNIT + within, 1));
            before.iter().for_each(|offset| file.write(*offset, 1));
            let mut byte = 1;
            let read = file.cover(|file, asked| {
                for offset in writes.get(asked as usize).into_iter().flatten() {
                    byte += 1;
                    file.write(*offset, byte);
                }
            });
            prop_assert!(file.was.contains(&read), "{read:?} of {:?}", file.was);
        }
    }
}
