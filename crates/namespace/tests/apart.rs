//! Goal: what is in a transient directory is apart, whatever happens to names, and nothing comes to be apart that was not.
//! Method: rules one by one; random operations, after each of which the check has no finding and nobody has gone in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

mod support;

use std::collections::BTreeSet;

use namespace::{
    InodeFlags, RenameMode, apart,
    check::{Finding, repair},
    inode,
    mode::{FileMode, Mode},
    policy::{self, DirPolicy},
};
use proptest::prelude::*;
use support::{Fs, USER, refused};
use types::{Errno, FileKind, Ino};

impl Fs {
    fn set_mode(&mut self, dir: Ino, mode: Option<Mode>) -> namespace::Result<()> {
        let policy = DirPolicy { mode, ..DirPolicy::default() };
        self.run(|t, _| policy::set(t, dir, &policy, true))
    }
    fn is_apart(&self, ino: Ino) -> bool {
        inode::load(&self.store, ino).unwrap().is_apart()
    }
    fn unnamed(&mut self, dir: Ino) -> Ino {
        let ino = self.fresh();
        self.run(|t, env| namespace::create_unnamed(t, env, &USER, dir, 0o600, ino)).unwrap().attr.ino
    }
    fn set_file_mode(
        &mut self,
        ino: Ino,
        mode: Option<FileMode>,
    ) -> namespace::Result<Option<apart::Crossing>> {
        self.run(|t, env| apart::set_file_mode(t, env, ino, mode, true))
    }
}

const REPLACE: RenameMode = RenameMode::Replace;

#[test]
fn the_border_is_crossed_one_way() {
    let mut fs = Fs::new();
    let (r, d) = (fs.dir(Ino::ROOT, "r"), fs.dir(Ino::ROOT, "d"));
    fs.set_mode(r, Some(Mode::Transient)).unwrap();
    let (sub, f, g) = (fs.dir(r, "sub"), fs.file(r, "f"), fs.file(d, "g"));
    let deep = fs.file(sub, "deep");
    assert!([r, sub, f, deep].iter().all(|ino| fs.is_apart(*ino)) && !fs.is_apart(g));
    for (from, to, mode) in [
        ((d, "g"), (r, "g"), REPLACE),
        ((Ino::ROOT, "d"), (r, "d"), REPLACE),
        ((r, "sub"), (d, "sub"), REPLACE),
        ((r, "f"), (d, "g"), RenameMode::Exchange),
        ((d, "g"), (r, "f"), RenameMode::Exchange),
    ] {
        assert_eq!(fs.rename(from, to, mode).err(), refused::<()>(Errno::EXDEV).err(), "{from:?}");
    }
    assert_eq!(fs.link(g, r, "l").err(), refused::<()>(Errno::EXDEV).err());
    assert_eq!(fs.link(f, d, "l").err(), refused::<()>(Errno::EXDEV).err());
    // Within it all goes on; with two names nothing goes out.
    fs.link(f, sub, "again").unwrap();
    fs.rename((r, "f"), (sub, "f"), REPLACE).unwrap();
    assert_eq!(fs.rename((sub, "f"), (d, "f"), REPLACE).err(), refused::<()>(Errno::EXDEV).err());
    fs.unlink(sub, "again").unwrap();
    fs.rename((sub, "f"), (d, "g"), REPLACE).unwrap();
    assert!(!fs.is_apart(f));
    assert_eq!(fs.rename((d, "g"), (r, "g"), REPLACE).err(), refused::<()>(Errno::EXDEV).err());
    // A file without a name is of the directory where it gets one.
    for (made, named) in [(r, d), (d, r)] {
        let t = fs.unnamed(made);
        fs.link(t, named, "t").unwrap();
        assert_eq!(fs.is_apart(t), named == r);
    }
    assert_eq!(fs.findings(), []);
}

#[test]
fn a_directory_becomes_transient_while_it_is_empty() {
    let mut fs = Fs::new();
    let r = fs.dir(Ino::ROOT, "r");
    fs.file(r, "f");
    let not_empty = refused::<()>(Errno::ENOTEMPTY);
    assert_eq!(fs.set_mode(r, Some(Mode::Transient)), not_empty);
    fs.set_mode(r, Some(Mode::Global)).unwrap();
    fs.unlink(r, "f").unwrap();
    fs.set_mode(r, Some(Mode::Transient)).unwrap();
    let sub = fs.dir(r, "sub");
    assert_eq!(fs.set_mode(r, None), not_empty);
    assert_eq!(fs.set_mode(sub, Some(Mode::Local)), refused(Errno::EINVAL));
    fs.set_mode(sub, Some(Mode::Transient)).unwrap();
    fs.set_mode(sub, None).unwrap();
    assert!(fs.is_apart(sub));
    // Other words of its policy may change.
    let policy = DirPolicy {
        mode: Some(Mode::Transient),
        promote: Some(policy::Promote::OnOpen),
        sync: None,
        write_behind: None,
    };
    fs.run(|t, _| policy::set(t, r, &policy, true)).unwrap();
    assert_eq!(fs.findings(), []);
    fs.rmdir(r, "sub").unwrap();
    fs.set_mode(r, None).unwrap();
    assert!(!fs.is_apart(r));
    assert_eq!(fs.set_mode(Ino::ROOT, Some(Mode::Transient)), refused(Errno::EINVAL));
    // Without a linked directory it is a word like others.
    let policy = DirPolicy { mode: Some(Mode::Transient), ..DirPolicy::default() };
    fs.run(|t, _| policy::set(t, Ino::ROOT, &policy, false)).unwrap();
    assert!(!fs.is_apart(Ino::ROOT));
    assert_eq!(fs.findings(), []);
}

#[test]
fn files_say_their_own_mode() {
    let mut fs = Fs::new();
    let (d, other) = (fs.dir(Ino::ROOT, "d"), fs.dir(Ino::ROOT, "other"));
    let (f, g) = (fs.file(d, "f"), fs.file(d, "g"));
    assert_eq!(fs.set_file_mode(f, Some(FileMode::Global)), Ok(None));
    let crossing = |apart| Some(apart::Crossing { apart, dir: d, name: b"f".to_vec() });
    assert_eq!(fs.set_file_mode(f, Some(FileMode::Transient)), Ok(crossing(true)));
    assert_eq!(fs.link(f, other, "l").err(), refused::<()>(Errno::EXDEV).err());
    fs.rename((d, "f"), (other, "f"), REPLACE).unwrap();
    fs.rename((other, "f"), (d, "f"), REPLACE).unwrap();
    assert!(fs.is_apart(f));
    assert_eq!(fs.set_file_mode(f, None), Ok(crossing(false)));
    fs.link(g, other, "l").unwrap();
    assert_eq!(fs.set_file_mode(g, Some(FileMode::Transient)), refused(Errno::EXDEV));
    assert_eq!(fs.set_file_mode(g, Some(FileMode::Local)), Ok(None));
    assert_eq!(fs.set_file_mode(d, Some(FileMode::Local)), refused(Errno::EINVAL));
    let t = fs.unnamed(d);
    assert_eq!(fs.set_file_mode(t, Some(FileMode::Transient)), refused(Errno::ENOENT));
    // What is transient itself goes in, and stays so outside.
    let r = fs.dir(Ino::ROOT, "r");
    fs.set_mode(r, Some(Mode::Transient)).unwrap();
    fs.set_file_mode(f, Some(FileMode::Transient)).unwrap();
    fs.rename((d, "f"), (r, "f"), REPLACE).unwrap();
    fs.rename((r, "f"), (d, "f"), REPLACE).unwrap();
    assert!(fs.is_apart(f) && !apart::is_below(&fs.store, other).unwrap());
    assert!(apart::is_below(&fs.store, Ino::ROOT).unwrap() && apart::is_below(&fs.store, d).unwrap());
    assert_eq!(fs.findings(), []);
}

/// Goal: the check finds what is apart and must not be, and the other way round. Method: flags set by hand.
#[test]
fn wrong_flags_are_found() {
    let mut fs = Fs::new();
    let (r, d) = (fs.dir(Ino::ROOT, "r"), fs.dir(Ino::ROOT, "d"));
    fs.set_mode(r, Some(Mode::Transient)).unwrap();
    let f = fs.file(r, "f");
    for ino in [f, d] {
        let mut inode = inode::load(&fs.store, ino).unwrap();
        inode.flags.toggle(InodeFlags::APART);
        inode::store(&mut fs.store, ino, &inode);
    }
    let found = fs.findings();
    let expected = [
        Finding::WrongFlags { ino: f, stored: InodeFlags::empty(), counted: InodeFlags::APART },
        Finding::WrongFlags { ino: d, stored: InodeFlags::APART, counted: InodeFlags::empty() },
    ];
    assert!(found.len() == 2 && expected.iter().all(|one| found.contains(one)), "{found:?}");
    for finding in &found {
        fs.run(|t, env| repair(t, env, finding)).unwrap();
    }
    assert_eq!(fs.findings(), []);
}

const NAMES: [&str; 3] = ["a", "b", "c"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Goal: the invariants of the module hold. Method: random operations on a small tree.
    #[test]
    fn nobody_goes_in(steps in prop::collection::vec((0u8..9, 0usize..6, 0usize..6, 0usize..3, 0usize..3), 1..120)) {
        let mut fs = Fs::new();
        let mut dirs = vec![Ino::ROOT];
        let mut told: BTreeSet<Ino> = BTreeSet::new();
        for (what, from, to, name, other) in steps {
            let at = |n: usize, dirs: &[Ino]| dirs[n % dirs.len()];
            let (from, to) = ((at(from, &dirs), NAMES[name]), (at(to, &dirs), NAMES[other]));
            let mut may_go_in = None;
            match what {
                0 => drop(fs.create_as(&USER, from.0, from.1.as_bytes(), &support::regular(0o644))),
                1 => dirs.extend(fs.mkdir_as(&USER, from.0, from.1.as_bytes(), 0o755).map(|attr| attr.ino)),
                2 => drop(fs.rename(from, to, REPLACE)),
                3 => drop(fs.rename(from, to, RenameMode::Exchange)),
                4 => drop(fs.unlink(from.0, from.1)),
                5 => drop(fs.rmdir(from.0, from.1)),
                6 => {
                    if let Ok(found) = fs.lookup(from.0, from.1) {
                        drop(fs.link(found.attr.ino, to.0, to.1));
                    }
                }
                7 => drop(fs.set_mode(from.0, [None, Some(Mode::Transient), Some(Mode::Local)][other])),
                _ => {
                    if let Ok(found) = fs.lookup(from.0, from.1) {
                        let mode = [None, Some(FileMode::Transient), Some(FileMode::Local)][other];
                        if let Ok(Some(crossing)) = fs.set_file_mode(found.attr.ino, mode) {
                            may_go_in = Some(found.attr.ino).filter(|_| crossing.apart);
                        }
                    }
                }
            }
            dirs.retain(|dir| namespace::find(&fs.store, &fs.env, *dir).is_ok_and(|found| found.attr.nlink > 0));
            prop_assert_eq!(fs.findings(), []);
            if let Some(ino) = may_go_in {
                told.remove(&ino);
            }
            for dir in &dirs {
                for (_, ino) in fs.names(*dir, 100) {
                    let inode = inode::load(&fs.store, ino).unwrap();
                    // Of a directory its flag speaks of what is in it.
                    let known = if inode.is_dir() { !fs.is_apart(*dir) } else { !inode.is_apart() };
                    if known {
                        told.insert(ino);
                    }
                    prop_assert!(known || !told.contains(&ino), "{} went in", ino);
                    let own = inode.file_mode() == Some(FileMode::Transient) && inode.nlink == 1;
                    let why = fs.is_apart(*dir) || own || inode.kind == FileKind::Directory;
                    prop_assert!(!inode.is_apart() || why, "{} is apart", ino);
                }
            }
        }
    }
}
