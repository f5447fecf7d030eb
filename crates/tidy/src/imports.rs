//! Circles of imports between the files of one crate.
//!
//! A path such as `crate::a::b::Thing` or `super::Thing` is an edge to the file that defines what it names. What
//! `lib.rs` or a `mod.rs` only passes on (`pub use`) leads to where it comes from; declaring a module is no import.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::Result;

use crate::{
    files_below, root, shown,
    source::{strip, without_tests},
};

/// A module of a crate by its path: empty for the crate's root.
type Module = Vec<String>;

struct FileModule {
    name: String,
    code: String,
}

/// Every circle of every crate, one line each.
pub fn check() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("crates"))? {
        let source = entry?.path().join("src");
        if source.is_dir() {
            found.extend(check_crate(&source)?);
        }
    }
    found.sort();
    Ok(found)
}

fn check_crate(source: &Path) -> Result<Vec<String>> {
    let mut modules: BTreeMap<Module, FileModule> = BTreeMap::new();
    for path in files_below(source, "rs")? {
        let relative = path.strip_prefix(source)?.with_extension("");
        let mut module: Module =
            relative.components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
        // Programs beside the library have their own roots.
        if module.first().is_some_and(|m| m == "bin" || m == "main") {
            continue;
        }
        if module.last().is_some_and(|m| m == "mod" || m == "lib") {
            module.pop();
        }
        let code = without_tests(&strip(&std::fs::read_to_string(&path)?));
        modules.insert(module, FileModule { name: shown(&path), code });
    }
    Ok(circles(&modules))
}

fn circles(modules: &BTreeMap<Module, FileModule>) -> Vec<String> {
    let passed_on: BTreeMap<&Module, Vec<Module>> =
        modules.iter().map(|(module, file)| (module, use_paths(&file.code, module, true))).collect();
    let mut edges: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, file) in modules {
        let mut paths = use_paths(&file.code, module, false);
        paths.extend(inline_paths(&file.code, module));
        let to = paths.iter().filter_map(|path| target(path, modules, &passed_on, 0));
        edges.insert(module, to.filter(|to| to != module).collect());
    }
    // Each strongly connected set once, found from its first member.
    let mut found = Vec::new();
    let mut reported: BTreeSet<&Module> = BTreeSet::new();
    for start in modules.keys() {
        if reported.contains(start) {
            continue;
        }
        if let Some(way) = way_back(start, &edges) {
            let names: Vec<&str> =
                way.iter().filter_map(|m| modules.get(m)).map(|f| f.name.as_str()).collect();
            found.push(format!("import circle: {}", names.join(" -> ")));
            for module in &way {
                if let Some((key, _)) = modules.get_key_value(module) {
                    reported.insert(key);
                }
            }
        }
    }
    found
}

/// The shortest way from `start` back to itself.
fn way_back(start: &Module, edges: &BTreeMap<&Module, BTreeSet<Module>>) -> Option<Vec<Module>> {
    let mut came: BTreeMap<Module, Module> = BTreeMap::new();
    let mut queue = std::collections::VecDeque::from([start.clone()]);
    while let Some(at) = queue.pop_front() {
        for next in edges.get(&at).into_iter().flatten() {
            if next == start {
                let mut way = vec![start.clone(), at.clone()];
                let mut back = &at;
                while back != start {
                    back = came.get(back)?;
                    way.push(back.clone());
                }
                way.reverse();
                if way.len() > 2 && way.first() == way.get(1) {
                    way.remove(0);
                }
                return Some(way);
            }
            if !came.contains_key(next) {
                came.insert(next.clone(), at.clone());
                queue.push_back(next.clone());
            }
        }
    }
    None
}

/// The module that defines what a path names.
fn target(
    path: &[String],
    modules: &BTreeMap<Module, FileModule>,
    passed_on: &BTreeMap<&Module, Vec<Module>>,
    depth: usize,
) -> Option<Module> {
    let (module, item) = (0..=path.len()).rev().find_map(|n| {
        let prefix = path[..n].to_vec();
        modules.contains_key(&prefix).then(|| (prefix, path.get(n)))
    })?;
    let Some(item) = item else { return Some(module) };
    // Passed on from elsewhere: follow, but not for ever.
    let from = passed_on.get(&module).into_iter().flatten().find(|p| p.last() == Some(item) && **p != path);
    match from {
        Some(from) if depth < 8 => target(from, modules, passed_on, depth + 1),
        _ => Some(module),
    }
}

/// The paths of `use` items, absolute within the crate: those that pass names on (`pub use`), or the others.
fn use_paths(code: &str, module: &Module, public: bool) -> Vec<Module> {
    let mut paths = Vec::new();
    for statement in code.split(['}', ';', '{']).scan(0usize, |at, part| {
        let start = *at;
        *at += part.len() + 1;
        Some((start, part))
    }) {
        let (start, part) = statement;
        let trimmed = part.trim_start();
        let is_public = trimmed.starts_with("pub");
        let Some(at) = find_use(trimmed) else { continue };
        if is_public != public {
            continue;
        }
        let begin = start + (part.len() - trimmed.len()) + at;
        let end = code[begin..].find(';').map_or(code.len(), |n| begin + n);
        expand(&code[begin..end], &mut Vec::new(), &mut |path| paths.extend(absolute(path, module)));
    }
    paths
}

/// Where the tree of a `use` item begins, after attributes and visibility.
fn find_use(item: &str) -> Option<usize> {
    let mut rest = item;
    while rest.starts_with("#[") {
        rest = rest[rest.find(']')? + 1..].trim_start();
    }
    if let Some(after) = rest.strip_prefix("pub") {
        rest = after.trim_start();
        if rest.starts_with('(') {
            rest = rest[rest.find(')')? + 1..].trim_start();
        }
    }
    let tree = rest.strip_prefix("use ")?;
    Some(item.len() - tree.len())
}

/// Calls `see` with each path of a use tree.
fn expand(tree: &str, prefix: &mut Vec<String>, see: &mut dyn FnMut(&[String])) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let before = prefix.len();
        prefix.extend(tree[..open].split("::").map(str::trim).filter(|p| !p.is_empty()).map(str::to_owned));
        let inside = tree[open + 1..].rsplit_once('}').map_or(&tree[open + 1..], |(inside, _)| inside);
        for part in split_list(inside) {
            expand(part, prefix, see);
        }
        prefix.truncate(before);
        return;
    }
    let path = tree.split(" as ").next().unwrap_or(tree);
    let mut all = prefix.clone();
    all.extend(
        path.split("::")
            .map(str::trim)
            .filter(|p| !p.is_empty() && *p != "self" && *p != "*")
            .map(str::to_owned),
    );
    if path.trim_start().starts_with("self::") || (path.trim() == "self" && prefix.is_empty()) {
        all.insert(0, "self".into());
    }
    if !all.is_empty() {
        see(&all);
    }
}

/// Splits at the commas outside of braces.
fn split_list(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().filter(|p| !p.trim().is_empty()).collect()
}

/// A path from `crate`, `self`, `super` or a child module; `None` for another crate's.
fn absolute(path: &[String], module: &Module) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module.as_slice(), rest].concat()),
        "super" => {
            let mut base = module.clone();
            base.pop();
            let up: Vec<String> = [vec!["self".to_owned()], rest.to_vec()].concat();
            match rest.first().map(String::as_str) {
                Some("super") => absolute(rest, &base),
                _ => absolute(&up, &base),
            }
        }
        // A child of this module, as in `use tree::Tree` in lib.rs; other crates find no module and fall out.
        _ => Some([module.as_slice(), path].concat()).filter(|_| is_child(first)),
    }
}

/// Names of crates that are never modules of ours.
fn is_child(name: &str) -> bool {
    !["std", "core", "alloc"].contains(&name)
}

/// Paths that start with `crate::` or `super::` outside of `use`.
fn inline_paths(code: &str, module: &Module) -> Vec<Module> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let text = &code[at..];
            let end =
                text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(text.len());
            let path: Vec<String> =
                text[..end].split("::").filter(|p| !p.is_empty()).map(str::to_owned).collect();
            // `crate::{...}` is a use tree and was read as such.
            if path.len() > 1 && !(at >= 2 && &code[at - 2..at] == "::") {
                paths.extend(absolute(&path, module));
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> BTreeMap<Module, FileModule> {
        let module = |name: &str| name.split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        let file = |name: &str, code: &str| FileModule { name: name.to_owned(), code: code.to_owned() };
        files.iter().map(|(name, code)| (module(name), file(name, code))).collect()
    }

    #[test]
    fn circles_are_found_through_groups_and_passed_on_names() {
        let plain = [("a", "use crate::{b::B, std};\n"), ("b", "fn f() { crate::a::x() }")];
        assert_eq!(circles(&crate_of(&plain)).len(), 1);
        let passed = [
            ("", "mod a; mod b;\npub use a::A;\npub use b::B;\n"),
            ("a", "use crate::B;"),
            ("b", "use super::A;"),
        ];
        assert_eq!(circles(&crate_of(&passed)).len(), 1);
        let deep = [("a", "use self::c::C;"), ("a/c", "use super::super::b::B;"), ("b", "use crate::a::A;")];
        assert_eq!(circles(&crate_of(&deep)).len(), 1);
    }

    #[test]
    fn trees_are_no_circles() {
        let tree = [
            ("", "mod a; mod b;\npub use a::A;\npub use b::{B, C as D};\n"),
            ("a", "use crate::{B, b::C};\nuse std::sync::Arc;"),
            ("b", "use std::fmt;"),
        ];
        assert_eq!(circles(&crate_of(&tree)), Vec::<String>::new());
    }
}
