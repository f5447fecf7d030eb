//! Messages of the metadata lane.
//!
//! A reference keeps an inode that has no name any more. Lookup, what makes a name, and a listing that says so give the session one
//! reference for each inode that they answer with; [`Forget`] gives them back, [`Hold`] takes them again after a restart.
//! An opening has a number that the client chose; asked twice for the same it is one opening.

use prost::Message;
use types::{NAME_MAX, SYMLINK_MAX, XATTR_NAME_MAX};

use crate::{
    BATCH_MAX, Bad, Head, Layout, Method, Nothing, Request,
    attr::{Attr, Caller, Changes, Time},
};

pub use crate::{
    listing::{DirEntry, Entries, Listed},
    modes::{RenameMode, XattrMode},
};

/// Entries of one listing: with their attributes they fit into a body.
pub const ENTRIES_MAX: u32 = 8192;

pub(crate) fn known(head: Option<&Head>) -> Result<(), Bad> {
    head.map(|_| ()).ok_or(Bad::Missing("head"))
}

pub(crate) fn text(what: &'static str, text: &str, max: usize) -> Result<(), Bad> {
    if text.len() > max {
        return Err(Bad::TooLong { what, len: text.len(), max });
    }
    if text.chars().any(char::is_control) { Err(Bad::Range(what)) } else { Ok(()) }
}

fn at_most(what: &'static str, len: usize, max: usize) -> Result<(), Bad> {
    if len > max { Err(Bad::TooLong { what, len, max }) } else { Ok(()) }
}

pub(crate) fn inode(raw: u64) -> Result<(), Bad> {
    crate::attr::ino(raw).map(|_| ())
}

/// What a name may be is the namespace's to say; here only its length is looked at.
fn place(dir: u64, name: &[u8]) -> Result<(), Bad> {
    inode(dir)?;
    at_most("name", name.len(), NAME_MAX)
}

fn references(list: &[Reference]) -> Result<(), Bad> {
    at_most("references", list.len(), BATCH_MAX)?;
    list.iter().try_for_each(|reference| inode(reference.ino))
}

/// Messages with a head, whose slot's owner carries them out (none: any metadata server), what is checked beside it, and which
/// directories they are about, with the names in them.
macro_rules! requests {
    ($($request:ident -> $answer:ty, |$it:ident| $homes:expr, $check:expr $(, [$($dir:ident $(/ $name:ident)?)*])?;)*) => {
        $(impl Request for $request {
            const METHOD: Method = Method::$request;
            type Answer = $answer;

            fn head(&self) -> Option<&Head> {
                self.head.as_ref()
            }

            fn check(&self) -> Result<(), Bad> {
                known(self.head())?;
                let $it = self;
                let _ = $it;
                $check
            }

            fn homes(&self, visit: &mut dyn FnMut(u64)) {
                let $it = self;
                let _ = $it;
                $homes.into_iter().for_each(visit);
            }

            $(fn directories(&mut self, visit: &mut dyn FnMut(&mut u64, Option<&[u8]>)) {
                $({
                    let name: Option<&[u8]> = None;
                    $(let name = name.or(Some(&self.$name));)?
                    visit(&mut self.$dir, name);
                })*
            })?
        })*
    };
}

requests! {
    Lookup -> Entry, |it| [it.dir], place(it.dir, &it.name), [dir/name];
    GetAttr -> Entry, |it| [it.ino], inode(it.ino), [ino];
    SetAttr -> Entry, |it| [it.ino], inode(it.ino);
    ReadLink -> Target, |it| [it.ino], inode(it.ino);
    ReadDir -> Listed, |it| [it.dir], inode(it.dir), [dir];
    Create -> Opened, |it| [it.dir], place(it.dir, &it.name), [dir/name];
    Mkdir -> Entry, |it| [it.dir], place(it.dir, &it.name), [dir/name];
    Mknod -> Entry, |it| [it.dir], place(it.dir, &it.name), [dir/name];
    Symlink -> Entry, |it| [it.dir], place(it.dir, &it.name).and_then(|()| at_most("target", it.target.len(), SYMLINK_MAX)), [dir/name];
    Link -> Entry, |it| [it.dir], inode(it.ino).and_then(|()| place(it.dir, &it.name)), [dir/name];
    Unlink -> Nothing, |it| [it.dir], place(it.dir, &it.name), [dir/name];
    Rmdir -> Nothing, |it| [it.dir], place(it.dir, &it.name), [dir/name];
    Rename -> Nothing, |it| [it.from_dir], place(it.from_dir, &it.from_name).and_then(|()| place(it.to_dir, &it.to_name)), [from_dir/from_name to_dir/to_name];
    TmpFile -> Opened, |it| [it.dir], inode(it.dir);
    GetXattr -> Length, |it| [it.ino], inode(it.ino).and_then(|()| at_most("xattr name", it.name.len(), XATTR_NAME_MAX));
    SetXattr -> Nothing, |it| [it.ino], inode(it.ino).and_then(|()| at_most("xattr name", it.name.len(), XATTR_NAME_MAX));
    ListXattr -> Length, |it| [it.ino], inode(it.ino);
    RemoveXattr -> Nothing, |it| [it.ino], inode(it.ino).and_then(|()| at_most("xattr name", it.name.len(), XATTR_NAME_MAX));
    Open -> Opened, |it| [it.ino], inode(it.ino);
    Close -> Nothing, |it| Some(it.ino).filter(|ino| *ino != 0), Ok(());
    BeginWrite -> Begun, |it| [it.ino], inode(it.ino);
    Append -> Appended, |it| [it.ino], inode(it.ino);
    Reserve -> Nothing, |it| [it.ino], inode(it.ino);
    Fsync -> Nothing, |it| [it.ino], inode(it.ino);
    Forget -> Nothing, |it| it.references.iter().map(|r| r.ino), references(&it.references);
    Hold -> Held, |it| it.references.iter().map(|r| r.ino), references(&it.references);
    Find -> Entry, |it| [it.ino], inode(it.ino);
    StatFs -> Space, |_it| [], Ok(());
    FindLayout -> Placed, |it| [it.ino], inode(it.ino);
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Lookup {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub dir: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
}

/// Of an open file size and times are those of this moment.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Entry {
    /// Missing: the inode is another server's, who has the attributes and knows of no reference yet: [`Find`].
    #[prost(message, optional, tag = "1")]
    pub attr: Option<Attr>,
    /// Without attributes: which inode. (Of [`crate::spread::GetAlone`] the first part.)
    #[prost(uint64, tag = "2")]
    pub ino: u64,
}

/// The inode with this number, and a reference to it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Find {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct GetAttr {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SetAttr {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(message, optional, tag = "3")]
    pub changes: Option<Changes>,
    /// With a size: never cut, only grow to it (as by fallocate).
    #[prost(bool, tag = "4")]
    pub grow_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ReadLink {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Target {
    #[prost(bytes = "vec", tag = "1")]
    pub target: Vec<u8>,
}

/// The names after `cookie`; 0: all, with "." and "..". The body is [`Entries`], no longer than the request's answer limit.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ReadDir {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub dir: u64,
    #[prost(uint64, tag = "3")]
    pub cookie: u64,
    /// At most so many; 0, or more than [`ENTRIES_MAX`]: as many as that.
    #[prost(uint32, tag = "4")]
    pub entries_max: u32,
    /// With attributes.
    #[prost(bool, tag = "5")]
    pub attributes: bool,
    /// With a reference to each that has attributes, "." and ".." left out.
    #[prost(bool, tag = "6")]
    pub referring: bool,
    /// The asker would keep the names and their attributes.
    #[prost(bool, tag = "10")]
    pub keeping: bool,
}

/// Makes a regular file and opens it; `EEXIST` if the name is there.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Create {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(message, optional, tag = "2")]
    pub caller: Option<Caller>,
    #[prost(uint64, tag = "3")]
    pub dir: u64,
    #[prost(bytes = "vec", tag = "4")]
    pub name: Vec<u8>,
    /// Permission bits.
    #[prost(uint32, tag = "5")]
    pub mode: u32,
    /// The number of the opening.
    #[prost(uint64, tag = "6")]
    pub opening: u64,
    /// It may be written.
    #[prost(bool, tag = "7")]
    pub write: bool,
}

/// Gives one reference when it made the inode, none when it opened one.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Opened {
    #[prost(message, optional, tag = "1")]
    pub attr: Option<Attr>,
    /// Missing: it was never written. Of a file that was just made for writing: writing has begun, as by [`BeginWrite`].
    #[prost(message, optional, tag = "2")]
    pub layout: Option<Layout>,
    /// Of the file's bytes: see [`crate::leases::keeps`].
    #[prost(uint32, tag = "3")]
    pub keeps: u32,
    /// As of [`crate::leases::Looked`]; 0: bytes are never to be kept.
    #[prost(uint32, tag = "4")]
    pub term_ms: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mkdir {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(message, optional, tag = "2")]
    pub caller: Option<Caller>,
    #[prost(uint64, tag = "3")]
    pub dir: u64,
    #[prost(bytes = "vec", tag = "4")]
    pub name: Vec<u8>,
    #[prost(uint32, tag = "5")]
    pub mode: u32,
}

/// Anything but a directory and a symbolic link.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mknod {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(message, optional, tag = "2")]
    pub caller: Option<Caller>,
    #[prost(uint64, tag = "3")]
    pub dir: u64,
    #[prost(bytes = "vec", tag = "4")]
    pub name: Vec<u8>,
    /// The number of [`types::FileKind`].
    #[prost(uint32, tag = "5")]
    pub kind: u32,
    #[prost(uint32, tag = "6")]
    pub mode: u32,
    #[prost(uint32, tag = "7")]
    pub rdev: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Symlink {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(message, optional, tag = "2")]
    pub caller: Option<Caller>,
    #[prost(uint64, tag = "3")]
    pub dir: u64,
    #[prost(bytes = "vec", tag = "4")]
    pub name: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub target: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Link {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(uint64, tag = "3")]
    pub dir: u64,
    #[prost(bytes = "vec", tag = "4")]
    pub name: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Unlink {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub dir: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Rmdir {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub dir: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Rename {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub from_dir: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub from_name: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub to_dir: u64,
    #[prost(bytes = "vec", tag = "5")]
    pub to_name: Vec<u8>,
    #[prost(enumeration = "RenameMode", tag = "6")]
    pub mode: i32,
}

/// A regular file without a name, opened for writing.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TmpFile {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(message, optional, tag = "2")]
    pub caller: Option<Caller>,
    #[prost(uint64, tag = "3")]
    pub dir: u64,
    #[prost(uint32, tag = "4")]
    pub mode: u32,
    #[prost(uint64, tag = "5")]
    pub opening: u64,
}

/// The value is in the body; `ERANGE` if it is longer than the request's answer limit.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetXattr {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
}

/// Of the body.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Length {
    #[prost(uint32, tag = "1")]
    pub bytes: u32,
}

/// The value is the request's body.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetXattr {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
    #[prost(enumeration = "XattrMode", tag = "4")]
    pub mode: i32,
    #[prost(bool, tag = "5")]
    pub kill_sgid: bool,
}

/// The names, each with a NUL after it, are in the body; `ERANGE` as of [`GetXattr`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListXattr {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RemoveXattr {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub name: Vec<u8>,
}

/// Also by somebody who has only the number, after a restart of the server.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Open {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(uint64, tag = "3")]
    pub opening: u64,
    #[prost(bool, tag = "4")]
    pub write: bool,
    /// Its bytes would be kept, if they may be.
    #[prost(bool, tag = "5")]
    pub keep: bool,
    /// The session has it open: a server that took the slot, or was started again, is told so.
    #[prost(bool, tag = "6")]
    pub again: bool,
}

/// An opening that is not there is closed.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Close {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub opening: u64,
    /// It was read then, and the time is due to be recorded.
    #[prost(message, optional, tag = "3")]
    pub atime: Option<Time>,
    /// What is open. 0: whatever it is.
    #[prost(uint64, tag = "4")]
    pub ino: u64,
}

/// Before the first byte is written after an opening, unless the file's making said that writing has begun.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct BeginWrite {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// One that may write.
    #[prost(uint64, tag = "3")]
    pub opening: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Begun {
    #[prost(message, optional, tag = "1")]
    pub layout: Option<Layout>,
    #[prost(uint64, tag = "2")]
    pub size: u64,
}

/// A range at the end that nobody else gets. It also begins the writing. With an operation number, or a repetition would
/// reserve twice.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Append {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(uint64, tag = "3")]
    pub opening: u64,
    /// Bytes.
    #[prost(uint64, tag = "4")]
    pub length: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Appended {
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    #[prost(message, optional, tag = "2")]
    pub layout: Option<Layout>,
}

/// The file is about to grow to this size: `EDQUOT` if its project has no room for that.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Reserve {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(uint64, tag = "3")]
    pub size: u64,
}

/// All metadata that were answered so far are durable then. The data are the data servers'.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Fsync {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Reference {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    #[prost(uint64, tag = "2")]
    pub count: u64,
}

/// Gives references back; more than there are: all.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Forget {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// At most [`BATCH_MAX`].
    #[prost(message, repeated, tag = "2")]
    pub references: Vec<Reference>,
}

/// The session has these references, and had them before the server was started: the counts are set, not added.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Hold {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// At most [`BATCH_MAX`].
    #[prost(message, repeated, tag = "2")]
    pub references: Vec<Reference>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Held {
    /// These are no more.
    #[prost(uint64, repeated, tag = "1")]
    pub gone: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StatFs {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
}

/// Of all data servers that reported.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Space {
    /// Bytes.
    #[prost(uint64, tag = "1")]
    pub total: u64,
    #[prost(uint64, tag = "2")]
    pub free: u64,
    #[prost(uint64, tag = "3")]
    pub inodes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct FindLayout {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Placed {
    /// Missing: it was never written.
    #[prost(message, optional, tag = "1")]
    pub layout: Option<Layout>,
    #[prost(uint64, tag = "2")]
    pub size: u64,
}
