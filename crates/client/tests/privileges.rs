//! Goal: what a change of a file's bytes takes away, and who may make it. Method: a real mount; what an ordinary user does
//! is done on a thread with that user's credentials.
#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
    thread,
};

use harness::Site;
use rustix::{
    fs::{FallocateFlags, XattrFlags},
    process::{Gid, Uid},
};

const USER: u32 = 1001;
/// `security.capability` as setcap(8) makes it for cap_net_raw+ep: revision 2, effective; permitted, inheritable.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn as_user(what: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_thread_gid(Gid::from_raw(USER)).unwrap();
            rustix::thread::set_thread_uid(Uid::from_raw(USER)).unwrap();
            what();
        });
        thread.join().unwrap();
    });
}

#[test]
fn regression_copies_and_allocations_take_set_id_bits_away() {
    let Some(site) = Site::mounted() else { return };
    let (from, to) = (site.path("from"), site.path("to"));
    fs::write(&from, [7; 5000]).unwrap();
    fs::write(&to, [8; 5000]).unwrap();
    let (from, file) = (File::open(&from).unwrap(), read_write(&to));
    let set = || fs::set_permissions(&to, fs::Permissions::from_mode(0o6777)).unwrap();
    let copy = || {
        let (mut at, mut there) = (0, 0);
        rustix::fs::copy_file_range(&from, Some(&mut at), &file, Some(&mut there), 4096).unwrap();
    };
    let allocate = || rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 9000).unwrap();
    set();
    copy();
    assert_eq!(mode(&to), 0o6777, "root keeps them");
    as_user(copy);
    assert_eq!(mode(&to), 0o777);
    set();
    as_user(allocate);
    assert_eq!(mode(&to), 0o777);
}

#[test]
fn regression_capabilities_go_with_every_write() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    let file = read_write(&path);
    file.write_all_at(b"its writing has begun", 0).unwrap();
    let name = "security.capability";
    if rustix::fs::setxattr(&path, name, &CAPABILITY, XattrFlags::empty()).is_err() {
        // Not in every user namespace.
        return;
    }
    file.write_all_at(b"more", 0).unwrap();
    let mut value = [0; 64];
    assert_eq!(rustix::fs::getxattr(&path, name, &mut value[..]), Err(rustix::io::Errno::NODATA));
}

#[test]
fn regression_a_descriptor_that_only_reads_may_cut_the_file_when_it_is_opened() {
    // POSIX leaves O_RDONLY with O_TRUNC open, Linux cuts.
    let Some(mut site) = Site::mounted() else { return };
    let path = site.path("f");
    fs::write(&path, [7; 5000]).unwrap();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC;
    let file = File::from(rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap());
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(fs::read(&path).unwrap(), b"");
    drop(file);
    site.remount();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn regression_a_quota_that_is_set_later_holds_for_files_that_are_open() {
    use mds::Limits;
    use types::{Ino, ProjectId};
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    let file = read_write(&path);
    file.write_all_at(&[1; 5000], 0).unwrap();
    let project = ProjectId(7);
    let ino = Ino::from_raw(file.metadata().unwrap().ino()).unwrap();
    site.mds().quota_set(project, Limits { bytes: Some(1 << 20), inodes: None }).unwrap();
    site.mds().quota_assign(ino, project).unwrap();
    file.write_all_at(b"within", 5000).unwrap();
    let refused = file.write_all_at(b"beyond", 1 << 20).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(122), "EDQUOT");
    site.mds().quota_set(project, Limits { bytes: None, inodes: None }).unwrap();
    file.write_all_at(b"beyond", 1 << 20).unwrap();
}

#[test]
fn a_command_uses_the_file_as_an_opening_does() {
    // Goal: what a command takes into use has the size that an unsettled file has. Method: in the moment after a close.
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    fs::write(&path, [7; 5000]).unwrap();
    let ino = types::Ino::from_raw(fs::metadata(&path).unwrap().ino()).unwrap();
    let file = site.client().use_file(ino).unwrap();
    assert_eq!(file.object().size(), 5000);
    fs::write(&path, [8; 50]).unwrap();
    assert_eq!(file.object().size(), 50);
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), [8; 50]);
}
