//! What happened, in order: for people, and as one number for comparing runs. It costs nothing when nobody wants it.

use std::time::Duration;

#[derive(Default)]
pub struct Trace {
    wanted: bool,
    hash: u64,
    pub lines: Vec<String>,
}

impl Trace {
    pub fn wanted(wanted: bool) -> Trace {
        Trace { wanted, hash: 0xcbf2_9ce4_8422_2325, lines: Vec::new() }
    }

    pub fn note(&mut self, time: Duration, what: impl FnOnce() -> String) {
        if !self.wanted {
            return;
        }
        let line = format!("{:>7.3} {}", time.as_secs_f64(), what());
        self.mix(line.as_bytes());
        self.lines.push(line);
    }

    /// Bytes that nobody wants to read.
    pub fn mix(&mut self, bytes: &[u8]) {
        if self.wanted {
            for byte in bytes {
                self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }
}
