//! Links in the documents: the file is there, and so is the heading.

use std::path::Path;

use anyhow::Result;

use crate::{files_below, root, shown};

/// Every link of every Markdown file that leads nowhere.
pub fn check() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files_below(&root(), "md")? {
        let text = std::fs::read_to_string(&path)?;
        for link in links(&text) {
            if let Some(why) = broken(&path, &text, &link) {
                found.push(format!("{}: ({link}): {why}", shown(&path)));
            }
        }
    }
    Ok(found)
}

/// The targets of `[text](target)` outside of code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        // Inside backticks is code: every second part.
        for part in line.split('`').step_by(2) {
            for (at, _) in part.match_indices("](") {
                if let Some(end) = part[at + 2..].find(')') {
                    found.push(part[at + 2..at + 2 + end].split(' ').next().unwrap_or_default().to_owned());
                }
            }
        }
    }
    found
}

fn broken(from: &Path, text: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = link.split_once('#').map_or((link, None), |(f, h)| (f, Some(h)));
    let there = if file.is_empty() { from.to_owned() } else { from.parent()?.join(file) };
    if !there.exists() {
        return Some("no such file".to_owned());
    }
    let heading = heading?;
    let other = if file.is_empty() { text.to_owned() } else { std::fs::read_to_string(&there).ok()? };
    let known = other.lines().filter(|l| l.starts_with('#')).any(|l| slug(l) == heading);
    (!known).then(|| format!("no heading {heading:?}"))
}

/// A heading as link targets write it.
fn slug(line: &str) -> String {
    let text = line.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_')
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_and_headings_found() {
        let text = "# A heading, long\n[x](#a-heading-long) `[code](nowhere)`\n```\n[y](nowhere)\n```\n[z](missing.md)";
        let all = links(text);
        assert_eq!(all, ["#a-heading-long", "missing.md"]);
        let here = root().join("Cargo.toml");
        assert_eq!(broken(&here, text, &all[0]), None);
        assert!(broken(&here, text, "#other").is_some());
        assert!(broken(&here, text, &all[1]).is_some());
        assert_eq!(broken(&here, text, "https://example.org/x"), None);
    }
}
