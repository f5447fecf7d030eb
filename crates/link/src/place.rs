//! Where the back end has an inode: a name in a directory, and the names that are ours alone there.

use types::Ino;

/// Begins the names that we give in the back end to what is on its way: they are not imported, but where that would lose a
/// change of theirs.
const ON_THE_WAY: &[u8] = b".onfs-way-";

/// A name in a directory. A path is found by walking the places of the directories up to the linked root.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    pub dir: Ino,
    pub name: Vec<u8>,
}

impl Place {
    pub fn new(dir: Ino, name: &[u8]) -> Place {
        Place { dir, name: name.to_vec() }
    }

    /// Where an inode waits, in the linked root, while others stand in its way.
    pub fn on_the_way(dir: Ino, ino: Ino) -> Place {
        Place { dir, name: [ON_THE_WAY, format!("{:x}", ino.get()).as_bytes()].concat() }
    }

    /// Where what is to get a name is made, in the directory where it will be. One inode has one step under way, so one name is
    /// enough; not the one under which it waits, for a version is made of what waits, too.
    pub fn being_made(dir: Ino, ino: Ino) -> Place {
        Place { dir, name: [ON_THE_WAY, format!("{:x}-new", ino.get()).as_bytes()].concat() }
    }
}

/// Whether a name in the back end is ours alone.
pub fn is_on_the_way(name: &[u8]) -> bool {
    name.starts_with(ON_THE_WAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_way_are_known() {
        let place = Place::on_the_way(Ino::ROOT, Ino::from_raw(0x2a).unwrap());
        assert_eq!(place, Place::new(Ino::ROOT, b".onfs-way-2a"));
        assert!(is_on_the_way(&place.name));
        let made = Place::being_made(Ino::ROOT, Ino::from_raw(0x2a).unwrap());
        assert_eq!(made, Place::new(Ino::ROOT, b".onfs-way-2a-new"));
        assert!(is_on_the_way(&made.name));
        assert!(!is_on_the_way(b".onfs"));
    }
}
