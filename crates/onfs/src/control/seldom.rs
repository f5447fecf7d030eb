//! Log lines that others can cause: seldom enough that nobody fills a disk with them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::access::Peer;

/// One line in this time.
const EVERY: Duration = Duration::from_secs(10);
/// Characters of somebody else's text in a line.
const SHOWN_MAX: usize = 300;

/// The kinds of lines of one server.
#[derive(Default)]
pub struct Lines {
    refused: Seldom,
    pub failed: Seldom,
    pub not_accepted: Seldom,
}

impl Lines {
    /// A user asks for more than his share.
    pub fn refusal(&self, peer: &Peer, why: &str) {
        if let Some(left_out) = self.refused.due(Instant::now()) {
            tracing::warn!(uid = peer.uid, pid = peer.pid, left_out, "commands are refused: {why}");
        }
    }
}

/// One kind of line.
#[derive(Default)]
pub struct Seldom(Mutex<Past>);

#[derive(Default)]
struct Past {
    written: Option<Instant>,
    left_out: u64,
}

impl Seldom {
    /// May a line be written now? Then how many were left out before it.
    pub fn due(&self, now: Instant) -> Option<u64> {
        let mut past = self.0.lock();
        if past.written.is_some_and(|at| now.saturating_duration_since(at) < EVERY) {
            past.left_out += 1;
            return None;
        }
        past.written = Some(now);
        Some(std::mem::take(&mut past.left_out))
    }
}

/// Text that holds what a client sent, such as a path: without control characters, and not longer than a line should be.
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    for char in text.chars().take(SHOWN_MAX) {
        if char.is_control() { shown.extend(char.escape_debug()) } else { shown.push(char) }
    }
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    //! Goal: a flood of reasons is one line that counts them. Method: a clock of the test.
    use super::*;

    #[test]
    fn a_flood_is_one_line_and_a_count() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.due(start), Some(0));
        for ms in 0..1000 {
            assert_eq!(seldom.due(start + Duration::from_millis(ms)), None);
        }
        assert_eq!(seldom.due(start + EVERY), Some(1000));
        assert_eq!(seldom.due(start + EVERY * 3), Some(0));
    }

    #[test]
    fn regression_a_path_forges_no_line() {
        assert_eq!(shown("/it's \"ä\""), "/it's \"ä\"");
        assert_eq!(shown("/a\nERROR all is lost\u{1b}[31m"), "/a\\nERROR all is lost\\u{1b}[31m");
        assert!(shown(&"x".repeat(100_000)).len() < 2 * SHOWN_MAX);
    }
}
