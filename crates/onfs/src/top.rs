//! What the servers of a cluster did between two looks at their counters, by server and by client.
//!
//! Pure: two rounds of counters in, rates out, the most loaded first.

use std::collections::BTreeMap;

use proto::watch::{Counted, Load};
use serde::{Deserialize, Serialize};

use crate::watched::client_name;

/// What was asked once of a cluster.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Round {
    pub servers: Vec<Asked>,
    /// Of the clients, by their numbers.
    pub hosts: BTreeMap<u64, String>,
}

/// A server, and what it said, or why it said nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct Asked {
    pub node: u64,
    pub name: String,
    pub counted: Result<Counted, String>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct TopReport {
    pub interval_ms: u64,
    pub servers: Vec<ServerRates>,
    pub clients: Vec<ClientRates>,
    /// Servers without counters of both looks: they did not answer, or were just started.
    pub silent: Vec<Silent>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ServerRates {
    pub node: u64,
    pub name: String,
    /// `metadata`, `data`.
    pub roles: Vec<String>,
    /// Requests that wait or are carried out now.
    pub waiting: u64,
    #[serde(flatten)]
    pub rates: Rates,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ClientRates {
    pub client: String,
    /// Where it is; a server's name if it is one.
    pub host: String,
    #[serde(flatten)]
    pub rates: Rates,
}

/// Per second.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Rates {
    pub requests_per_second: f64,
    pub errors_per_second: f64,
    /// As servers see it: what clients wrote, and what they read.
    pub received_bytes_per_second: f64,
    pub sent_bytes_per_second: f64,
    /// Of a request, on average, at the server.
    pub latency_ms: f64,
    /// Requests that were at servers at the same time, on average.
    pub load: f64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Silent {
    pub name: String,
    pub why: String,
}

/// What was done between the two.
pub fn between(before: &Round, after: &Round) -> TopReport {
    let mut report = TopReport::default();
    let mut clients: BTreeMap<u64, Rates> = BTreeMap::new();
    for server in &after.servers {
        let silent = |why: &str| Silent { name: server.name.clone(), why: why.to_owned() };
        let now = match &server.counted {
            Ok(now) => now,
            Err(why) => {
                report.silent.push(silent(why));
                continue;
            }
        };
        let earlier = before.servers.iter().filter(|earlier| earlier.node == server.node);
        let earlier = earlier.filter_map(|earlier| earlier.counted.as_ref().ok());
        // The counters of another life say nothing of this one.
        let Some(then) = earlier.into_iter().find(|then| then.incarnation == now.incarnation) else {
            report.silent.push(silent("it was not there a moment ago"));
            continue;
        };
        let micros = now.at_us.saturating_sub(then.at_us).max(1);
        report.interval_ms = report.interval_ms.max(micros / 1000);
        report.servers.push(server_rates(server, then, now, micros));
        for (client, load) in client_loads(then, now) {
            let sum = clients.entry(client).or_default();
            *sum = sum.and(&Rates::of(&load, micros));
        }
    }
    report.clients = clients
        .into_iter()
        .filter(|(_, rates)| rates.requests_per_second > 0.0)
        .map(|(client, rates)| ClientRates {
            client: client_name(client),
            host: host_of(client, after),
            rates,
        })
        .collect();
    report.servers.sort_by(|a, b| b.rates.order(&a.rates));
    report.clients.sort_by(|a, b| b.rates.order(&a.rates));
    report
}

fn server_rates(server: &Asked, then: &Counted, now: &Counted, micros: u64) -> ServerRates {
    let sum = |of: &Counted| of.metadata.unwrap_or_default().and(&of.data.unwrap_or_default());
    let roles = [(now.metadata.is_some(), "metadata"), (now.data.is_some(), "data")];
    ServerRates {
        node: server.node,
        name: server.name.clone(),
        roles: roles.iter().filter(|(has, _)| *has).map(|(_, name)| (*name).to_owned()).collect(),
        waiting: now.waiting,
        rates: Rates::of(&sum(now).since(&sum(then)), micros),
    }
}

fn client_loads(then: &Counted, now: &Counted) -> Vec<(u64, Load)> {
    let earlier: BTreeMap<u64, Load> = then.clients.iter().map(|one| (one.client, one.load)).collect();
    let since = |client, load: &Load| load.since(earlier.get(client).unwrap_or(&Load::default()));
    now.clients.iter().map(|one| (one.client, since(&one.client, &one.load))).collect()
}

fn host_of(client: u64, round: &Round) -> String {
    let server = || round.servers.iter().find(|server| server.node == client && client != 0);
    match (round.hosts.get(&client), server()) {
        (Some(host), _) => host.clone(),
        (None, Some(server)) => format!("{} (server)", server.name),
        (None, None) if client == 0 => "others".to_owned(),
        (None, None) => "unknown".to_owned(),
    }
}

impl Rates {
    fn of(load: &Load, micros: u64) -> Rates {
        let per_second = |n: u64| n as f64 * 1e6 / micros as f64;
        let rates = Rates {
            requests_per_second: per_second(load.requests),
            errors_per_second: per_second(load.errors),
            received_bytes_per_second: per_second(load.received),
            sent_bytes_per_second: per_second(load.sent),
            latency_ms: 0.0,
            load: load.micros as f64 / micros as f64,
        };
        rates.with_latency()
    }

    fn and(&self, other: &Rates) -> Rates {
        let rates = Rates {
            requests_per_second: self.requests_per_second + other.requests_per_second,
            errors_per_second: self.errors_per_second + other.errors_per_second,
            received_bytes_per_second: self.received_bytes_per_second + other.received_bytes_per_second,
            sent_bytes_per_second: self.sent_bytes_per_second + other.sent_bytes_per_second,
            latency_ms: 0.0,
            load: self.load + other.load,
        };
        rates.with_latency()
    }

    /// What is there at once is what comes in a second times how long it stays.
    fn with_latency(self) -> Rates {
        let seconds = if self.requests_per_second > 0.0 { self.load / self.requests_per_second } else { 0.0 };
        Rates { latency_ms: seconds * 1000.0, ..self }
    }

    fn order(&self, other: &Rates) -> std::cmp::Ordering {
        let by = |of: &Rates| (of.load, of.requests_per_second);
        by(self).partial_cmp(&by(other)).unwrap_or(std::cmp::Ordering::Equal)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: rates are of what came between two looks, by server and by client. Method: counters of known loads.
    use proto::watch::ClientLoad;

    use super::*;

    fn load(requests: u64, micros: u64) -> Load {
        Load { requests, errors: 1, received: requests * 100, sent: 7, micros }
    }

    fn counted(node: u64, at_us: u64, load: Load, clients: &[(u64, Load)]) -> Counted {
        let clients =
            clients.iter().map(|(client, load)| ClientLoad { client: *client, load: *load }).collect();
        Counted { node, incarnation: 5, at_us, data: Some(load), clients, ..Counted::default() }
    }

    fn round(servers: Vec<Result<Counted, String>>) -> Round {
        let asked = |(n, counted)| Asked { node: n as u64 + 1, name: format!("n{}", n + 1), counted };
        let hosts = BTreeMap::from([(70, "h70".to_owned())]);
        Round { servers: servers.into_iter().enumerate().map(asked).collect(), hosts }
    }

    #[test]
    fn rates_are_of_what_came_between() {
        let start = |node| counted(node, 1_000_000, load(10, 100), &[(70, load(10, 100))]);
        let before = round(vec![Ok(start(1)), Ok(start(2))]);
        let one = counted(1, 3_000_000, load(30, 1_000_100), &[(70, load(30, 1_000_100))]);
        let two =
            counted(2, 3_000_000, load(410, 200_100), &[(70, load(110, 100_100)), (1, load(300, 100_000))]);
        let report = between(&before, &round(vec![Ok(one), Ok(two)]));
        assert_eq!(report.interval_ms, 2000);
        let servers: Vec<_> =
            report.servers.iter().map(|s| (s.name.as_str(), s.rates.requests_per_second)).collect();
        assert_eq!(servers, [("n1", 10.0), ("n2", 200.0)], "by load, not by requests");
        let first = &report.servers[0].rates;
        assert_eq!((first.received_bytes_per_second, first.errors_per_second), (1000.0, 0.0));
        assert!((first.latency_ms - 50.0).abs() < 1e-9 && (first.load - 0.5).abs() < 1e-9, "{first:?}");
        let clients: Vec<_> =
            report.clients.iter().map(|c| (c.host.as_str(), c.rates.requests_per_second)).collect();
        assert_eq!(clients, [("h70", 60.0), ("n1 (server)", 150.0)]);
    }

    #[test]
    fn counters_that_cannot_be_compared_are_not() {
        let before = round(vec![
            Ok(counted(1, 0, load(10, 1), &[])),
            Err("away".into()),
            Ok(counted(3, 0, load(1, 1), &[])),
        ]);
        let anew = Counted { incarnation: 6, ..counted(1, 9, load(5, 1), &[]) };
        let after = round(vec![Ok(anew), Ok(counted(2, 9, load(5, 1), &[])), Err("no connection".into())]);
        let report = between(&before, &after);
        assert!(report.servers.is_empty() && report.clients.is_empty());
        assert_eq!(report.silent.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["n1", "n2", "n3"]);
        assert_eq!(report.silent[2].why, "no connection");
    }
}
