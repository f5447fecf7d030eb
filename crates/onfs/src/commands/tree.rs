//! From the paths of a command to the files on their mounts: directories stand for all regular files below them, in
//! the order of their names. Does not follow symlinks inside directories and does not leave the mount.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::Read,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use crate::{
    control::{FileOutcome, FileRef, Request},
    exit::{Failure, Outcome, system_text},
    locate::{Located, locate},
};

/// The paths of one command on one mount, in the order given.
pub struct Group {
    pub socket: PathBuf,
    pub places: Vec<Located>,
}

/// Finds the daemons of all paths first, so that a wrong path changes nothing.
pub fn group(paths: &[PathBuf]) -> Outcome<Vec<Group>> {
    let mut order: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for path in paths {
        let located = locate(path)?;
        let next = groups.len();
        let index = *order.entry(located.socket.clone()).or_insert(next);
        if index == next {
            groups.push(Group { socket: located.socket.clone(), places: Vec::new() });
        }
        groups[index].places.push(located);
    }
    Ok(groups)
}

/// How much one batch may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchLimits {
    pub files: usize,
    /// The file that comes to so many bytes of paths is the last.
    pub path_bytes: usize,
}

impl BatchLimits {
    pub const REQUEST: BatchLimits =
        BatchLimits { files: Request::FILES_MAX, path_bytes: Request::PATH_BYTES_SUM };
}

/// Gives `batch` the files, so many at a time, while it walks; returns what could not be looked at.
pub fn batches(
    places: &[Located],
    limits: BatchLimits,
    batch: &mut dyn FnMut(Vec<FileRef>) -> Outcome,
) -> Outcome<Vec<FileOutcome>> {
    let mut walk = Walk { limits, pending: Vec::new(), path_bytes: 0, batch, failed: Vec::new() };
    for place in places {
        if place.is_dir {
            walk.directory(&place.path, place.dev)?;
        } else {
            walk.take(place.file.clone())?;
        }
    }
    walk.send()?;
    Ok(walk.failed)
}

struct Walk<'a> {
    limits: BatchLimits,
    pending: Vec<FileRef>,
    /// Of what is pending.
    path_bytes: usize,
    batch: &'a mut dyn FnMut(Vec<FileRef>) -> Outcome,
    failed: Vec<FileOutcome>,
}

impl Walk<'_> {
    fn directory(&mut self, top: &Path, dev: u64) -> Outcome {
        // Directories still to visit, the next one last.
        let mut stack = vec![top.to_owned()];
        while let Some(dir) = stack.pop() {
            let entries = match sorted(&dir) {
                Ok(entries) => entries,
                Err(error) => {
                    self.fail(&dir, &error);
                    continue;
                }
            };
            let mut below = Vec::new();
            for path in entries {
                match fs::symlink_metadata(&path) {
                    Ok(meta) if meta.dev() != dev => {}
                    Ok(meta) if meta.is_dir() => below.push(path),
                    Ok(meta) if meta.is_file() => {
                        self.take(FileRef { ino: meta.ino(), path: path.display().to_string() })?;
                    }
                    Ok(_) => {}
                    // Removed meanwhile: nothing is left to do for it.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => self.fail(&path, &error),
                }
            }
            stack.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn take(&mut self, file: FileRef) -> Outcome {
        self.path_bytes += file.path.len();
        self.pending.push(file);
        let full = self.pending.len() >= self.limits.files || self.path_bytes >= self.limits.path_bytes;
        if full { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Outcome {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.path_bytes = 0;
        (self.batch)(std::mem::take(&mut self.pending))
    }

    fn fail(&mut self, path: &Path, error: &std::io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let message = system_text(error);
        self.failed.push(FileOutcome { path: path.display().to_string(), ino: 0, errno, message });
    }
}

fn sorted(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(dir)?.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

/// The paths of a `--list` file, of any bytes: one per line. Empty lines end groups, as does each path that makes a group have
/// `size`; lines that begin with `#` are left out.
pub fn read_groups(list: &Path, size: Option<u32>) -> Outcome<Vec<Vec<PathBuf>>> {
    let failed = |e| Failure::failed(format!("{}: {}", list.display(), system_text(&e)));
    let mut text = Vec::new();
    if list == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut text).map_err(failed)?;
    } else {
        text = fs::read(list).map_err(failed)?;
    }
    let full = |group: &Vec<PathBuf>| size.is_some_and(|size| group.len() >= size as usize);
    let mut groups: Vec<Vec<PathBuf>> = vec![Vec::new()];
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#")) {
        match groups.last_mut() {
            Some(group) if !line.is_empty() && !full(group) => {
                group.push(PathBuf::from(OsStr::from_bytes(line)));
            }
            Some(_) | None => groups.push(if line.is_empty() {
                Vec::new()
            } else {
                vec![PathBuf::from(OsStr::from_bytes(line))]
            }),
        }
    }
    groups.retain(|group| !group.is_empty());
    Ok(groups)
}

#[cfg(test)]
mod tests {
    //! Goal: a directory stands for its files, in order and in bounded batches. Method: a small tree.
    use super::*;

    #[test]
    fn a_tree_is_walked_in_order_and_in_batches() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("b/c")).unwrap();
        for name in ["b/2", "b/1", "b/c/3", "a", "z"] {
            fs::write(dir.path().join(name), b"").unwrap();
        }
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        let meta = fs::metadata(dir.path()).unwrap();
        let file = FileRef { ino: meta.ino(), path: String::new() };
        let socket = PathBuf::new();
        let place = Located { path: dir.path().into(), socket, file, is_dir: true, dev: meta.dev() };
        let top = format!("{}/", dir.path().display());
        let seen = |limits| {
            let mut seen: Vec<Vec<String>> = Vec::new();
            let failed = batches(std::slice::from_ref(&place), limits, &mut |files| {
                seen.push(files.into_iter().map(|f| f.path.strip_prefix(&top).unwrap().to_owned()).collect());
                Ok(())
            });
            assert!(failed.unwrap().is_empty());
            seen
        };
        let two = BatchLimits { files: 2, path_bytes: usize::MAX };
        assert_eq!(seen(two), [vec!["a", "z"], vec!["b/1", "b/2"], vec!["b/c/3"]]);
        let long = BatchLimits { files: usize::MAX, path_bytes: 2 * top.len() + 4 };
        assert_eq!(seen(long), [vec!["a", "z", "b/1"], vec!["b/2", "b/c/3"]]);
    }

    #[test]
    fn a_list_has_one_path_per_line_and_groups() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("list");
        let groups = |text: &[u8], size| {
            fs::write(&list, text).unwrap();
            read_groups(&list, size).unwrap()
        };
        let p = PathBuf::from;
        assert_eq!(groups(b"/a b\n\n# comment\n\nc\nd\n", None), [vec![p("/a b")], vec![p("c"), p("d")]]);
        assert_eq!(groups(b"a\nb\nc\n\nd\n", Some(2)), [vec![p("a"), p("b")], vec![p("c")], vec![p("d")]]);
        assert_eq!(groups(b"\n\n", None), Vec::<Vec<PathBuf>>::new());
        // Names may have any bytes but these two.
        assert_eq!(
            groups(b"/x\xff\r\n/y", None),
            [vec![PathBuf::from(OsStr::from_bytes(b"/x\xff\r")), p("/y")]]
        );
        assert!(read_groups(&dir.path().join("missing"), None).is_err());
    }
}
