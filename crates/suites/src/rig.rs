//! An ONFS mount under test: three tiers in one scratch directory, a daemon in the foreground that can be killed,
//! the memory tier's tmpfs that a reboot takes away, and if asked a disk of its own whose power can be cut. Every wait
//! has a deadline.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{File, OpenOptions},
    os::unix::net::UnixStream,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::UnmountFlags;

use crate::power;

const MOUNT_DEADLINE: Duration = Duration::from_secs(60);
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(120);

/// Where the `onfs` binary is and how much memory its tier gets.
#[derive(Clone, Debug)]
pub struct RigOptions {
    pub onfs: PathBuf,
    pub scratch: PathBuf,
    pub memory: String,
    /// Further options of `onfs mount`.
    pub extra: Vec<String>,
    /// Bytes of a disk (ext4 in a file) for the state and the device tiers, whose power can be cut.
    pub disk: Option<u64>,
    /// The near-line directory is linked.
    pub link: bool,
}

pub struct Rig {
    options: RigOptions,
    daemon: Option<Child>,
    /// The memory tier's tmpfs.
    memory_mounts: BTreeSet<PathBuf>,
}

impl Rig {
    /// Makes the directories; nothing is mounted yet.
    pub fn new(options: RigOptions) -> Result<Rig> {
        std::fs::create_dir_all(options.scratch.join("mnt"))?;
        if let Some(bytes) = options.disk {
            power::make_disk(&options.scratch, bytes)?;
        }
        let rig = Rig { options, daemon: None, memory_mounts: BTreeSet::new() };
        for dir in ["ssd", "nearline", "state"] {
            std::fs::create_dir_all(rig.devices().join(dir))?;
        }
        Ok(rig)
    }

    /// Where the state and the device tiers are.
    fn devices(&self) -> PathBuf {
        match self.options.disk {
            Some(_) => power::disk_in(&self.options.scratch),
            None => self.options.scratch.clone(),
        }
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.options.scratch.join("mnt")
    }
    pub fn nearline(&self) -> PathBuf {
        self.devices().join("nearline")
    }
    fn nearline_option(&self) -> OsString {
        let mut option = OsString::from(if self.options.link { "link:" } else { "" });
        option.push(self.nearline());
        option
    }
    pub fn state(&self) -> PathBuf {
        self.devices().join("state")
    }
    pub fn log(&self) -> PathBuf {
        self.options.scratch.join("daemon.log")
    }
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// Does the daemon run, and is the mount point its?
    pub fn is_alive(&mut self) -> bool {
        let runs = self.daemon.as_mut().is_some_and(|d| d.try_wait().is_ok_and(|end| end.is_none()));
        runs && is_mounted(&self.mountpoint()).unwrap_or(false)
    }

    /// Starts the daemon and waits until the mount point is its.
    pub fn mount(&mut self) -> Result<()> {
        self.start()?;
        self.wait_mounted()?;
        self.note_memory()
    }

    fn note_memory(&mut self) -> Result<()> {
        // Below the state: others may mount at the same time.
        let state = self.state();
        self.memory_mounts.extend(tmpfs_mounts()?.into_iter().filter(|at| at.starts_with(&state)));
        Ok(())
    }

    fn start(&mut self) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let devices = self.devices();
        let child = Command::new(&self.options.onfs)
            .arg("mount")
            .args(["--foreground", "--memory", &self.options.memory])
            .arg("--ssd")
            .arg(devices.join("ssd"))
            .arg("--nearline")
            .arg(self.nearline_option())
            .arg("--state")
            .arg(devices.join("state"))
            .args(&self.options.extra)
            .arg(self.mountpoint())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", self.options.onfs.display()))?;
        self.daemon = Some(child);
        Ok(())
    }

    /// Starts the daemon and kills it after that time, wherever it is: mounting, replaying, or done.
    pub fn mount_and_kill(&mut self, after: Duration) -> Result<()> {
        self.start()?;
        std::thread::sleep(after);
        self.kill()?;
        // What it mounted of the memory tier stays, as after any kill.
        self.note_memory()?;
        self.finish_kill()
    }

    /// Begins a clean unmount and kills the daemon after that time. Says whether the kill came first.
    pub fn unmount_and_kill(&mut self, after: Duration) -> Result<bool> {
        let mut unmounting = self.begin(&["umount"], &[&self.mountpoint()])?;
        std::thread::sleep(after);
        self.kill()?;
        // It may have been done, or it was told that its daemon is gone.
        unmounting.wait()?;
        let Some(mut daemon) = self.daemon.take() else { bail!("no daemon runs") };
        let status = daemon.wait()?;
        self.detach();
        let killed = status.signal() == Some(9);
        ensure!(killed || status.success(), "the daemon ended with {status}:\n{}", self.log_tail());
        Ok(killed)
    }

    fn wait_mounted(&mut self) -> Result<()> {
        let deadline = Instant::now() + MOUNT_DEADLINE;
        let mountpoint = self.mountpoint();
        loop {
            // The socket comes after the mount.
            let answers = UnixStream::connect(self.state().join("control.sock")).is_ok();
            if answers && is_mounted(&mountpoint)? && std::fs::read_dir(&mountpoint).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.daemon.as_mut().and_then(|d| d.try_wait().ok().flatten()) {
                self.daemon = None;
                bail!("the daemon ended while mounting ({status}); its log ends:\n{}", self.log_tail());
            }
            ensure!(
                Instant::now() < deadline,
                "not mounted after {MOUNT_DEADLINE:?}; the log ends:\n{}",
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Mounts again after a daemon that ended by itself, or whose mount is gone.
    pub fn revive(&mut self) -> Result<()> {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            daemon.wait()?;
        }
        self.detach();
        self.mount()
    }

    /// A clean unmount: `onfs umount`, then the daemon ends by itself with success.
    pub fn unmount(&mut self) -> Result<()> {
        let output = self.command(&["umount"], &[&self.mountpoint()])?;
        ensure!(output.status.success(), "onfs umount: {}", text(&output));
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        let deadline = Instant::now() + UNMOUNT_DEADLINE;
        loop {
            if let Some(status) = daemon.try_wait()? {
                ensure!(status.success(), "the daemon ended with {status}:\n{}", self.log_tail());
                return Ok(());
            }
            if Instant::now() > deadline {
                daemon.kill()?;
                daemon.wait()?;
                bail!("the daemon still ran {UNMOUNT_DEADLINE:?} after the unmount:\n{}", self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The pid to send SIGKILL to; `finish_kill` must follow.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.as_mut().context("no daemon runs")?.kill().context("kill the daemon")
    }

    /// What the device did not have at this moment it will never have. To be called at the kill.
    pub fn cut_power(&self) -> Result<()> {
        power::cut(&self.options.scratch)
    }

    /// After the cut, the kill and the loss of the memory tier: the disk as it was at the cut.
    pub fn restore_power(&self) -> Result<()> {
        power::restore(&self.options.scratch)
    }

    /// Waits for the killed daemon and takes its dead mount away.
    pub fn finish_kill(&mut self) -> Result<()> {
        if let Some(mut daemon) = self.daemon.take() {
            let status = daemon.wait()?;
            ensure!(
                status.signal() == Some(9),
                "the daemon ended by itself ({status}) before it was killed:\n{}",
                self.log_tail()
            );
        }
        self.detach();
        Ok(())
    }

    /// What a reboot does beyond a kill: the memory tier's content is gone.
    pub fn lose_memory(&mut self) -> Result<()> {
        let mounts = std::mem::take(&mut self.memory_mounts);
        let now = tmpfs_mounts()?;
        ensure!(
            mounts.iter().any(|m| now.contains(m)),
            "no tmpfs of the memory tier was found among the mounts, so a reboot cannot be played"
        );
        for mount in mounts.iter().filter(|m| now.contains(*m)) {
            rustix::mount::unmount(mount, UnmountFlags::DETACH)
                .with_context(|| format!("unmount {}", mount.display()))?;
        }
        Ok(())
    }

    /// Runs the `onfs` command with a deadline of ten minutes (coreutils' timeout).
    pub fn command(&self, words: &[&str], paths: &[&Path]) -> Result<Output> {
        Command::new("timeout")
            .arg("600")
            .arg(&self.options.onfs)
            .args(words)
            .args(paths)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run onfs {words:?}"))
    }

    /// Starts the `onfs` command, with a deadline of a minute.
    pub fn begin(&self, words: &[&str], paths: &[&Path]) -> Result<Child> {
        Command::new("timeout")
            .arg("60")
            .arg(&self.options.onfs)
            .args(words)
            .args(paths)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start onfs {words:?}"))
    }

    /// Checks the state offline; an error when something is wrong.
    pub fn fsck(&self) -> Result<()> {
        let output = self.command(&["fsck", "--state"], &[&self.state()])?;
        ensure!(output.status.success(), "fsck ({}): {}", output.status, text(&output));
        Ok(())
    }

    pub fn log_tail(&self) -> String {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    fn detach(&self) {
        // Not mounted any more is as good.
        let _ = rustix::mount::unmount(self.mountpoint(), UnmountFlags::DETACH);
    }

    /// Starts over: kills what runs, takes the mounts away and deletes the scratch directory.
    pub fn destroy(mut self) -> Result<()> {
        self.stop();
        std::fs::remove_dir_all(&self.options.scratch).context("delete the scratch directory")
    }

    fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        self.detach();
        for mount in std::mem::take(&mut self.memory_mounts) {
            let _ = rustix::mount::unmount(&mount, UnmountFlags::DETACH);
        }
        if self.options.disk.is_some() {
            power::remove_disk(&self.options.scratch);
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop();
    }
}

fn text(output: &Output) -> String {
    let both = [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)];
    both.join("").trim().to_owned()
}

struct MountLine {
    at: PathBuf,
    kind: String,
}

fn mounts() -> Result<Vec<MountLine>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let at = left.split(' ').nth(4)?.replace("\\040", " ");
            Some(MountLine { at: at.into(), kind: right.split(' ').next()?.to_owned() })
        })
        .collect())
}

pub fn is_mounted(at: &Path) -> Result<bool> {
    Ok(mounts()?.iter().any(|m| m.at == at && m.kind.starts_with("fuse")))
}

fn tmpfs_mounts() -> Result<BTreeSet<PathBuf>> {
    Ok(mounts()?.into_iter().filter(|m| m.kind == "tmpfs").map(|m| m.at).collect())
}

/// Takes an exclusive name below `root` for one run's files.
pub fn scratch_dir(root: &Path, what: &str) -> Result<PathBuf> {
    let pid = std::process::id();
    for n in 0..1000 {
        let path = root.join(format!("{what}-{pid}-{n}"));
        if !path.exists() {
            std::fs::create_dir_all(&path)?;
            return path.canonicalize().context("resolve the scratch directory");
        }
    }
    bail!("no free name for a scratch directory in {}", root.display())
}

/// Writes a counterexample's operations as JSON lines.
pub fn save_lines<T: serde::Serialize>(path: &Path, items: &[T]) -> Result<()> {
    use std::io::Write;
    let mut file = File::create(path)?;
    for item in items {
        writeln!(file, "{}", serde_json::to_string(item)?)?;
    }
    Ok(())
}
