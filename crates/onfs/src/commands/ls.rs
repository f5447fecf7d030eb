//! `onfs ls`: names with where their data is, a directory in few requests.

use std::io::Write;

use super::{
    ask::{SHORT, call, unexpected},
    tree::group,
};
use crate::{
    args::LsArgs,
    control::{Client, DataState, EntryReport, FileRef, ListReport, Request, Response},
    exit::{Failure, Outcome},
    locate::{self, Located},
    render,
};

struct Lister<'a> {
    client: Client,
    args: &'a LsArgs,
    /// For JSON: all of them, with their paths.
    all: Vec<EntryReport>,
    /// Directories that could not be listed.
    failed: u64,
    printed: bool,
}

pub fn ls(args: &LsArgs) -> Outcome {
    let mut all = Vec::new();
    let mut failed = 0;
    for group in group(&args.path)? {
        let client = locate::connect(&group.socket)?;
        let mut lister = Lister { client, args, all: Vec::new(), failed: 0, printed: false };
        let (dirs, files): (Vec<&Located>, Vec<&Located>) =
            group.places.iter().partition(|place| place.is_dir);
        lister.files(&files)?;
        let heads = args.path.len() > 1 || args.recursive;
        for dir in dirs {
            lister.tree(dir.file.clone(), heads)?;
        }
        all.append(&mut lister.all);
        failed += lister.failed;
    }
    if args.output.json {
        render::json(&all)?;
    }
    match failed {
        0 => Ok(()),
        1 => Err(Failure::failed("a directory could not be listed")),
        n => Err(Failure::failed(format!("{n} directories could not be listed"))),
    }
}

impl Lister<'_> {
    fn files(&mut self, files: &[&Located]) -> Outcome {
        let mut entries = Vec::new();
        for batch in files.chunks(Request::FILES_MAX) {
            let files = batch.iter().map(|place| place.file.clone()).collect();
            let Response::States(states) = self.ask(Request::States { files })? else {
                return Err(unexpected("ls"));
            };
            entries.extend(states);
        }
        self.show(None, entries)
    }

    /// A directory, and, if so asked, those below it.
    fn tree(&mut self, top: FileRef, heads: bool) -> Outcome {
        let mut dirs = vec![top];
        let mut is_top = true;
        while let Some(dir) = dirs.pop() {
            let entries = match self.directory(&dir) {
                Ok(entries) => entries,
                Err(failure) if is_top => return Err(failure),
                // The others can be listed.
                Err(failure) => {
                    let _ = writeln!(std::io::stderr(), "onfs: {failure}");
                    self.failed += 1;
                    continue;
                }
            };
            is_top = false;
            if self.args.recursive {
                let below = entries.iter().rev().filter(|entry| entry.kind == "directory");
                dirs.extend(
                    below.map(|entry| FileRef { ino: entry.ino, path: join(&dir.path, &entry.name) }),
                );
            }
            if self.args.output.json {
                let named = entries
                    .into_iter()
                    .map(|entry| EntryReport { name: join(&dir.path, &entry.name), ..entry });
                self.show(None, named.collect())?;
            } else {
                self.show(heads.then_some(dir.path.as_str()), entries)?;
            }
        }
        Ok(())
    }

    /// In the order of the names.
    fn directory(&mut self, dir: &FileRef) -> Outcome<Vec<EntryReport>> {
        let (mut entries, mut after) = (Vec::new(), 0);
        loop {
            let answer = self.ask(Request::List { dir: dir.clone(), after })?;
            let Response::List(ListReport { entries: mut some, next }) = answer else {
                return Err(unexpected("ls"));
            };
            entries.append(&mut some);
            match next {
                Some(next) => after = next,
                None => break,
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn show(&mut self, head: Option<&str>, mut entries: Vec<EntryReport>) -> Outcome {
        let wanted: &[DataState] = self.args.state.as_deref().unwrap_or_default();
        entries.retain(|entry| wanted.is_empty() || wanted.contains(&entry.state));
        if self.args.output.json {
            self.all.append(&mut entries);
            return Ok(());
        }
        if entries.is_empty() && (head.is_none() || !wanted.is_empty()) {
            return Ok(());
        }
        let gap = if std::mem::replace(&mut self.printed, true) { "\n" } else { "" };
        let head = head.map_or(String::new(), |dir| format!("{dir}:\n"));
        render::print(&format!("{gap}{head}{}", render::entries(&entries)))
    }

    fn ask(&mut self, request: Request) -> Outcome<Response> {
        call(&mut self.client, request, Some(SHORT), &mut |_| {})
    }
}

fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}
