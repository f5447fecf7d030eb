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
    control::{FileOutcome, FileRef},
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

/// Gives `batch` the files, at most `size` at a time, while it walks; returns what could not be looked at.
pub fn batches(
    places: &[Located],
    size: usize,
    batch: &mut dyn FnMut(Vec<FileRef>) -> Outcome,
) -> Outcome<Vec<FileOutcome>> {
    let mut walk = Walk { size, pending: Vec::new(), batch, failed: Vec::new() };
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
    size: usize,
    pending: Vec<FileRef>,
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
        self.pending.push(file);
        if self.pending.len() >= self.size { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Outcome {
        if self.pending.is_empty() {
            return Ok(());
        }
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

/// The paths of a `--list` file, of any bytes: one per line, empty lines and lines that begin with `#` left out.
pub fn read_list(list: &Path) -> Outcome<Vec<PathBuf>> {
    let failed = |e| Failure::failed(format!("{}: {}", list.display(), system_text(&e)));
    let mut text = Vec::new();
    if list == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut text).map_err(failed)?;
    } else {
        text = fs::read(list).map_err(failed)?;
    }
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    Ok(lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).collect())
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
        let mut seen: Vec<Vec<String>> = Vec::new();
        let failed = batches(&[place], 2, &mut |files| {
            let strip =
                |f: FileRef| f.path.strip_prefix(&format!("{}/", dir.path().display())).unwrap().to_owned();
            seen.push(files.into_iter().map(strip).collect());
            Ok(())
        })
        .unwrap();
        assert!(failed.is_empty());
        assert_eq!(seen, [vec!["a", "z"], vec!["b/1", "b/2"], vec!["b/c/3"]]);
    }

    #[test]
    fn a_list_has_one_path_per_line() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("list");
        fs::write(&list, "/a b\n\n# comment\nc\n").unwrap();
        assert_eq!(read_list(&list).unwrap(), [PathBuf::from("/a b"), PathBuf::from("c")]);
        // Names may have any bytes but these two.
        fs::write(&list, b"/x\xff\r\n/y").unwrap();
        assert_eq!(read_list(&list).unwrap(), [Path::new(OsStr::from_bytes(b"/x\xff\r")), Path::new("/y")]);
        assert!(read_list(&dir.path().join("missing")).is_err());
    }
}
