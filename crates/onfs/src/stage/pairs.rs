//! What is copied to where: the rules of cp(1) for `SRC... DST`. Pure but for making paths absolute.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3;

/// A source and what it is to be called; both absolute.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pair {
    pub src: PathBuf,
    pub dst: PathBuf,
}

/// Below the directory `dst`, each under its own name; `SRC/.` stands for what is in it, and goes into `dst` itself.
pub fn into(sources: &[PathBuf], dst: &Path) -> Result<Vec<Pair>, String> {
    sources.iter().map(|src| below(src, dst)).collect()
}

/// `dst` is the copy itself.
pub fn itself(src: &Path, dst: &Path) -> Result<Pair, String> {
    Ok(Pair { src: absolute(src)?, dst: absolute(dst)? })
}

/// Lines of a manifest: the destination is the copy itself; one that ends in `/` is the directory that it is put into.
pub fn listed(lines: &[(PathBuf, PathBuf)]) -> Result<Vec<Pair>, String> {
    let pair = |(src, dst): &(PathBuf, PathBuf)| {
        if dst.as_os_str().as_bytes().ends_with(b"/") { below(src, dst) } else { itself(src, dst) }
    };
    lines.iter().map(pair).collect()
}

/// Two sources must not come to one name.
pub fn check(pairs: &[Pair]) -> Result<(), String> {
    let mut seen: BTreeMap<&Path, &Path> = BTreeMap::new();
    for pair in pairs {
        if let Some(other) = seen.insert(&pair.dst, &pair.src) {
            let (one, two, dst) = (other.display(), pair.src.display(), pair.dst.display());
            return Err(format!("{one} and {two} would both become {dst}"));
        }
        if pair.dst.starts_with(&pair.src) {
            let (src, dst) = (pair.src.display(), pair.dst.display());
            return Err(format!("{src} cannot be copied into itself ({dst})"));
        }
    }
    Ok(())
}

/// Names a job: the same pairs in the same direction go on with what was begun.
pub fn job_id(pairs: &[Pair], out: bool) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&[u8::from(out)]);
    for path in pairs.iter().flat_map(|pair| [&pair.src, &pair.dst]) {
        hash.update(path.as_os_str().as_bytes());
        hash.update(&[0]);
    }
    hash.digest128()
}

fn below(src: &Path, dst: &Path) -> Result<Pair, String> {
    let bytes = src.as_os_str().as_bytes();
    let mut pair = itself(src, dst)?;
    if bytes == b"." || bytes.ends_with(b"/.") {
        return Ok(pair);
    }
    let nameless = || format!("{}: has no name to be copied under", src.display());
    // `a/..` has no name of its own.
    if bytes == b".." || bytes.ends_with(b"/..") || bytes.ends_with(b"/../") {
        return Err(nameless());
    }
    let name: &OsStr = pair.src.file_name().ok_or_else(nameless)?;
    pair.dst.push(name);
    Ok(pair)
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    let absolute = std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?;
    // Without the slash at its end, which would follow a symbolic link.
    Ok(absolute.components().collect())
}

#[cfg(test)]
mod tests {
    //! Goal: what goes where is what cp does. Method: the cases of its manual.
    use super::*;

    fn pair(src: &str, dst: &str) -> Pair {
        Pair { src: src.into(), dst: dst.into() }
    }

    #[test]
    fn sources_go_into_a_directory_under_their_names() {
        let sources: Vec<PathBuf> = ["/a/x", "/a/y/", "/a/z/."].map(PathBuf::from).to_vec();
        let pairs = into(&sources, Path::new("/d/")).unwrap();
        assert_eq!(pairs, [pair("/a/x", "/d/x"), pair("/a/y", "/d/y"), pair("/a/z", "/d")]);
        for nameless in ["/", "/a/..", ".."] {
            assert!(into(&[nameless.into()], Path::new("/d")).is_err());
        }
        assert_eq!(itself(Path::new("/a/x/"), Path::new("/d")).unwrap(), pair("/a/x", "/d"));
        let lines = [("/a/x".into(), "/d/e/".into()), ("/a/y".into(), "/d/f".into())];
        assert_eq!(listed(&lines).unwrap(), [pair("/a/x", "/d/e/x"), pair("/a/y", "/d/f")]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert!(check(&[pair("/a/x", "/d/x"), pair("/b/x", "/d/x")]).is_err());
        assert!(check(&[pair("/a", "/a/b/a")]).is_err());
        assert!(check(&[pair("/a", "/ab"), pair("/b", "/c")]).is_ok());
    }

    #[test]
    fn jobs_are_told_apart() {
        let one = [pair("/a", "/b")];
        assert_eq!(job_id(&one, true), job_id(&one, true));
        assert_ne!(job_id(&one, true), job_id(&one, false));
        assert_ne!(job_id(&one, true), job_id(&[pair("/a", "/b"), pair("/c", "/d")], true));
        assert_ne!(job_id(&[pair("/a", "/bc")], true), job_id(&[pair("/ab", "/c")], true));
    }
}
