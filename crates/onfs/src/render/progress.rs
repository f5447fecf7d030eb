//! Progress of what takes long: a bar on a terminal, an occasional line elsewhere; always on standard error.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{out::plain, units};
use crate::control::{Progress, Unit};

/// Without a terminal, a line this often.
const LINE_EVERY: Duration = Duration::from_secs(10);
const BAR: &str = "{prefix} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left {wide_msg}";
const SPINNER: &str = "{prefix} {spinner} {bytes} {wide_msg}";
const ITEMS_BAR: &str = "{prefix} [{bar:30}] {pos} of {len}, {eta} left {wide_msg}";
const ITEMS_SPINNER: &str = "{prefix} {spinner} {pos} {wide_msg}";

/// Shows the progress of one thing.
pub struct Meter {
    name: String,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Meter {
    pub fn new(name: &str) -> Meter {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
            bar.set_prefix(name.to_owned());
            bar
        });
        Meter { name: name.to_owned(), bar, last_line: Instant::now() }
    }

    pub fn show(&mut self, progress: &Progress) {
        match &self.bar {
            Some(bar) => draw(bar, progress),
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                let line = line(&self.name, progress);
                // Progress is a courtesy: a closed standard error does not fail the command.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            None => {}
        }
    }

    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn draw(bar: &ProgressBar, progress: &Progress) {
    let known = progress.total > 0;
    if bar.length() != Some(progress.total) || bar.position() == 0 {
        let template = match (progress.unit, known) {
            _ if progress.total == 0 && progress.done == 0 => "{prefix} {spinner} {wide_msg}",
            (Unit::Bytes, true) => BAR,
            (Unit::Bytes, false) => SPINNER,
            (Unit::Items, true) => ITEMS_BAR,
            (Unit::Items, false) => ITEMS_SPINNER,
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("##."));
        }
        bar.set_length(progress.total);
    }
    bar.set_position(progress.done);
    bar.set_message(plain(&progress.what));
}

fn line(name: &str, progress: &Progress) -> String {
    let shown = |n| match progress.unit {
        Unit::Bytes => units::bytes(n),
        Unit::Items => units::count(n),
    };
    let done = shown(progress.done);
    if progress.total == 0 && progress.done == 0 {
        return format!("{name}: {}", progress.what);
    }
    if progress.total == 0 {
        return format!("{name}: {done} {}", progress.what).trim_end().to_owned();
    }
    let percent = units::percent(progress.done, progress.total);
    format!("{name}: {done} of {} ({percent}%) {}", shown(progress.total), progress.what)
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    //! Goal: lines for logs say how far it is. Method: known and unknown totals.
    use super::*;

    #[test]
    fn lines_say_how_far() {
        let step = |total| Progress { done: 1 << 20, total, what: "a/b".into(), ..Progress::default() };
        assert_eq!(line("flush", &step(4 << 20)), "flush: 1.0 MiB of 4.0 MiB (25%) a/b");
        assert_eq!(line("flush", &step(0)), "flush: 1.0 MiB a/b");
    }

    #[test]
    fn regression_counts_are_not_shown_as_bytes() {
        let step = |total, what: &str| Progress { done: 12_000, total, unit: Unit::Items, what: what.into() };
        assert_eq!(line("checking", &step(40_000, "objects")), "checking: 12 000 of 40 000 (30%) objects");
        assert_eq!(line("counting", &step(0, "entries of /d")), "counting: 12 000 entries of /d");
    }
}
