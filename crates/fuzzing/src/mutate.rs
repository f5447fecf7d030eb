//! Changes to good encodings: flipped bits, wild numbers, lost, doubled and foreign parts, words of text formats.

/// Of one case. The state walks by a constant and is mixed on the way out (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, name: &str, number: u64) -> Random {
        let mut random = Random(seed);
        for part in name.bytes().map(u64::from).chain([number]) {
            random.0 = random.next() ^ part;
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Less than `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A part of something of `len` bytes, mostly short.
    fn part(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len + 1);
        let most = if self.below(4) == 0 { len } else { 16 };
        let end = start + self.below((len - start).min(most) + 1);
        start..end
    }
}

/// What text formats are made of.
const WORDS: [&[u8]; 16] = [
    b"\"",
    b"\\",
    b"\\u0000",
    b"\n",
    b"=",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"true",
    b"null",
    b"\xff",
];

/// Replaces `bytes` by one of `good` with up to 8 changes, mostly few.
pub(crate) fn mutate(random: &mut Random, good: &[Vec<u8>], bytes: &mut Vec<u8>) {
    bytes.clear();
    let one: &Vec<u8> = random.pick(good);
    bytes.extend_from_slice(one);
    let mut changes = 1;
    while changes < 8 && random.below(2) == 0 {
        changes += 1;
    }
    for _ in 0..changes {
        change(random, good, bytes);
    }
}

fn change(random: &mut Random, good: &[Vec<u8>], bytes: &mut Vec<u8>) {
    let len = bytes.len();
    match random.below(16) {
        0..=2 if len > 0 => bytes[random.below(len)] ^= 1 << random.below(8),
        3 if len > 0 => bytes[random.below(len)] = random.byte(),
        4..=6 => number(random, bytes),
        7 => digits(random, bytes),
        8 => bytes.truncate(random.below(len + 1)),
        9 => {
            let filling = if random.below(2) == 0 { 0 } else { random.byte() };
            bytes.resize(len + 1 + random.below(64), filling);
        }
        10 => drop(bytes.drain(random.part(len))),
        11 => {
            let part = bytes[random.part(len)].to_vec();
            let at = random.below(len + 1);
            bytes.splice(at..at, part);
        }
        12 => {
            // The front of this one, the back of another.
            let other = random.pick(good);
            let cut = random.below(other.len() + 1);
            // As often at the same place, where fields of the same meaning are.
            let at = if random.below(2) == 0 { cut.min(len) } else { random.below(len + 1) };
            bytes.truncate(at);
            bytes.extend_from_slice(&other[cut..]);
        }
        13 => {
            let from = random.part(len);
            let at = random.below(len - from.len() + 1);
            bytes.copy_within(from, at);
        }
        14 => {
            for at in random.part(len) {
                bytes[at] = random.byte();
            }
        }
        _ => {
            let at = random.below(len + 1);
            bytes.splice(at..at, random.pick(&WORDS).iter().copied());
        }
    }
}

/// A number of 1, 2, 4 or 8 bytes, in either order, set to a limit, to about a length, or changed by a little.
fn number(random: &mut Random, bytes: &mut [u8]) {
    let width = *random.pick(&[1, 2, 4, 4, 8, 8]);
    let Some(places) = bytes.len().checked_sub(width) else { return };
    let at = random.below(places + 1);
    let big_endian = random.below(4) == 0;
    let mut field = [0; 8];
    field[..width].copy_from_slice(&bytes[at..at + width]);
    if big_endian {
        field[..width].reverse();
    }
    let small = random.below(17) as u64;
    let value = match random.below(6) {
        0 => u64::from_le_bytes(field).wrapping_add(small).wrapping_sub(8),
        1 => small,
        2 => u64::MAX.wrapping_sub(small),
        3 => (1_u64 << (8 * width - 1)).wrapping_add(small).wrapping_sub(8),
        4 => (bytes.len() as u64).wrapping_add(small).wrapping_sub(8),
        _ => (1_u64 << random.below(64)).wrapping_sub(small % 2),
    };
    field = value.to_le_bytes();
    if big_endian {
        field[..width].reverse();
    }
    bytes[at..at + width].copy_from_slice(&field[..width]);
}

/// The same for a number in text.
fn digits(random: &mut Random, bytes: &mut Vec<u8>) {
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|at| bytes[*at].is_ascii_digit() && (*at == 0 || !bytes[*at - 1].is_ascii_digit()))
        .collect();
    if starts.is_empty() {
        return;
    }
    let start = *random.pick(&starts);
    let end = start + bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
    let value = match random.below(4) {
        0 => random.below(3) as u64,
        1 => u64::MAX - random.below(3) as u64,
        2 => (1_u64 << random.below(64)) - random.below(2) as u64,
        _ => random.next(),
    };
    bytes.splice(start..end, value.to_string().into_bytes());
}
