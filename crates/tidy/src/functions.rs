//! Lengths of functions.

use std::path::Path;

use anyhow::Result;

use crate::{
    files_below, root, shown,
    source::{block_end, strip, without_tests},
};

/// A function has fewer lines than this, from `fn` to the closing brace.
const LINES_UNDER: usize = 70;
/// Functions that may have more, each with the reason why a cut would hide something.
const EXCUSED: &[(&str, &str, &str)] = &[
    ("crates/client/src/dispatch.rs", "serve_one", "one match, an arm of few lines for each kind of request"),
    ("crates/fuse/examples/nullfs/fs.rs", "dispatch", "the same, for the null file system"),
    ("crates/remote/src/kernel.rs", "serve", "the same, for a mount of a cluster"),
    (
        "crates/suites/src/semantics.rs",
        "apply",
        "one match, an arm of few lines for each operation of the model",
    ),
];
#[derive(PartialEq, Eq, Debug)]
struct Function {
    name: String,
    lines: usize,
}

/// Every function of the tree, tests not counted.
pub fn check() -> Result<Vec<String>> {
    let mut found = Vec::new();
    let excused: Vec<(&str, &str)> = EXCUSED.iter().map(|(file, name, _)| (*file, *name)).collect();
    let mut needed = vec![false; excused.len()];
    for path in files_below(&root().join("crates"), "rs")? {
        let file = shown(&path);
        if is_test(&file) {
            continue;
        }
        let code = without_tests(&strip(&std::fs::read_to_string(&path)?));
        for Function { name, lines } in functions(&code) {
            if lines < LINES_UNDER {
                continue;
            }
            if let Some(n) = excused.iter().position(|one| *one == (file.as_str(), name.as_str())) {
                needed[n] = true;
            }
            let most = allowed(&file, &name);
            if lines > most {
                found.push(format!("{file}: {name} has {lines} lines, {most} at the most"));
            }
        }
    }
    let stale = excused.iter().zip(needed).filter(|(_, needed)| !needed);
    found.extend(
        stale.map(|((file, name), _)| format!("{file}: {name} is not over the limit: strike it off")),
    );
    Ok(found)
}

fn allowed(file: &str, name: &str) -> usize {
    let excused = EXCUSED.iter().any(|(at, excused, _)| (*at, *excused) == (file, name));
    if excused { usize::MAX } else { LINES_UNDER - 1 }
}

fn is_test(file: &str) -> bool {
    let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    file.contains("/tests/") || stem == "tests" || stem.ends_with("_tests")
}

/// The functions of stripped code that have a body; one inside another counts for both.
fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let name: String =
            code[at + 3..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        // Without a name it is a type.
        let Some(open) = body(code, at + 3).filter(|_| !name.is_empty()) else { continue };
        let lines = code[at..block_end(code, open)].lines().count();
        found.push(Function { name, lines });
    }
    found
}

/// Where the body of the function begins; `None` if it has none.
fn body(code: &str, from: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    //! Goal: lengths are those that an editor shows, whatever stands in the head. Method: small texts.
    use super::*;

    fn lengths(code: &str) -> Vec<(String, usize)> {
        functions(&strip(code)).into_iter().map(|f| (f.name, f.lines)).collect()
    }

    #[test]
    fn functions_are_found_with_their_lines() {
        let code = "trait T {\n    fn none(&self, a: [u8; 4]);\n}\n\
            fn one() -> [u8; 2] { [1, 2] }\n\
            pub(crate) fn two<F: Fn(u8) -> u8>(\n    f: F,\n) -> fn(u8) -> u8\nwhere\n    F: Copy,\n{\n    // }\n    let s = \"}\";\n}\n\
            type P = fn (u8);\n";
        assert_eq!(lengths(code), [("one".to_owned(), 1), ("two".to_owned(), 9)]);
        let inner = "fn outer() {\n    fn inner() {\n    }\n}\n";
        assert_eq!(lengths(inner), [("outer".to_owned(), 4), ("inner".to_owned(), 2)]);
    }

    #[test]
    fn the_limit_holds_but_for_the_named() {
        assert_eq!(allowed("crates/x/src/a.rs", "load"), LINES_UNDER - 1);
        assert_eq!(allowed("crates/client/src/dispatch.rs", "serve_one"), usize::MAX);
    }
}
