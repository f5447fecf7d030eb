//! Seeded fuzzing of stored and received bytes, for the tests of the crates that decode them.
//!
//! A format gives good encodings, a way to make the checksums right again, and a check. Each case changes a good encoding a
//! little; in most of them the checksums are mended, so that what is behind them is reached. The check fails a case by
//! panicking: the decoder panicked, or what it took does not encode to the same bytes. A check must also get by with memory
//! in proportion to its input, whatever lengths and counts stand in it.
//!
//! `FUZZ_CASES` cases of each format, or of `FUZZ_FORMAT` alone, are run, beginning at `FUZZ_FIRST`, from the seed
//! `FUZZ_SEED`. Seed and number make a case; a failure prints them.

mod ending;
mod memory;
mod mutate;

use std::str::FromStr;

pub use ending::Ending;
use mutate::{Random, mutate};

/// When `FUZZ_CASES` says nothing: enough to notice what is plainly wrong.
const CASES: u64 = 2000;
/// What a decoder may hold, beside [`MEMORY_PER_BYTE`] of its input: an error's text, a parser's tables.
const MEMORY: u64 = 1 << 20;
/// Decoded forms are larger than stored ones; the largest is an object's map, 8 bytes for each of up to 256 units that one
/// run of 5 bytes speaks of.
const MEMORY_PER_BYTE: u64 = 512;
const COSTLY: u64 = 16;
/// Of a case that failed.
const SHOWN: usize = 400;

/// Runs the cases of the format `name`: `good` encodings are changed, mostly mended by `mend`, and checked by `check`.
pub fn fuzz(name: &str, good: &[Vec<u8>], mend: impl Fn(&mut Vec<u8>), check: impl Fn(&[u8])) {
    run(name, setting("FUZZ_CASES", CASES), good, mend, check);
}

/// As [`fuzz`], for a check that does much with what it decodes: one case where the others have [`COSTLY`].
pub fn fuzz_costly(name: &str, good: &[Vec<u8>], mend: impl Fn(&mut Vec<u8>), check: impl Fn(&[u8])) {
    run(name, setting("FUZZ_CASES", CASES).div_ceil(COSTLY), good, mend, check);
}

fn run(name: &str, cases: u64, good: &[Vec<u8>], mend: impl Fn(&mut Vec<u8>), check: impl Fn(&[u8])) {
    assert!(!good.is_empty(), "{name}: there is nothing to begin with");
    if std::env::var("FUZZ_FORMAT").is_ok_and(|only| only != name) {
        return;
    }
    let seed = setting("FUZZ_SEED", 1);
    let first: u64 = setting("FUZZ_FIRST", 0);
    for bytes in good {
        let mut mended = bytes.clone();
        mend(&mut mended);
        assert_eq!(mended, *bytes, "{name}: a good encoding has the checksums that mending gives");
        check(bytes);
    }
    let mut bytes = Vec::new();
    for number in first..first.saturating_add(cases) {
        let mut random = Random::new(seed, name, number);
        mutate(&mut random, good, &mut bytes);
        if random.below(8) != 0 {
            mend(&mut bytes);
        }
        let telling = Telling { name, seed, number, bytes: &bytes };
        let held = memory::peak(|| check(&bytes));
        let allowed = MEMORY + MEMORY_PER_BYTE * bytes.len() as u64;
        assert!(held <= allowed, "{held} bytes of memory for {} bytes of input", bytes.len());
        drop(telling);
    }
}

/// For formats without checksums.
pub fn as_it_is(_: &mut Vec<u8>) {}

fn setting<T: FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

/// Says which case it was when the check panics.
struct Telling<'a> {
    name: &'a str,
    seed: u64,
    number: u64,
    bytes: &'a [u8],
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Telling { name, seed, number, bytes } = self;
            let shown = &bytes[..bytes.len().min(SHOWN)];
            eprintln!(
                "format {name}, seed {seed}, case {number}, {} bytes: {}",
                bytes.len(),
                shown.escape_ascii()
            );
            eprintln!("again: tests/fuzz --format {name} --seed {seed} --first {number} --cases 1");
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a fuzzer that finds nothing must not be one that looks at nothing. Method: decoders with a planted fault each.
    use std::{
        cell::RefCell,
        collections::BTreeSet,
        panic::{AssertUnwindSafe, catch_unwind},
    };

    use super::*;

    /// A count, that many bytes, and their sum.
    fn good() -> Vec<Vec<u8>> {
        vec![sum(vec![3, 0, 0, 0, 7, 8, 9]), sum(vec![0, 0, 0, 0])]
    }

    fn sum(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.push(bytes.iter().fold(0, |sum, b| sum ^ b));
        bytes
    }

    fn mend(bytes: &mut Vec<u8>) {
        if bytes.pop().is_some() {
            *bytes = sum(std::mem::take(bytes));
        }
    }

    fn fails(check: impl Fn(&[u8])) -> bool {
        catch_unwind(AssertUnwindSafe(|| fuzz("planted", &good(), mend, check))).is_err()
    }

    fn count_of(bytes: &[u8]) -> Option<(usize, &[u8])> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let (last, body) = rest.split_last()?;
        let sum = bytes[..bytes.len() - 1].iter().fold(0, |sum, b| sum ^ b);
        (sum == *last).then_some((u32::from_le_bytes(*count) as usize, body))
    }

    #[test]
    fn a_careful_decoder_passes() {
        assert!(!fails(|bytes| {
            let _ = count_of(bytes).and_then(|(count, body)| body.get(..count));
        }));
    }

    #[test]
    fn a_count_that_is_believed_is_found() {
        assert!(fails(|bytes| {
            let _ = count_of(bytes).map(|(count, body)| body[..count].len());
        }));
    }

    #[test]
    fn memory_that_a_count_promises_is_found() {
        assert!(fails(|bytes| {
            let room = count_of(bytes).map(|(count, _)| Vec::<u8>::with_capacity(count));
            assert!(room.is_none_or(|room| room.is_empty()));
        }));
    }

    #[test]
    fn a_second_encoding_is_found() {
        assert!(fails(|bytes| {
            if let Some((count, body)) = count_of(bytes).filter(|(count, body)| body.len() >= *count) {
                let again = sum([&(count as u32).to_le_bytes()[..], &body[..count]].concat());
                assert_eq!(again, bytes);
            }
        }));
    }

    #[test]
    fn cases_come_again_and_differ() {
        let seen = RefCell::new(Vec::new());
        let collect = || {
            fuzz("collected", &good(), mend, |bytes| seen.borrow_mut().push(bytes.to_vec()));
            std::mem::take(&mut *seen.borrow_mut())
        };
        let (first, second) = (collect(), collect());
        assert!(first == second, "the same seed gives the same cases");
        let different: BTreeSet<_> = first.iter().collect();
        assert!(different.len() * 2 > first.len(), "{} of {} differ", different.len(), first.len());
    }
}
