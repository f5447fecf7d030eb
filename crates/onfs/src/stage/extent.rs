//! Reading a part of a file: only what is no hole, in buffers, with its checksum.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

use super::{
    sum::{BLOCK, Sum},
    trouble::Trouble,
};

/// Takes bytes and where they are in the file.
pub type Each<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Trouble> + 'a;

/// Gives `each` what `range` of the file has, in order; holes are left out. Returns the checksum. `range` begins at a
/// multiple of [`BLOCK`]. `side` says whose trouble a read that fails is; a file that ends within the range gives
/// `UnexpectedEof`.
pub fn read(
    file: &File,
    range: Range<u64>,
    buffer: &mut [u8],
    side: fn(io::Error) -> Trouble,
    each: &mut Each<'_>,
) -> Result<u64, Trouble> {
    let mut sum = Sum::default();
    let mut at = range.start;
    while let Some(data) = data(file, at..range.end).map_err(side)? {
        at = data.start;
        while at < data.end {
            let length = usize::try_from(data.end - at).unwrap_or(usize::MAX).min(buffer.len());
            let part = &mut buffer[..length];
            file.read_exact_at(part, at).map_err(side)?;
            sum.take(at, part);
            each(at, part)?;
            at += length as u64;
        }
    }
    Ok(sum.finish())
}

/// The first data in the range, in whole blocks. A file system without holes has data everywhere.
fn data(file: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    if range.is_empty() {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(range.start)) {
        Ok(start) if start >= range.end => return Ok(None),
        // The units of file systems are multiples of ours, but nobody promises it.
        Ok(start) => (start - start % BLOCK as u64).max(range.start),
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(range)),
        Err(error) => return Err(error.into()),
    };
    let end = match seek(file, SeekFrom::Hole(start)) {
        Ok(end) => end.next_multiple_of(BLOCK as u64).min(range.end),
        // Cut since.
        Err(Errno::NXIO) => range.end,
        Err(error) => return Err(error.into()),
    };
    Ok(Some(start..end.max(start + 1)))
}

#[cfg(test)]
mod tests {
    //! Goal: a file with holes reads as it is, and a file that ends early is noticed. Method: sparse files of the machine.
    use super::*;

    #[test]
    fn holes_are_left_out_and_ends_are_noticed() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(40 << 20).unwrap();
        file.write_all_at(b"abc", 20 << 20).unwrap();
        file.write_all_at(&[7; 100], (40 << 20) - 100).unwrap();
        let mut buffer = vec![0; 8192];
        let mut read_bytes = 0;
        let sum = read(&file, 0..40 << 20, &mut buffer, Trouble::Source, &mut |at, part| {
            read_bytes += part.len();
            assert!(at + part.len() as u64 <= 40 << 20);
            Ok(())
        });
        let mut whole = Sum::default();
        let mut all = vec![0; 40 << 20];
        file.read_exact_at(&mut all, 0).unwrap();
        whole.take(0, &all);
        assert_eq!(sum.unwrap(), whole.finish());
        assert!((103..=40 << 20).contains(&read_bytes));
        file.set_len((20 << 20) + 2).unwrap();
        let cut = read(&file, 0..40 << 20, &mut buffer, Trouble::Source, &mut |_, _| Ok(()));
        assert!(cut.is_err() || cut.unwrap() != whole_of(&all));
    }

    fn whole_of(all: &[u8]) -> u64 {
        let mut sum = Sum::default();
        sum.take(0, all);
        sum.finish()
    }
}
