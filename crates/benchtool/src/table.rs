//! Medians and ratios, as a table and as JSON. The last target is the one that is judged.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    measure::Sample,
    work::{Group, Unit},
};

/// One row of the results.
#[derive(Serialize, Debug)]
pub struct Row {
    pub group: String,
    pub phase: String,
    pub unit: &'static str,
    /// Median per target.
    pub rate: BTreeMap<String, f64>,
    /// The judged target's rate over each other's: median of the rounds' own ratios.
    pub ratio: BTreeMap<String, f64>,
    /// Microseconds of CPU of a target's process per operation.
    pub cpu_us_per_operation: BTreeMap<String, f64>,
}

#[derive(Serialize, Debug)]
pub struct Results<'a> {
    pub judged: &'a str,
    pub rows: Vec<Row>,
}

/// The samples of a target: of each round, those of each phase.
type Rounds = Vec<Vec<Sample>>;

pub struct Table {
    targets: Vec<String>,
    samples: Vec<(Group, BTreeMap<String, Rounds>)>,
    header: bool,
}

impl Table {
    pub fn new(targets: Vec<String>) -> Table {
        Table { targets, samples: Vec::new(), header: false }
    }

    pub fn add(&mut self, group: &Group, target: &str, samples: Vec<Sample>) {
        if self.samples.last().is_none_or(|(last, _)| last != group) {
            self.samples.push((*group, BTreeMap::new()));
        }
        if let Some((_, by_target)) = self.samples.last_mut() {
            by_target.entry(target.to_owned()).or_default().push(samples);
        }
    }

    fn judged(&self) -> &str {
        self.targets.last().map_or("", String::as_str)
    }

    fn rows(&self, group: &Group) -> Vec<Row> {
        let Some((_, by_target)) = self.samples.iter().find(|(g, _)| g == group) else { return Vec::new() };
        let unit = match group.unit() {
            Unit::MegabytesPerSecond => "MB/s",
            Unit::PerSecond => "1/s",
        };
        let phases = group.phases().iter().enumerate();
        phases
            .map(|(n, phase)| {
                let of = |target: &str| -> Vec<Sample> {
                    by_target.get(target).into_iter().flatten().filter_map(|s| s.get(n).copied()).collect()
                };
                let judged = of(self.judged());
                let mut row = Row {
                    group: group.title(),
                    phase: (*phase).to_owned(),
                    unit,
                    rate: BTreeMap::new(),
                    ratio: BTreeMap::new(),
                    cpu_us_per_operation: BTreeMap::new(),
                };
                for target in &self.targets {
                    let samples = of(target);
                    if let Some(rate) = median(samples.iter().map(|s| s.rate)) {
                        row.rate.insert(target.clone(), rate);
                    }
                    // Round by round: neighbours in time are what can be compared.
                    let ratios = judged.iter().zip(&samples).map(|(a, b)| a.rate / b.rate);
                    if target != self.judged()
                        && let Some(ratio) = median(ratios)
                    {
                        row.ratio.insert(target.clone(), ratio);
                    }
                    let seconds: Option<f64> = samples.iter().map(|s| s.cpu_seconds).sum();
                    let operations: u64 = samples.iter().map(|s| s.operations).sum();
                    if let Some(seconds) = seconds
                        && operations > 0
                    {
                        row.cpu_us_per_operation.insert(target.clone(), seconds * 1e6 / operations as f64);
                    }
                }
                row
            })
            .collect()
    }

    pub fn print_group(&mut self, group: &Group) {
        if !self.header {
            self.header = true;
            print!("{:<31} {:<22} {:>5}", "what", "phase", "unit");
            for target in &self.targets {
                print!(" {target:>9}");
            }
            for target in self.targets.iter().filter(|t| *t != self.judged()) {
                print!(" {:>8}", format!("/{target}"));
            }
            println!(" {:>8}", "cpu us");
        }
        for row in self.rows(group) {
            print!("{:<31} {:<22} {:>5}", row.group, row.phase, row.unit);
            for target in &self.targets {
                print!(" {:>9}", row.rate.get(target).map_or("-".into(), |r| figure(*r)));
            }
            for target in self.targets.iter().filter(|t| *t != self.judged()) {
                print!(" {:>8}", row.ratio.get(target).map_or("-".into(), |r| format!("{r:.2}")));
            }
            let cpu = row.cpu_us_per_operation.get(self.judged());
            println!(" {:>8}", cpu.map_or("-".into(), |us| format!("{us:.1}")));
        }
    }

    pub fn print_footer(&self) {
        println!(
            "Medians. /NAME is the rate of {} over that of NAME; cpu us is its process's CPU per operation.",
            self.judged()
        );
    }

    pub fn results(&self) -> Results<'_> {
        let rows = self.samples.iter().flat_map(|(group, _)| self.rows(group)).collect();
        Results { judged: self.judged(), rows }
    }
}

fn figure(rate: f64) -> String {
    match rate {
        r if r >= 10_000.0 => format!("{:.1}k", r / 1e3),
        r if r >= 100.0 => format!("{r:.0}"),
        r => format!("{r:.2}"),
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    match all.len() {
        0 => None,
        n if n % 2 == 1 => all.get(middle).copied(),
        _ => Some((all[middle - 1] + all[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_of_rounds() {
        let mut table = Table::new(vec!["other".into(), "judged".into()]);
        let group = Group::Random { jobs: 1 };
        let sample = |rate| Sample { rate, operations: 10, cpu_seconds: Some(0.001) };
        for (a, b) in [(100.0, 50.0), (10.0, 6.0), (1000.0, 100.0)] {
            table.add(&group, "other", vec![sample(a), sample(a), sample(a)]);
            table.add(&group, "judged", vec![sample(b), sample(b), sample(b)]);
        }
        let rows = table.rows(&group);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0].rate["other"], 100.0);
        assert_eq!(rows[0].ratio["other"], 0.5);
        assert!((rows[0].cpu_us_per_operation["judged"] - 100.0).abs() < 1e-6);
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([1.0, 3.0].into_iter()), Some(2.0));
    }
}
