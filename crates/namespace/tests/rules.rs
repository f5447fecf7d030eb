//! One test per rule of POSIX and Linux that the random model does not know: modes, ACLs, times, limits, cookies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

mod support;

use namespace::{
    Caller, NewNode, RenameMode, SetAttr, SetTime, SetXattr, Settled, XattrMode, acl, data, inode, orphan,
    xattr,
};
use support::{Fs, USER, at, refused, regular};
use types::{Errno, FileKind, Ino, LINK_MAX, S_ISGID, S_ISUID, SYMLINK_MAX, XATTR_SIZE_MAX};

const NOBODY: u32 = u32::MAX;

/// An ACL's bytes from (tag, permissions, id).
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn with_user(owner: u16, mask: u16, other: u16) -> Vec<u8> {
    list(&[(1, owner, NOBODY), (2, 7, 1000), (4, 5, NOBODY), (0x10, mask, NOBODY), (0x20, other, NOBODY)])
}

fn minimal(owner: u16, group: u16, other: u16) -> Vec<u8> {
    list(&[(1, owner, NOBODY), (4, group, NOBODY), (0x20, other, NOBODY)])
}

impl Fs {
    fn set(&mut self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> namespace::Result<()> {
        self.run(|t, env| xattr::set(t, env, ino, name, value, how))
    }
    fn get(&self, ino: Ino, name: &[u8]) -> namespace::Result<Vec<u8>> {
        xattr::get(&self.store, ino, name).map(|v| v.to_vec())
    }
    fn change(&mut self, ino: Ino, change: SetAttr) -> namespace::Result<types::Attr> {
        self.run(|t, env| namespace::setattr(t, env, ino, &change)).map(|f| f.attr)
    }
    fn chmod(&mut self, ino: Ino, mode: u32) {
        self.change(ino, SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
    }
    fn mode(&self, ino: Ino) -> u32 {
        self.attr(ino).mode
    }
}

const SET: SetXattr = SetXattr { mode: XattrMode::Set, kill_sgid: false };

/// Goal: the umask counts without a default ACL. Method: create, mkdir, symlink.
#[test]
fn umask_applies() {
    let mut fs = Fs::new();
    let caller = Caller { umask: 0o077, ..USER };
    let file = fs.create_as(&caller, Ino::ROOT, b"f", &regular(0o4766)).unwrap().attr;
    assert_eq!((file.mode, file.uid, file.gid), (0o4700, 1000, 100));
    assert_eq!(fs.mkdir_as(&caller, Ino::ROOT, b"d", 0o1777).unwrap().mode, 0o1700);
    let link = NewNode { kind: FileKind::Symlink, target: Some(b"x"), ..regular(0) };
    let link = fs.create_as(&caller, Ino::ROOT, b"l", &link).unwrap().attr;
    assert_eq!((link.mode, link.size), (0o777, 1));
}

/// Goal: a setgid directory gives its group, and to directories the bit. Method: both below one.
#[test]
fn setgid_directories_give_their_group() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "d");
    fs.change(dir, SetAttr { gid: Some(7), mode: Some(0o2775), ..SetAttr::default() }).unwrap();
    let file = fs.file(dir, "f");
    assert_eq!((fs.attr(file).gid, fs.mode(file)), (7, 0o644));
    let sub = fs.dir(dir, "s");
    assert_eq!((fs.attr(sub).gid, fs.mode(sub)), (7, 0o2755));
}

/// Goal: who the bits are taken from. Method: chown, write and truncation of each kind.
#[test]
fn set_id_bits_are_taken_away() {
    let mut fs = Fs::new();
    let (file, dir) = (fs.file(Ino::ROOT, "f"), fs.dir(Ino::ROOT, "d"));
    let chown = SetAttr { uid: Some(5), ..SetAttr::default() };
    for (before, after) in [(0o6755, 0o755), (0o6745, 0o2745), (0o755, 0o755)] {
        fs.chmod(file, before);
        assert_eq!(fs.change(file, chown).unwrap().mode, after);
        fs.chmod(file, before);
        fs.run(|t, env| data::kill_privileges(t, env, file, true)).unwrap();
        assert_eq!(fs.mode(file), after);
        fs.chmod(file, before);
        let truncate = SetAttr { size: Some(0), kill_suidgid: true, ..SetAttr::default() };
        assert_eq!(fs.change(file, truncate).unwrap().mode, after);
        fs.chmod(file, before);
        assert_eq!(fs.change(file, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap().mode, before);
    }
    fs.chmod(dir, S_ISUID | S_ISGID | 0o755);
    assert_eq!(fs.change(dir, chown).unwrap().mode, S_ISUID | S_ISGID | 0o755);
    let both = SetAttr { mode: Some(0o4755), ..chown };
    assert_eq!(fs.change(file, both).unwrap().mode, 0o4755);
}

/// Goal: capabilities do not survive writing. Method: set, then write, truncate, change owner.
#[test]
fn file_capabilities_are_taken_away() {
    const NAME: &[u8] = b"security.capability";
    let mut fs = Fs::new();
    let file = fs.file(Ino::ROOT, "f");
    for n in 0..3 {
        fs.env.epoch += 1;
        fs.set(file, NAME, b"x", SET).unwrap();
        match n {
            0 => _ = fs.run(|t, env| data::begin_write(t, env, file)).unwrap(),
            1 => _ = fs.change(file, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap(),
            _ => _ = fs.change(file, SetAttr { gid: Some(1), ..SetAttr::default() }).unwrap(),
        }
        assert_eq!(fs.get(file, NAME), refused(Errno::ENODATA), "{n}");
    }
    assert_eq!(fs.findings(), []);
}

/// Goal: an access ACL and the mode follow each other. Method: set, chmod, collapse, remove.
#[test]
fn access_acls_follow_the_mode() {
    let mut fs = Fs::new();
    let file = fs.file(Ino::ROOT, "f");
    assert_eq!(fs.get(file, acl::ACCESS), refused(Errno::ENODATA));
    fs.chmod(file, 0o2644);
    fs.set(file, acl::ACCESS, &with_user(6, 7, 1), SET).unwrap();
    assert_eq!(fs.mode(file), 0o2671);
    fs.set(file, acl::ACCESS, &with_user(6, 7, 1), SetXattr { kill_sgid: true, ..SET }).unwrap();
    assert_eq!(fs.mode(file), 0o671);
    fs.chmod(file, 0o640);
    assert_eq!(fs.get(file, acl::ACCESS).unwrap(), with_user(6, 4, 0));
    assert_eq!(fs.findings(), []);
    fs.set(file, acl::ACCESS, &minimal(7, 5, 0), SET).unwrap();
    assert_eq!((fs.mode(file), fs.get(file, acl::ACCESS)), (0o750, refused(Errno::ENODATA)));
    fs.set(file, acl::ACCESS, &with_user(6, 6, 0), SET).unwrap();
    fs.run(|t, env| xattr::remove(t, env, file, acl::ACCESS)).unwrap();
    fs.run(|t, env| xattr::remove(t, env, file, acl::ACCESS)).unwrap();
    assert_eq!((fs.mode(file), fs.get(file, acl::ACCESS)), (0o660, refused(Errno::ENODATA)));
    assert_eq!(fs.set(file, acl::DEFAULT, &minimal(7, 5, 0), SET), refused(Errno::EACCES));
    assert_eq!(fs.set(file, acl::ACCESS, b"\x02\0\0\0x", SET), refused(Errno::EINVAL));
    assert_eq!(fs.set(file, acl::ACCESS, b"\x03\0\0\0", SET), refused(Errno::EOPNOTSUPP));
    let link = NewNode { kind: FileKind::Symlink, target: Some(b"x"), ..regular(0) };
    let link = fs.create_as(&USER, Ino::ROOT, b"l", &link).unwrap().attr.ino;
    assert_eq!(fs.get(link, acl::ACCESS), refused(Errno::EOPNOTSUPP));
    assert_eq!(fs.set(link, acl::ACCESS, &minimal(7, 5, 0), SET), refused(Errno::EOPNOTSUPP));
    assert_eq!(fs.findings(), []);
}

/// Goal: default ACLs are inherited instead of the umask. Method: a file, a directory, a link below one; a minimal one.
#[test]
fn default_acls_are_inherited() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "d");
    fs.set(dir, acl::DEFAULT, &with_user(7, 7, 5), SET).unwrap();
    let caller = Caller { umask: 0o777, ..USER };
    let file = fs.create_as(&caller, dir, b"f", &regular(0o640)).unwrap().attr.ino;
    assert_eq!((fs.mode(file), fs.get(file, acl::ACCESS).unwrap()), (0o640, with_user(6, 4, 0)));
    let sub = fs.mkdir_as(&caller, dir, b"s", 0o755).unwrap().ino;
    assert_eq!((fs.mode(sub), fs.get(sub, acl::ACCESS).unwrap()), (0o755, with_user(7, 5, 5)));
    assert_eq!(fs.get(sub, acl::DEFAULT).unwrap(), with_user(7, 7, 5));
    let link = NewNode { kind: FileKind::Symlink, target: Some(b"x"), ..regular(0) };
    assert_eq!(fs.create_as(&caller, dir, b"l", &link).unwrap().attr.mode, 0o777);
    fs.set(dir, acl::DEFAULT, &minimal(7, 5, 1), SET).unwrap();
    let plain = fs.create_as(&caller, dir, b"p", &regular(0o666)).unwrap().attr.ino;
    assert_eq!((fs.mode(plain), fs.get(plain, acl::ACCESS)), (0o640, refused(Errno::ENODATA)));
    fs.set(dir, acl::DEFAULT, &2u32.to_le_bytes(), SET).unwrap();
    assert_eq!(fs.create_as(&caller, dir, b"q", &regular(0o666)).unwrap().attr.mode, 0);
    assert_eq!(fs.findings(), []);
}

/// Goal: names, sizes and flags of attributes. Method: each limit and each error.
#[test]
fn xattrs_have_their_limits() {
    let mut fs = Fs::new();
    let file = fs.file(Ino::ROOT, "f");
    let how = |mode| SetXattr { mode, kill_sgid: false };
    assert_eq!(fs.set(file, b"user.a", b"", how(XattrMode::Replace)), refused(Errno::ENODATA));
    fs.set(file, b"user.a", b"1", how(XattrMode::Create)).unwrap();
    assert_eq!(fs.set(file, b"user.a", b"2", how(XattrMode::Create)), refused(Errno::EEXIST));
    fs.set(file, b"user.a", b"3", how(XattrMode::Replace)).unwrap();
    assert_eq!(fs.get(file, b"user.a").unwrap(), b"3");
    let big = vec![1; XATTR_SIZE_MAX + 1];
    fs.set(file, b"user.big", &big[1..], SET).unwrap();
    assert_eq!(fs.get(file, b"user.big").unwrap().len(), XATTR_SIZE_MAX);
    assert_eq!(fs.set(file, b"user.big", &big, SET), refused(Errno::E2BIG));
    let long = [b"user.".to_vec(), vec![b'x'; 251]].concat();
    assert_eq!(fs.set(file, &long, b"", SET), refused(Errno::ERANGE));
    fs.set(file, &long[..255], b"", SET).unwrap();
    for (name, errno) in [
        (&b"user."[..], Errno::EINVAL),
        (b"system.other", Errno::EOPNOTSUPP),
        (b"plain", Errno::EOPNOTSUPP),
        (b"user.onfs.tier", Errno::EPERM),
    ] {
        assert_eq!(fs.set(file, name, b"", SET), refused(errno));
    }
    assert_eq!(fs.get(file, b"user.onfs.tier"), refused(Errno::ENODATA));
    assert_eq!(fs.run(|t, env| xattr::remove(t, env, file, b"user.none")), refused(Errno::ENODATA));
    let mut full = Ok(());
    for n in 0..400 {
        full = fs.set(file, format!("user.{n:0250}").as_bytes(), b"", SET);
        if full.is_err() {
            break;
        }
    }
    assert_eq!(full, refused(Errno::ENOSPC));
}

/// Goal: all attributes of an inode together are bounded, whether they are new or grow, and what is there can be replaced.
/// Method: the largest values until one is refused; one longer, one shorter, one after a removal.
#[test]
fn regression_attributes_are_bounded_together() {
    let mut fs = Fs::new();
    let file = fs.file(Ino::ROOT, "f");
    let big = vec![1; XATTR_SIZE_MAX];
    let taken =
        (0..1000).take_while(|n| fs.set(file, format!("user.{n}").as_bytes(), &big, SET).is_ok()).count();
    assert_eq!(taken, 15, "1 MiB, with the names");
    fs.set(file, b"user.short", &big[..60_000], SET).unwrap();
    assert_eq!(fs.set(file, b"user.short", &big, SET), refused(Errno::ENOSPC));
    fs.set(file, b"user.0", &big, SET).unwrap();
    fs.run(|t, env| xattr::remove(t, env, file, b"user.1")).unwrap();
    fs.set(file, b"user.short", &big, SET).unwrap();
}

/// Goal: which times an operation changes. Method: one operation at a time, each one second later.
#[test]
fn times_follow_operations() {
    let mut fs = Fs::new();
    let (dir, other) = (fs.dir(Ino::ROOT, "d"), fs.dir(Ino::ROOT, "o"));
    let times = |fs: &Fs, ino| {
        let a = fs.attr(ino);
        (a.atime.sec, a.mtime.sec, a.ctime.sec, a.btime.sec)
    };
    let file = fs.file(dir, "f");
    let t0 = fs.env.now.sec;
    assert_eq!(times(&fs, file), (t0, t0, t0, t0));
    assert_eq!((fs.attr(dir).mtime.sec, fs.attr(dir).ctime.sec), (t0, t0));
    fs.link(file, dir, "g").unwrap();
    let t1 = fs.env.now.sec;
    assert_eq!((times(&fs, file), fs.attr(dir).mtime.sec), ((t0, t0, t1, t0), t1));
    fs.rename((dir, "g"), (other, "g"), RenameMode::Replace).unwrap();
    let t2 = fs.env.now.sec;
    assert_eq!((fs.attr(dir).mtime.sec, fs.attr(other).ctime.sec, fs.attr(file).ctime.sec), (t2, t2, t2));
    fs.unlink(other, "g").unwrap();
    let t3 = fs.env.now.sec;
    assert_eq!((times(&fs, file), fs.attr(other).mtime.sec), ((t0, t0, t3, t0), t3));
    fs.change(file, SetAttr { size: Some(9), ..SetAttr::default() }).unwrap();
    let t4 = fs.env.now.sec;
    assert_eq!(times(&fs, file), (t0, t4, t4, t0));
    let given = SetAttr { atime: Some(SetTime::At(at(-7))), mtime: Some(SetTime::Now), ..SetAttr::default() };
    fs.change(file, given).unwrap();
    let t5 = fs.env.now.sec;
    assert_eq!(times(&fs, file), (-7, t5, t5, t0));
    let settled = Settled { size: 9, blocks: None, mtime: Some(at(t5 + 9)), still_open: true };
    fs.run(|t, env| data::settle(t, env, file, &settled)).unwrap();
    assert_eq!(
        times(&fs, file),
        (-7, t5 + 9, t5 + 1, t0),
        "somebody's time may lie in the future, a change does not"
    );
}

/// Goal: what truncation refuses, and what it does to blocks. Method: each kind; shrink and grow.
#[test]
fn truncation_is_for_regular_files() {
    let mut fs = Fs::new();
    let (file, dir) = (fs.file(Ino::ROOT, "f"), fs.dir(Ino::ROOT, "d"));
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(fs.change(dir, size(0)), refused(Errno::EISDIR));
    assert_eq!(fs.change(file, size(1 << 63)), refused(Errno::EFBIG));
    let node = NewNode { kind: FileKind::Fifo, ..regular(0o600) };
    let fifo = fs.create_as(&USER, Ino::ROOT, b"p", &node).unwrap().attr.ino;
    assert_eq!(fs.change(fifo, size(0)), refused(Errno::EINVAL));
    let settled = Settled { size: 4096, blocks: None, mtime: None, still_open: false };
    fs.run(|t, env| data::settle(t, env, file, &settled)).unwrap();
    assert_eq!(fs.change(file, size(1 << 40)).unwrap().blocks, 8);
    assert_eq!(fs.change(file, size(513)).unwrap().blocks, 2);
}

/// Goal: what cannot be made. Method: each bad node.
#[test]
fn nodes_are_checked() {
    let mut fs = Fs::new();
    let symlink = |target| NewNode { kind: FileKind::Symlink, target, ..regular(0) };
    let long = vec![b'x'; SYMLINK_MAX + 1];
    for (node, errno) in [
        (symlink(None), Errno::EINVAL),
        (symlink(Some(b"")), Errno::ENOENT),
        (symlink(Some(&long)), Errno::ENAMETOOLONG),
        (symlink(Some(b"a\0b")), Errno::EINVAL),
        (NewNode { kind: FileKind::Directory, ..regular(0) }, Errno::EINVAL),
    ] {
        assert_eq!(fs.create_as(&USER, Ino::ROOT, b"n", &node), refused(errno));
    }
    let device = NewNode { kind: FileKind::CharDevice, rdev: 0x103, ..regular(0o600) };
    assert_eq!(fs.create_as(&USER, Ino::ROOT, b"c", &device).unwrap().attr.rdev, 0x103);
    let live = NewNode { for_write: true, ..regular(0o600) };
    let data = fs.create_as(&USER, Ino::ROOT, b"w", &live).unwrap().data;
    assert!(data.written && data.live && !data.stale_live);
    let file = fs.file(Ino::ROOT, "f");
    assert_eq!(fs.create_as(&USER, file, b"x", &regular(0)), refused(Errno::ENOTDIR));
    assert_eq!(fs.lookup(file, "x"), refused(Errno::ENOTDIR));
    assert_eq!(fs.lookup(Ino::from_raw(999).unwrap(), "x"), refused(Errno::ESTALE));
    assert_eq!(namespace::readlink(&fs.store, file), refused(Errno::EINVAL));
}

/// Goal: hard links are limited, subdirectories are not. Method: records just below the limits.
#[test]
fn hard_links_are_limited() {
    let mut fs = Fs::new();
    let (file, dir) = (fs.file(Ino::ROOT, "f"), fs.dir(Ino::ROOT, "d"));
    for (ino, nlink) in [(file, LINK_MAX - 1), (dir, LINK_MAX), (Ino::ROOT, i32::MAX as u32)] {
        let record = namespace::Inode { nlink, ..inode::load(&fs.store, ino).unwrap() };
        inode::store(&mut fs.store, ino, &record);
    }
    fs.link(file, dir, "1").unwrap();
    assert_eq!(fs.link(file, dir, "2"), refused(Errno::EMLINK));
    let sub = fs.dir(dir, "s");
    assert_eq!(fs.mkdir_as(&USER, Ino::ROOT, b"x", 0), refused(Errno::EMLINK));
    let full = fs.rename((dir, "s"), (Ino::ROOT, "x"), RenameMode::Replace);
    assert_eq!(full, refused(Errno::EMLINK));
    assert_eq!(namespace::parent(&fs.store, sub).unwrap(), dir);
}

/// Goal: a removed directory takes nothing and shows nothing. Method: remove one that is still known.
#[test]
fn removed_directories_are_dead() {
    let mut fs = Fs::new();
    let (dir, file) = (fs.dir(Ino::ROOT, "d"), fs.file(Ino::ROOT, "f"));
    assert_eq!(fs.lookup(dir, "..").unwrap().attr.ino, Ino::ROOT);
    fs.rmdir(Ino::ROOT, "d").unwrap();
    assert_eq!(fs.create_as(&USER, dir, b"x", &regular(0)), refused(Errno::ENOENT));
    assert_eq!(fs.mkdir_as(&USER, dir, b"x", 0), refused(Errno::ENOENT));
    assert_eq!(fs.link(file, dir, "x"), refused(Errno::ENOENT));
    assert_eq!(fs.rename((Ino::ROOT, "f"), (dir, "x"), RenameMode::Replace), refused(Errno::ENOENT));
    assert_eq!(fs.lookup(dir, ".."), refused(Errno::ENOENT));
    assert_eq!(fs.names(dir, 9), []);
    assert_eq!(fs.attr(dir).nlink, 0);
    assert_eq!(fs.findings(), []);
}

/// Goal: `O_TMPFILE` files get one first name, unlinked ones none; purging leaves nothing. Method: both, with attributes.
#[test]
fn orphans_end_without_a_trace() {
    let mut fs = Fs::new();
    let empty = fs.store.0.clone();
    let unnamed = fs.fresh();
    fs.run(|t, env| namespace::create_unnamed(t, env, &USER, Ino::ROOT, 0o600, unnamed)).unwrap();
    assert_eq!(fs.attr(unnamed).nlink, 0);
    fs.set(unnamed, b"user.a", b"1", SET).unwrap();
    fs.link(unnamed, Ino::ROOT, "n").unwrap();
    assert_eq!(fs.findings(), []);
    fs.unlink(Ino::ROOT, "n").unwrap();
    assert_eq!(fs.link(unnamed, Ino::ROOT, "n"), refused(Errno::ENOENT));
    let link = NewNode { kind: FileKind::Symlink, target: Some(b"x"), ..regular(0) };
    let link = fs.create_as(&USER, Ino::ROOT, b"l", &link).unwrap().attr.ino;
    assert_eq!(fs.run(|t, _| orphan::purge(t, link)), Ok(orphan::Purged::Nothing));
    fs.unlink(Ino::ROOT, "l").unwrap();
    let mut seen = Vec::new();
    orphan::visit(&fs.store, Ino::ROOT.ugsd(), None, &mut |ino, _| {
        seen.push(ino);
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, [unnamed, link]);
    for ino in seen {
        assert_eq!(fs.run(|t, _| orphan::purge(t, ino)), Ok(orphan::Purged::Gone));
    }
    let left: Vec<_> = fs.store.0.keys().filter(|k| !empty.contains_key(*k)).collect();
    assert_eq!(left, [&namespace::key::allocator(Ino::ROOT.ugsd()).to_vec()]);
}

/// Goal: a listing shows what is there all the while exactly once, whatever comes and goes. Method: remove what was
/// shown and add more between the parts of a listing.
#[test]
fn listings_are_stable() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "d");
    for n in 0..200 {
        fs.file(dir, &format!("stay{n}"));
        fs.file(dir, &format!("go{n}"));
    }
    let (mut seen, mut cookie, mut new) = (Vec::new(), 0, 0);
    loop {
        let mut part = Vec::new();
        namespace::readdir(&fs.store, dir, cookie, &mut |entry| {
            part.push((entry.name.to_vec(), entry.cookie));
            if part.len() < 7 {
                std::ops::ControlFlow::Continue(())
            } else {
                std::ops::ControlFlow::Break(())
            }
        })
        .unwrap();
        let Some((_, last)) = part.last() else { break };
        cookie = *last;
        for (name, _) in &part {
            if name.starts_with(b"go") {
                fs.unlink(dir, std::str::from_utf8(name).unwrap()).unwrap();
            }
            new += 1;
            if new < 300 {
                fs.file(dir, &format!("new{new}"));
            }
        }
        seen.extend(part.into_iter().map(|(name, _)| name).filter(|name| name.starts_with(b"stay")));
    }
    assert_eq!(seen.len(), 200);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 200);
}

/// Goal: exchange of directories of different parents moves their parents' link counts. Method: a directory and a file.
#[test]
fn exchange_moves_link_counts() {
    let mut fs = Fs::new();
    let (a, b) = (fs.dir(Ino::ROOT, "a"), fs.dir(Ino::ROOT, "b"));
    let (sub, file) = (fs.dir(a, "x"), fs.file(b, "y"));
    fs.rename((a, "x"), (b, "y"), RenameMode::Exchange).unwrap();
    assert_eq!((fs.attr(a).nlink, fs.attr(b).nlink), (2, 3));
    assert_eq!(namespace::parent(&fs.store, sub).unwrap(), b);
    assert_eq!(fs.lookup(a, "x").unwrap().attr.ino, file);
    assert_eq!(fs.rename((Ino::ROOT, "b"), (b, "y"), RenameMode::Exchange), refused(Errno::EINVAL));
    assert_eq!(fs.rename((b, "y"), (Ino::ROOT, "b"), RenameMode::Exchange), refused(Errno::EINVAL));
    assert_eq!(fs.rename((b, "y"), (Ino::ROOT, "b"), RenameMode::Replace), refused(Errno::ENOTEMPTY));
    assert_eq!(fs.findings(), []);
}

/// Goal: a regular file without a byte that nobody has open is purged with its last name, in one transaction; all
/// others become orphans. Method: the records left by each.
#[test]
fn what_never_had_a_byte_is_purged_at_once() {
    let mut fs = Fs::new();
    let closed = |fs: &mut Fs, name: &str| {
        let at = namespace::Place { dir: Ino::ROOT, name: name.as_bytes() };
        fs.run(|t, env| namespace::unlink(t, env, at, &|_| false)).unwrap()
    };
    let blank = fs.file(Ino::ROOT, "blank");
    fs.set(blank, b"user.a", b"1", SET).unwrap();
    fs.link(blank, Ino::ROOT, "other").unwrap();
    assert_eq!(closed(&mut fs, "other").gone, None);
    let unlinked = closed(&mut fs, "blank");
    assert_eq!(unlinked.gone.map(|attr| (attr.ino, attr.nlink)), Some((blank, 0)));
    assert_eq!(fs.run(|t, env| namespace::find(t, env, blank)), refused(Errno::ESTALE));
    let written = fs.file(Ino::ROOT, "written");
    fs.run(|t, env| data::begin_write(t, env, written)).unwrap();
    assert_eq!(closed(&mut fs, "written").gone, None);
    assert_eq!(fs.attr(written).nlink, 0);
    assert_eq!(fs.run(|t, _| orphan::purge(t, written)), Ok(orphan::Purged::Gone));
    assert_eq!(fs.findings(), []);
}
