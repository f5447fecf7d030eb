//! `onfs top`: asks all servers of a cluster for their counters, again and again.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
    thread,
    time::{Duration, Instant},
};

use net::{Address, Client};
use prost::Message;
use proto::watch::{ClusterNow, Counted, Counters, WATCH_BYTES_MAX};

use super::cluster_call::{Cluster, ask};
use crate::{
    args::TopArgs,
    exit::{Failure, Outcome},
    render,
    top::{Asked, Round, TopReport, between},
};

/// A server that does not answer holds a round up no longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// To the first line of a terminal, and everything below it away.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub fn top(args: &TopArgs) -> Outcome {
    let cluster = Cluster::named(&args.which.config(), args.cluster.as_deref())?;
    let mut servers = Servers { cluster, known: BTreeMap::new() };
    let screen = !args.output.json && io::stdout().is_terminal();
    let most = if args.once { Some(1) } else { args.count };
    let mut before = servers.round()?;
    let mut due = Instant::now();
    let mut shown = 0;
    while most.is_none_or(|most| shown < most) {
        // No faster after a slow round: what is shown is of a second at least.
        due = (due + args.interval.0).max(Instant::now());
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let after = match servers.round() {
            Ok(after) => after,
            // It may be back in a moment; who asked once wants to know.
            Err(failure) if most.is_some() => return Err(failure),
            Err(failure) => {
                if screen {
                    render::print(&format!("{}\n", failure.message))?;
                }
                continue;
            }
        };
        show(&between(&before, &after), args, screen)?;
        before = after;
        shown += 1;
    }
    Ok(())
}

fn show(report: &TopReport, args: &TopArgs, screen: bool) -> Outcome {
    if args.output.json {
        let line = serde_json::to_string(report).map_err(|error| Failure::failed(error.to_string()))?;
        return render::print(&format!("{line}\n"));
    }
    if screen {
        let mut out = io::stdout().lock();
        // The table behind it says if the terminal is gone.
        let _ = out.write_all(CLEAR.as_bytes());
    }
    render::print(&render::top(report, args.rows))
}

/// A connection to each server, kept between rounds.
struct Servers {
    cluster: Cluster,
    known: BTreeMap<u64, Known>,
}

struct Known {
    name: String,
    addresses: Vec<String>,
    clients: Vec<Client>,
}

impl Servers {
    /// All servers at the same time.
    fn round(&mut self) -> Outcome<Round> {
        let now = self.cluster.now()?;
        self.learn(&now);
        let asked: Vec<Asked> = thread::scope(|scope| {
            let begun: Vec<_> = self
                .known
                .iter()
                .map(|(node, known)| (*node, &known.name, scope.spawn(|| counted(&known.clients))))
                .collect();
            begun
                .into_iter()
                .map(|(node, name, thread)| {
                    let counted = thread.join().unwrap_or_else(|_| Err("asking it failed".to_owned()));
                    Asked { node, name: name.clone(), counted }
                })
                .collect()
        });
        let hosts = now.clients.into_iter().map(|client| (client.client, client.host)).collect();
        Ok(Round { servers: asked, hosts })
    }

    fn learn(&mut self, now: &ClusterNow) {
        let metadata: Vec<String> = self.cluster.metadata().iter().map(ToString::to_string).collect();
        let mut servers = BTreeMap::from([(now.node, (now.name.clone(), metadata))]);
        for node in &now.nodes {
            let report = &node.report;
            // A node with both roles is one server, where it is asked already.
            servers.entry(report.node).or_insert_with(|| (report.name.clone(), report.addresses.clone()));
        }
        self.known.retain(|node, known| {
            servers.get(node).is_some_and(|(name, at)| (name, at) == (&known.name, &known.addresses))
        });
        for (node, (name, addresses)) in servers {
            let parsed: Vec<Address> = addresses.iter().filter_map(|text| text.parse().ok()).collect();
            self.known.entry(node).or_insert_with(|| Known {
                clients: parsed.iter().map(|address| self.cluster.client(address, Some(node))).collect(),
                name,
                addresses,
            });
        }
    }
}

/// Of the first address that answers.
fn counted(clients: &[Client]) -> Result<Counted, String> {
    let mut last = "it has no address".to_owned();
    for client in clients {
        match ask(client, &Counters {}, WATCH_BYTES_MAX, PATIENCE) {
            Ok((_, body)) => return Counted::decode(&body[..]).map_err(|error| error.to_string()),
            Err(why) => last = why,
        }
    }
    Err(last)
}
