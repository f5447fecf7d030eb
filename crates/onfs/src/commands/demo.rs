//! `onfs demo`.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::inspect::status_of;
use crate::{
    args::DemoArgs,
    control::SOCKET_NAME,
    demo::{
        Amount, Cluster, DemoReport, Host, Installed, Network, Plan, Role, Sizes, Stored, Workload, clean,
        take_over,
    },
    exit::{Failure, Outcome, system_text},
    render::{self, AnyStatus},
};

/// Sockets have short paths, and a tier of memory is no place for an SSD.
const PARENT: &str = "/var/tmp";

/// How to use one that is held.
#[derive(Debug, Serialize)]
struct Held {
    dir: PathBuf,
    source: String,
    cluster_key: PathBuf,
    mounts: Vec<PathBuf>,
    namespaces: Vec<String>,
    hosts: Vec<HeldHost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    database: Option<String>,
}

/// A node of it. Its process is the first line of `onfs.pid` in its state directory.
#[derive(Debug, Serialize)]
struct HeldHost {
    name: String,
    role: Role,
    /// Of a server, in the cluster map.
    number: u32,
    namespace: String,
    address: String,
    state: PathBuf,
    /// A socket, for HTTP.
    metrics: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<PathBuf>,
}

impl HeldHost {
    fn of(plan: &Plan, host: &Host) -> HeldHost {
        HeldHost {
            name: host.name.clone(),
            role: host.role,
            number: host.number,
            namespace: plan.namespace(host),
            address: Plan::address(host),
            state: plan.state(host),
            metrics: plan.metrics(host),
            config: (host.role != Role::Client).then(|| plan.config(host)),
        }
    }
}

pub fn demo(args: &DemoArgs) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::usage("the demo needs root: it makes network namespaces and mounts"));
    }
    if args.clean {
        let removed = clean(Path::new(PARENT))?;
        return removed.iter().try_for_each(|name| render::print(&format!("removed {name}\n")));
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())
            .map_err(|error| Failure::failed(error.to_string()))?;
    }
    let mut say = |text: &str| {
        if interrupted.load(Ordering::SeqCst) {
            return Err(Failure::failed("interrupted; the demo was taken down"));
        }
        // Progress, which nobody has to read.
        let _ = writeln!(io::stderr(), "demo: {text}");
        Ok(())
    };
    let (metadata, standbys) = metadata_servers(args, &mut say)?;
    let sizes = Sizes {
        metadata,
        standbys,
        data: args.data,
        nearline: args.nearline,
        clients: args.clients,
        postgres: args.postgres,
        memory: args.memory,
    };
    let prefix = Network::prefix();
    let plan = Plan::new(&Path::new(PARENT).join(prefix.trim_end_matches('-')), &prefix, sizes);
    if args.kill && !plan.has_several() {
        let why = "--kill: with one metadata server and no standby nobody could go on";
        return Err(Failure::usage(why).hint("--metadata 2, or --standby 1"));
    }
    say(&plan.text())?;
    let cluster = Cluster::up(plan, &mut say)?;
    if args.hold {
        show_held(&cluster, args)?;
        while !interrupted.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(100));
        }
        return cluster.down();
    }
    let report = use_it(&cluster, args, &mut say)?;
    say("taking it down")?;
    cluster.down()?;
    if args.output.json { render::json(&report) } else { render::print(&render::demo(&report)) }
}

/// How many, and how many standbys. Without a word about it two and one, where that is possible.
fn metadata_servers(args: &DemoArgs, say: &mut dyn FnMut(&str) -> Outcome) -> Outcome<(u32, u32)> {
    let metadata = match (args.metadata, Installed::find()) {
        (Some(metadata), _) => metadata,
        (None, Err(why)) if args.standby.is_none_or(|standby| standby == 0) && !args.kill => {
            say(&format!("one metadata server and no standby: {} (several need it)", why.message))?;
            1
        }
        (None, Err(why)) => return Err(why),
        (None, Ok(_)) => 2,
    };
    Ok((metadata, args.standby.unwrap_or(u32::from(metadata > 1))))
}

fn use_it(cluster: &Cluster, args: &DemoArgs, say: &mut dyn FnMut(&str) -> Outcome) -> Outcome<DemoReport> {
    let amount = Amount { size: args.size.0, files: args.files };
    let workload = Workload { mounts: cluster.mountpoints(), amount };
    let failed = |error: io::Error| Failure::failed(format!("the workload: {}", system_text(&error)));
    let mut ended = None;
    let run = workload.run(&mut |part| {
        say(part).map_err(|failure| {
            ended = Some(failure);
            io::ErrorKind::Interrupted.into()
        })
    });
    let mut rows = match (run, ended) {
        (_, Some(failure)) => return Err(failure),
        (run, None) => run.map_err(failed)?,
    };
    let servers = stored(&cluster.plan)?;
    let metadata = cluster.shares()?;
    say("each removes its own")?;
    rows.push(workload.remove().map_err(failed)?);
    let take_over = if args.kill { Some(take_over(cluster, say)?) } else { None };
    Ok(DemoReport { workload: rows, servers, metadata, take_over })
}

fn stored(plan: &Plan) -> Outcome<Vec<Stored>> {
    let tiers = plan.servers().filter(|host| host.role.has_data()).map(|host| {
        let tiers = match status_of(&plan.state(host).join(SOCKET_NAME))? {
            AnyStatus::Server(report) => report.tiers,
            AnyStatus::Own(_) | AnyStatus::Cluster(_) => Vec::new(),
        };
        Ok(Stored { name: host.name.clone(), tiers })
    });
    tiers.collect()
}

fn show_held(cluster: &Cluster, args: &DemoArgs) -> Outcome {
    let plan = &cluster.plan;
    let held = Held {
        dir: plan.dir.clone(),
        source: plan.source(),
        cluster_key: plan.key(),
        mounts: cluster.mountpoints(),
        namespaces: plan.hosts.iter().map(|host| plan.namespace(host)).collect(),
        hosts: plan.hosts.iter().map(|host| HeldHost::of(plan, host)).collect(),
        database: plan.has_database().then(|| plan.database_url()),
    };
    if args.output.json {
        return render::json(&held);
    }
    let mounts: Vec<_> = held.mounts.iter().map(|mount| format!("  {}\n", mount.display())).collect();
    let several = plan.of(Role::Metadata).next().filter(|_| plan.has_several()).map(|host| {
        let (namespace, config) = (plan.namespace(host), plan.config(host));
        format!(
            "the metadata servers: nsenter --net=/run/netns/{namespace} onfs mds list --config {}\n",
            config.display()
        )
    });
    let database = held.database.map(|url| format!("the database, as root: psql '{url}'\n"));
    render::print(&format!(
        "mounted at\n{}on each host: nsenter --net=/run/netns/NAME COMMAND, with NAME of\n  {}\n\
         the nodes: nsenter --net=/run/netns/{} onfs node list --cluster-key {} {}\n{}{}\
         it is taken down when this command ends (Ctrl-C)\n",
        mounts.concat(),
        held.namespaces.join(" "),
        held.namespaces.first().map_or("", String::as_str),
        held.cluster_key.display(),
        held.source,
        several.unwrap_or_default(),
        database.unwrap_or_default(),
    ))
}
