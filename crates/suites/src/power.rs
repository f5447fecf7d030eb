//! A disk whose power can be cut: ext4 in a file, and the kernel's own switch that stops a file system at once, without
//! writing anything that was not written (`FS_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`, as xfstests use it).
//!
//! It plays a device without a volatile cache: what the file system wrote to it is there, in the order of the writes.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::mount::UnmountFlags;

const RELEASE_DEADLINE: Duration = Duration::from_secs(20);
/// The request and its flag, by number, since perl is on every Debian machine and has no names for them.
const SHUTDOWN: &str = "open(my $disk, '<', $ARGV[0]) or die $!; my $flag = pack('L', 2); ioctl($disk, 0x8004587d, $flag) or die $!";

pub fn disk_in(scratch: &Path) -> PathBuf {
    scratch.join("disk")
}

fn image_in(scratch: &Path) -> PathBuf {
    scratch.join("disk.img")
}

/// Makes and mounts it, sparse.
pub fn make_disk(scratch: &Path, bytes: u64) -> Result<()> {
    let image = image_in(scratch);
    std::fs::File::create(&image)?.set_len(bytes)?;
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-E", "nodiscard"]).arg(&image))?;
    std::fs::create_dir_all(disk_in(scratch))?;
    attach(scratch)
}

fn attach(scratch: &Path) -> Result<()> {
    // Writes reach the image when the file system sends them.
    run(Command::new("mount").args(["-o", "loop"]).arg(image_in(scratch)).arg(disk_in(scratch)))
}

/// From now on nothing reaches the image.
pub fn cut(scratch: &Path) -> Result<()> {
    run(Command::new("perl").args(["-e", SHUTDOWN]).arg(disk_in(scratch)))
}

/// Takes the dead file system away and mounts what the image has.
pub fn restore(scratch: &Path) -> Result<()> {
    let deadline = Instant::now() + RELEASE_DEADLINE;
    while let Err(error) = rustix::mount::unmount(disk_in(scratch), UnmountFlags::empty()) {
        ensure!(Instant::now() < deadline, "the disk is not let go of: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    attach(scratch)
}

pub fn remove_disk(scratch: &Path) {
    // Not mounted is as good; what is left shows when the directory is deleted.
    let _ = rustix::mount::unmount(disk_in(scratch), UnmountFlags::DETACH);
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
