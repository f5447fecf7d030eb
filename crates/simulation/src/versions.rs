//! What something was, and when: the values that an answer may have are those that held at some moment of its call.

use std::time::Duration;

#[derive(Clone, Debug)]
struct Version<V> {
    from: Duration,
    /// `None`: it holds.
    until: Option<Duration>,
    value: V,
}

#[derive(Clone, Debug)]
pub struct Versions<V>(Vec<Version<V>>);

impl<V: PartialEq> Versions<V> {
    pub fn begin(value: V) -> Versions<V> {
        Versions(vec![Version { from: Duration::ZERO, until: None, value }])
    }

    pub fn latest(&self) -> Option<&V> {
        self.0.last().map(|version| &version.value)
    }

    /// It is this from now on, and nothing else.
    pub fn push(&mut self, now: Duration, value: V) {
        self.end_others(now);
        if let Some(last) = self.0.last_mut() {
            last.until.get_or_insert(now);
        }
        self.0.push(Version { from: now, until: None, value });
    }

    /// A power cut took away what it was. Who was told of that may still say so.
    pub fn revert(&mut self, now: Duration, value: V) {
        if self.latest() != Some(&value) {
            self.0.push(Version { from: now, until: None, value });
        }
    }

    /// Nobody says any more what a power cut took away.
    pub fn end_others(&mut self, now: Duration) {
        let last = self.0.len().saturating_sub(1);
        for version in self.0.iter_mut().take(last) {
            version.until.get_or_insert(now);
        }
    }

    /// Did it have such a value at some moment of this time?
    pub fn held(&self, from: Duration, to: Duration, is: impl Fn(&V) -> bool) -> bool {
        let during = |v: &&Version<V>| v.from <= to && v.until.is_none_or(|until| until >= from);
        // The latest are at the end.
        self.0.iter().rev().filter(during).any(|version| is(&version.value))
    }
}
