//! Goal: no stored bytes make a map's decoder panic or take much memory, and what decodes is a consistent map with this
//! encoding and no other. Method: [`fuzzing`] of heads, of chunks, and of a head with all of its chunks.
#![allow(clippy::unwrap_used, reason = "a test")]

use fuzzing::fuzz;
use layout::*;
use types::TierId;

/// SAUs of all kinds, in three chunks.
fn record() -> ObjectRecord {
    let mut map = SauMap::new();
    let at = |n| SauIndex::new(n).unwrap();
    for n in [0, 1, 2, 7, 300, 301, 1000] {
        map.note_replaced(at(n), TierId::Memory);
    }
    for n in [1, 7, 300, 1000] {
        map.note_copied(at(n), TierId::Ssd, Some(Seal { crc: 0x1122_3344, len: 5 + n })).unwrap();
    }
    assert!(map.set(at(5), Sau::LOST));
    let pending_truncate = Some(1 << 33);
    ObjectRecord {
        map,
        memory_generation: 3,
        pending_truncate,
        mapped: true,
        synced_size: 77,
        linked_len: 66,
    }
}

fn mend(bytes: &mut Vec<u8>) {
    if bytes.len() > 4 {
        bytes.truncate(bytes.len() - 4);
        let crc = crc32c::crc32c(bytes);
        bytes.extend(crc.to_le_bytes());
    }
}

#[test]
fn fuzz_object_head() {
    let good = [record().encode(), ObjectRecord::default().encode()];
    fuzz("object-head", &good, mend, |bytes| {
        let Ok(head) = ObjectRecord::decode(bytes) else { return };
        let missing = head.missing();
        if let Ok(read) = head.finish() {
            read.map.check().unwrap();
            assert_eq!(missing, 0);
            assert_eq!(read.encode(), bytes);
        }
    });
}

#[test]
fn fuzz_object_chunk() {
    let record = record();
    let head = ObjectRecord::decode(&record.encode()).unwrap();
    let number_of = |bytes: &[u8]| bytes.get(1..5).map_or(0, |n| u32::from_le_bytes(n.try_into().unwrap()));
    let good: Vec<_> = record.map.changed().map(|n| record.encode_chunk(n).unwrap()).collect();
    fuzz("object-chunk", &good, mend, |bytes| {
        let (mut partial, number) = (head.clone(), number_of(bytes));
        if partial.add(number, bytes).is_err() {
            return;
        }
        // The other chunk that the head speaks of.
        let last = SauIndex::new((number + 1) * 256);
        let Some(last) = last else { return };
        let mut other = SauMap::new();
        assert!(other.set(last, Sau::LOST));
        let other = ObjectRecord { map: other, ..ObjectRecord::default() };
        partial.add(number + 1, &other.encode_chunk(number + 1).unwrap()).unwrap();
        let read = partial.finish().unwrap();
        read.map.check().unwrap();
        assert_eq!(read.encode_chunk(number).unwrap(), bytes);
    });
}

/// Chunks as a scan finds them, whatever the numbers in their keys.
#[test]
fn fuzz_object_parts() {
    let record = record();
    let part = |number: u32, bytes: &[u8]| [&number.to_le_bytes()[..], &[bytes.len() as u8], bytes].concat();
    let chunks: Vec<u8> =
        record.map.changed().flat_map(|n| part(n, &record.encode_chunk(n).unwrap())).collect();
    let good = [part(0, &record.encode()), chunks].concat();
    /// The parts' numbers and bytes.
    fn split(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut parts = Vec::new();
        while let Some(([a, b, c, d, len], rest)) = bytes.split_first_chunk() {
            let (part, rest) = rest.split_at(rest.len().min(usize::from(*len)));
            parts.push((u32::from_le_bytes([*a, *b, *c, *d]), part.to_vec()));
            bytes = rest;
        }
        parts
    }
    let mend_all = |bytes: &mut Vec<u8>| {
        let mended = split(bytes).into_iter().flat_map(|(number, mut bytes)| {
            mend(&mut bytes);
            [&number.to_le_bytes()[..], &[bytes.len() as u8], &bytes].concat()
        });
        *bytes = mended.collect();
    };
    fuzz("object-parts", &[good], mend_all, |bytes| {
        let parts = split(bytes);
        let Some(((_, head), chunks)) = parts.split_first() else { return };
        let Ok(mut partial) = ObjectRecord::decode(head) else { return };
        if chunks.iter().any(|(number, chunk)| partial.add(*number, chunk).is_err()) {
            return;
        }
        let Ok(read) = partial.finish() else { return };
        read.map.check().unwrap();
        assert_eq!(read.encode(), *head);
        for (number, chunk) in chunks {
            assert_eq!(read.encode_chunk(*number).as_ref(), Some(chunk));
        }
    });
}
