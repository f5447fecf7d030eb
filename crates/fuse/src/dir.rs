//! Packing of directory entries into the room that a READDIR or READDIRPLUS gives.

use types::FileKind;

use crate::{
    abi::{self, Plain},
    reply::{self, EntryOut},
};

/// One directory entry. `cookie` is where a later READDIR goes on after it; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntryOut<'a> {
    pub name: &'a [u8],
    pub ino: u64,
    pub kind: FileKind,
    pub cookie: u64,
}

/// Writes entries straight into the transport's buffer, up to the size that was asked for.
pub struct DirBuffer<'a> {
    buf: &'a mut [u8],
    used: usize,
    plus: bool,
    block_size: u32,
}

impl<'a> DirBuffer<'a> {
    pub(crate) fn new(buf: &'a mut [u8], plus: bool, block_size: u32) -> DirBuffer<'a> {
        DirBuffer { buf, used: 0, plus, block_size }
    }

    /// Does this answer READDIRPLUS, so that [`DirBuffer::push_plus`] is wanted?
    pub fn is_plus(&self) -> bool {
        self.plus
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub fn len(&self) -> usize {
        self.used
    }

    /// Adds an entry without attributes: for READDIR, and in READDIRPLUS for "." and ".." or where attributes
    /// are not at hand (no lookup is counted then). False: there is no room, and nothing was added.
    #[must_use]
    pub fn push(&mut self, entry: &DirEntryOut<'_>) -> bool {
        let none = abi::WireEntry::default();
        self.pack(entry, &none)
    }

    /// Adds an entry with its attributes; the kernel counts one lookup of its node, as for LOOKUP. In a READDIR only
    /// the entry is added, and no lookup counted. False: there is no room, nothing was added, no lookup counted.
    #[must_use]
    pub fn push_plus(&mut self, entry: &DirEntryOut<'_>, found: &EntryOut) -> bool {
        let wire = reply::entry(found, self.block_size);
        self.pack(entry, &wire)
    }

    /// Would an entry with a name of this length fit?
    pub fn has_room(&self, name_len: usize) -> bool {
        self.buf.len() - self.used >= self.record_len(name_len)
    }

    fn record_len(&self, name_len: usize) -> usize {
        let head = size_of::<abi::Dirent>() + if self.plus { size_of::<abi::WireEntry>() } else { 0 };
        (head + name_len).next_multiple_of(8)
    }

    fn pack(&mut self, entry: &DirEntryOut<'_>, found: &abi::WireEntry) -> bool {
        if !self.has_room(entry.name.len()) {
            return false;
        }
        let end = self.used + self.record_len(entry.name.len());
        if self.plus {
            self.put(found);
        }
        self.put(&abi::Dirent {
            ino: entry.ino,
            off: entry.cookie,
            namelen: entry.name.len() as u32,
            kind: entry.kind.mode_bits() >> 12,
        });
        let name_end = self.used + entry.name.len();
        self.buf[self.used..name_end].copy_from_slice(entry.name);
        self.buf[name_end..end].fill(0);
        self.used = end;
        true
    }

    fn put<T: Plain>(&mut self, value: &T) {
        let bytes = abi::bytes_of(value);
        self.buf[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: entries are laid out as the kernel reads them and never past the end. Method: golden bytes, then a
    /// buffer one byte too short.
    #[test]
    fn entries_are_packed_and_padded() {
        let mut buf = [0xff_u8; 64];
        let mut dir = DirBuffer::new(&mut buf, false, 4096);
        let entry = DirEntryOut { name: b"abc", ino: 7, kind: FileKind::Directory, cookie: 9 };
        assert!(dir.push(&entry));
        assert_eq!(dir.len(), 32);
        assert!(dir.push(&entry));
        assert!(!dir.push(&entry));
        assert_eq!(dir.len(), 64);
        let golden: [u8; 32] = [
            7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, b'a', b'b', b'c', 0, 0,
            0, 0, 0,
        ];
        assert_eq!(&buf[..32], golden);
        let mut short = [0_u8; 31];
        assert!(!DirBuffer::new(&mut short, false, 4096).push(&entry));
    }

    /// Goal: in READDIRPLUS an entry without attributes has node 0. Method: look at the first field.
    #[test]
    fn plus_without_attributes_counts_no_lookup() {
        let mut buf = [0xff_u8; 160];
        let mut dir = DirBuffer::new(&mut buf, true, 4096);
        assert!(dir.push(&DirEntryOut { name: b".", ino: 1, kind: FileKind::Directory, cookie: 1 }));
        assert_eq!(dir.len(), 160);
        assert_eq!(buf[..8], [0; 8]);
    }
}
