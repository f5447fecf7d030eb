//! Where a file's data are, as it is stored; and a cut that is not finished.
//!
//! Record, version 1, little-endian (`docs/data-model.md`), under the key `inode, T`:
//! version u8 | generation u32 | unit u64 | stripes u16 | cut u8 | cut size u64 | stripes to be cut u64 | node u64 of each stripe
//!
//! Version 2, of a file of which a stripe was moved or is about to be, is followed by: generation u32 of each stripe | handing u8 | stripe u16 |
//! node u64 | attempt u64
//!
//! Version 3, of a file of two copies, is as version 2 followed by, for each stripe: number u64 | life of the primary u64 | since u64 | second u8 (1 there
//! is one, 2 it counts, 4 it kept what it had) | node u64 | life u64 | since u64; and then: count u8 | node u64 of each that may have something left

use cluster::striping::Striped;
use proto::{
    Layout,
    copies::{Member, Second, View},
    data::Object,
    layout::STRIPES_MAX,
};
use types::Ino;

const VERSION: u8 = 1;
const MOVED_VERSION: u8 = 2;
const TWOFOLD_VERSION: u8 = 3;
/// Data servers that had a copy and may have something left of it; those that had one longest ago are forgotten.
pub(crate) const LEFT_MAX: usize = 16;
const VIEW_BYTES: usize = 49;
const HEAD_BYTES: usize = 32;
const HANDING_BYTES: usize = 19;

/// A cut to `size` of the stripes with a bit has begun, and is finished before anything else is done with the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    pub size: u64,
    pub stripes: u64,
}

/// A hand-over of a stripe was asked for: whether its server has agreed, that says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handing {
    pub stripe: u16,
    pub to: u64,
    pub attempt: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    pub layout: Layout,
    pub cut: Option<Cut>,
    pub handing: Option<Handing>,
    /// Of two copies: data servers that may have something left.
    pub left: Vec<u64>,
}

impl Placed {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Layout { generation, unit, stripes, moved, views } = &self.layout;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + 8 * stripes.len());
        let as_first = moved.is_empty() && self.handing.is_none();
        bytes.push(match (views.is_empty(), as_first) {
            (false, _) => TWOFOLD_VERSION,
            (true, true) => VERSION,
            (true, false) => MOVED_VERSION,
        });
        bytes.extend(generation.to_le_bytes());
        bytes.extend(unit.to_le_bytes());
        bytes.extend((stripes.len() as u16).to_le_bytes());
        let cut = self.cut.unwrap_or(Cut { size: 0, stripes: 0 });
        bytes.push(self.cut.is_some().into());
        bytes.extend(cut.size.to_le_bytes());
        bytes.extend(cut.stripes.to_le_bytes());
        stripes.iter().for_each(|node| bytes.extend(node.to_le_bytes()));
        if !as_first {
            (0..stripes.len()).for_each(|n| bytes.extend(moved.get(n).unwrap_or(&0).to_le_bytes()));
            let handing = self.handing.unwrap_or(Handing { stripe: 0, to: 0, attempt: 0 });
            bytes.push(self.handing.is_some().into());
            bytes.extend(handing.stripe.to_le_bytes());
            bytes.extend(handing.to.to_le_bytes());
            bytes.extend(handing.attempt.to_le_bytes());
        }
        if !views.is_empty() {
            views.iter().for_each(|view| encode_view(view, &mut bytes));
            bytes.push(self.left.len() as u8);
            self.left.iter().for_each(|node| bytes.extend(node.to_le_bytes()));
        }
        bytes
    }

    /// `None`: not such a record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Placed> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let number = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let generation = u32::from_le_bytes(head.get(1..5)?.try_into().ok()?);
        let count = usize::from(u16::from_le_bytes(head.get(13..15)?.try_into().ok()?));
        let (cut, size, stripes) = (head[15], number(16)?, number(24)?);
        if cut > 1 || count > STRIPES_MAX || rest.len() < 8 * count {
            return None;
        }
        let (nodes, rest) = rest.split_at(8 * count);
        let nodes = nodes.chunks_exact(8).filter_map(|node| node.try_into().ok().map(u64::from_le_bytes));
        let nodes: Vec<u64> = nodes.collect();
        let moved_bytes = 4 * count + HANDING_BYTES;
        let (mut views, mut left) = (Vec::new(), Vec::new());
        let (moved, handing) = match (head[0], rest.len()) {
            (VERSION, 0) => (Vec::new(), None),
            (MOVED_VERSION, len) if len == moved_bytes => decode_moved(rest, count)?,
            (TWOFOLD_VERSION, len) if len > moved_bytes => {
                let (moved, rest) = rest.split_at(moved_bytes);
                (views, left) = decode_views(rest, &nodes)?;
                decode_moved(moved, count)?
            }
            _ => return None,
        };
        let layout = Layout { generation, unit: number(5)?, stripes: nodes, moved, views };
        let in_bounds = count == STRIPES_MAX || stripes >> count == 0;
        let handed = handing.is_none_or(|handing| usize::from(handing.stripe) < count && handing.to > 0);
        let good = layout.check().is_ok() && in_bounds && handed && (cut == 1 || (size, stripes) == (0, 0));
        good.then(|| Placed { layout, cut: (cut == 1).then_some(Cut { size, stripes }), handing, left })
    }

    /// `None` for no layout that was checked.
    pub(crate) fn striped(&self) -> Option<Striped> {
        Striped::new(self.layout.unit, self.layout.stripes.len())
    }

    /// Of a stripe.
    pub(crate) fn object(&self, ino: Ino, stripe: usize) -> Object {
        self.layout.object(ino.get(), stripe)
    }

    /// Each stripe's node and object.
    pub(crate) fn objects(&self, ino: Ino) -> impl Iterator<Item = (u64, Object)> + '_ {
        self.layout.stripes.iter().enumerate().map(move |(stripe, node)| (*node, self.object(ino, stripe)))
    }

    /// Who else has something of it: seconds, and those that may have something left. For what is about all copies, without views.
    pub(crate) fn other_objects(&self, ino: Ino) -> impl Iterator<Item = (u64, Object)> + '_ {
        let seconds =
            self.layout.views.iter().enumerate().filter_map(|(n, view)| Some((n, view.second?.member.node)));
        let all = 0..self.layout.stripes.len();
        let left = self.left.iter().flat_map(move |node| all.clone().map(move |n| (n, *node)));
        seconds.chain(left).map(move |(n, node)| (node, self.object(ino, n)))
    }

    /// With another view of a stripe. Who is in it no more may have something left.
    pub(crate) fn with_view(&self, stripe: usize, view: View) -> Placed {
        let before = self.layout.views.get(stripe).copied();
        let layout = self.layout.with_view(stripe, view);
        let has = |node: u64| layout.views.iter().any(|view| view.all().any(|member| member.node == node));
        let gone =
            before.into_iter().flat_map(|view| view.all().map(|member| member.node).collect::<Vec<_>>());
        let mut left: Vec<u64> = self.left.iter().copied().chain(gone).filter(|node| !has(*node)).collect();
        left.dedup();
        let first = left.len().saturating_sub(LEFT_MAX);
        Placed { left: left.split_off(first), layout, ..self.clone() }
    }

    /// As it is when that hand-over is agreed to.
    pub(crate) fn handed_over(&self, handing: &Handing) -> Placed {
        let layout = self.layout.with_moved(usize::from(handing.stripe), handing.to);
        Placed { layout, cut: self.cut, handing: None, left: self.left.clone() }
    }

    /// A bit for each stripe.
    pub(crate) fn all(&self) -> u64 {
        let count = self.layout.stripes.len();
        if count >= 64 { u64::MAX } else { (1 << count) - 1 }
    }
}

fn encode_view(view: &View, bytes: &mut Vec<u8>) {
    let View { number, primary, since, second } = view;
    bytes.extend(number.to_le_bytes());
    bytes.extend(primary.life.to_le_bytes());
    bytes.extend(since.to_le_bytes());
    let flags = second.map_or(0, |second| 1 | u8::from(second.counts) << 1 | u8::from(second.kept) << 2);
    let second = second.unwrap_or_default();
    bytes.push(flags);
    bytes.extend(second.member.node.to_le_bytes());
    bytes.extend(second.member.life.to_le_bytes());
    bytes.extend(second.since.to_le_bytes());
}

fn decode_views(bytes: &[u8], primaries: &[u64]) -> Option<(Vec<View>, Vec<u64>)> {
    let (views, rest) = bytes.split_at_checked(VIEW_BYTES * primaries.len())?;
    let decoded = views.chunks_exact(VIEW_BYTES).zip(primaries).map(|(bytes, node)| {
        let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let flags = *bytes.get(24)?;
        let second = Second {
            member: Member { node: number(25)?, life: number(33)? },
            since: number(41)?,
            counts: flags & 2 != 0,
            kept: flags & 4 != 0,
        };
        let is_none = flags == 0 && second == Second::default();
        (flags & !7 == 0 && (is_none || flags & 1 == 1)).then_some(View {
            number: number(0)?,
            primary: Member { node: *node, life: number(8)? },
            since: number(16)?,
            second: (!is_none).then_some(second),
        })
    });
    let views = decoded.collect::<Option<Vec<View>>>()?;
    let (count, nodes) = rest.split_first()?;
    let left: Vec<u64> =
        nodes.chunks_exact(8).filter_map(|node| node.try_into().ok().map(u64::from_le_bytes)).collect();
    let good = usize::from(*count) <= LEFT_MAX && nodes.len() == 8 * usize::from(*count);
    good.then_some((views, left))
}

fn decode_moved(rest: &[u8], count: usize) -> Option<(Vec<u32>, Option<Handing>)> {
    let (moved, handing) = rest.split_at_checked(4 * count)?;
    let moved: Vec<u32> =
        moved.chunks_exact(4).filter_map(|one| one.try_into().ok().map(u32::from_le_bytes)).collect();
    // All of them or none.
    let moved = if moved.iter().all(|generation| *generation == 0) { Vec::new() } else { moved };
    let (&there, handing) = handing.split_first()?;
    let (stripe, handing) = handing.split_first_chunk::<2>()?;
    let (to, attempt) = handing.split_first_chunk::<8>()?;
    let attempt = u64::from_le_bytes(attempt.try_into().ok()?);
    let handing = Handing { stripe: u16::from_le_bytes(*stripe), to: u64::from_le_bytes(*to), attempt };
    match there {
        0 if handing == (Handing { stripe: 0, to: 0, attempt: 0 }) && !moved.is_empty() => {
            Some((moved, None))
        }
        1 => Some((moved, Some(handing))),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn placed() -> Placed {
        let layout =
            Layout { generation: 1, unit: 4 << 20, stripes: vec![3, 0x0102], moved: vec![], views: vec![] };
        Placed { layout, cut: Some(Cut { size: 5, stripes: 2 }), handing: None, left: vec![] }
    }

    fn handing() -> Placed {
        Placed { handing: Some(Handing { stripe: 1, to: 4, attempt: 5 << 32 }), ..placed() }
    }

    #[test]
    fn golden_bytes() {
        let golden = b"\x01\x01\0\0\0\0\0\x40\0\0\0\0\0\x02\0\x01\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
            \x03\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0";
        assert_eq!(placed().encode(), golden);
        assert_eq!(Placed::decode(golden), Some(placed()));
        assert_eq!(placed().all(), 3);
        let golden = b"\x02\x01\0\0\0\0\0\x40\0\0\0\0\0\x02\0\x01\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
            \x03\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x01\0\x04\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0";
        assert_eq!(handing().encode(), golden);
        assert_eq!(Placed::decode(golden), Some(handing()));
        let moved = handing().handed_over(&handing().handing.unwrap());
        assert_eq!((moved.layout.stripes.clone(), moved.layout.moved.clone()), (vec![3, 4], vec![1, 2]));
        assert_eq!(Placed::decode(&moved.encode()), Some(moved));
    }

    fn twofold() -> Placed {
        let member = |node| Member { node, life: 0x0807 };
        let layout = Layout::twofold(4 << 20, &[(member(3), Some(member(4))), (member(4), None)]);
        Placed { layout, cut: None, handing: None, left: vec![9] }
    }

    #[test]
    fn golden_bytes_of_two_copies() {
        let golden = b"\x03\0\0\0\x80\0\0\x40\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
            \x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\x80\0\0\0\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
            \x01\0\0\0\0\0\0\0\x07\x08\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x03\x04\0\0\0\0\0\0\0\
            \x07\x08\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\
            \x01\0\0\0\0\0\0\0\x07\x08\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
            \0\0\0\0\0\0\0\0\x01\x09\0\0\0\0\0\0\0";
        assert_eq!(twofold().encode(), golden);
        assert_eq!(Placed::decode(golden), Some(twofold()));
    }

    #[test]
    fn who_is_left_out_may_have_something_left() {
        let view = twofold().layout.views[0];
        let alone = View { number: 2, second: None, ..view };
        // It is the primary of the other stripe.
        assert_eq!(twofold().with_view(0, alone).left, vec![9]);
        let next = View { number: 2, primary: Member { node: 9, life: 1 }, since: 2, second: None };
        let placed = twofold().with_view(0, next);
        assert_eq!((placed.left.clone(), placed.layout.stripes.clone()), (vec![3], vec![9, 4]));
        assert_eq!(Placed::decode(&placed.encode()), Some(placed));
    }

    /// Goal: what is stored is a layout within its bounds or none. Method: fuzzing.
    #[test]
    fn fuzz_placed() {
        let moved = handing().handed_over(&Handing { stripe: 0, to: 9, attempt: 1 });
        let good = [placed(), Placed { cut: None, ..placed() }, handing(), moved, twofold()]
            .map(|placed| placed.encode());
        fuzzing::fuzz("placed", &good, fuzzing::as_it_is, |bytes| {
            if let Some(placed) = Placed::decode(bytes) {
                assert_eq!(placed.encode(), bytes);
                assert_eq!(placed.layout.check(), Ok(()));
            }
        });
    }
}
