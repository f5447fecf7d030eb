//! What a look at a directory asks for, in one call: by itself each of these costs a change of threads, and with most directories of a
//! tree that is more than all that is done there.

use types::Errno;

use crate::{
    found::{Detail, Found},
    root::Reachable,
    seen::Seen,
};

/// How much of a directory is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// As it was when it was listed last: if it still is so, its names are not asked for.
    pub agreed: Option<Seen>,
    /// With what an import takes of each name.
    pub details: bool,
    /// With more names it has to be listed in parts.
    pub names_max: usize,
}

/// What a look at a directory found, and the root before it and after it: only if both are the one that is known it is of theirs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survey {
    pub before: Reachable,
    pub taken: Result<Taken, Errno>,
    pub after: Reachable,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// As `BackEnd::look` says.
    pub found: Option<Found>,
    /// `None`: it is what was agreed on, is no directory, or has too many.
    pub names: Option<Names>,
}

/// The names of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    pub entries: Vec<(Vec<u8>, Found)>,
    /// Of each entry, if they were asked for.
    pub details: Vec<Result<Detail, Errno>>,
    /// The directory once more, after its names.
    pub after: Option<Found>,
}
