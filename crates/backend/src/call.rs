//! What is asked of a back end, by name: for faults that are planned, and for what a status says.

/// One kind of call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Call {
    Root = 0,
    Space = 1,
    Look = 2,
    List = 3,
    Readlink = 4,
    Xattrs = 5,
    Open = 6,
    Make = 7,
    /// `begin_version` and `begin_in_place`.
    Begin = 8,
    Rename = 9,
    Link = 10,
    Unlink = 11,
    Rmdir = 12,
    SetAttributes = 13,
    SetXattr = 14,
    Sync = 15,
    Read = 16,
    Write = 17,
    SetLen = 18,
    Finish = 19,
    /// Of a source or a version that is dropped. It has no error that anybody could take.
    Close = 20,
}

impl Call {
    pub(crate) const COUNT: usize = 21;

    pub const fn name(self) -> &'static str {
        match self {
            Call::Root => "root",
            Call::Space => "space",
            Call::Look => "look",
            Call::List => "list",
            Call::Readlink => "readlink",
            Call::Xattrs => "xattrs",
            Call::Open => "open",
            Call::Make => "make",
            Call::Begin => "begin",
            Call::Rename => "rename",
            Call::Link => "link",
            Call::Unlink => "unlink",
            Call::Rmdir => "rmdir",
            Call::SetAttributes => "set attributes",
            Call::SetXattr => "set xattr",
            Call::Sync => "sync",
            Call::Read => "read",
            Call::Write => "write",
            Call::SetLen => "set length",
            Call::Finish => "finish",
            Call::Close => "close",
        }
    }
}
