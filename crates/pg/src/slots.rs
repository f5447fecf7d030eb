//! Slots: which of them a key belongs to.

/// The UGSDs' numbers are divided among so many.
pub const SLOTS: usize = 4096;

/// The slot of a key: its UGSD (the first three bytes, as if it went on with zeros) modulo [`SLOTS`]. What belongs to the whole file
/// system has the number 0, so its slot is 0.
pub fn slot_of(key: &[u8]) -> u16 {
    let byte = |i: usize| u16::from(key.get(i).copied().unwrap_or(0));
    (byte(1) << 8 | byte(2)) % SLOTS as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_is_the_number_modulo_4096() {
        for (key, slot) in [
            (&b""[..], 0),
            (&[9], 0),
            (&[0, 0, 1], 1),
            (&[0, 0x0f, 0xff, 7], 4095),
            (&[0, 0x10, 0], 0),
            (&[0xff, 0x12, 0x34, 0xff], 0x234),
            (&[0xff; 16], 4095),
        ] {
            assert_eq!(slot_of(key), slot, "{key:?}");
            let ugsd = key.iter().chain([&0; 3]).take(3).fold(0u32, |n, byte| n << 8 | u32::from(*byte));
            assert_eq!(u32::from(slot_of(key)), ugsd % SLOTS as u32);
        }
    }
}
