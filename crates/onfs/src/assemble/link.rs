//! Linked near-line: the directory or bucket, and who keeps it in step.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use backend::{Deadlined, Directory, Limits, Options};
use bucket::Bucket;
use client::Client;
use ds::DataServer;
use link::{Reachable, RootId, Trust};
use linked::{Linked, NotAccepted, Settings};
use mds::Mds;

use super::{
    parts::{Parts, failed},
    site::Site,
};
use crate::{
    config::{BucketConfig, Config, LinkConfig, LinkTarget},
    control::{ControlError, ErrorCode, LinkState, RootReport, RootsReport},
    running::StartError,
};

/// Opens the linked directory, if there is one. Before the tiers are.
pub(super) fn open_link(
    config: &Config,
    mds: &Arc<Mds>,
    note: &mut dyn FnMut(&str),
) -> Result<Option<Arc<Linked>>, StartError> {
    let mut site = Site::load(&config.mount.state)?;
    let Some(given) = &config.link else {
        return match site.link() {
            None => Ok(None),
            Some(dir) => Err(StartError::Config(format!(
                "the near-line tier of this file system is {}, linked: give --nearline link:{} to mount it, or the \
                 directory's new path if it was moved",
                dir.display(),
                dir.display()
            ))),
        };
    };
    refuse_other(&site, given, mds)?;
    let back = open_back_end(config, given, site.link().is_none())?;
    let linked = Linked::open(settings(given), back, mds.clone()).map_err(|errno| {
        StartError::Damaged(format!(
            "what is pending for the linked directory cannot be read (onfs fsck tells): {errno}"
        ))
    })?;
    let (dir, known_as) = (&given.target, site.link().map(Path::to_owned));
    match (linked.look_at_root(), known_as) {
        (Trust::Known, known_as) => {
            let path = remembered(given);
            if let Some(before) = known_as.filter(|before| *before != path) {
                note(&format!(
                    "the linked directory is at {dir} now, before at {}: it is the same one",
                    before.display()
                ));
            }
            // Only now: another directory is never remembered for the one that was linked.
            site.set_link(&path)?;
        }
        (Trust::Unreachable, None) => {
            return Err(StartError::Config(format!("{dir}: cannot be read")));
        }
        (Trust::Unreachable, Some(_)) => note(&format!(
            "{dir} cannot be reached: what is here of the linked directory is served, and changes wait until it is back"
        )),
        (Trust::Unmounted, _) => note(&format!(
            "{dir} is empty, and the linked directory was not: is its file system mounted? What is here is served, and \
             changes wait until it is back"
        )),
        (Trust::Stranger, _) => note(&format!(
            "{dir} is not the directory that was linked: nothing is taken from it or written to it. If the tree was moved \
             or copied there on purpose: onfs link accept {}; else unmount, and mount with the right directory",
            config.mount.mountpoint.display()
        )),
    }
    Ok(Some(linked))
}

/// As it is written down, and given on the command line.
fn remembered(given: &LinkConfig) -> PathBuf {
    PathBuf::from(given.target.to_string())
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
    if let (LinkTarget::Directory(dir), None) = (&given.target, site.link())
        && !dir.is_dir()
    {
        return Err(StartError::Config(format!("{} is no directory", dir.display())));
    }
    Ok(())
}

/// `first`: this file system sees it for the first time.
fn open_back_end(
    config: &Config,
    given: &LinkConfig,
    first: bool,
) -> Result<Arc<dyn link::BackEnd>, StartError> {
    match &given.target {
        LinkTarget::Directory(dir) => {
            let cannot = |errno| StartError::Config(format!("{}: cannot be linked: {errno}", dir.display()));
            let directory = Directory::open(dir, Options::default()).map_err(cannot)?;
            Ok(Arc::new(Deadlined::new(directory, Limits { deadline: given.deadline, ..Limits::default() })))
        }
        LinkTarget::Bucket(bucket) => {
            // Its calls have deadlines of their own.
            let options = bucket_options(config, given, bucket, first);
            Ok(Arc::new(Bucket::open(&options).map_err(StartError::Config)?))
        }
    }
}

fn bucket_options(
    config: &Config,
    given: &LinkConfig,
    bucket: &BucketConfig,
    first: bool,
) -> bucket::Options {
    bucket::Options {
        location: bucket.location.clone(),
        endpoint: bucket.endpoint.clone(),
        region: bucket.region.clone(),
        addressing: bucket.addressing,
        allow_http: bucket.allow_http,
        deadline: given.deadline,
        spool: config.mount.state.clone(),
        owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        first,
    }
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

/// The state in one word.
pub(super) fn state(linked: &Linked) -> LinkState {
    match (linked.current_trouble(), linked.status().trust) {
        (None, _) => LinkState::Ok,
        (Some(_), Some(Trust::Stranger)) => LinkState::Stranger,
        (Some(_), Some(Trust::Unmounted)) => LinkState::Unmounted,
        (Some(_), Some(Trust::Unreachable)) => LinkState::Unreachable,
        (Some(_), Some(Trust::Known) | None) => LinkState::Trouble,
    }
}

fn of(parts: &Parts) -> Result<(&Arc<Linked>, &LinkConfig), ControlError> {
    parts.linked.as_ref().zip(parts.config.link.as_ref()).ok_or_else(|| {
        ControlError::new(ErrorCode::BadRequest, "the near-line tier of this mount is not a linked directory")
    })
}

/// The root that is known, and the one that is there.
pub(super) fn show(parts: &Parts) -> Result<RootsReport, ControlError> {
    let (linked, given) = of(parts)?;
    let roots = linked.roots().map_err(|errno| failed(&given.target.to_string(), errno))?;
    let report = |id: RootId, empty| RootReport { device: id.device, number: id.fileid, empty };
    let status = linked.status();
    let state = match roots.trust {
        Trust::Known if linked.current_trouble().is_some() => LinkState::Trouble,
        Trust::Known => LinkState::Ok,
        Trust::Unreachable => LinkState::Unreachable,
        Trust::Unmounted => LinkState::Unmounted,
        Trust::Stranger => LinkState::Stranger,
    };
    Ok(RootsReport {
        mountpoint: parts.session.mountpoint().display().to_string(),
        dir: given.target.to_string(),
        state,
        known: roots.known.map(|known| report(known.id, known.empty)),
        now: match roots.now {
            Reachable::Yes { id, empty } => Some(report(id, empty)),
            Reachable::No => None,
        },
        names: roots.names,
        names_there: roots.names_there,
        pending: status.pending as u64,
        conflicts: status.conflicts as u64,
    })
}

/// The directory that is there is the one that was linked, if it is `shown`.
pub(super) fn accept(parts: &Parts, shown: RootId, empty_too: bool) -> Result<RootsReport, ControlError> {
    let (linked, given) = of(parts)?;
    let dir = &given.target;
    let refused = |code, text: String| Err(ControlError::new(code, text));
    match linked.accept(shown, empty_too) {
        Ok(_) => {}
        Err(NotAccepted::Known) => {
            return refused(
                ErrorCode::BadRequest,
                format!("{dir} is the directory that was linked: nothing is to be accepted"),
            );
        }
        Err(NotAccepted::Unreachable) => {
            return refused(ErrorCode::Failed, format!("{dir} cannot be reached: nothing is accepted"));
        }
        Err(NotAccepted::Another(_)) => {
            return refused(
                ErrorCode::Failed,
                format!("{dir} is another directory than the one that was shown: nothing is accepted"),
            );
        }
        Err(NotAccepted::Empty) => {
            let text = format!(
                "{dir} is empty: accepted, all that is not changed here would count as deleted there; nothing is accepted"
            );
            return refused(ErrorCode::BadRequest, text);
        }
        Err(NotAccepted::Failed(errno)) => return Err(failed("accepting the directory", errno)),
    }
    Site::load(&parts.config.mount.state).and_then(|mut site| site.set_link(&remembered(given))).map_err(
        |error| ControlError::new(ErrorCode::Failed, format!("it is accepted, but not its path: {error}")),
    )?;
    show(parts)
}
