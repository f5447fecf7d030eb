//! What can be kept: an inode's attributes, and what a name names.

use lease::coherence::rights::Key;
use types::Ino;

pub(crate) fn inode(ino: Ino) -> Key {
    Key::Inode(ino)
}

pub(crate) fn entry(dir: Ino, name: &[u8]) -> Key {
    Key::Entry { dir, name: name.into() }
}
