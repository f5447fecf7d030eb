//! What a look at a directory asks for, in one call: by itself each of these costs a change of threads, and with most directories of a
//! tree that is more than all that is done there.

use std::ops::ControlFlow;

use types::{Errno, FileKind};

use crate::{
    back_end::{BackEnd, Detail, Found, Way},
    root::Reachable,
    seen::{Change, Seen, compare},
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
    /// As [`BackEnd::look`] says.
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

impl Survey {
    /// By the calls of the back end, one after another.
    pub fn by_calls<B: BackEnd + ?Sized>(back: &B, dir: &Way, wanted: &Wanted) -> Survey {
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
