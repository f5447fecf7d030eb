//! What the kernel says of one object, in the terms of the core.

use std::os::fd::BorrowedFd;

use link::{Clock, Found, Proof, Seen};
use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags, StatxTimestamp, statx};
use types::{Errno, FileKind, MODE_MASK, Timestamp};

use crate::{error::retry, times::clock_for};

/// May the answer be one that was given before?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fresh {
    /// The server is asked.
    Forced,
    /// As stat(2) has it.
    AsStat,
    /// For what never changes.
    Any,
}

/// Of what the descriptor is open on.
pub(crate) fn of(fd: BorrowedFd<'_>, fresh: Fresh) -> Result<Statx, Errno> {
    ask(fd, b"", AtFlags::EMPTY_PATH, fresh)
}

/// Of what has the name in the directory.
pub(crate) fn of_name(dir: BorrowedFd<'_>, name: &[u8], fresh: Fresh) -> Result<Statx, Errno> {
    ask(dir, name, AtFlags::SYMLINK_NOFOLLOW, fresh)
}

fn ask(fd: BorrowedFd<'_>, path: &[u8], flags: AtFlags, fresh: Fresh) -> Result<Statx, Errno> {
    let sync = match fresh {
        Fresh::Forced => AtFlags::STATX_FORCE_SYNC,
        Fresh::AsStat => AtFlags::STATX_SYNC_AS_STAT,
        Fresh::Any => AtFlags::STATX_DONT_SYNC,
    };
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    retry(|| statx(fd, path, flags | sync | AtFlags::NO_AUTOMOUNT, mask))
}

pub(crate) fn kind(stat: &Statx) -> Result<FileKind, Errno> {
    let format = u32::from(stat.stx_mode) & !MODE_MASK;
    FileKind::from_mode(u32::from(stat.stx_mode)).filter(|_| format != 0).ok_or(Errno::EIO)
}

/// Another file system is mounted here, or would be by an automounter.
pub(crate) fn is_mount_point(stat: &Statx) -> bool {
    let mounts = StatxAttributes::MOUNT_ROOT | StatxAttributes::AUTOMOUNT;
    (stat.stx_attributes & stat.stx_attributes_mask).intersects(mounts)
}

/// `clock`: from before the look.
pub(crate) fn found(stat: &Statx, clock: Clock) -> Result<Found, Errno> {
    let ctime = timestamp(stat.stx_ctime);
    let seen = Seen {
        kind: kind(stat)?,
        fileid: stat.stx_ino,
        birth: (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| timestamp(stat.stx_btime)),
        size: stat.stx_size,
        mtime: timestamp(stat.stx_mtime),
        ctime,
        mode: u32::from(stat.stx_mode) & MODE_MASK,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        nlink: stat.stx_nlink,
        proof: Proof::Racy,
    };
    let rdev = encoded_device(stat.stx_rdev_major, stat.stx_rdev_minor);
    Ok(Found { seen: seen.looked(clock_for(clock, ctime)), atime: timestamp(stat.stx_atime), rdev })
}

pub(crate) fn timestamp(time: StatxTimestamp) -> Timestamp {
    Timestamp { sec: time.tv_sec, nsec: time.tv_nsec }
}

/// As `types::Attr::rdev`: 12 bits of major, 20 of minor, the upper of which come first.
fn encoded_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// The other way, as (major, minor).
pub(crate) fn decoded_device(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (1, 3), (8, 0xff), (0xfff, 0xf_ffff), (253, 0x12345)] {
            assert_eq!(decoded_device(encoded_device(major, minor)), (major, minor));
        }
        assert_eq!(encoded_device(8, 1), 0x801);
        assert_eq!(encoded_device(8, 0x101), 0x10_0801);
    }
}
