//! `onfs server`.

use std::io::Write;

use super::settings::{settings, wrong};
use crate::{
    args::ServerArgs,
    assemble::{self, StartContext},
    config::{Entry, Host, ServerConfig, Settings},
    daemon::{self, Duty, Ready},
    exit::Outcome,
    render,
};

pub fn server(args: &ServerArgs) -> Outcome {
    if args.daemon_child || args.foreground {
        let ready = if args.daemon_child { Ready::Parent } else { Ready::Foreground };
        let ended = prepared(args).and_then(|(_, config)| serve(&config, ready));
        return ended.map_err(|failure| ready.failed(failure));
    }
    let (settings, config) = prepared(args)?;
    let child = daemon::Child {
        command: "server",
        settings: &settings,
        concerns: &|_: &Entry| true,
        mountpoint: None,
        deadline: config.stores.mount.start_deadline,
    };
    let pid = daemon::launch(&child, &mut |note| {
        let _ = writeln!(std::io::stderr(), "onfs: {note}");
    })?;
    render::print(&format!(
        "node {} ({}) serves at {}: pid {pid}, state {}\n",
        config.node.id,
        config.node.name,
        config.node.listen,
        config.stores.mount.state.display()
    ))
}

fn prepared(args: &ServerArgs) -> Outcome<(Settings, ServerConfig)> {
    let host = Host::detect();
    let settings = settings(&args.config, &host)?;
    let config = ServerConfig::resolve(&settings, &host).map_err(|error| wrong(&[error]))?;
    Ok((settings, config))
}

fn serve(config: &ServerConfig, ready: Ready) -> Outcome {
    let start = |context: StartContext<'_>| assemble::start_server(config, context);
    // The control socket of a server is its user's and root's.
    let mount = crate::config::MountConfig { allow_other: false, ..config.stores.mount.clone() };
    let duty = Duty {
        mount: &mount,
        monitor: &config.stores.monitor,
        log: &config.stores.log,
        mounts: false,
        purpose: format!("serving as node {} of a cluster", config.node.id),
        unprivileged: Vec::new(),
        start: &start,
        ward: None,
    };
    daemon::run(&duty, ready)
}
