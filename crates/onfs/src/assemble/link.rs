//! Linked near-line: the directory, and who keeps it in step.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use backend::{Deadlined, Directory, Limits, Options};
use client::Client;
use ds::DataServer;
use link::Trust;
use linked::{Linked, Settings};
use mds::Mds;

use super::site::Site;
use crate::{
    config::{Config, LinkConfig},
    running::StartError,
};

/// Opens the linked directory, if there is one. Before the tiers are.
pub(super) fn open_link(config: &Config, mds: &Arc<Mds>) -> Result<Option<Arc<Linked>>, StartError> {
    let mut site = Site::load(&config.mount.state)?;
    let Some(given) = &config.link else {
        return match site.link() {
            None => Ok(None),
            Some(dir) => Err(StartError::Config(format!(
                "the near-line tier of this file system is {}, linked: give --nearline link:{} to mount it",
                dir.display(),
                dir.display()
            ))),
        };
    };
    refuse_other(&site, given, mds)?;
    let back = open_directory(given)?;
    let linked = Linked::open(settings(given), back, mds.clone()).map_err(|errno| {
        StartError::Damaged(format!(
            "what is pending for the linked directory cannot be read (onfs fsck tells): {errno}"
        ))
    })?;
    match linked.look_at_root() {
        Trust::Known => {}
        Trust::Unreachable if site.link().is_none() => {
            return Err(StartError::Config(format!("{}: cannot be read", given.dir.display())));
        }
        // What we have of it is served.
        Trust::Unreachable | Trust::Unmounted | Trust::Stranger => {
            tracing::warn!(dir = %given.dir.display(), "the linked directory is not there, or not the one that was linked");
        }
    }
    site.set_link(&given.dir)?;
    Ok(Some(linked))
}

fn refuse_other(site: &Site, given: &LinkConfig, mds: &Mds) -> Result<(), StartError> {
    if site.is_native() {
        return Err(StartError::Config(
            "this file system has a near-line tier of its own: a directory can be linked to a new one only"
                .to_owned(),
        ));
    }
    let used = mds.statfs_usage().inodes > 1;
    if site.link().is_none() && used {
        return Err(StartError::Config(
            "this file system has files already: a directory can be linked to a new one only".to_owned(),
        ));
    }
    if !given.dir.is_dir() && site.link().is_none() {
        return Err(StartError::Config(format!("{} is no directory", given.dir.display())));
    }
    Ok(())
}

fn open_directory(given: &LinkConfig) -> Result<Arc<dyn link::BackEnd>, StartError> {
    let cannot = |errno| StartError::Config(format!("{}: cannot be linked: {errno}", given.dir.display()));
    let directory = Directory::open(&given.dir, Options::default()).map_err(cannot)?;
    Ok(Arc::new(Deadlined::new(directory, Limits { deadline: given.deadline, ..Limits::default() })))
}

fn settings(given: &LinkConfig) -> Settings {
    Settings {
        interval: given.look_every,
        publish_after: given.publish_after,
        publish_latest: given.publish_latest,
        deadline: given.deadline,
        ..Settings::default()
    }
}

pub(super) fn start_link(linked: &Linked, ds: &Arc<DataServer>, client: &Client) -> Result<(), StartError> {
    let started = linked.start(ds, client.as_host());
    started.map_err(|errno| StartError::Failed(format!("linked near-line cannot be started: {errno}")))
}

/// At the end of a mount: all that is pending is applied, or a line says how much is not.
pub(super) fn drain(linked: &Linked, at_most: Duration) {
    if let Err(errno) = linked.drain(Some(Instant::now() + at_most), &|| false) {
        tracing::warn!(%errno, pending = linked.status().pending, "not all is in the linked directory yet: the next mount goes on");
    }
}
