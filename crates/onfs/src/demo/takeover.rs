//! A metadata server is killed under the eyes of its clients, and comes back.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{cluster::Cluster, plan::Host};
use crate::{
    control::MdsReport,
    exit::{Exit, Failure, Outcome, system_text},
};

/// Directories below the root: some of them are the killed server's.
const DIRS: usize = 8;
/// As long as programs wait for a metadata server, and the time in which clients may come back.
const PATIENCE: Duration = Duration::from_secs(150);
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What became of it.
#[derive(Debug, Serialize)]
pub struct TakeOver {
    pub killed: String,
    /// For so long a program waited that used its directories.
    pub waited_seconds: f64,
    /// Who has what when all was served again,
    pub after: Vec<MdsReport>,
    /// and when the killed one had come back.
    pub back: Vec<MdsReport>,
}

/// Kills a metadata server that is not on duty, if there is one, and uses what it had. Each file is as it was.
pub fn take_over(cluster: &Cluster, step: &mut dyn FnMut(&str) -> Outcome) -> Outcome<TakeOver> {
    let mounts = cluster.mountpoints();
    let (Some(first), Some(last)) = (mounts.first(), mounts.last()) else {
        return Err(Failure::failed("no client has it mounted"));
    };
    let failed = |error: io::Error| Failure::failed(format!("over a kill: {}", system_text(&error)));
    for n in 0..DIRS {
        make(first, n).map_err(failed)?;
    }
    let victim = victim(cluster)?;
    step(&format!("kill -9 of metadata server {}; its standby goes on in half a minute", victim.name))?;
    let killed_at = Instant::now();
    cluster.kill(victim)?;
    for n in 0..DIRS {
        go_on(last, n).map_err(failed)?;
    }
    let waited_seconds = killed_at.elapsed().as_secs_f64();
    let number = u64::from(victim.number);
    let after = cluster.shares()?;
    step(&format!("{} is started again, and given its share", victim.name))?;
    cluster.serve(victim)?;
    let end = Instant::now() + PATIENCE;
    let back = loop {
        let shares = cluster.shares()?;
        let has = |share: &MdsReport| share.node == number && share.slots > 0;
        let settled = shares.iter().all(|share| !share.standby_only || share.slots == 0);
        if settled && shares.iter().any(has) {
            break shares;
        }
        if Instant::now() > end {
            let why = format!("{} was not given slots again", victim.name);
            return Err(Failure::new(Exit::TimedOut, why));
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    for n in 0..DIRS {
        remove(first, n).map_err(failed)?;
    }
    Ok(TakeOver { killed: victim.name.clone(), waited_seconds, after, back })
}

fn victim(cluster: &Cluster) -> Outcome<&Host> {
    let shares = cluster.shares()?;
    let full = shares.iter().filter(|share| !share.standby_only && share.slots > 0);
    let chosen = full.min_by_key(|share| share.on_duty);
    let host =
        chosen.and_then(|share| cluster.plan.servers().find(|host| u64::from(host.number) == share.node));
    host.ok_or_else(|| Failure::failed("no metadata server has slots"))
}

fn dir(mount: &Path, n: usize) -> PathBuf {
    mount.join(format!("kept-{n}"))
}

fn text(n: usize) -> String {
    format!("of directory {n}, before the kill\n").repeat(100)
}

fn make(mount: &Path, n: usize) -> io::Result<()> {
    fs::create_dir(dir(mount, n))?;
    fs::write(dir(mount, n).join("before"), text(n))
}

/// Reads what was there, and makes something new.
fn go_on(mount: &Path, n: usize) -> io::Result<()> {
    let before = dir(mount, n).join("before");
    if fs::read_to_string(&before)? != text(n) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: not as written", before.display()),
        ));
    }
    fs::write(dir(mount, n).join("after"), text(n))
}

fn remove(mount: &Path, n: usize) -> io::Result<()> {
    go_on(mount, n)?;
    fs::remove_dir_all(dir(mount, n))
}

#[cfg(test)]
mod tests {
    //! Goal: what is not as it was is seen, and nothing is left. Method: a directory in place of a mount.
    use super::*;

    #[test]
    fn files_are_compared() {
        let mount = tempfile::tempdir().unwrap();
        make(mount.path(), 3).unwrap();
        go_on(mount.path(), 3).unwrap();
        fs::write(dir(mount.path(), 3).join("before"), "other").unwrap();
        assert!(remove(mount.path(), 3).is_err());
        fs::write(dir(mount.path(), 3).join("before"), text(3)).unwrap();
        remove(mount.path(), 3).unwrap();
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    }
}
