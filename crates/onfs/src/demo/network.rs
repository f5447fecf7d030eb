//! Network namespaces: one for each host, and one with the bridge between them.

use std::process::Command;

use super::{
    plan::{Host, Plan},
    programs::done,
};
use crate::exit::Outcome;

/// Of all demos of this machine.
pub const PREFIX: &str = "onfs-demo-";
const BRIDGE: &str = "br0";
/// At the host's end.
const DEVICE: &str = "eth0";

/// The namespaces of a plan, removed when it goes.
#[derive(Debug)]
pub struct Network(Vec<String>);

impl Network {
    pub fn prefix() -> String {
        format!("{PREFIX}{}-", std::process::id())
    }

    pub fn up(plan: &Plan) -> Outcome<Network> {
        let mut network = Network(Vec::new());
        let switch = plan.switch();
        network.add(&switch)?;
        ip(&["-n", &switch, "link", "add", "name", BRIDGE, "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", BRIDGE, "up"])?;
        for host in &plan.hosts {
            network.attach(plan, host, &switch)?;
        }
        Ok(network)
    }

    fn add(&mut self, name: &str) -> Outcome {
        ip(&["netns", "add", name])?;
        self.0.push(name.to_owned());
        Ok(())
    }

    fn attach(&mut self, plan: &Plan, host: &Host, switch: &str) -> Outcome {
        let (name, port) = (plan.namespace(host), format!("p{}", host.number));
        let address = format!("{}/24", Plan::address(host));
        self.add(&name)?;
        ip(&["-n", switch, "link", "add", &port, "type", "veth", "peer", "name", DEVICE, "netns", &name])?;
        ip(&["-n", switch, "link", "set", &port, "master", BRIDGE, "up"])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        ip(&["-n", &name, "addr", "add", &address, "dev", DEVICE])?;
        ip(&["-n", &name, "link", "set", DEVICE, "up"])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = delete(name);
        }
    }
}

fn ip(words: &[&str]) -> Outcome {
    done(Command::new("ip").args(words)).map(drop)
}

/// A command that runs on that host: what it connects to and listens at is the host's.
pub fn on(namespace: &str, program: &std::path::Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg("--").arg(program);
    command
}

/// The same, as another user.
pub fn on_as(namespace: &str, (user, group): (u32, u32), program: &std::path::Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}"));
    command.arg(format!("--setuid={user}")).arg(format!("--setgid={group}")).arg("--").arg(program);
    command
}

/// The namespaces of all demos of this machine.
pub fn all() -> Outcome<Vec<String>> {
    let listed = done(Command::new("ip").args(["netns", "list"]))?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| name.starts_with(PREFIX)).map(str::to_owned).collect())
}

/// The processes there.
pub fn processes(namespace: &str) -> Outcome<Vec<i32>> {
    let listed = done(Command::new("ip").args(["netns", "pids", namespace]))?;
    Ok(String::from_utf8_lossy(&listed.stdout).lines().filter_map(|pid| pid.trim().parse().ok()).collect())
}

pub fn delete(namespace: &str) -> Outcome {
    ip(&["netns", "delete", namespace])
}
