//! What the back end has, as it tells of it.

use types::Timestamp;

use crate::seen::Seen;

/// An extended attribute: its name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// An object as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// With what a look under `BackEnd::clock`, asked before, proves.
    pub seen: Seen,
    pub atime: Timestamp,
    /// Of a device, as in `types::Attr`.
    pub rdev: u32,
}

/// What an import takes of an object besides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Detail {
    /// Of a symbolic link.
    pub target: Vec<u8>,
    /// Of anything else, where the back end has them.
    pub xattrs: Vec<Xattr>,
}
