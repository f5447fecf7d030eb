//! Who asks, and what the permission bits of a file let them do.

/// The process at the other end of a connection, as the kernel gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Root, or the user who mounted.
    pub privileged: bool,
}

/// Owner, group and permission bits of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

impl Peer {
    /// Do the permission bits give the peer all of `want` (read 4, write 2, search 1)? Privileged peers have everything.
    pub fn may(&self, owner: Owner, want: u32) -> bool {
        self.privileged || self.class_bits(owner) & want == want
    }
    /// Is the peer privileged, or the file's owner?
    pub fn owns(&self, owner: Owner) -> bool {
        self.privileged || self.uid == owner.uid
    }

    fn class_bits(&self, owner: Owner) -> u32 {
        if self.uid == owner.uid {
            owner.mode >> 6
        } else if self.gid == owner.gid || self.groups.contains(&owner.gid) {
            owner.mode >> 3
        } else {
            owner.mode
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: permission bits decide as the kernel would. Method: owner, group, other and privileged peers.
    use super::*;

    #[test]
    fn the_first_class_that_fits_decides() {
        let peer = Peer { pid: 1, uid: 10, gid: 20, groups: vec![30], privileged: false };
        let file = |uid, gid, mode| Owner { uid, gid, mode };
        assert!(peer.may(file(10, 0, 0o200), 2));
        assert!(!peer.may(file(10, 20, 0o022), 2), "the owner's bits decide for the owner");
        assert!(peer.may(file(0, 30, 0o020), 2));
        assert!(!peer.may(file(0, 30, 0o002), 2));
        assert!(peer.may(file(0, 0, 0o002), 2));
        assert!(peer.may(file(0, 0, 0o004), 4) && !peer.may(file(0, 0, 0o002), 4));
        assert!(peer.may(file(0, 0, 0o006), 6) && !peer.may(file(0, 0, 0o004), 6));
        assert!(!peer.owns(file(11, 0, 0o777)));
        let root = Peer { privileged: true, ..peer };
        assert!(root.may(file(0, 0, 0), 6) && root.owns(file(11, 0, 0)));
    }
}
