//! Brings the machines of a plan up, and takes them down.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use types::SLOTS;

use super::{
    database::{Database, Installed},
    network::{Network, on},
    place::Place,
    plan::{Host, Plan, Role},
    programs::done,
};
use crate::{
    control::{Client, MdsReport, NodeReport, SOCKET_NAME},
    exit::{Exit, Failure, Outcome, system_text},
    mounts,
};

/// For all servers to be in the map, and for each to end.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A cluster that is up; taken down when it goes.
#[derive(Debug)]
pub struct Cluster {
    pub plan: Plan,
    /// This program.
    program: PathBuf,
    is_down: bool,
    // In the order in which they go.
    database: Option<Database>,
    _network: Network,
    _place: Place,
}

impl Cluster {
    /// `step` gets what is done, before it is; an error of it ends the coming up.
    pub fn up(plan: Plan, step: &mut dyn FnMut(&str) -> Outcome) -> Outcome<Cluster> {
        let program = std::env::current_exe().map_err(|error| Failure::failed(error.to_string()))?;
        let installed = if plan.has_database() { Some(Installed::find()?) } else { None };
        let place = Place::make(&plan.dir).map_err(|error| failed(&plan.dir, &error))?;
        step("namespaces and a switch between them")?;
        let network = Network::up(&plan)?;
        let mut cluster =
            Cluster { plan, program, is_down: false, database: None, _network: network, _place: place };
        cluster.begin()?;
        if let Some(installed) = installed {
            step("a PostgreSQL server for the names")?;
            cluster.database = Some(Database::up(installed, &cluster.plan)?);
        }
        for host in cluster.plan.servers() {
            step(&format!("server {}", host.name))?;
            cluster.serve(host)?;
        }
        step("all servers in the cluster map")?;
        cluster.wait_for_servers()?;
        if cluster.plan.has_several() {
            step("all metadata servers with their share, and a standby that has all of it")?;
            cluster.wait_for_shares()?;
        }
        for host in cluster.plan.of(Role::Client) {
            step(&format!("client {}", host.name))?;
            cluster.mount(host)?;
        }
        Ok(cluster)
    }

    /// Where the clients have it mounted.
    pub fn mountpoints(&self) -> Vec<PathBuf> {
        self.plan.of(Role::Client).map(|host| self.plan.mountpoint(host)).collect()
    }

    fn on(&self, host: &Host) -> Command {
        on(&self.plan.namespace(host), &self.program)
    }

    fn begin(&self) -> Outcome {
        done(Command::new(&self.program).args(["cluster", "init"]).arg(self.plan.cluster_dir()))?;
        for host in &self.plan.hosts {
            let dirs = match host.role {
                Role::Metadata | Role::Standby => vec![],
                Role::Data | Role::Nearline => vec![self.plan.tier(host)],
                Role::Client => vec![self.plan.mountpoint(host)],
            };
            for dir in [self.plan.state(host)].into_iter().chain(dirs) {
                fs::create_dir_all(&dir).map_err(|error| failed(&dir, &error))?;
            }
        }
        for host in self.plan.servers() {
            let file = self.plan.config(host);
            fs::write(&file, self.plan.config_text(host)).map_err(|error| failed(&file, &error))?;
        }
        Ok(())
    }

    pub fn serve(&self, host: &Host) -> Outcome {
        done(self.on(host).args(["server", "--config"]).arg(self.plan.config(host))).map(drop)
    }

    fn mount(&self, host: &Host) -> Outcome {
        let mut command = self.on(host);
        command.args(["mount", "--config", "none", "--cluster-key"]).arg(self.plan.key());
        command.arg("--state").arg(self.plan.state(host));
        command.arg("--set").arg(format!("monitor.listen=unix:{}", self.plan.metrics(host).display()));
        command.args(["-o", "allow_other"]).arg(self.plan.source()).arg(self.plan.mountpoint(host));
        done(&mut command).map(drop)
    }

    fn wait_for_servers(&self) -> Outcome {
        let Some(metadata) = self.plan.of(Role::Metadata).next() else { return Ok(()) };
        let (wanted, end) = (self.plan.servers().count(), Instant::now() + PATIENCE);
        loop {
            let mut command = self.on(metadata);
            command
                .args(["node", "list", "--json", "--config", "none", "--cluster-key"])
                .arg(self.plan.key());
            let listed = done(command.arg(self.plan.source()))?;
            let nodes: Vec<NodeReport> = serde_json::from_slice(&listed.stdout)
                .map_err(|error| Failure::failed(format!("the list of nodes: {error}")))?;
            let up = nodes.iter().filter(|node| node.state == "up").count();
            if up == wanted {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Failure::new(Exit::TimedOut, format!("{up} of {wanted} servers are up")));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// What each metadata server has.
    pub fn shares(&self) -> Outcome<Vec<MdsReport>> {
        let (client, metadata) = (self.plan.of(Role::Client).next(), self.plan.of(Role::Metadata).next());
        let (Some(client), Some(metadata)) = (client, metadata) else { return Ok(Vec::new()) };
        // The configuration names all of them, and any one answers.
        let mut command = self.on(client);
        let listed =
            done(command.args(["mds", "list", "--json", "--config"]).arg(self.plan.config(metadata)))?;
        serde_json::from_slice(&listed.stdout)
            .map_err(|error| Failure::failed(format!("the list of metadata servers: {error}")))
    }

    /// Until then directories that are made go to who has more, and nobody could go on for who dies.
    pub fn wait_for_shares(&self) -> Outcome {
        let (count, end) = (self.plan.of(Role::Metadata).count() as u64, Instant::now() + PATIENCE);
        let enough = u64::from(SLOTS) / count / 2;
        loop {
            let shares = self.shares()?;
            let is_copied = |share: &MdsReport| share.standby.as_ref().is_some_and(|it| it.complete);
            let served = shares.iter().filter(|share| share.slots >= enough && is_copied(share));
            let served = served.count() as u64;
            if served == count {
                return Ok(());
            }
            if Instant::now() > end {
                let why = format!("{served} of {count} metadata servers have their share and a standby");
                return Err(Failure::new(Exit::TimedOut, why));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// As `kill -9`: nothing that it has is settled.
    pub fn kill(&self, host: &Host) -> Outcome {
        let state = self.plan.state(host);
        let pid = daemon_pid(&state).ok_or_else(|| Failure::failed(format!("{} does not run", host.name)))?;
        kill_process(pid, Signal::KILL).map_err(|error| Failure::failed(format!("{}: {error}", host.name)))
    }

    /// Ends all, the clients first, the metadata servers last and then their database. The first error is told after everything was tried.
    pub fn down(mut self) -> Outcome {
        self.take_down()
    }

    fn take_down(&mut self) -> Outcome {
        if std::mem::replace(&mut self.is_down, true) {
            return Ok(());
        }
        let mut first = Ok(());
        for host in self.plan.hosts.iter().rev() {
            let ended = match host.role {
                Role::Client => self.unmount(host),
                Role::Data | Role::Nearline | Role::Metadata | Role::Standby => self.end(host),
            };
            first = first.and(ended);
        }
        first.and(self.database.take().map_or(Ok(()), Database::down))
    }

    fn unmount(&self, host: &Host) -> Outcome {
        let place = self.plan.mountpoint(host);
        if !is_mounted(&place) {
            return Ok(());
        }
        let ended = done(Command::new(&self.program).args(["umount", "--timeout", "60s"]).arg(&place));
        if ended.is_err() {
            let _ = mounts::detach(&place, true);
            end_process(&self.plan.state(host));
        }
        ended.map(drop)
    }

    fn end(&self, host: &Host) -> Outcome {
        let state = self.plan.state(host);
        let ended = end_process(&state);
        // The memory tier stays for a server that comes again.
        let memory = state.join("memory");
        if is_mounted(&memory) {
            let _ = mounts::detach(&memory, true);
        }
        if ended {
            Ok(())
        } else {
            Err(Failure::new(Exit::TimedOut, format!("server {} did not end and was killed", host.name)))
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.take_down();
    }
}

/// As the kernel knows who listens there: a number in a file may be another's by now.
fn daemon_pid(state: &Path) -> Option<Pid> {
    Client::connect(&state.join(SOCKET_NAME)).ok()?.daemon_pid()
}

/// `false`: it had to be killed.
fn end_process(state: &Path) -> bool {
    let Some(pid) = daemon_pid(state) else { return true };
    let _ = kill_process(pid, Signal::TERM);
    let end = Instant::now() + PATIENCE;
    while test_kill_process(pid).is_ok() {
        if Instant::now() > end {
            let _ = kill_process(pid, Signal::KILL);
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    true
}

fn is_mounted(place: &Path) -> bool {
    mounts::mounts().is_ok_and(|all| all.iter().any(|one| one.mountpoint == place))
}

fn failed(what: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("{}: {}", what.display(), system_text(error)))
}
