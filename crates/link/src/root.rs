//! Whether the directory at the end of the link is the one that we know.
//!
//! A file system that is not mounted leaves an empty directory in its place. Taken for the tree, it says that everything was
//! deleted. So nothing is concluded, and nothing applied, unless the root is there and is the one that was linked. A link
//! does not lead into other file systems mounted below it: the shell leaves out what has another device.

/// Which directory it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootId {
    /// Of the file system: one that lasts over remounts where there is one, else the device number.
    pub device: u64,
    pub fileid: u64,
}

/// What a look at the linked root found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reachable {
    /// An error other than "no such directory", a time-out, or the directory itself is gone.
    No,
    Yes {
        id: RootId,
        empty: bool,
    },
}

/// The root as it was when last all was well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownRoot {
    pub id: RootId,
    pub empty: bool,
}

/// May the back end be believed and written to?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    Known,
    Unreachable,
    /// An empty directory in place of one that was not.
    Unmounted,
    /// Another directory with something in it: an operator has to say that it is the same tree.
    Stranger,
}

/// `known` is `None` when the directory is linked for the first time.
pub fn trust(known: Option<KnownRoot>, now: Reachable) -> Trust {
    let (known, id, empty) = match (known, now) {
        (_, Reachable::No) => return Trust::Unreachable,
        (None, Reachable::Yes { .. }) => return Trust::Known,
        (Some(known), Reachable::Yes { id, empty }) => (known, id, empty),
    };
    if known.id == id {
        // Emptied by somebody: its own deletions.
        return Trust::Known;
    }
    if empty && !known.empty { Trust::Unmounted } else { Trust::Stranger }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_known_root_is_trusted() {
        let id = RootId { device: 1, fileid: 2 };
        let known = Some(KnownRoot { id, empty: false });
        let yes = |id, empty| Reachable::Yes { id, empty };
        assert_eq!(trust(known, Reachable::No), Trust::Unreachable);
        assert_eq!(trust(None, Reachable::No), Trust::Unreachable);
        assert_eq!(trust(None, yes(id, true)), Trust::Known);
        assert_eq!(trust(known, yes(id, true)), Trust::Known);
        for other in [RootId { device: 9, ..id }, RootId { fileid: 9, ..id }] {
            assert_eq!(trust(known, yes(other, true)), Trust::Unmounted);
            assert_eq!(trust(known, yes(other, false)), Trust::Stranger);
            assert_eq!(trust(Some(KnownRoot { id, empty: true }), yes(other, true)), Trust::Stranger);
        }
    }
}
