//! What kind of file system the linked directory is on, and what follows from that.

use std::{fs, os::fd::BorrowedFd, time::Duration};

use rustix::fs::{fstatfs, fstatvfs};
use types::Errno;

use crate::error::retry;

/// File systems of this machine's disks and memory: their times come from this machine's clock, and what a look finds is
/// what is there. ext2 to 4, XFS, btrfs, tmpfs, ramfs, F2FS, bcachefs, ZFS, JFS, ReiserFS, NILFS, UBIFS, overlayfs, NTFS.
const LOCAL: [u64; 14] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x8584_58f6,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
    0x3153_464a,
    0x5265_4973,
    0x3434,
    0x2405_1905,
    OVERLAY,
    0x7366_746e,
];
const OVERLAY: u64 = 0x794c_7630;
const NFS: u64 = 0x6969;
/// vfat, exFAT: neither owners nor modes, links or attributes, and times in steps of two seconds.
const FAT: [u64; 2] = [0x4d44, 0x2011_bab0];
/// Both numbers of SMB: modes and owners are made up by the mount.
const SMB: [u64; 2] = [0xff53_4d42, 0xfe53_4d42];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Site {
    pub local: bool,
    /// Mode, owner and times are kept as they are set.
    pub attributes: bool,
    pub symlinks: bool,
    pub special: bool,
    pub hard_links: bool,
    /// All objects show the device number of the root.
    pub one_device: bool,
    /// Where it is known to be coarser than what times show.
    pub step: Duration,
}

impl Site {
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Result<Site, Errno> {
        Ok(Site::of_type(retry(|| fstatfs(fd))?.f_type as u64 & 0xffff_ffff))
    }

    fn of_type(kind: u64) -> Site {
        let (fat, smb) = (FAT.contains(&kind), SMB.contains(&kind));
        Site {
            local: LOCAL.contains(&kind) || fat,
            attributes: !fat && !smb,
            symlinks: !fat && !smb,
            special: !fat && !smb,
            hard_links: !fat,
            one_device: kind != OVERLAY,
            step: if fat { Duration::from_secs(2) } else { Duration::ZERO },
        }
    }
}

/// A number of the file system that lasts over remounts where it has one: the one that statfs gives; of NFS, which gives none,
/// that of the server's file system; else the device number, which is another after each mount.
pub(crate) fn device(fd: BorrowedFd<'_>, major: u32, minor: u32) -> Result<u64, Errno> {
    let known = retry(|| fstatvfs(fd))?.f_fsid;
    if known != 0 {
        return Ok(known);
    }
    let number = rustix::fs::makedev(major, minor);
    if retry(|| fstatfs(fd))?.f_type as u64 != NFS {
        return Ok(number);
    }
    let volumes = fs::read_to_string("/proc/fs/nfsfs/volumes").unwrap_or_default();
    Ok(nfs_volume(&volumes, major, minor).unwrap_or(number))
}

/// Of the volume that is mounted with this device number: its server and the server's number of the file system, as one number.
fn nfs_volume(volumes: &str, major: u32, minor: u32) -> Option<u64> {
    let device = format!("{major}:{minor}");
    volumes.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (_version, server, _port) = (words.next()?, words.next()?, words.next()?);
        let (at, fsid) = (words.next()?, words.next()?);
        // A server without numbers says nothing.
        (at == device && fsid != "0:0").then(|| fnv1a(&[server, fsid].join(" ")))
    })
}

/// It is stored, so it may never change: FNV-1a, 64 bits.
fn fnv1a(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    //! Goal: an NFS file system is known again, and no other passes for it. Method: the kernel's table as text.
    use super::*;

    const VOLUMES: &str = "\
NV SERVER   PORT DEV          FSID                              FSC
v4 0a000001  801 0:52         8a3f5c0de1b24f77:0                no
v3 0a000001  801 0:53         10:2                              no
v4 0a000002  801 0:54         0:0                               no
";

    #[test]
    fn nfs_volumes_are_told_apart_by_server_and_number() {
        let number = nfs_volume(VOLUMES, 0, 52);
        assert_eq!(number, Some(fnv1a("0a000001 8a3f5c0de1b24f77:0")));
        let elsewhere = VOLUMES.replace("0:52 ", "0:99 ");
        assert_eq!(nfs_volume(&elsewhere, 0, 99), number);
        assert_ne!(nfs_volume(VOLUMES, 0, 53), number);
        assert_eq!(nfs_volume(VOLUMES, 0, 54), None);
        assert_eq!(nfs_volume(VOLUMES, 0, 5), None);
        assert_eq!(nfs_volume("", 0, 52), None);
        // As published for the function.
        assert_eq!(fnv1a("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn kinds_have_their_abilities() {
        assert!(Site::of_type(0xef53).local && Site::of_type(0xef53).attributes);
        assert!(!Site::of_type(NFS).local && Site::of_type(NFS).hard_links);
        assert!(!Site::of_type(FAT[0]).hard_links && Site::of_type(FAT[0]).step > Duration::from_secs(1));
        assert!(!Site::of_type(0x6573_5546).local, "FUSE");
    }
}
