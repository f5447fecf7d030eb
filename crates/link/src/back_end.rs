//! What the shell asks of the back end: a directory of a mounted file system, or a bucket of an object store. Edges
//! implement it.
//!
//! Errors are those of the system calls. A call may hang for as long as the back end does; whoever must not wait for that
//! has it done by a thread of its own. Nothing here follows a symbolic link or crosses into another file system.

use std::ops::ControlFlow;

use types::{Errno, FileKind, Timestamp};

use crate::{
    found::{Detail, Found, Xattr},
    root::Reachable,
    seen::{Change, Clock, Seen, compare},
    step::Attrs,
    survey::{Names, Survey, Taken, Wanted},
};

/// A way from the linked root, names in order; the root itself has none. A name is not empty, neither "." nor "..", and
/// without "/" and NUL.
pub type Way = [Vec<u8>];

/// What is made there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Making<'a> {
    /// Not a regular file: those come with [`BackEnd::begin_version`].
    pub kind: FileKind,
    pub rdev: u32,
    /// Of a symbolic link.
    pub target: &'a [u8],
    pub with: &'a Attributes<'a>,
}

/// The attributes of an inode on our side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes<'a> {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    /// Extended ones with their values, ACLs among them.
    pub xattrs: &'a [Xattr],
}

/// What a rename does with what has the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// `EEXIST`.
    Nothing,
    Replace,
}

/// What may be asked of this back end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities {
    pub hard_links: bool,
    /// Renames of files in one step, so that a name shows one of the two.
    pub atomic_rename: bool,
    pub symlinks: bool,
    /// Fifos, sockets, devices.
    pub special: bool,
    /// Mode, owner and times are kept.
    pub attributes: bool,
    pub xattrs: bool,
    /// A version can be written into the file that is there.
    pub in_place: bool,
    /// Whoever writes there need not be asked for the owner of what he makes: we may give files away.
    pub any_owner: bool,
    /// A directory whose times are the same has the same names. Otherwise it is listed at each look.
    pub directory_times: bool,
    /// Directories are renamed, with all below them.
    pub directory_rename: bool,
}

/// See the module's documentation.
pub trait BackEnd: Send + Sync {
    fn abilities(&self) -> Abilities;

    /// The linked root: whether it is there, and which it is.
    fn root(&self) -> Reachable;

    /// The clock that gives the back end's times.
    fn clock(&self) -> Clock;

    /// Free and all bytes, as for statfs.
    fn space(&self) -> Result<(u64, u64), Errno>;

    /// `None`: nothing has this name, in a directory that is there. `ENOENT`: the directory itself is not.
    fn look(&self, way: &Way) -> Result<Option<Found>, Errno>;

    /// All names of a directory, until `visit` breaks; an object that went meanwhile is left out. An object of another file
    /// system that is mounted there is left out, too.
    fn list(&self, way: &Way, visit: &mut dyn FnMut(&[u8], Found) -> ControlFlow<()>) -> Result<(), Errno>;

    /// As [`BackEnd::look`] at each of these names of a directory, in their order. An error of one is one of all.
    fn look_at(&self, dir: &Way, names: &[Vec<u8>]) -> Result<Vec<Option<Found>>, Errno> {
        names.iter().map(|name| self.look(&below(dir, name))).collect()
    }

    /// Of each of these objects of a directory, in their order, what [`BackEnd::readlink`] or [`BackEnd::xattrs`] says.
    fn details(&self, dir: &Way, of: &[(Vec<u8>, FileKind)]) -> Result<Vec<Result<Detail, Errno>>, Errno> {
        let detail = |(name, kind): &(Vec<u8>, FileKind)| {
            let way = below(dir, name);
            Ok(match kind {
                FileKind::Symlink => Detail { target: self.readlink(&way)?, ..Detail::default() },
                FileKind::Regular
                | FileKind::Directory
                | FileKind::Fifo
                | FileKind::Socket
                | FileKind::CharDevice
                | FileKind::BlockDevice => Detail { xattrs: self.xattrs(&way)?, ..Detail::default() },
            })
        };
        Ok(of.iter().map(detail).collect())
    }

    /// A look at a directory, and its names if it is not as it was. `Err`: nothing is known of it, not even whether the root is there.
    fn survey(&self, dir: &Way, wanted: &Wanted) -> Result<Survey, Errno> {
        Ok(survey_by_calls(self, dir, wanted))
    }

    fn readlink(&self, way: &Way) -> Result<Vec<u8>, Errno>;

    /// Those that a user of the mount may see, ACLs among them.
    fn xattrs(&self, way: &Way) -> Result<Vec<Xattr>, Errno>;

    /// A regular file, for reading. What `Found` it is comes with it.
    fn open(&self, way: &Way) -> Result<(Box<dyn Source>, Found), Errno>;

    /// `EEXIST` if the name is taken.
    fn make(&self, way: &Way, what: &Making<'_>) -> Result<Found, Errno>;

    /// A regular file of this name, empty, to be filled: what an earlier beginning left under it is gone. The name is one on
    /// the way ([`crate::Place::being_made`]).
    fn begin_version(&self, way: &Way) -> Result<Box<dyn Version>, Errno>;

    /// The file that is there is to be changed into a new version.
    fn begin_in_place(&self, way: &Way) -> Result<Box<dyn Version>, Errno>;

    /// Durable in the order of the calls, as far as the back end orders such things.
    fn rename(&self, from: &Way, to: &Way, over: Over) -> Result<(), Errno>;

    fn link(&self, from: &Way, to: &Way) -> Result<(), Errno>;

    fn unlink(&self, way: &Way) -> Result<(), Errno>;

    fn rmdir(&self, way: &Way) -> Result<(), Errno>;

    /// Those of `what`.
    fn set_attributes(&self, way: &Way, what: Attrs, to: &Attributes<'_>) -> Result<(), Errno>;

    /// `None`: it goes, if it is there.
    fn set_xattr(&self, way: &Way, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno>;

    /// Durable on return: the attributes of a file or a directory, and what was renamed, made or removed in the directory.
    fn sync(&self, way: &Way) -> Result<(), Errno>;
}

/// By the calls that there are, one after another.
fn survey_by_calls<B: BackEnd + ?Sized>(back: &B, dir: &Way, wanted: &Wanted) -> Survey {
    let before = back.root();
    if before == Reachable::No {
        return Survey { before, taken: Err(Errno::EIO), after: before };
    }
    let taken = take(back, dir, wanted);
    // Of what was not listed nothing is concluded that the look before it does not prove.
    let listed = !matches!(taken, Ok(Taken { names: None, .. }));
    let after = if listed { back.root() } else { before };
    Survey { before, taken, after }
}

fn take<B: BackEnd + ?Sized>(back: &B, dir: &Way, wanted: &Wanted) -> Result<Taken, Errno> {
    let found = back.look(dir)?;
    let Some(now) = found.filter(|found| found.seen.kind == FileKind::Directory) else {
        return Ok(Taken { found, names: None });
    };
    let as_agreed =
        |agreed: &Seen| !matches!(compare(agreed, Some(&now.seen)), Change::Unproven | Change::Data);
    if wanted.agreed.as_ref().is_some_and(as_agreed) {
        return Ok(Taken { found, names: None });
    }
    let mut names = Names::default();
    let mut more = false;
    back.list(dir, &mut |name, found| {
        more = names.entries.len() == wanted.names_max;
        if more {
            return ControlFlow::Break(());
        }
        names.entries.push((name.to_vec(), found));
        ControlFlow::Continue(())
    })?;
    if more {
        return Ok(Taken { found, names: None });
    }
    names.after = back.look(dir)?;
    if wanted.details && !names.entries.is_empty() {
        let of: Vec<_> = names.entries.iter().map(|(name, found)| (name.clone(), found.seen.kind)).collect();
        names.details = back.details(dir, &of)?;
    }
    Ok(Taken { found, names: Some(names) })
}

fn below(dir: &Way, name: &[u8]) -> Vec<Vec<u8>> {
    let mut way = dir.to_vec();
    way.push(name.to_vec());
    way
}

/// A file of theirs that is open for reading. It stays what it was when another gets its name.
pub trait Source: Send + Sync {
    /// Fills `buf`; short only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno>;

    /// As `read_at`, if no device need be waited for.
    fn read_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>, Errno>;

    /// As it is now.
    fn look(&self) -> Result<Found, Errno>;
}

/// A file that is being filled. Given up when it is dropped before [`Version::finish`]: one with a name on the way is removed.
pub trait Version: Send {
    fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Errno>;

    /// Gives it this length; what was not written reads as zeros.
    fn set_len(&mut self, len: u64) -> Result<(), Errno>;

    /// Gives it its attributes, and makes it durable. What it is then.
    fn finish(self: Box<Self>, attributes: &Attributes<'_>) -> Result<Found, Errno>;
}
