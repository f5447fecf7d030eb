//! The PostgreSQL server of a demo, from what is installed: its data and its socket are in the demo's directory, where only the user
//! `postgres` and root come to it, and its processes are in the namespace of the switch. It listens at no address.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{network::on_as, plan::Plan, programs::done};
use crate::exit::{Failure, Outcome, system_text};

/// It refuses to run as root; packages make this user.
const USER: &str = "postgres";
/// Where packages put the programs, a directory for each version.
const PLACES: [&str; 2] = ["/usr/lib/postgresql", "/usr"];
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What is installed.
#[derive(Debug)]
pub struct Installed {
    programs: PathBuf,
    user: (u32, u32),
}

impl Installed {
    pub fn find() -> Outcome<Installed> {
        let hint = "Debian: apt install postgresql; RHEL: dnf install postgresql-server; or --metadata 1 without --postgres";
        let Some(programs) = programs() else {
            return Err(
                Failure::failed("no PostgreSQL server is installed, and the demo needs one").hint(hint)
            );
        };
        let number = |flag: &str| {
            let said = done(Command::new("id").args([flag, USER])).ok()?;
            String::from_utf8_lossy(&said.stdout).trim().parse::<u32>().ok()
        };
        match (number("-u"), number("-g")) {
            (Some(user), Some(group)) => Ok(Installed { programs, user: (user, group) }),
            (None, _) | (_, None) => {
                let why = format!("there is no user {USER}, as whom the PostgreSQL server could run");
                Err(Failure::failed(why).hint(hint))
            }
        }
    }
}

/// Of the newest version.
fn programs() -> Option<PathBuf> {
    let [versions, prefixes] = PLACES.map(|place| fs::read_dir(place).into_iter().flatten().flatten());
    let versions =
        versions.filter_map(|entry| Some((version(&entry.file_name().into_string().ok()?)?, entry.path())));
    let prefixes = prefixes.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((version(name.strip_prefix("pgsql-")?)?, entry.path()))
    });
    let mut found: Vec<_> =
        versions.chain(prefixes).map(|(version, path)| (version, path.join("bin"))).collect();
    found.sort();
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&in_path);
    found.into_iter().rev().map(|(_, path)| path).chain(in_path).find(|path| path.join("initdb").is_file())
}

/// 9.6 before 13 before 17.
fn version(name: &str) -> Option<Vec<u32>> {
    name.split('.').map(|part| part.parse().ok()).collect()
}

/// A server that runs; ended when it goes.
#[derive(Debug)]
pub struct Database {
    installed: Installed,
    namespace: String,
    dir: PathBuf,
    is_down: bool,
}

impl Database {
    pub fn up(installed: Installed, plan: &Plan) -> Outcome<Database> {
        let dir = plan.database_dir();
        let failed =
            |error: io::Error| Failure::failed(format!("{}: {}", dir.display(), system_text(&error)));
        DirBuilder::new().mode(0o700).create(&dir).map_err(failed)?;
        let (user, group) = installed.user;
        chown(&dir, Some(user), Some(group)).map_err(failed)?;
        let database = Database { installed, namespace: plan.switch(), dir: dir.clone(), is_down: false };
        let mut init = database.program("initdb");
        init.args(["-N", "-A", "trust", "-U", "onfs", "-E", "UTF8", "--locale=C", "-D"]).arg(database.data());
        done(&mut init)?;
        let settings = format!(
            "unix_socket_directories = '{}'\nlisten_addresses = ''\ndynamic_shared_memory_type = mmap\n",
            dir.display()
        );
        let mut file =
            OpenOptions::new().append(true).open(database.data().join("postgresql.conf")).map_err(failed)?;
        file.write_all(settings.as_bytes()).map_err(failed)?;
        done(database.control().args(["-w", "-t", "60", "-l"]).arg(dir.join("log")).arg("start"))?;
        Ok(database)
    }

    pub fn down(mut self) -> Outcome {
        self.take_down()
    }

    fn take_down(&mut self) -> Outcome {
        if std::mem::replace(&mut self.is_down, true) || postmaster(&self.dir).is_none() {
            return Ok(());
        }
        let ended = done(self.control().args(["-m", "fast", "-w", "-t", "60", "stop"]));
        if ended.is_err() {
            end_left(&self.dir, |_| true);
        }
        ended.map(drop)
    }

    fn data(&self) -> PathBuf {
        data(&self.dir)
    }

    fn control(&self) -> Command {
        let mut command = self.program("pg_ctl");
        command.arg("-D").arg(self.data());
        command
    }

    fn program(&self, name: &str) -> Command {
        let mut command = on_as(&self.namespace, self.installed.user, &self.installed.programs.join(name));
        // Ours may be a place where that user may not look.
        command.current_dir("/").env("LC_ALL", "C");
        command
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.take_down();
    }
}

fn data(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn postmaster(dir: &Path) -> Option<Pid> {
    let text = fs::read_to_string(data(dir).join("postmaster.pid")).ok()?;
    Pid::from_raw(text.lines().next()?.trim().parse().ok()?)
}

/// Ends a server at once, but so that it leaves nothing in the kernel, as it would if it were killed. `is_it` looks whether the
/// number is still the server's.
pub fn end_left(dir: &Path, is_it: impl Fn(i32) -> bool) {
    let Some(pid) = postmaster(dir).filter(|pid| is_it(pid.as_raw_nonzero().get())) else { return };
    let _ = kill_process(pid, Signal::QUIT);
    let end = Instant::now() + PATIENCE;
    while test_kill_process(pid).is_ok() && Instant::now() < end {
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the newest version is taken. Method: names of directories in order.
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version("17") > version("9.6") && version("9.6") > version("9.5"));
        assert_eq!(version("share"), None);
    }
}
