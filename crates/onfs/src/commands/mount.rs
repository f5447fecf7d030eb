//! `onfs mount` and `mount.onfs`.

use std::{io::Write, path::Path, sync::Arc};

use super::settings::{resolve, settings, wrong};
use crate::{
    args::MountArgs,
    assemble::{self, StartContext},
    config::{Config, Entry, Host, MountConfig, REMOTE_SECTIONS, RemoteConfig, Settings},
    daemon::{self, Duty, Ready},
    exit::{Failure, Outcome, system_text},
    guard::{self, Guarded, Ward},
    locate,
    mount_call::HelperCall,
    render::{self, units::bytes},
};

pub fn mount(args: &MountArgs) -> Outcome {
    if args.daemon_child || args.foreground {
        let ready = if args.daemon_child { Ready::Parent } else { Ready::Foreground };
        let ended = prepared(args).and_then(|(settings, wanted)| match wanted.guarded(&settings) {
            Some(guarded) if !args.guarded => guard::guard(&guarded, ready),
            guarded => {
                let ward = guarded.map(|_| Ward::from_guardian()).transpose()?;
                wanted.serve(ready, ward)
            }
        });
        return ended.map_err(|failure| ready.failed(failure));
    }
    let (settings, wanted) = prepared(args)?;
    launch(&settings, &wanted)?;
    render::print(&format!("mounted at {}: {}\n", wanted.mount().mountpoint.display(), wanted.what()))
}

/// What mount(8) calls: silent when it works.
pub fn mount_helper(call: &HelperCall) -> Outcome {
    let (settings, wanted) = prepared(&call.mount)?;
    if call.fake { Ok(()) } else { launch(&settings, &wanted).map(drop) }
}

/// What is to be mounted.
enum Wanted {
    /// Tiers of this machine.
    Own(Box<Config>),
    Cluster(Box<RemoteConfig>),
}

impl Wanted {
    fn mount(&self) -> &MountConfig {
        match self {
            Wanted::Own(config) => &config.mount,
            Wanted::Cluster(config) => &config.mount,
        }
    }

    fn what(&self) -> String {
        match self {
            Wanted::Own(config) => tiers(config),
            Wanted::Cluster(config) => format!("cluster {}", config.source),
        }
    }

    fn guarded<'a>(&'a self, settings: &'a Settings) -> Option<Guarded<'a>> {
        let (mount, log) = match self {
            Wanted::Own(config) => (&config.mount, &config.log),
            Wanted::Cluster(config) => (&config.mount, &config.log),
        };
        mount.guard.then_some(Guarded { settings, mount, log })
    }

    fn serve(&self, ready: Ready, ward: Option<Arc<Ward>>) -> Outcome {
        let purpose = format!("mounted at {}", self.mount().mountpoint.display());
        match self {
            Wanted::Own(config) => {
                let start = |context: StartContext<'_>| assemble::start(config, context);
                let unprivileged = unprivileged(config);
                let (mount, monitor, log) = (&config.mount, &config.monitor, &config.log);
                let start = &start;
                let duty = Duty { mount, monitor, log, mounts: true, purpose, unprivileged, start, ward };
                daemon::run(&duty, ready)
            }
            Wanted::Cluster(config) => {
                let start = |context: StartContext<'_>| assemble::start_remote(config, context);
                let unprivileged = others_shut_out(config.mount.allow_other);
                let (mount, monitor, log) = (&config.mount, &config.monitor, &config.log);
                let start = &start;
                let duty = Duty { mount, monitor, log, mounts: true, purpose, unprivileged, start, ward };
                daemon::run(&duty, ready)
            }
        }
    }
}

/// The whole configuration, checked before anything is started.
fn prepared(args: &MountArgs) -> Outcome<(Settings, Wanted)> {
    let host = Host::detect();
    let mut settings = settings(&args.config, &host)?;
    let (source, place) = args.source_and_place()?;
    if let Some(source) = source {
        settings.apply_flag("mount.source", source, source).map_err(|error| wrong(&[error]))?;
    }
    // What is mounted there already would be asked, and only this process can answer.
    let absolute = if args.guarded { Ok(place.to_owned()) } else { locate::absolute(place) };
    let mountpoint = absolute.map_err(|error| {
        let place = place.display();
        let message = format!("{place}: {}", system_text(&error));
        match error.raw_os_error() {
            Some(libc::ENOENT) => Failure::usage(message).hint(format!("mkdir -p {place}")),
            Some(libc::ENOTDIR) => Failure::usage(message),
            _ => Failure::failed(message),
        }
    })?;
    let remote = RemoteConfig::resolve(&settings, &host, &mountpoint).map_err(|error| wrong(&[error]))?;
    if let Some(remote) = remote {
        RemoteConfig::refuse_flags(&settings).map_err(|error| wrong(&[error]))?;
        return Ok((settings, Wanted::Cluster(Box::new(remote))));
    }
    let config = resolve(&settings, &host, &mountpoint)?;
    Ok((settings, Wanted::Own(Box::new(config))))
}

fn launch(settings: &Settings, wanted: &Wanted) -> Outcome<u32> {
    let mount = wanted.mount();
    let concerns = |entry: &Entry| match wanted {
        Wanted::Own(_) => true,
        Wanted::Cluster(_) => REMOTE_SECTIONS.contains(&entry.setting.section),
    };
    let child = daemon::Child {
        command: "mount",
        settings,
        concerns: &concerns,
        mountpoint: Some(&mount.mountpoint),
        deadline: mount.start_deadline,
    };
    daemon::launch(&child, &mut |note| {
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

/// What an ordinary user does without, said plainly.
fn unprivileged(config: &Config) -> Vec<String> {
    let mut lines = vec![format!(
        "mounted by an ordinary user: no passthrough, and the memory tier shares {} with others instead of a tmpfs of its own",
        config.memory.dir.display()
    )];
    lines.extend(others_shut_out(config.mount.allow_other));
    lines
}

/// The same of any mount.
fn others_shut_out(allow_other: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if !allow_other {
        lines.push("other users, root too, cannot look into this mount (allow_other is off)".into());
    }
    if !Path::new("/usr/bin/fusermount3").exists() && !Path::new("/bin/fusermount3").exists() {
        lines.push("fusermount3 is not in its usual place: mounting needs it (package fuse3)".into());
    }
    lines
}
