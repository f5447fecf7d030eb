//! Space within a file: allocation, holes, and where they are.

use std::sync::Arc;

use cluster::striping::Striped;
use prost::Message;
use proto::{attr::Changes, data};
use types::Errno;
use wire::frame::Body;

use crate::{
    Remote,
    held::Source,
    openings::{OpenFile, Placed},
    reading::{asking, object, place_of},
    stripes::{ToStripe, What},
};

/// As in fallocate(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocateArgs {
    pub offset: u64,
    pub length: u64,
    pub mode: u32,
}

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Remote {
    pub fn allocate(&self, file: &OpenFile, args: AllocateArgs) -> Result<(), Errno> {
        let (mode, grows) = allocate_mode(args.mode)?;
        let end = args.offset.checked_add(args.length).ok_or(Errno::EFBIG)?;
        if i64::try_from(end).is_err() {
            return Err(Errno::EFBIG);
        }
        let _direct = self.go_past(file.ino)?;
        let placed = self.begin_write(file)?;
        let mut changing = self.change_bytes(file.ino, None);
        let done = self.allocate_placed(file, (placed, args), (mode, grows));
        changing.ended(&done);
        done
    }

    fn allocate_placed(
        &self,
        file: &OpenFile,
        (placed, args): (Arc<Placed>, AllocateArgs),
        (mode, grows): (data::AllocateMode, bool),
    ) -> Result<(), Errno> {
        let end = args.offset + args.length;
        if grows {
            // The metadata first: they grow the objects.
            self.reserve(file, end)?;
            self.apply(file.ino, Changes { size: Some(end), ..Changes::default() }, true)?;
        }
        // What was answered is not asked for again: somebody may have written there since.
        let mut landed = Vec::new();
        self.where_it_is(file, placed, &mut |placed| {
            let size = self.size_of(file, placed)?;
            let mut ranges = ranges(placed.striped, args.offset, end.min(size));
            ranges.retain(|range| !landed.contains(range));
            let Source { node: server, joined } = self.name_for_data(file.ino)?;
            let askings = ranges.iter().map(|(stripe, offset, length)| {
                let (stripe, offset, length) = (*stripe, *offset, *length);
                let object = Some(object(file, placed, stripe));
                let mode = mode.into();
                let request = data::Allocate { object, mode, offset, length, joined, server };
                let asking = asking(&request, Body::default(), 0)?;
                Ok(ToStripe { stripe, what: What::Slow, asking })
            });
            let askings = askings.collect::<Result<_, Errno>>()?;
            let answers = self.ask_stripes(file, placed, askings, self.sync_waits())?;
            let mut done = Ok(());
            for (range, answered) in ranges.iter().zip(answers) {
                match answered {
                    Ok(answered) => {
                        landed.push(*range);
                        self.note_allocated(file, placed, range.0, &answered.answered.meta)?;
                    }
                    Err(error) => done = done.and(Err(error)),
                }
            }
            done
        })
    }

    /// What was freed, or promised, is durable at the next fsync.
    fn note_allocated(
        &self,
        file: &OpenFile,
        placed: &Placed,
        stripe: usize,
        answer: &[u8],
    ) -> Result<(), Errno> {
        let data::Alive { life } = data::Alive::decode(answer).map_err(|_| Errno::EIO)?;
        let (at, life) = place_of(file, placed, stripe, life);
        self.note_answers(file, |answered| answered.wrote(stripe, at, life, false));
        Ok(())
    }

    /// `whence` is `SEEK_DATA` or `SEEK_HOLE`.
    pub fn seek(&self, file: &OpenFile, offset: u64, whence: u32) -> Result<u64, Errno> {
        let wanted = match whence {
            SEEK_DATA => data::Whence::Data,
            SEEK_HOLE => data::Whence::Hole,
            _ => return Err(Errno::EINVAL),
        };
        self.write_out(file.ino)?;
        let placed = match self.placed(file)? {
            Ok(placed) => placed,
            // All of it is a hole.
            Err(size) if offset < size && wanted == data::Whence::Hole => return Ok(offset),
            Err(_) => return Err(Errno::ENXIO),
        };
        let (size, found) = self.where_it_is(file, placed, &mut |placed| {
            let size = self.size_of(file, placed)?;
            if offset >= size {
                return Err(Errno::ENXIO);
            }
            Ok((size, self.seek_placed(file, placed, offset, wanted)?))
        })?;
        match (wanted, found) {
            (data::Whence::Data, found) => found.filter(|at| *at < size).ok_or(Errno::ENXIO),
            (data::Whence::Hole, found) => Ok(found.map_or(size, |at| at.min(size))),
        }
    }

    /// The first of all stripes. An object that ends goes on as a hole.
    fn seek_placed(
        &self,
        file: &OpenFile,
        placed: &Placed,
        offset: u64,
        whence: data::Whence,
    ) -> Result<Option<u64>, Errno> {
        let striped = placed.striped;
        // The first byte of each stripe that is not before the offset.
        let starts: Vec<u64> =
            (0..striped.count()).map(|stripe| striped.size_of_stripe(stripe, offset)).collect();
        let askings = starts.iter().enumerate().map(|(stripe, start)| {
            let object = Some(object(file, placed, stripe));
            let request = data::Seek { object, offset: *start, whence: whence.into() };
            let asking = asking(&request, Body::default(), 0)?;
            Ok(ToStripe { stripe, what: What::Change, asking })
        });
        let answers = self.ask_stripes(file, placed, askings.collect::<Result<_, Errno>>()?, self.waits())?;
        let mut first = None;
        for (stripe, (answered, start)) in answers.into_iter().zip(starts).enumerate() {
            let sought = data::Sought::decode(answered?.answered.meta.as_slice()).map_err(|_| Errno::EIO)?;
            let here = match whence {
                data::Whence::Data => sought.offset,
                data::Whence::Hole => Some(sought.offset.unwrap_or(sought.size).max(start)),
            };
            let here = here.map(|at| striped.file_offset(stripe, at));
            first = match (first, here) {
                (Some(a), Some(b)) => Some(u64::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        Ok(first)
    }
}

/// A range of a file as one range of each object: (stripe, offset, length).
fn ranges(striped: Striped, from: u64, to: u64) -> Vec<(usize, u64, u64)> {
    (0..striped.count())
        .filter_map(|stripe| {
            let (start, end) = (striped.size_of_stripe(stripe, from), striped.size_of_stripe(stripe, to));
            (end > start).then(|| (stripe, start, end - start))
        })
        .collect()
}

/// What to do within the file, and whether it grows.
fn allocate_mode(mode: u32) -> Result<(data::AllocateMode, bool), Errno> {
    const KEEP_SIZE: u32 = 0x01;
    const PUNCH_HOLE: u32 = 0x02;
    const ZERO_RANGE: u32 = 0x10;
    const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
    match mode {
        0 => Ok((data::AllocateMode::Reserve, true)),
        KEEP_SIZE => Ok((data::AllocateMode::Reserve, false)),
        PUNCH | ZERO_KEEP => Ok((data::AllocateMode::Zero, false)),
        ZERO_RANGE => Ok((data::AllocateMode::Zero, true)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a range is cut into the same bytes as by its parts. Method: ranges around units, against the parts.
    use super::*;

    #[test]
    fn ranges_are_the_parts() {
        for count in 1..5 {
            let striped = Striped::new(4, count).unwrap();
            for from in 0..40 {
                for to in from..40 {
                    let mut want: std::collections::BTreeMap<usize, (u64, u64)> = Default::default();
                    for part in striped.parts(from, to - from) {
                        let one = want.entry(part.stripe).or_insert((part.object_offset, 0));
                        assert_eq!(part.object_offset, one.0 + one.1, "one range of each object");
                        one.1 += part.len;
                    }
                    let got: Vec<_> = ranges(striped, from, to);
                    let want: Vec<_> =
                        want.into_iter().map(|(stripe, (at, len))| (stripe, at, len)).collect();
                    assert_eq!(got, want, "{count} stripes, {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn fallocate_modes() {
        let known: Vec<u32> = (0..256).filter(|mode| allocate_mode(*mode).is_ok()).collect();
        assert_eq!(known, [0, 1, 3, 0x10, 0x11]);
    }
}
