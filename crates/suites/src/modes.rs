//! The modes of a mount with a linked directory, as a test set them, and what follows: what is transient, so that the linked
//! directory must have none of it, and which word each name shows.
//!
//! It remembers by inode numbers, which are never used twice and survive renames, kills and remounts (S-3). What a mount says of its
//! modes is compared with that, never believed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::XattrFlags;

/// What may be set of a directory.
pub const OF_DIRS: [Option<Mode>; 5] =
    [Some(Mode::Global), Some(Mode::Local), Some(Mode::Hybrid), Some(Mode::Transient), None];
/// What may be set of a file.
pub const OF_FILES: [Option<Mode>; 4] = [Some(Mode::Global), Some(Mode::Local), Some(Mode::Transient), None];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Global,
    Local,
    Hybrid,
    Transient,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Global => "global",
            Mode::Local => "local",
            Mode::Hybrid => "hybrid",
            Mode::Transient => "transient",
        }
    }
}

/// What was set, of which inode.
#[derive(Default)]
pub struct Modes(BTreeMap<u64, Mode>);

/// One name of the mount.
pub struct Named {
    pub meta: fs::Metadata,
    pub mode: Mode,
    /// In a transient directory, or a file that is transient itself: the linked directory must not have it.
    pub apart: bool,
}

impl Named {
    /// A transient directory that the linked directory knows by its name.
    pub fn is_border(&self) -> bool {
        self.meta.is_dir() && self.mode == Mode::Transient && !self.apart
    }
}

pub type Tree = BTreeMap<PathBuf, Named>;

/// All that is transient, by inode number: what must be the same after whatever others do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transient(BTreeMap<u64, Kept>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Kept {
    /// Nothing of a border: its name and attributes are known there.
    name: PathBuf,
    mode: u32,
    /// A file's, or a link's target.
    bytes: Option<Vec<u8>>,
}

impl Modes {
    /// Sets a mode through the mount, or takes it back.
    pub fn set(&mut self, path: &Path, mode: Option<Mode>) -> io::Result<()> {
        let meta = fs::symlink_metadata(path)?;
        let word = mode.map_or("inherit", Mode::name);
        rustix::fs::lsetxattr(path, "user.onfs.mode", word.as_bytes(), XattrFlags::empty())?;
        match mode {
            Some(mode) => self.0.insert(meta.ino(), mode),
            None => self.0.remove(&meta.ino()),
        };
        Ok(())
    }

    /// Sets what a close waits for.
    pub fn set_sync(path: &Path, word: &str) -> io::Result<()> {
        Ok(rustix::fs::setxattr(path, "user.onfs.sync", word.as_bytes(), XattrFlags::empty())?)
    }

    /// All names of the mount with their modes; an error if it shows another mode of one.
    pub fn tree(&self, root: &Path) -> Result<Tree> {
        let mut tree = Tree::new();
        let mut dirs = vec![(PathBuf::new(), Mode::Local)];
        while let Some((dir, above)) = dirs.pop() {
            let Some(entries) = there(fs::read_dir(root.join(&dir)))? else { continue };
            for entry in entries {
                let path = dir.join(entry?.file_name());
                let at = root.join(&path);
                let Some(meta) = there(fs::symlink_metadata(&at))? else { continue };
                let named = self.named(meta, above);
                if !named.meta.is_symlink() {
                    let mut word = [0; 16];
                    let length = rustix::fs::getxattr(&at, "user.onfs.mode", &mut word[..]);
                    let Some(length) = there(length.map_err(io::Error::from))? else { continue };
                    let (shown, set) = (String::from_utf8_lossy(&word[..length]), named.mode.name());
                    ensure!(shown == set, "{} shows mode {shown}, it should be {set}", path.display());
                }
                if named.meta.is_dir() {
                    dirs.push((path.clone(), named.mode));
                }
                tree.insert(path, named);
            }
        }
        Ok(tree)
    }

    fn named(&self, meta: fs::Metadata, above: Mode) -> Named {
        let said = self.0.get(&meta.ino()).copied();
        let mode = match (above, said) {
            (Mode::Transient, _) => Mode::Transient,
            (_, Some(said)) => said,
            (Mode::Hybrid, None) if !meta.is_dir() => Mode::Local,
            (_, None) => above,
        };
        let apart = above == Mode::Transient || (!meta.is_dir() && mode == Mode::Transient);
        Named { meta, mode, apart }
    }
}

/// A look at the other side may take away what was just listed.
fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// All that is transient in the mount.
pub fn transient(root: &Path, tree: &Tree) -> Result<Transient> {
    let mut kept = BTreeMap::new();
    for (path, named) in tree.iter().filter(|(_, named)| named.apart || named.is_border()) {
        let at = root.join(path);
        let bytes = match (named.apart, named.meta.is_file(), named.meta.is_symlink()) {
            (true, true, _) => Some(fs::read(&at).with_context(|| format!("read {}", path.display()))?),
            (true, _, true) => Some(fs::read_link(&at)?.into_os_string().into_encoded_bytes()),
            _ => None,
        };
        let name = if named.apart { path.file_name().unwrap_or_default().into() } else { PathBuf::new() };
        let mode = if named.apart { named.meta.mode() } else { 0 };
        kept.insert(named.meta.ino(), Kept { name, mode, bytes });
    }
    Ok(Transient(kept))
}

impl Transient {
    /// The first lines of all files.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let bytes = self.0.values().filter_map(|kept| kept.bytes.as_ref());
        bytes.map(|b| {
            String::from_utf8_lossy(b.split(|b| *b == b'\n').next().unwrap_or_default()).into_owned()
        })
    }

    /// An error that names one, if they are not the same.
    pub fn must_be(&self, before: &Transient) -> Result<()> {
        for (ino, kept) in &before.0 {
            match self.0.get(ino) {
                None => bail!("inode {ino} was transient ({}), and is gone", kept.name.display()),
                Some(now) if now != kept => bail!(
                    "inode {ino} is transient and changed: {:?} {:o} {:?} bytes, and was {:?} {:o} {:?}",
                    now.name,
                    now.mode,
                    now.bytes.as_ref().map(Vec::len),
                    kept.name,
                    kept.mode,
                    kept.bytes.as_ref().map(Vec::len)
                ),
                Some(_) => {}
            }
        }
        let more: Vec<_> = self.0.keys().filter(|ino| !before.0.contains_key(ino)).collect();
        ensure!(more.is_empty(), "transient by nobody's doing: {more:?}");
        Ok(())
    }
}

/// What the linked directory has at places that are transient here, and must come from its own side. `theirs` are its
/// paths, with inode numbers; `made_there` the numbers that its side made or moved itself.
pub fn leaked(
    tree: &Tree,
    theirs: &BTreeMap<PathBuf, fs::Metadata>,
    made_there: &BTreeSet<u64>,
) -> Vec<PathBuf> {
    let own = |meta: &fs::Metadata| made_there.contains(&meta.ino());
    theirs
        .iter()
        .filter(|(path, meta)| is_hidden(tree, path) && !own(meta))
        .map(|(path, _)| path.clone())
        .collect()
}

/// Is this path of the linked directory one that the mount does not show, since its own there is transient?
pub fn is_hidden(tree: &Tree, path: &Path) -> bool {
    let here = tree.get(path).is_some_and(|named| named.apart);
    let above = |dir: &Path| {
        tree.get(dir)
            .is_some_and(|named| named.apart || (named.meta.is_dir() && named.mode == Mode::Transient))
    };
    here || path.ancestors().skip(1).any(above)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    /// Goal: what is apart follows from what was set. Method: directories on any file system, with modes noted by hand.
    #[test]
    fn what_is_below_a_transient_directory_is_apart_and_the_directory_is_not() {
        let meta = fs::symlink_metadata("/").unwrap();
        let mut modes = Modes::default();
        assert!(!modes.named(meta.clone(), Mode::Hybrid).apart);
        modes.0.insert(meta.ino(), Mode::Transient);
        let border = modes.named(meta.clone(), Mode::Global);
        assert!(border.is_border() && border.mode == Mode::Transient);
        let within = modes.named(meta, Mode::Transient);
        assert!(within.apart && !within.is_border());
        let tree = Tree::from([(PathBuf::from("t"), border), (PathBuf::from("t/d"), within)]);
        assert!(!is_hidden(&tree, Path::new("t")) && !is_hidden(&tree, Path::new("u")));
        assert!(is_hidden(&tree, Path::new("t/d")) && is_hidden(&tree, Path::new("t/x/y")));
        let theirs = BTreeMap::from([(PathBuf::from("t/x"), fs::symlink_metadata("/").unwrap())]);
        assert_eq!(leaked(&tree, &theirs, &BTreeSet::new()), [PathBuf::from("t/x")]);
        let there = theirs.values().map(MetadataExt::ino).collect();
        assert!(leaked(&tree, &theirs, &there).is_empty());
    }
}
