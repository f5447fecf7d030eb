//! The values of the metrics at one moment, and their text.

use std::{collections::BTreeMap, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, text::encode},
    metrics::MetricType,
    registry::Registry,
};
use proto::meter::{BOUNDS_US, Class, Meter};

use super::table::{Id, Kind};

const MICROS: f64 = 1e6;

/// Names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Labels(Vec<(&'static str, String)>);

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }
}

#[derive(Clone, Debug)]
enum Value {
    Whole(u64),
    Real(f64),
    /// Sum in seconds, how many, and how many in each class alone.
    Spread {
        sum: f64,
        count: u64,
        buckets: Vec<(f64, u64)>,
    },
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub struct Sample(BTreeMap<Id, Vec<(Labels, Value)>>);

impl Sample {
    /// `labels` are the values of the metric's labels, in their order.
    pub fn add(&mut self, id: Id, labels: &[&str], value: u64) {
        self.put(id, labels, Value::Whole(value));
    }

    pub fn add_real(&mut self, id: Id, labels: &[&str], value: f64) {
        self.put(id, labels, Value::Real(value));
    }

    fn put(&mut self, id: Id, labels: &[&str], value: Value) {
        let names = id.metric().labels;
        debug_assert_eq!(names.len(), labels.len(), "the labels of {id:?}");
        let labels = names.iter().zip(labels).map(|(name, value)| (*name, (*value).to_owned()));
        self.0.entry(id).or_default().push((Labels(labels.collect()), value));
    }

    /// The requests that a service answered.
    pub fn add_served(&mut self, service: &str, meter: &Meter) {
        for counts in meter.counts() {
            let at = [service, counts.method.name()];
            self.add(Id::ServerRequests, &at, counts.requests);
            self.add(Id::ServerReceived, &at, counts.received);
            self.add(Id::ServerSent, &at, counts.sent);
            for (class, errors) in errors(&counts.errors) {
                self.add(Id::ServerErrors, &[service, counts.method.name(), class], errors);
            }
            self.put(Id::ServerSeconds, &at, spread(&counts.buckets, counts.micros));
        }
        self.add(Id::ServerWaiting, &[service], meter.waiting());
        self.add(Id::ServerRefused, &[service], meter.refused());
    }

    /// The requests that a mount made.
    pub fn add_asked(&mut self, meter: &Meter) {
        for counts in meter.counts() {
            let at = [counts.method.name()];
            self.add(Id::ClientRequests, &at, counts.requests);
            self.add(Id::ClientReceived, &at, counts.received);
            self.add(Id::ClientSent, &at, counts.sent);
            for (class, errors) in errors(&counts.errors) {
                self.add(Id::ClientErrors, &[counts.method.name(), class], errors);
            }
            self.put(Id::ClientSeconds, &at, spread(&counts.buckets, counts.micros));
        }
        self.add(Id::ClientWaiting, &[], meter.waiting());
    }

    /// In the text format of OpenMetrics.
    pub fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        encode(&mut out, &registry)?;
        Ok(out)
    }
}

/// Those that there were.
fn errors(counts: &[u64]) -> impl Iterator<Item = (&'static str, u64)> {
    let classes = Class::ALL.iter().zip(counts).map(|(class, errors)| (class.name(), *errors));
    classes.filter(|(_, errors)| *errors > 0)
}

fn spread(counts: &[u64], micros: u64) -> Value {
    let bounds = BOUNDS_US.iter().map(|bound| *bound as f64 / MICROS).chain([f64::INFINITY]);
    Value::Spread {
        sum: micros as f64 / MICROS,
        count: counts.iter().sum(),
        buckets: bounds.zip(counts.iter().copied()).collect(),
    }
}

impl Collector for Sample {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (id, values) in &self.0 {
            let metric = id.metric();
            let (name, kind) = match metric.kind {
                // The encoder adds the ending.
                Kind::Counter => {
                    (metric.name.strip_suffix("_total").unwrap_or(metric.name), MetricType::Counter)
                }
                Kind::Gauge => (metric.name, MetricType::Gauge),
                Kind::Histogram => (metric.name, MetricType::Histogram),
            };
            let mut of_metric = encoder.encode_descriptor(name, metric.help, None, kind)?;
            for (labels, value) in values {
                match labels.0.is_empty() {
                    true => write(&mut of_metric, value, metric.kind)?,
                    false => write(&mut of_metric.encode_family(labels)?, value, metric.kind)?,
                }
            }
        }
        Ok(())
    }
}

fn write(encoder: &mut MetricEncoder<'_>, value: &Value, kind: Kind) -> fmt::Result {
    match (value, kind) {
        (Value::Whole(n), Kind::Counter) => encoder.encode_counter::<Labels, u64, f64>(n, None),
        (Value::Whole(n), Kind::Gauge | Kind::Histogram) => encoder.encode_gauge(n),
        (Value::Real(n), _) => encoder.encode_gauge(n),
        (Value::Spread { sum, count, buckets }, _) => {
            encoder.encode_histogram::<Labels>(*sum, *count, buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the text is what a monitoring system reads. Method: a small sample, compared line by line.
    use std::time::Duration;

    use proto::{Method, meter::Ended};
    use types::Errno;

    use super::*;

    #[test]
    fn a_sample_is_text() {
        let mut sample = Sample::default();
        sample.add(Id::TierUsed, &["memory"], 7);
        sample.add(Id::TierUsed, &["s\"d"], 8);
        sample.add(Id::FreedBytes, &[], 9);
        sample.add_real(Id::Start, &[], 1.5);
        let meter = Meter::default();
        for (error, micros) in [(None, 60), (Some(Errno::EIO), 40_000_000)] {
            meter.begin();
            let took = Duration::from_micros(micros);
            meter.end(Some(Method::Lookup), &Ended { error, took, received: 5, sent: 1 });
        }
        sample.add_served("metadata", &meter);
        let text = sample.text().unwrap();
        for line in [
            "# TYPE onfs_tier_used_bytes gauge",
            "# HELP onfs_tier_used_bytes Of it what is used",
            "onfs_tier_used_bytes{tier=\"memory\"} 7",
            "onfs_tier_used_bytes{tier=\"s\\\"d\"} 8",
            "# TYPE onfs_freed_bytes counter",
            "onfs_freed_bytes_total 9",
            "onfs_start_time_seconds 1.5",
            "onfs_server_requests_total{service=\"metadata\",method=\"Lookup\"} 2",
            "onfs_server_received_bytes_total{service=\"metadata\",method=\"Lookup\"} 10",
            "onfs_server_errors_total{service=\"metadata\",method=\"Lookup\",class=\"failed\"} 1",
            "onfs_server_request_seconds_sum{service=\"metadata\",method=\"Lookup\"} 40.00006",
            "onfs_server_request_seconds_count{service=\"metadata\",method=\"Lookup\"} 2",
            "onfs_server_request_seconds_bucket{le=\"0.00005\",service=\"metadata\",method=\"Lookup\"} 0",
            "onfs_server_request_seconds_bucket{le=\"0.0001\",service=\"metadata\",method=\"Lookup\"} 1",
            "onfs_server_request_seconds_bucket{le=\"30.0\",service=\"metadata\",method=\"Lookup\"} 1",
            "onfs_server_request_seconds_bucket{le=\"+Inf\",service=\"metadata\",method=\"Lookup\"} 2",
            "onfs_server_requests_waiting{service=\"metadata\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(!text.contains("class=\"full\""), "what never happened is not shown");
    }
}
