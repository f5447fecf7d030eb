//! What the defaults depend on: the machine and the user. Read once; everything else here is pure.

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use types::ByteSize;

/// The machine and the user that a mount is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// The machine's own.
    pub name: String,
    pub uid: u32,
    /// `MemAvailable`, in bytes; 0 when unknown.
    pub mem_available: u64,
    /// `MemTotal` and `SwapTotal`, in bytes; 0 when unknown.
    pub mem_total: u64,
    pub cpus: u32,
    /// The scheduler's job, of which this process is.
    pub job: Option<String>,
    pub home: Option<PathBuf>,
    pub xdg_state: Option<PathBuf>,
    pub xdg_config: Option<PathBuf>,
}

/// Where schedulers say which job it is.
const JOBS: [&str; 4] = ["SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID", "LSB_JOBID"];
/// The smallest limit of a memory tier.
pub(super) const MEMORY_TIER_MIN: u64 = 16 << 20;
const MEMORY_MIN: u64 = 64 << 20;
/// Longer names end in a hash, to fit in `NAME_MAX` with room to spare.
const STATE_NAME_MAX: usize = 200;

impl Host {
    /// Reads /proc and the environment.
    pub fn detect() -> Host {
        let dir = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Host {
            name: name.trim().to_owned(),
            uid: rustix::process::geteuid().as_raw(),
            mem_available: of_meminfo(&memory, "MemAvailable:"),
            mem_total: of_meminfo(&memory, "MemTotal:") + of_meminfo(&memory, "SwapTotal:"),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            job: JOBS.iter().find_map(|name| std::env::var(name).ok()).filter(|job| !job.is_empty()),
            home: dir("HOME"),
            xdg_state: dir("XDG_STATE_HOME"),
            xdg_config: dir("XDG_CONFIG_HOME"),
        }
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// A quarter of the available memory, in whole MiB, at least 64 MiB.
    pub fn default_memory(&self) -> u64 {
        let quarter = self.mem_available / 4;
        (quarter - quarter % (1 << 20)).max(MEMORY_MIN)
    }

    /// Can the memory tier have this limit? Says why not.
    pub fn check_memory_tier(&self, limit: ByteSize) -> Result<(), String> {
        let (least, most) = (ByteSize(MEMORY_TIER_MIN), ByteSize(self.mem_total));
        if limit < least {
            Err(format!("{limit} is too little: at least {least}"))
        } else if self.mem_total > 0 && limit > most {
            Err(format!("{limit} is more than this machine's memory and swap, {most:#}"))
        } else {
            Ok(())
        }
    }

    /// Where all states are: /var/lib/onfs, or the user's state directory. `None` for a user without a home.
    pub fn state_root(&self) -> Option<PathBuf> {
        if self.is_root() {
            return Some("/var/lib/onfs".into());
        }
        let from_home = || self.home.as_ref().map(|home| home.join(".local/state"));
        self.xdg_state.clone().or_else(from_home).map(|dir| dir.join("onfs"))
    }

    pub fn default_state(&self, mountpoint: &Path) -> Option<PathBuf> {
        self.state_root().map(|root| root.join(state_name(mountpoint)))
    }

    /// The memory tier of a user, who cannot mount a tmpfs; root has one in the state directory.
    pub fn default_memory_dir(&self, state: &Path) -> PathBuf {
        if self.is_root() {
            state.join("memory")
        } else {
            Path::new("/dev/shm").join(format!("onfs-{}", self.uid)).join(state_name(state))
        }
    }

    /// The configuration file that is read when none is named, if it exists.
    pub fn default_config(&self) -> Option<PathBuf> {
        if self.is_root() {
            return Some("/etc/onfs/onfs.toml".into());
        }
        let from_home = || self.home.as_ref().map(|home| home.join(".config"));
        self.xdg_config.clone().or_else(from_home).map(|dir| dir.join("onfs/onfs.toml"))
    }
}

/// A file name for an absolute path, different for different paths: `/mnt/data` is `mnt-data`; `-`, `%` and what
/// is not plain text are written as `%XX`.
fn state_name(path: &Path) -> String {
    let mut name = String::new();
    for byte in path.as_os_str().as_bytes().iter().skip_while(|b| **b == b'/') {
        match byte {
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => name.push(char::from(*byte)),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.is_empty() {
        return "%2F".into();
    }
    if name.len() > STATE_NAME_MAX {
        // All of it is ASCII, so any byte is a boundary.
        let hash = fnv1a(name.as_bytes());
        name.truncate(STATE_NAME_MAX - 17);
        name.push_str(&format!("%{hash:016x}"));
    }
    name
}

/// 64-bit FNV-1a: the same on every machine and in every version.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn of_meminfo(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    //! Goal: defaults follow the machine. Method: made-up machines.
    use super::*;

    fn host(uid: u32, mem: u64) -> Host {
        let home = Some("/home/u".into());
        let name = String::new();
        Host {
            name,
            uid,
            mem_available: mem,
            mem_total: mem,
            cpus: 2,
            job: None,
            home,
            xdg_state: None,
            xdg_config: None,
        }
    }

    #[test]
    fn memory_is_a_quarter_but_never_tiny() {
        assert_eq!(host(0, 8 << 30).default_memory(), 2 << 30);
        assert_eq!(host(0, 0).default_memory(), 64 << 20);
        assert_eq!(of_meminfo("MemTotal: 5 kB\nMemAvailable:    2048 kB\n", "MemAvailable:"), 2 << 20);
        assert_eq!(of_meminfo("nonsense", "MemTotal:"), 0);
    }

    #[test]
    fn a_memory_tier_is_neither_tiny_nor_more_than_the_machine() {
        let machine = host(0, 8 << 30);
        for good in [16 << 20, 8 << 30] {
            assert_eq!(machine.check_memory_tier(ByteSize(good)), Ok(()));
        }
        assert!(machine.check_memory_tier(ByteSize(1 << 20)).unwrap_err().contains("at least 16MiB"));
        let why = machine.check_memory_tier(ByteSize(1 << 40)).unwrap_err();
        assert!(why.contains("1TiB is more than") && why.contains("8.0 GiB"), "{why}");
        assert_eq!(host(0, 0).check_memory_tier(ByteSize(1 << 40)), Ok(()), "nothing is known");
    }

    #[test]
    fn states_have_their_own_names() {
        let path = |p: &str| host(0, 0).default_state(Path::new(p)).unwrap();
        assert_eq!(path("/mnt/data"), Path::new("/var/lib/onfs/mnt-data"));
        assert_ne!(path("/mnt/a-b"), path("/mnt/a/b"));
        assert_ne!(path("/"), path("/x"));
        let long = format!("/{}", "long-".repeat(100));
        let (a, b) = (path(&long), path(&format!("{long}x")));
        assert!(a != b && a.file_name().unwrap().len() <= STATE_NAME_MAX);
        let user = host(1000, 0);
        assert_eq!(user.default_state(Path::new("/m")).unwrap(), Path::new("/home/u/.local/state/onfs/m"));
        assert_eq!(user.default_config().unwrap(), Path::new("/home/u/.config/onfs/onfs.toml"));
    }
}
