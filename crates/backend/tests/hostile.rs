//! Goal: whatever others do to the tree, nothing outside it is reached, and no other directory passes for it. Method: trees
//! as an enemy or an accident makes them; mounts need root.
#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    process::Command,
    time::Duration,
};

use fixture::*;
use link::{Attributes, Attrs, BackEnd, KnownRoot, Making, Over, Proof, Reachable, Trust, trust};
use rustix::{
    fs::{CWD, FileType, Mode, mkdirat, mknodat},
    mount::{UnmountFlags, unmount},
};
use types::{Errno, FileKind};

/// Every call that is about something below `below`, none of which may succeed or change anything.
fn assert_all_refused(back: &dyn BackEnd, below: &str) {
    let to = |name: &str| way(&format!("{below}/{name}"));
    let no = Err(Errno::ENOENT);
    assert_eq!(back.look(&to("f")).err(), no.err());
    assert_eq!(back.list(&way(below), &mut |_, _| panic!("listed")), no);
    assert_eq!(back.readlink(&to("f")).err(), no.err());
    assert_eq!(back.xattrs(&to("f")).err(), no.err());
    assert_eq!(back.open(&to("f")).err(), no.err());
    let what = Making { kind: FileKind::Directory, rdev: 0, target: b"", with: &plain(0o755) };
    assert_eq!(back.make(&to("new"), &what).err(), no.err());
    assert_eq!(back.begin_version(&to(".onfs-way-1")).err(), no.err());
    assert_eq!(back.begin_in_place(&to("f")).err(), no.err());
    assert_eq!(back.rename(&way("own"), &to("g"), Over::Replace), no);
    assert_eq!(back.rename(&to("f"), &way("g"), Over::Nothing), no);
    assert_eq!(back.link(&way("own"), &to("g")), no);
    assert_eq!(back.link(&to("f"), &way("g")), no);
    assert_eq!(back.unlink(&to("f")), no);
    assert_eq!(back.rmdir(&to("d")), no);
    assert_eq!(back.set_attributes(&to("f"), Attrs::MODE, &plain(0)), no);
    assert_eq!(back.set_xattr(&to("f"), b"user.a", Some(b"")), no);
    assert_eq!(back.sync(&to("f")), no);
}

fn victim(path: &Path) {
    fs::create_dir_all(path.join("d")).unwrap();
    fs::write(path.join("f"), b"not yours").unwrap();
    fs::write(path.join(".onfs-way-1"), b"not yours").unwrap();
}

fn assert_untouched(path: &Path) {
    for name in ["f", ".onfs-way-1"] {
        assert_eq!(fs::read(path.join(name)).unwrap(), b"not yours");
    }
    let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".onfs-way-1", "d", "f"]);
    assert_ne!(fs::metadata(path.join("f")).unwrap().mode() & 0o777, 0);
}

#[test]
fn links_on_the_way_lead_nowhere() {
    on_each(|back, root| {
        let outside = root.parent().unwrap().join("outside");
        victim(&outside);
        fs::write(root.join("own"), b"").unwrap();
        fs::create_dir(root.join("real")).unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../outside", root.join("real/relative")).unwrap();
        symlink("/proc/self/fd", root.join("magic")).unwrap();
        for below in ["absolute", "real/relative", "magic"] {
            assert_all_refused(back, below);
            assert_eq!(found(back, below).seen.kind, FileKind::Symlink);
        }
        // Inside it they lead nowhere either.
        symlink("real", root.join("inside")).unwrap();
        assert_eq!(back.look(&way("inside/relative")), Err(Errno::ENOENT));
        assert_untouched(&outside);
        fs::remove_dir_all(&outside).unwrap();
    });
}

#[test]
fn mounts_are_not_seen_or_entered() {
    if !is_root() {
        return;
    }
    on_each(|back, root| {
        let outside = root.parent().unwrap().join("outside");
        victim(&outside);
        for name in ["other", "same", "plain"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        fs::write(root.join("own"), b"").unwrap();
        fs::write(root.join("file"), b"").unwrap();
        let other = Mounted::tmpfs(&root.join("other"));
        victim(&root.join("other"));
        let same = Mounted::bind(&outside, &root.join("same"));
        let file = Mounted::bind(&outside.join("f"), &root.join("file"));
        assert_eq!(names(back, "").unwrap(), ["own", "plain"]);
        for name in ["other", "same", "file"] {
            assert_eq!(back.look(&way(name)), Ok(None), "{name}");
        }
        assert_eq!(back.open(&way("file")).err(), Some(Errno::ENOENT));
        assert_eq!(back.begin_in_place(&way("file")).err(), Some(Errno::ENOENT));
        assert_eq!(back.set_attributes(&way("same"), Attrs::MODE, &plain(0)), Err(Errno::ENOENT));
        for below in ["other", "same"] {
            assert_all_refused(back, below);
        }
        assert_untouched(&root.join("other"));
        assert_untouched(&outside);
        drop((other, same, file));
        assert_eq!(names(back, "").unwrap(), ["file", "other", "own", "plain", "same"]);
        fs::remove_dir_all(&outside).unwrap();
    });
}

#[test]
fn a_directory_that_becomes_something_else_is_not_there() {
    on_each(|back, root| {
        let (dir, aside) = (root.join("d"), root.join("aside"));
        fs::create_dir_all(dir.join("e")).unwrap();
        fs::write(dir.join("e/f"), b"").unwrap();
        fs::write(root.join("own"), b"").unwrap();
        let before = found(back, "d/e/f");
        fs::rename(&dir, &aside).unwrap();
        fs::write(&dir, b"a file").unwrap();
        assert_eq!(back.look(&way("d/e/f")), Err(Errno::ENOENT));
        assert_all_refused(back, "d");
        assert_all_refused(back, "d/e");
        assert_eq!(fs::read(&dir).unwrap(), b"a file");
        fs::remove_file(&dir).unwrap();
        assert_eq!(back.look(&way("d/e/f")), Err(Errno::ENOENT));
        fs::rename(&aside, &dir).unwrap();
        assert!(found(back, "d/e/f").seen.is_same_object(&before.seen));
    });
}

#[test]
fn what_is_no_file_is_not_opened() {
    // Opening a fifo waits for who writes to it: the test would not end.
    on_each(|back, root| {
        mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        symlink("fifo", root.join("link")).unwrap();
        for name in ["fifo", "link"] {
            assert_eq!(back.open(&way(name)).err(), Some(Errno::ENOENT));
            assert_eq!(back.begin_in_place(&way(name)).err(), Some(Errno::ENOENT));
        }
        fs::rename(root.join("fifo"), root.join(".onfs-way-1")).unwrap();
        assert_eq!(back.begin_version(&way(".onfs-way-1")).err(), Some(Errno::EEXIST));
    });
}

#[test]
fn ways_may_be_longer_than_a_path() {
    on_each(|back, root| {
        let name = "x".repeat(250);
        // 5,020 bytes: made step by step, as no path leads there.
        let deep: Vec<Vec<u8>> = (0..20).map(|_| name.clone().into_bytes()).collect();
        let what = Making { kind: FileKind::Directory, rdev: 0, target: b"", with: &plain(0o755) };
        for depth in 1..=deep.len() {
            back.make(&deep[..depth], &what).unwrap();
        }
        let file = [&deep[..], &[b".onfs-way-1".to_vec()]].concat();
        let mut version = back.begin_version(&file).unwrap();
        version.write_at(b"deep", 0).unwrap();
        let done = version.finish(&plain(0o600)).unwrap();
        assert!(back.look(&file).unwrap().unwrap().seen.is_same_object(&done.seen));
        back.rename(&file, &way("up"), Over::Nothing).unwrap();
        assert_eq!(fs::read(root.join("up")).unwrap(), b"deep");
        back.rename(&way("up"), &file, Over::Nothing).unwrap();
        let (source, _) = back.open(&file).unwrap();
        assert_eq!(source.read_at(&mut [0; 9], 0), Ok(4));
        let mut seen = 0;
        back.list(&deep, &mut |_, _| {
            seen += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(seen, 1);
        let long = [&deep[..], &[vec![b'y'; 256]]].concat();
        assert_eq!(back.look(&long), Err(Errno::ENAMETOOLONG));
        back.unlink(&file).unwrap();
        for depth in (1..=deep.len()).rev() {
            back.rmdir(&deep[..depth]).unwrap();
        }
    });
}

fn known(back: &dyn BackEnd) -> KnownRoot {
    let Reachable::Yes { id, empty } = back.root() else { panic!("not reachable") };
    KnownRoot { id, empty }
}

#[test]
fn an_unmounted_file_system_is_not_taken_for_an_empty_one() {
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = scratch.path();
    let mounted = Mounted::tmpfs(path);
    fs::write(path.join("f"), b"1").unwrap();
    let back = directory(path);
    let before = Some(known(&back));
    assert_eq!(trust(before, back.root()), Trust::Known);
    let (source, _) = back.open(&way("f")).unwrap();

    // The descriptors keep it busy; only a lazy unmount goes through.
    assert_eq!(unmount(path, UnmountFlags::empty()), Err(rustix::io::Errno::BUSY));
    drop(mounted);
    assert_eq!(trust(before, back.root()), Trust::Unmounted);
    assert_eq!(back.look(&way("f")), Ok(None), "operations go where the path leads");
    assert_eq!(source.read_at(&mut [0; 4], 0), Ok(1), "what is open stays");

    // Another file system in its place.
    let mounted = Mounted::tmpfs(path);
    assert_eq!(trust(before, back.root()), Trust::Unmounted);
    fs::write(path.join("g"), b"").unwrap();
    assert_eq!(trust(before, back.root()), Trust::Stranger);
    drop(mounted);
}

#[test]
fn a_file_system_that_is_mounted_again_is_known_and_let_go() {
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (tree, path) = (scratch.path().join("tree"), scratch.path().join("at"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(tree.join("f"), b"1").unwrap();
    let mounted = Mounted::bind(&tree, &path);
    let back = directory(&path);
    let before = Some(known(&back));
    drop(mounted);
    assert_eq!(trust(before, back.root()), Trust::Unmounted);
    let mounted = Mounted::bind(&tree, &path);
    assert_eq!(trust(before, back.root()), Trust::Known);
    assert_eq!(names(&back, "").unwrap(), ["f"]);
    // Again, and nobody asked in between: the same directory by another mount, which is the one that others see and change.
    drop(mounted);
    let mounted = Mounted::bind(&tree, &path);
    fs::create_dir(path.join("sub")).unwrap();
    let inner = Mounted::tmpfs(&path.join("sub"));
    assert_eq!(trust(before, back.root()), Trust::Known);
    assert_eq!(names(&back, "").unwrap(), ["f"]);
    drop((inner, mounted));
    // The path leads below now: nothing holds what was mounted.
    assert_eq!(trust(before, back.root()), Trust::Unmounted);
    assert_eq!(names(&back, "").unwrap(), [""; 0]);
}

#[test]
fn layers_of_an_overlay_are_one_file_system() {
    if !is_root() {
        return;
    }
    let (memory, disk) =
        (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir_in("/var/tmp").unwrap());
    let [above, work, at] = ["above", "work", "at"].map(|name| {
        let path = disk.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    });
    fs::create_dir(memory.path().join("d")).unwrap();
    fs::write(memory.path().join("d/below"), b"1").unwrap();
    fs::write(memory.path().join("f"), b"2").unwrap();
    let _mounted = Mounted::overlay(memory.path(), &above, &work, &at);
    let back = directory(&at);
    back.begin_version(&way("d/.onfs-way-1")).unwrap().finish(&plain(0o600)).unwrap();
    back.rename(&way("d/.onfs-way-1"), &way("d/above"), Over::Nothing).unwrap();
    assert_eq!(names(&back, "").unwrap(), ["d", "f"]);
    assert_eq!(names(&back, "d").unwrap(), ["above", "below"]);
    assert_eq!(found(&back, "d/below").seen.size, 1);
    assert_eq!(back.open(&way("f")).unwrap().0.read_at(&mut [0; 4], 0), Ok(1));
    back.unlink(&way("d/below")).unwrap();
    assert_eq!(names(&back, "d").unwrap(), ["above"]);
}

/// ext4 in a file, mounted.
fn mount_image(image: &Path, at: &Path) -> Mounted {
    let done = Command::new("mount").args(["-o", "loop"]).arg(image).arg(at).status().unwrap();
    assert!(done.success());
    Mounted::taken(at)
}

#[test]
fn a_disk_with_times_in_seconds_is_known_for_what_it_is() {
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, path) = (scratch.path().join("image"), scratch.path().join("at"));
    fs::create_dir(&path).unwrap();
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    // Small inodes have no room for nanoseconds.
    let made = Command::new("mkfs.ext4").args(["-q", "-F", "-I", "128"]).arg(&image).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mounted = mount_image(&image, &path);
    let back = directory(&path);
    fs::write(path.join("f"), b"1").unwrap();
    let clock = back.clock();
    assert!(clock.step > Duration::from_secs(1), "{clock:?}");
    let file = found(&back, "f").seen;
    assert_eq!((file.ctime.nsec, file.birth, file.proof), (0, None, Proof::Racy));
    assert!(back.abilities().xattrs && back.abilities().any_owner);
    let before = Some(known(&back));
    drop((back, mounted));
    // By its own number it is known after another mount, whatever device it is on then.
    let _mounted = mount_image(&image, &path);
    assert_eq!(trust(before, directory(&path).root()), Trust::Known);
}

#[test]
fn a_path_that_leads_nowhere_takes_all_with_it() {
    on_each(|back, root| {
        fs::write(root.join("own"), b"1").unwrap();
        let before = Some(known(back));
        let aside = root.with_extension("aside");
        fs::rename(root, &aside).unwrap();
        assert_eq!(trust(before, back.root()), Trust::Unreachable);
        let able = back.abilities();
        assert!(able.symlinks && able.hard_links, "what it could do is remembered");
        assert_eq!(back.look(&way("own")), Err(Errno::ESTALE));
        assert_eq!(back.unlink(&way("own")), Err(Errno::ESTALE));
        fs::write(root, b"a file").unwrap();
        assert_eq!(trust(before, back.root()), Trust::Unreachable);
        fs::remove_file(root).unwrap();
        fs::create_dir(root).unwrap();
        assert_eq!(trust(before, back.root()), Trust::Unmounted);
        mkdirat(CWD, root.join("d"), Mode::RWXU).unwrap();
        assert_eq!(trust(before, back.root()), Trust::Stranger);
        fs::remove_dir_all(root).unwrap();
        fs::rename(&aside, root).unwrap();
        assert_eq!(trust(before, back.root()), Trust::Known);
        assert_eq!(found(back, "own").seen.size, 1);
    });
    let nowhere =
        backend::Directory::open(Path::new("/var/tmp/onfs-nothing-here"), backend::Options::default());
    assert_eq!(nowhere.err(), Some(Errno::ENOENT));
}

#[test]
fn nobody_gives_away_what_he_may_not() {
    // As another user: only the thread that asks becomes one, so by itself, not behind a deadline.
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = scratch.path();
    rustix::fs::chown(path, Some(rustix::fs::Uid::from_raw(77)), None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(77)).unwrap();
            let back = directory(path);
            assert!(!back.abilities().any_owner && back.abilities().hard_links);
            let own = Attributes { uid: 77, ..plain(0o4711) };
            let done = back.begin_version(&way(".onfs-way-1")).unwrap().finish(&own).unwrap();
            assert_eq!((done.seen.uid, done.seen.mode), (77, 0o4711));
            back.set_attributes(&way(".onfs-way-1"), Attrs::OWNER, &own).unwrap();
            let other = Attributes { uid: 78, ..own };
            let refused = back.set_attributes(&way(".onfs-way-1"), Attrs::OWNER, &other);
            assert_eq!(refused, Err(Errno::EPERM));
            let refused = back.begin_version(&way(".onfs-way-2")).unwrap().finish(&other);
            assert_eq!(refused, Err(Errno::EPERM));
            assert_eq!(back.look(&way(".onfs-way-2")), Ok(None));
        });
    });
}
