//! Who asks, and what the permission bits of a file let them do.

/// The process at the other end of a connection, as the kernel gave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups; empty when they could not be read.
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
    /// May the peer write the file, by its permission bits? Privileged peers may.
    pub fn may_write(&self, owner: Owner) -> bool {
        self.privileged || self.class_bits(owner) & 0o2 != 0
    }
    /// May the peer read the file, by its permission bits?
    pub fn may_read(&self, owner: Owner) -> bool {
        self.privileged || self.class_bits(owner) & 0o4 != 0
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

/// The supplementary groups of a process, from the text of /proc/PID/status.
pub fn groups_of_status(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.map(|groups| groups.split_whitespace().filter_map(|g| g.parse().ok()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    //! Goal: permission bits decide as the kernel would. Method: owner, group, other and privileged peers.
    use super::*;

    #[test]
    fn the_first_class_that_fits_decides() {
        let peer = Peer { pid: 1, uid: 10, gid: 20, groups: vec![30], privileged: false };
        let file = |uid, gid, mode| Owner { uid, gid, mode };
        assert!(peer.may_write(file(10, 0, 0o200)));
        assert!(!peer.may_write(file(10, 20, 0o022)), "the owner's bits decide for the owner");
        assert!(peer.may_write(file(0, 30, 0o020)));
        assert!(!peer.may_write(file(0, 30, 0o002)));
        assert!(peer.may_write(file(0, 0, 0o002)));
        assert!(peer.may_read(file(0, 0, 0o004)) && !peer.may_read(file(0, 0, 0o002)));
        assert!(!peer.owns(file(11, 0, 0o777)));
        let root = Peer { privileged: true, ..peer };
        assert!(root.may_write(file(0, 0, 0)) && root.owns(file(11, 0, 0)));
    }

    #[test]
    fn groups_are_read() {
        assert_eq!(groups_of_status("Name: x\nGroups:\t4 27 1000 \nPid: 1\n"), [4, 27, 1000]);
        assert_eq!(groups_of_status(""), Vec::<u32>::new());
    }
}
