//! Manifests: lines `SOURCE DESTINATION`, as a shell would read them. Pure.
//!
//! Blanks part the two words; a name with blanks, quotes or `#` is quoted with '...' or "...", or its characters with `\`.
//! Empty lines and what follows a `#` are left out. A name may have any bytes but a newline.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Source and destination of each line, or what is wrong with which line.
pub fn parse(text: &[u8]) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let mut pairs = Vec::new();
    for (n, line) in text.split(|b| *b == b'\n').enumerate() {
        let wrong = |what: &str| format!("line {}: {what}", n + 1);
        let words = shlex::bytes::split(line).ok_or_else(|| wrong("a quote is not closed"))?;
        match words.as_slice() {
            [] => {}
            [source, destination] if !source.is_empty() && !destination.is_empty() => {
                pairs.push((path(source), path(destination)));
            }
            _ => return Err(wrong("not \"source destination\" (quote names with blanks)")),
        }
    }
    Ok(pairs)
}

fn path(word: &[u8]) -> PathBuf {
    Path::new(OsStr::from_bytes(word)).to_owned()
}

#[cfg(test)]
mod tests {
    //! Goal: the lines of #DW manifests, and names of any bytes. Method: texts, right and wrong.
    use super::*;

    #[test]
    fn lines_are_pairs() {
        let text = b"/a /b\n\n# comment\n  '/with blank'\t\"/to \\\"it\\\"\"   # why\n/x\\ y /z\xff\n";
        let pairs: Vec<(PathBuf, PathBuf)> = vec![
            (path(b"/a"), path(b"/b")),
            (path(b"/with blank"), path(b"/to \"it\"")),
            (path(b"/x y"), path(b"/z\xff")),
        ];
        assert_eq!(parse(text), Ok(pairs));
        assert_eq!(parse(b""), Ok(Vec::new()));
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, line) in [(&b"/a\n"[..], 1), (b"/a /b\n/a /b /c", 2), (b"\n\n'/a /b\n", 3), (b"'' /b", 1)]
        {
            assert!(parse(text).unwrap_err().starts_with(&format!("line {line}: ")));
        }
    }
}
