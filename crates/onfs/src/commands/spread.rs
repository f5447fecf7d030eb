//! `onfs mds spread` and `onfs mds gather`: a directory's entries over several metadata servers, and back. The metadata server takes both as the
//! attribute `trusted.onfs.spread`, which the kernel gives to root alone.

use std::path::Path;

use rustix::{
    fs::{XattrFlags, getxattr, removexattr, setxattr},
    io::Errno,
};
use serde::Serialize;

use super::ask::{ask, unexpected};
use crate::{
    args::Output,
    control::{Request, Response},
    exit::{Failure, Outcome, system_text},
    locate::locate,
    render,
};

const ATTRIBUTE: &str = "trusted.onfs.spread";
/// Bytes: two words with numbers.
const VALUE_MAX: usize = 256;

#[derive(Serialize, PartialEq, Eq, Debug)]
struct SpreadReport {
    path: String,
    /// 0: the entries are in the directory itself.
    parts: u64,
}

pub fn spread(dir: &Path, over: Option<u32>, output: &Output) -> Outcome {
    is_of_a_cluster(dir)?;
    let parts = over.map_or_else(|| "auto".to_owned(), |n| n.next_power_of_two().to_string());
    let text = format!("parts={parts}");
    let done = setxattr(dir, ATTRIBUTE, text.as_bytes(), XattrFlags::empty());
    // How it is spread already is shown.
    match (done, over) {
        (Ok(()), _) | (Err(Errno::EXIST), None) => show(dir, output),
        (Err(error), _) => Err(failed(dir, error)),
    }
}

pub fn gather(dir: &Path, output: &Output) -> Outcome {
    is_of_a_cluster(dir)?;
    match removexattr(dir, ATTRIBUTE) {
        // It is not spread.
        Ok(()) | Err(Errno::NODATA) => show(dir, output),
        Err(error) => Err(failed(dir, error)),
    }
}

fn is_of_a_cluster(dir: &Path) -> Outcome {
    let located = locate(dir)?;
    let shown = dir.display();
    let answer = ask(&located, Request::Status {})?;
    if let Response::Status(_) = answer {
        return Err(Failure::usage(format!("{shown}: on a mount of one machine"))
            .hint("there are no other servers to spread it over"));
    }
    if !matches!(answer, Response::ClusterMount(_)) {
        return Err(unexpected("mds spread"));
    }
    if located.is_dir { Ok(()) } else { Err(Failure::usage(format!("{shown} is no directory"))) }
}

fn show(dir: &Path, output: &Output) -> Outcome {
    let report = SpreadReport { path: dir.display().to_string(), parts: parts_of(&read(dir)?) };
    if output.json { render::json(&report) } else { render::print(&line(&report)) }
}

/// Empty: it is not spread.
fn read(dir: &Path) -> Outcome<String> {
    let mut value = vec![0; VALUE_MAX];
    match getxattr(dir, ATTRIBUTE, value.as_mut_slice()) {
        Ok(length) => Ok(String::from_utf8_lossy(&value[..length]).into_owned()),
        Err(Errno::NODATA) => Ok(String::new()),
        Err(error) => Err(failed(dir, error)),
    }
}

fn parts_of(text: &str) -> u64 {
    let number = text.split_whitespace().find_map(|word| word.strip_prefix("parts="));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn line(report: &SpreadReport) -> String {
    match report.parts {
        0 => format!("{}: one metadata server has its entries\n", report.path),
        parts => format!("{}: its entries are spread over {parts} parts\n", report.path),
    }
}

fn failed(dir: &Path, error: Errno) -> Failure {
    let shown = dir.display();
    match error {
        Errno::FBIG => Failure::failed(format!("{shown} has more than 65,536 entries"))
            .hint("a directory is spread, or gathered, in one piece: spread it while it is small"),
        Errno::EXIST => Failure::failed(format!("{shown} is spread over another number of parts"))
            .hint("onfs mds gather first"),
        Errno::INVAL => Failure::usage(format!("{shown} cannot be spread")).hint(
            "over 2 to 64 parts; and not the root of the mount: each directory in it has a slot of its own",
        ),
        Errno::PERM | Errno::ACCESS => Failure::failed(format!("{shown}: only root may")),
        Errno::XDEV => Failure::failed(format!("{shown}: programs have locks on files in it"))
            .hint("where there are several metadata servers a slot with locks stays where it is"),
        other => Failure::failed(format!("{shown}: {}", system_text(&other.into()))),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what the attribute says is what is shown. Method: texts as the metadata server writes them.
    use super::*;

    #[test]
    fn texts_of_spread_and_other_directories() {
        let line_of = |text| line(&SpreadReport { path: "/mnt/hot".to_owned(), parts: parts_of(text) });
        assert_eq!(line_of("parts=8 first=17"), "/mnt/hot: its entries are spread over 8 parts\n");
        assert_eq!(line_of(""), "/mnt/hot: one metadata server has its entries\n");
    }
}
