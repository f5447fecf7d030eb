//! Objects on two data servers: who has them, and what is said about that. What it means is `cluster::replica`.
//!
//! A stripe with two copies has a [`View`]. A request for its object names the view by which it asks ([`crate::data::Object::view`]); whoever is asked
//! knows the newest of those that were named to it, and refuses to answer by another one ([`crate::Reason::OtherView`]). Such an object's generation
//! has the bit [`TWOFOLD`], so that nobody who does not know of views is answered.

use prost::{Enumeration, Message};

pub use crate::views::{Member, REVIVED, Second, TWOFOLD, View};
use crate::{
    BATCH_MAX, Bad, Head, Nothing,
    attr::Time,
    data::Object,
    layout::{Layout, STRIPES_MAX},
};

/// Objects of one question about leave.
pub const LEFT_OUT_MAX: usize = 256;

fn viewed(of: Option<&Object>) -> Result<(), Bad> {
    let object = of.ok_or(Bad::Missing("object"))?;
    crate::attr::ino(object.ino)?;
    object.view.ok_or(Bad::Missing("view"))?.check()
}

/// By a client: which is the newest view of a stripe? `silent`: this member of the view that it knows does not answer it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct FindView {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    #[prost(uint32, tag = "3")]
    pub stripe: u32,
    /// The number of the view that it knows.
    #[prost(uint64, tag = "4")]
    pub view: u64,
    #[prost(message, optional, tag = "5")]
    pub silent: Option<Member>,
}

/// If the view is the one that was known it is not known yet whether anybody can go on: ask again.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ViewFound {
    #[prost(message, optional, tag = "1")]
    pub layout: Option<Layout>,
}

/// What the second is to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Change {
    /// The bytes of the body, and up to the range's end zeros.
    Bytes = 0,
    /// The range reads as zeros, and takes no space.
    Zero = 1,
    /// The object ends at `size`. The body has numbers, u32, of parts of 4 MiB from `from` on that are lost.
    Cut = 2,
    /// It ends at `size`, if it was shorter.
    Grow = 3,
    /// It was changed at `mtime`.
    Time = 4,
    /// The range has space.
    Reserve = 5,
    /// The range has the bytes of which the body is the SHA-256, zeros up to its end included: if it has, nothing is to be done, else they are sent.
    Same = 7,
    /// The range is lost.
    Lost = 6,
}

/// From the primary to the second. The object's view is the one by which it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StoreCopy {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    /// In the primary's order.
    #[prost(uint64, tag = "2")]
    pub serial: u64,
    #[prost(uint64, tag = "3")]
    pub from: u64,
    /// Behind the last byte.
    #[prost(uint64, tag = "4")]
    pub to: u64,
    /// All up to this one are done.
    #[prost(uint64, tag = "5")]
    pub done: u64,
    /// How long the object was when this one became the second: what it has behind that is older, and goes.
    #[prost(uint64, tag = "6")]
    pub length: u64,
    #[prost(enumeration = "Change", tag = "7")]
    pub change: i32,
    #[prost(uint64, tag = "8")]
    pub size: u64,
    #[prost(message, optional, tag = "9")]
    pub mtime: Option<Time>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CopyStored {
    /// It is stored. Otherwise it is sent again.
    #[prost(bool, tag = "1")]
    pub stored: bool,
    /// It can store nothing any more: another second is to be found.
    #[prost(bool, tag = "2")]
    pub unable: bool,
    /// If it knows a newer view.
    #[prost(message, optional, tag = "3")]
    pub newer: Option<View>,
    /// It is not what it was said to be the same as: the bytes are to be sent.
    #[prost(bool, tag = "4")]
    pub differs: bool,
    /// It has nothing that could be the same.
    #[prost(bool, tag = "5")]
    pub nothing: bool,
}

/// From the primary to the second, when it comes to rest: all up to this one are done.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CopyDone {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(uint64, tag = "2")]
    pub done: u64,
}

/// Among two data servers: may the asker answer for what both have, for another while?
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AskLeave {
    #[prost(message, optional, tag = "1")]
    pub by: Option<Member>,
    #[prost(message, optional, tag = "2")]
    pub of: Option<Member>,
    /// Newest views of objects of which the asker was told that it does not have them.
    #[prost(message, repeated, tag = "3")]
    pub knows: Vec<Object>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Leave {
    /// It may.
    #[prost(bool, tag = "1")]
    pub granted: bool,
    /// It does not have these any more, and is not to answer for them: to be said in the next question.
    #[prost(message, repeated, tag = "2")]
    pub left_out: Vec<Object>,
}

/// From the metadata server to a member: this is the view.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct KnowView {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    /// Would it go on without the other one?
    #[prost(bool, tag = "2")]
    pub asks: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ViewKnown {
    /// Of the view that it knows.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// It counts in that, and goes on.
    #[prost(bool, tag = "2")]
    pub goes_on: bool,
    /// It has what it had when it was left behind.
    #[prost(bool, tag = "3")]
    pub kept: bool,
    /// Of who answers; 0 of one of before this was said.
    #[prost(fixed64, tag = "4")]
    pub life: u64,
    /// Bytes of the object that are lost there. Not said to who asks whether it goes on.
    #[prost(uint64, tag = "5")]
    pub lost: u64,
}

/// From the metadata server: it does not have these any more, by this view or a later one, and its bytes go.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DropCopies {
    /// At most [`LEFT_OUT_MAX`].
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<Object>,
}

/// In the report of a data server, until it knows a newer view.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CopyWord {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    /// This member does not answer, or is unable. None: the second has every byte.
    #[prost(message, optional, tag = "2")]
    pub silent: Option<Member>,
}

fn several(objects: &[Object]) -> Result<(), Bad> {
    let (len, max) = (objects.len(), LEFT_OUT_MAX);
    if len > max {
        return Err(Bad::TooLong { what: "objects", len, max });
    }
    objects.iter().try_for_each(|one| viewed(Some(one)))
}

pub(crate) fn words(list: &[CopyWord]) -> Result<(), Bad> {
    let (len, max) = (list.len(), BATCH_MAX / 4);
    if len > max {
        return Err(Bad::TooLong { what: "words", len, max });
    }
    list.iter().try_for_each(|one| viewed(one.object.as_ref()))
}

fn named(member: Option<&Member>) -> Result<(), Bad> {
    let member = member.ok_or(Bad::Missing("member"))?;
    if member.node == 0 || member.life == 0 { Err(Bad::Range("member")) } else { Ok(()) }
}

requests_of_anybody! {
    StoreCopy -> CopyStored, |it| viewed(it.object.as_ref())
        .and(if it.from < it.to { Ok(()) } else { Err(Bad::Range("range")) })
        .and(Change::try_from(it.change).map(drop).map_err(|_| Bad::Range("change")));
    CopyDone -> Nothing, |it| viewed(it.object.as_ref());
    AskLeave -> Leave, |it| named(it.by.as_ref()).and(named(it.of.as_ref())).and(several(&it.knows));
    KnowView -> ViewKnown, |it| viewed(it.object.as_ref());
    DropCopies -> Nothing, |it| several(&it.objects);
}

impl crate::Request for FindView {
    const METHOD: crate::Method = crate::Method::FindView;
    type Answer = ViewFound;

    fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    fn check(&self) -> Result<(), Bad> {
        crate::metadata::known(self.head())?;
        crate::metadata::inode(self.ino)?;
        if self.stripe as usize >= STRIPES_MAX { Err(Bad::Range("stripe")) } else { Ok(()) }
    }

    fn homes(&self, visit: &mut dyn FnMut(u64)) {
        visit(self.ino);
    }
}
