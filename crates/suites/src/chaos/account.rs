//! What calls took, which errors they gave, and what was wrong.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use types::Errno;

/// Failures that are kept whole; more are counted.
const FAILURES_MAX: usize = 20;

#[derive(Default)]
pub struct Account {
    calls: Mutex<BTreeMap<&'static str, Calls>>,
    errors: Mutex<BTreeMap<(&'static str, String), u64>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    failures: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Calls {
    count: u64,
    longest: Duration,
    /// By the power of two of their microseconds, in eighths.
    buckets: BTreeMap<u32, u64>,
}

impl Calls {
    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.longest = self.longest.max(took);
        let micros = (took.as_micros() as f64).max(1.0);
        *self.buckets.entry((micros.log2() * 8.0) as u32).or_default() += 1;
    }

    /// So many of a thousand took no longer, within an eighth of a power of two.
    fn quantile(&self, of_thousand: u64) -> Duration {
        let wanted = (self.count * of_thousand).div_ceil(1000);
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return Duration::from_micros(2f64.powf(f64::from(bucket + 1) / 8.0) as u64)
                    .min(self.longest);
            }
        }
        self.longest
    }
}

impl Account {
    /// Makes a call, and counts it.
    pub fn call<R>(&self, what: &'static str, run: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let begun = Instant::now();
        let done = run();
        self.calls.lock().entry(what).or_default().add(begun.elapsed());
        if let Err(error) = &done {
            *self.errors.lock().entry((what, kind(error))).or_default() += 1;
        }
        done
    }

    pub fn count(&self, what: &'static str) {
        *self.counts.lock().entry(what).or_default() += 1;
    }

    pub fn fail(&self, what: String) {
        let mut failures = self.failures.lock();
        if failures.len() < FAILURES_MAX {
            // Now, too: what is wrong is looked for in the logs of that moment.
            eprintln!("WRONG: {what}");
        }
        failures.push(what);
    }

    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().clone()
    }

    /// The table of calls, the errors by kind and what was counted.
    pub fn report(&self) -> String {
        let mut lines = vec![format!(
            "{:<10} {:>9} {:>10} {:>10} {:>10} {:>10}",
            "call", "number", "p50 ms", "p99 ms", "p99.9 ms", "longest ms"
        )];
        let ms = |took: Duration| took.as_secs_f64() * 1000.0;
        for (what, calls) in self.calls.lock().iter() {
            let [half, most, nearly] = [500, 990, 999].map(|of| ms(calls.quantile(of)));
            let (count, longest) = (calls.count, ms(calls.longest));
            lines.push(format!(
                "{what:<10} {count:>9} {half:>10.2} {most:>10.1} {nearly:>10.1} {longest:>10.1}"
            ));
        }
        let errors = self.errors.lock();
        if errors.is_empty() {
            lines.push("no call had an error".to_owned());
        }
        lines.extend(errors.iter().map(|((what, kind), count)| format!("error of {what}: {kind}: {count}")));
        lines.extend(self.counts.lock().iter().map(|(what, count)| format!("{what}: {count}")));
        lines.join("\n")
    }
}

fn kind(error: &io::Error) -> String {
    let errno = Errno::ALL.iter().find(|errno| Some(errno.raw()) == error.raw_os_error());
    errno.map_or_else(|| error.to_string(), |errno| errno.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near() {
        let mut calls = Calls::default();
        (1..=1000).for_each(|n| calls.add(Duration::from_micros(n * 10)));
        let near = |found: Duration, want: u64| {
            let found = found.as_micros() as f64 / want as f64;
            assert!((0.9..1.15).contains(&found), "{found} of {want}");
        };
        near(calls.quantile(500), 5000);
        near(calls.quantile(990), 9900);
        assert_eq!(calls.quantile(1000), Duration::from_millis(10));
    }
}
