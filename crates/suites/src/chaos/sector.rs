//! Bytes that say themselves what they are: of a block of 4 KiB each 512 bytes have the file, the block, the sector and the version, and all the rest
//! follows from these.

use crate::random::mix;

pub const SECTOR: usize = 512;
pub const BLOCK: usize = 4096;
const MAGIC: u64 = 0x6f6e_6673_6368_616f;

fn fill(out: &mut [u8], (file, block, sector, version): (u32, u32, u32, u32)) {
    let id = u64::from(file) << 32 | u64::from(block);
    let place = u64::from(sector) << 32 | u64::from(version);
    for (n, word) in out.chunks_exact_mut(8).enumerate() {
        let value = match n {
            0 => MAGIC,
            1 => id,
            2 => place,
            n => mix(id ^ mix(place ^ mix(n as u64))),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The bytes of a version of a block.
pub fn make(file: u32, block: u32, version: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    for (sector, out) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        fill(out, (file, block, sector as u32, version));
    }
    bytes
}

/// The version of each sector of a block; what is behind the end of the file counts as zeros.
pub fn versions(file: u32, block: u32, bytes: &[u8]) -> Result<Vec<u32>, String> {
    let mut whole = bytes.to_vec();
    whole.resize(BLOCK, 0);
    whole.chunks_exact(SECTOR).enumerate().map(|(n, found)| version(file, block, n as u32, found)).collect()
}

fn version(file: u32, block: u32, sector: u32, found: &[u8]) -> Result<u32, String> {
    if found.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let version = found[16..20].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let mut expected = vec![0; SECTOR];
    fill(&mut expected, (file, block, sector, version));
    match found.iter().zip(&expected).position(|(a, b)| a != b) {
        None => Ok(version),
        Some(at) => {
            let head = &found[..32];
            Err(format!(
                "WRONG BYTES in file {file}, block {block}, sector {sector}, from byte {at} on: {head:02x?}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_known_again_and_nothing_else() {
        let mut bytes = make(3, 70_000, 9);
        assert_eq!(versions(3, 70_000, &bytes), Ok(vec![9; 8]));
        assert!(versions(3, 70_001, &bytes).is_err() && versions(4, 70_000, &bytes).is_err());
        bytes[..SECTOR].fill(0);
        assert_eq!(versions(3, 70_000, &bytes), Ok(vec![0, 9, 9, 9, 9, 9, 9, 9]));
        assert_eq!(versions(3, 70_000, &bytes[..1024]), Ok(vec![0, 9, 0, 0, 0, 0, 0, 0]));
        bytes[BLOCK - 1] ^= 1;
        assert!(versions(3, 70_000, &bytes).is_err());
    }
}
