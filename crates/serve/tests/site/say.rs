//! What is logged, with ONFS_TEST_LOG set.
use std::fmt::Write;

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

struct Say(std::time::Instant);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Say {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        let level = if about.target().contains("replica")
            || about.target().contains("views")
            || about.target().contains("tending")
        {
            Level::DEBUG
        } else {
            Level::WARN
        };
        *about.level() <= level
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{:.3} {}", self.0.elapsed().as_secs_f64(), event.metadata().target()));
        event.record(&mut line);
        eprintln!("{}", line.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

pub fn begin() {
    if std::env::var_os("ONFS_TEST_LOG").is_some() {
        let _ = tracing::subscriber::set_global_default(Say(std::time::Instant::now()));
    }
}
