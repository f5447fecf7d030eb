//! Checks of the source tree that the compiler does not make: layers, import circles, sizes of files and functions, names, module
//! docs, links in the documents. `cargo test -p tidy` runs them; each finding is one line that says where and what.
//!
//! Refuses to know what the code does.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub mod files;
pub mod functions;
pub mod imports;
pub mod layers;
pub mod links;
pub mod source;

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Every file below `dir` whose name ends in `.` and `extension`, sorted; hidden directories and `target` left out.
pub fn files_below(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// `path` as the findings show it.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
