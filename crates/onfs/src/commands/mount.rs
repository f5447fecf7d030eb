//! `onfs mount` and `mount.onfs`.

use std::io::Write;

use super::settings::{resolve, settings};
use crate::{
    args::MountArgs,
    config::{Config, Host, Settings},
    daemon::{self, Ready},
    exit::{Failure, Outcome, system_text},
    locate,
    mount_call::HelperCall,
    render::{self, units::bytes},
};

pub fn mount(args: &MountArgs) -> Outcome {
    if args.daemon_child || args.foreground {
        let ready = if args.daemon_child { Ready::Parent } else { Ready::Foreground };
        let ended = prepared(args).and_then(|(_, config)| daemon::run(&config, ready));
        return ended.map_err(|failure| ready.failed(failure));
    }
    let (settings, config) = prepared(args)?;
    launch(&settings, &config)?;
    render::print(&format!("mounted at {}: {}\n", config.mount.mountpoint.display(), tiers(&config)))
}

/// What mount(8) calls: silent when it works.
pub fn mount_helper(call: &HelperCall) -> Outcome {
    let (settings, config) = prepared(&call.mount)?;
    if call.fake { Ok(()) } else { launch(&settings, &config).map(drop) }
}

/// The whole configuration, checked before anything is started.
fn prepared(args: &MountArgs) -> Outcome<(Settings, Config)> {
    let host = Host::detect();
    let settings = settings(&args.config, &host)?;
    let mountpoint = locate::absolute(&args.mountpoint).map_err(|error| {
        let place = args.mountpoint.display();
        let message = format!("{place}: {}", system_text(&error));
        match error.raw_os_error() {
            Some(libc::ENOENT) => Failure::usage(message).hint(format!("mkdir -p {place}")),
            Some(libc::ENOTDIR) => Failure::usage(message),
            _ => Failure::failed(message),
        }
    })?;
    let config = resolve(&settings, &host, &mountpoint)?;
    Ok((settings, config))
}

fn launch(settings: &Settings, config: &Config) -> Outcome<u32> {
    daemon::launch(settings, &config.mount.mountpoint, config.mount.start_deadline, &mut |note| {
        let _ = writeln!(std::io::stderr(), "onfs: {note}");
    })
}

fn tiers(config: &Config) -> String {
    let mut out = format!("memory {}", bytes(config.memory.size.0));
    for (name, tier) in [("ssd", &config.ssd), ("nearline", &config.nearline)] {
        if let Some(tier) = tier {
            out.push_str(&format!(", {name} {}", tier.dir.display()));
        }
    }
    if let Some(link) = &config.link {
        out.push_str(&format!(", nearline {} (linked)", link.target));
    }
    if config.ssd.is_none() && config.nearline.is_none() && config.link.is_none() {
        out.push_str(" alone: its data is lost at a reboot (--ssd DIR or --nearline DIR keep it)");
    }
    format!("{out}; state {}", config.mount.state.display())
}
