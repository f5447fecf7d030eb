//! Where a file's data are, as it is stored; and a cut that is not finished.
//!
//! Record, version 1, little-endian (`docs/data-model.md`), under the key `inode, T`:
//! version u8 | generation u32 | unit u64 | stripes u16 | cut u8 | cut size u64 | stripes to be cut u64 | node u64 of each stripe

use cluster::striping::Striped;
use proto::{Layout, data::Object, layout::STRIPES_MAX};
use types::Ino;

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 32;

/// A cut to `size` of the stripes with a bit has begun, and is finished before anything else is done with the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    pub size: u64,
    pub stripes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    pub layout: Layout,
    pub cut: Option<Cut>,
}

impl Placed {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Layout { generation, unit, stripes } = &self.layout;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + 8 * stripes.len());
        bytes.push(VERSION);
        bytes.extend(generation.to_le_bytes());
        bytes.extend(unit.to_le_bytes());
        bytes.extend((stripes.len() as u16).to_le_bytes());
        let cut = self.cut.unwrap_or(Cut { size: 0, stripes: 0 });
        bytes.push(self.cut.is_some().into());
        bytes.extend(cut.size.to_le_bytes());
        bytes.extend(cut.stripes.to_le_bytes());
        stripes.iter().for_each(|node| bytes.extend(node.to_le_bytes()));
        bytes
    }

    /// `None`: not such a record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Placed> {
        let (head, nodes) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let number = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let generation = u32::from_le_bytes(head.get(1..5)?.try_into().ok()?);
        let count = usize::from(u16::from_le_bytes(head.get(13..15)?.try_into().ok()?));
        let (cut, size, stripes) = (head[15], number(16)?, number(24)?);
        if head[0] != VERSION || cut > 1 || nodes.len() != 8 * count || count > STRIPES_MAX {
            return None;
        }
        let nodes = nodes.chunks_exact(8).filter_map(|node| node.try_into().ok().map(u64::from_le_bytes));
        let layout = Layout { generation, unit: number(5)?, stripes: nodes.collect() };
        let in_bounds = count == STRIPES_MAX || stripes >> count == 0;
        let good = layout.check().is_ok() && in_bounds && (cut == 1 || (size, stripes) == (0, 0));
        good.then(|| Placed { layout, cut: (cut == 1).then_some(Cut { size, stripes }) })
    }

    /// `None` for no layout that was checked.
    pub(crate) fn striped(&self) -> Option<Striped> {
        Striped::new(self.layout.unit, self.layout.stripes.len())
    }

    pub(crate) fn object(&self, ino: Ino) -> Object {
        Object { ino: ino.get(), generation: self.layout.generation }
    }

    /// A bit for each stripe.
    pub(crate) fn all(&self) -> u64 {
        let count = self.layout.stripes.len();
        if count >= 64 { u64::MAX } else { (1 << count) - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed() -> Placed {
        let layout = Layout { generation: 1, unit: 4 << 20, stripes: vec![3, 0x0102] };
        Placed { layout, cut: Some(Cut { size: 5, stripes: 2 }) }
    }

    #[test]
    fn golden_bytes() {
        let golden = b"\x01\x01\0\0\0\0\0\x40\0\0\0\0\0\x02\0\x01\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
            \x03\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0";
        assert_eq!(placed().encode(), golden);
        assert_eq!(Placed::decode(golden), Some(placed()));
        assert_eq!(placed().all(), 3);
    }

    /// Goal: what is stored is a layout within its bounds or none. Method: fuzzing.
    #[test]
    fn fuzz_placed() {
        let good = [placed().encode(), Placed { cut: None, ..placed() }.encode()];
        fuzzing::fuzz("placed", &good, fuzzing::as_it_is, |bytes| {
            if let Some(placed) = Placed::decode(bytes) {
                assert_eq!(placed.encode(), bytes);
                assert_eq!(placed.layout.check(), Ok(()));
            }
        });
    }
}
