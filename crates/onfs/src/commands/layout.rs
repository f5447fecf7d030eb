//! `onfs layout`: where the data of a cluster's file are, and what a directory says of new files in it. The metadata server shows and takes
//! both as the attribute `user.onfs.layout`.

use std::path::Path;

use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    io::Errno,
};
use serde::Serialize;
use types::ByteSize;

use super::ask::{ask, unexpected};
use crate::{
    args::LayoutArgs,
    control::{Request, Response},
    exit::{Failure, Outcome, system_text},
    locate::locate,
    render,
};

const ATTRIBUTE: &str = "user.onfs.layout";
/// Bytes of the longest: 64 nodes with their names.
const VALUE_MAX: usize = 16 << 10;

/// What the attribute says; `None`: auto, or of no file.
#[derive(Serialize, PartialEq, Eq, Debug, Default)]
struct LayoutReport {
    path: String,
    directory: bool,
    /// Of a file: it was written, or is about to be.
    placed: bool,
    stripes: Option<u64>,
    /// Bytes.
    unit: Option<u64>,
    /// Of a directory.
    local: Option<String>,
    /// Of a directory that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<u64>,
    /// Of a file of two copies: of each stripe the data server with the second one, in brackets while that is made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    seconds: Vec<String>,
    /// Of a file, in the order of its stripes.
    nodes: Vec<NodeOf>,
}

#[derive(Serialize, PartialEq, Eq, Debug)]
struct NodeOf {
    node: u64,
    name: String,
}

pub fn layout(args: &LayoutArgs) -> Outcome {
    let located = locate(&args.path)?;
    let shown = args.path.display();
    let answer = ask(&located, Request::Status {})?;
    if let Response::Status(_) = answer {
        return Err(Failure::usage(format!(
            "{shown}: on a mount of one machine, whose files have no layout"
        ))
        .hint("onfs file shows in which tier a file's data is"));
    }
    if !matches!(answer, Response::ClusterMount(_)) {
        return Err(unexpected("layout"));
    }
    if let Some(text) = wish(args) {
        if !located.is_dir {
            return Err(Failure::usage(format!("{shown}: a file's layout stays as it was chosen"))
                .hint("set it for a directory: new files in it get it"));
        }
        setxattr(&args.path, ATTRIBUTE, text.as_bytes(), XattrFlags::empty()).map_err(
            |error| match error {
                Errno::INVAL => Failure::usage(format!("{shown}: no layout can be {text:?}"))
                    .hint("1 to 64 stripes; units of whole 4MiB, at most 1GiB"),
                other => failed(&args.path, other),
            },
        )?;
    }
    let text = read(&args.path)?;
    let report = LayoutReport { path: shown.to_string(), directory: located.is_dir, ..parse(&text) };
    if args.output.json { render::json(&report) } else { render::print(&lines(&report)) }
}

/// The words that are given.
fn wish(args: &LayoutArgs) -> Option<String> {
    let words =
        [("stripes", &args.stripes), ("unit", &args.unit), ("local", &args.local), ("copies", &args.copies)];
    let words: Vec<String> =
        words.iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?))).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// Empty: a file that was never written.
fn read(path: &Path) -> Outcome<String> {
    let mut value = vec![0; VALUE_MAX];
    match getxattr(path, ATTRIBUTE, value.as_mut_slice()) {
        Ok(length) => Ok(String::from_utf8_lossy(&value[..length]).into_owned()),
        Err(Errno::NODATA) => Ok(String::new()),
        Err(error) => Err(failed(path, error)),
    }
}

fn failed(path: &Path, error: Errno) -> Failure {
    Failure::failed(format!("{}: {}", path.display(), system_text(&error.into())))
}

fn parse(text: &str) -> LayoutReport {
    let mut report = LayoutReport::default();
    for (key, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
        match key {
            "stripes" => report.stripes = value.parse().ok(),
            "unit" => report.unit = value.parse().ok(),
            "local" => report.local = Some(value.to_owned()),
            "copies" => report.copies = value.parse().ok(),
            "seconds" => report.seconds = value.split(',').map(str::to_owned).collect(),
            "nodes" => {
                let nodes = value.split(',').map(|node| node.split_once(':').unwrap_or((node, "")));
                report.nodes = nodes
                    .filter_map(|(node, name)| {
                        Some(NodeOf { node: node.parse().ok()?, name: name.to_owned() })
                    })
                    .collect();
                report.placed = true;
            }
            _ => {}
        }
    }
    report
}

fn lines(report: &LayoutReport) -> String {
    let or_auto = |text: Option<String>| text.unwrap_or_else(|| "auto".to_owned());
    let unit = or_auto(report.unit.map(|unit| ByteSize(unit).to_string()));
    let stripes = or_auto(report.stripes.map(|n| n.to_string()));
    if report.directory {
        let local = or_auto(report.local.clone());
        let copies = report.copies.map_or(String::new(), |n| format!("copies   {n}\n"));
        return format!("stripes  {stripes}\nunit     {unit}\nlocal    {local}\n{copies}");
    }
    if !report.placed {
        return "not written yet: its layout is chosen at the first write\n".to_owned();
    }
    let nodes: Vec<String> = report.nodes.iter().map(|of| format!("{} ({})", of.node, of.name)).collect();
    let seconds = match report.seconds.is_empty() {
        true => String::new(),
        false => format!("seconds  {}\n", report.seconds.join(", ")),
    };
    format!("stripes  {stripes}\nunit     {unit}\nnodes    {}\n{seconds}", nodes.join(", "))
}

#[cfg(test)]
mod tests {
    //! Goal: what the attribute says is what is shown. Method: texts as the metadata server writes them.
    use super::*;

    #[test]
    fn texts_of_directories_and_files() {
        let of_dir = LayoutReport { directory: true, ..parse("stripes=auto unit=8388608 local=no") };
        assert_eq!(lines(&of_dir), "stripes  auto\nunit     8MiB\nlocal    no\n");
        let of_file = parse("stripes=2 unit=4194304 nodes=1:n1,3:n3");
        assert!(of_file.placed);
        assert_eq!(lines(&of_file), "stripes  2\nunit     4MiB\nnodes    1 (n1), 3 (n3)\n");
        let of_two = parse("stripes=2 unit=4194304 nodes=1:n1,3:n3 seconds=2:n2,(4:n4)");
        assert_eq!(
            lines(&of_two),
            "stripes  2\nunit     4MiB\nnodes    1 (n1), 3 (n3)\nseconds  2:n2, (4:n4)\n"
        );
        assert!(lines(&parse("")).starts_with("not written yet"));
    }
}
