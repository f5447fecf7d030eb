//! Is everything below some paths where it is promised?
//!
//! What was written before the gate began is not missed. What is not safe then is noted by its inode before the first name is
//! looked at; so a name that is moved meanwhile, from where nobody has looked yet to where somebody has, is found by its
//! inode. What is found well has been made durable by a sync that came after the last byte counted.

use std::{
    collections::HashSet,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use link::{Conflict, Trust};
use linked::{Linked, Waiting};
use mds::Found;
use types::{Errno, FileKind, Ino};

use super::{
    below::{Below, checked},
    parts::{Parts, failed},
    permission::{Permission, Want},
    standing::{Promise, Standings, why_waiting},
};
use crate::control::{
    ControlError, DataState, FileRef, Finding, GateReport, Progress, ProgressSink, Reason, Unit,
};

/// A file that was closed a moment ago is told of as closed a moment later, and of one that was published it is then noted.
const CLOSING: Duration = Duration::from_secs(2);
/// Between two looks: the first pause, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Names of a directory that are read at once.
const CHUNK: usize = 1000;

pub(super) struct Gate<'a> {
    pub parts: &'a Parts,
    pub permission: &'a Permission<'a>,
}

/// One look at everything.
struct Look<'a> {
    gate: &'a Gate<'a>,
    standings: Standings<'a>,
    seen: HashSet<Ino>,
    report: GateReport,
    /// Of the findings: what will be well in a moment by itself.
    passing: u64,
}

impl Gate<'_> {
    pub fn report(
        &self,
        places: &[FileRef],
        wait: Duration,
        progress: &mut dyn ProgressSink,
    ) -> Result<GateReport, ControlError> {
        let began = Instant::now();
        let tops = self.tops(places)?;
        let mut suspects = None;
        let mut pause = PAUSE;
        loop {
            // Before each look: what it then finds well is durable.
            self.parts.client.settle_closed();
            self.parts.mds.sync().map_err(|errno| failed("making metadata durable", errno))?;
            let suspects = suspects.get_or_insert_with(|| self.suspects());
            let (report, passing) = self.look(places, &tops, suspects, progress)?;
            let patience = if passing == report.findings_total { wait.max(CLOSING) } else { wait };
            if report.open || began.elapsed() >= patience {
                return Ok(report);
            }
            let until = Instant::now() + pause.min(patience.saturating_sub(began.elapsed()));
            while Instant::now() < until {
                progress.report(waiting_for(&report))?;
                std::thread::sleep(PAUSE.min(until.saturating_duration_since(Instant::now())));
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn tops(&self, places: &[FileRef]) -> Result<Vec<Found>, ControlError> {
        let found = |(ino, place): (Ino, &FileRef)| {
            let found = self.parts.mds.find(ino).map_err(|errno| failed(&place.path, errno))?;
            self.permission.reach(&found).map_err(|errno| failed(&place.path, errno))?;
            Ok(found)
        };
        checked(places)?.into_iter().zip(places).map(found).collect()
    }

    /// All of the mount that may not be where it is promised, or is written.
    fn suspects(&self) -> Vec<Ino> {
        let mut inos = self.parts.ds.unsaved();
        inos.extend(self.parts.ds.written());
        inos
    }

    fn look(
        &self,
        places: &[FileRef],
        tops: &[Found],
        suspects: &[Ino],
        progress: &mut dyn ProgressSink,
    ) -> Result<(GateReport, u64), ControlError> {
        let standings = Standings::new(self.parts).map_err(|errno| failed("conflicts", errno))?;
        // Before the names, as the suspects.
        let waiting = self.parts.linked.as_ref().map_or(Vec::new(), |linked| linked.waiting());
        let mut look =
            Look { gate: self, standings, seen: HashSet::new(), report: GateReport::default(), passing: 0 };
        look.mount(places);
        for (found, place) in tops.iter().zip(places) {
            look.walk(found, &place.path, progress)?;
        }
        let below = Below::new(self.parts, places, &waiting);
        for ino in suspects {
            look.moved(*ino, &below);
        }
        if let Some(linked) = &self.parts.linked {
            look.unapplied(linked, &waiting, &below);
            for (number, conflict) in linked.conflicts().map_err(|errno| failed("conflicts", errno))? {
                look.conflict(number, &conflict, &below);
            }
        }
        look.report.open = look.report.findings_total == 0;
        Ok((look.report, look.passing))
    }
}

impl Look<'_> {
    /// What is wrong with all of the mount.
    fn mount(&mut self, places: &[FileRef]) {
        let Some(linked) = &self.gate.parts.linked else { return };
        let what = match linked.look_at_root() {
            Trust::Known => return,
            Trust::Unreachable => "it cannot be reached",
            Trust::Unmounted => "an empty directory is in its place",
            Trust::Stranger => "another directory is in its place",
        };
        let path = || places.first().map_or(String::new(), |place| place.path.clone());
        self.find_always(
            0,
            path(),
            Reason::Link,
            format!("the linked directory: {what}; onfs link show tells more"),
        );
    }

    fn walk(&mut self, top: &Found, path: &str, progress: &mut dyn ProgressSink) -> Result<(), ControlError> {
        self.judge(top, path.to_owned());
        if top.attr.kind != FileKind::Directory {
            return Ok(());
        }
        let mut dirs = vec![(top.attr.ino, path.to_owned())];
        while let Some((dir, path)) = dirs.pop() {
            if let Err(errno) = self.directory(dir, &path, &mut dirs, progress)? {
                let message = format!("it cannot be looked at: {errno}");
                self.find_always(dir.get(), path, Reason::Unreadable, message);
            }
        }
        Ok(())
    }

    fn directory(
        &mut self,
        dir: Ino,
        path: &str,
        dirs: &mut Vec<(Ino, String)>,
        progress: &mut dyn ProgressSink,
    ) -> Result<Result<(), Errno>, ControlError> {
        let (parts, permission) = (self.gate.parts, self.gate.permission);
        let may = parts.mds.find(dir).and_then(|found| {
            Ok(permission.may(&found, Want::Read)? && permission.may(&found, Want::Search)?)
        });
        match may {
            Ok(true) => {}
            Ok(false) => return Ok(Err(Errno::EACCES)),
            // Removed meanwhile.
            Err(Errno::ESTALE | Errno::ENOENT) => return Ok(Ok(())),
            Err(errno) => return Ok(Err(errno)),
        }
        let mut after = 0;
        loop {
            let names = match names_after(parts, dir, after) {
                Ok(names) => names,
                Err(Errno::ESTALE | Errno::ENOENT) => return Ok(Ok(())),
                Err(errno) => return Ok(Err(errno)),
            };
            let Some((_, _, last)) = names.last() else { return Ok(Ok(())) };
            after = *last;
            for (name, ino, _) in names {
                let path = format!("{}/{}", path.trim_end_matches('/'), String::from_utf8_lossy(&name));
                match parts.mds.find(ino) {
                    Ok(found) if found.attr.kind == FileKind::Directory => {
                        self.judge(&found, path.clone());
                        dirs.push((ino, path));
                    }
                    Ok(found) => self.judge(&found, path),
                    Err(Errno::ESTALE | Errno::ENOENT) => {}
                    Err(errno) => {
                        self.find_always(ino.get(), path, Reason::Unreadable, format!("its record: {errno}"));
                    }
                }
            }
            progress.report(Progress {
                done: self.report.looked_at,
                unit: Unit::Items,
                what: path.to_owned(),
                ..Progress::default()
            })?;
        }
    }

    /// One that the walk did not meet: it may have been moved past it.
    fn moved(&mut self, ino: Ino, below: &Below<'_>) {
        if self.seen.contains(&ino) || !below.has(ino) {
            return;
        }
        if let Ok(found) = self.gate.parts.mds.find(ino)
            && found.attr.nlink > 0
            && self.gate.permission.reach(&found).is_ok()
        {
            self.judge(&found, below.path(ino).unwrap_or_else(|| format!("inode {ino}")));
        }
    }

    /// What is not applied in the linked directory and that the walk did not meet.
    fn unapplied(&mut self, linked: &Linked, waiting: &[Waiting], below: &Below<'_>) {
        for waiting in waiting {
            if self.seen.contains(&waiting.ino) {
                continue;
            }
            // What is there under that name is not what is here.
            if waiting.minus.iter().any(|at| below.has_dir(at.dir)) {
                let why = why_waiting(linked, waiting);
                let text = "it was removed or renamed here, and not in the linked directory yet";
                self.find(waiting.ino, || below.path_of(waiting), Reason::Pending, &join(text, &why));
            } else {
                self.moved(waiting.ino, below);
            }
        }
    }

    /// Of a kept file that the walk met it has said so.
    fn conflict(&mut self, number: u64, conflict: &Conflict, below: &Below<'_>) {
        if self.seen.contains(&conflict.ino) || !below.has_dir(conflict.dir) {
            return;
        }
        let dir = || below.path(conflict.dir).unwrap_or_default();
        let path = || format!("{}/{}", dir(), String::from_utf8_lossy(&conflict.name));
        let text = format!("changed here and there: number {number} of onfs conflicts");
        self.find(conflict.dir, path, Reason::Conflict, &text);
    }

    fn judge(&mut self, found: &Found, path: String) {
        let ino = found.attr.ino;
        self.report.looked_at += 1;
        if !self.seen.insert(ino) {
            return;
        }
        let (entry, promise) = match self.standings.of(found, String::new()) {
            Ok(known) => known,
            Err(Errno::ESTALE | Errno::ENOENT) => return,
            Err(errno) => {
                return self.find_always(ino.get(), path, Reason::Unreadable, format!("its data: {errno}"));
            }
        };
        let (reason, text) = match entry.state {
            DataState::Lost => (Reason::Lost, "lost"),
            DataState::Unsure => (Reason::Unsure, "not durable"),
            DataState::Refused => (Reason::Refused, "not in the linked directory"),
            DataState::Conflict => (Reason::Conflict, "changed here and there"),
            DataState::Memory if promise == Promise::Nowhere => {
                (Reason::Memory, "only in memory; this mount has no tier that outlives the machine")
            }
            DataState::Memory => (Reason::Memory, "only in memory"),
            DataState::Unpublished => (Reason::Unpublished, "not in the linked directory yet"),
            DataState::Pending => {
                (Reason::Pending, "its names or attributes are not applied in the linked directory yet")
            }
            DataState::Transient
            | DataState::Safe
            | DataState::Published
            | DataState::Stub
            | DataState::Other => {
                if entry.open_for_writing && promise != Promise::Nothing {
                    let text = "a program has it open for writing".to_owned();
                    self.passing += 1;
                    self.find_always(ino.get(), path, Reason::OpenForWriting, text);
                }
                return;
            }
        };
        // Published, and where its bytes are is written down next.
        let linked = self.gate.parts.linked.as_ref().filter(|_| entry.state == DataState::Memory);
        self.passing += u64::from(linked.is_some_and(|linked| linked.waiting_of(ino).is_none()));
        self.find_always(ino.get(), path, reason, join(text, &entry.why));
    }

    /// What is found by its inode is named to whom may know of it.
    fn find(&mut self, ino: Ino, path: impl FnOnce() -> String, reason: Reason, text: &str) {
        let path = if self.gate.permission.reaches(ino) { path() } else { format!("inode {ino}") };
        self.find_always(ino.get(), path, reason, text.to_owned());
    }

    fn find_always(&mut self, ino: u64, path: String, reason: Reason, message: String) {
        self.report.findings_total += 1;
        if self.report.findings.len() < GateReport::FINDINGS_MAX {
            self.report.findings.push(Finding { path, ino, reason, message });
        }
    }
}

fn join(text: &str, why: &str) -> String {
    if why.is_empty() { text.to_owned() } else { format!("{text}: {why}") }
}

fn waiting_for(report: &GateReport) -> Progress {
    let left = report.findings_total;
    Progress { what: format!("waiting: {left} not safe yet"), ..Progress::default() }
}

/// Names of a directory after a position, without "." and "..", each with what it names and its position.
pub(super) fn names_after(parts: &Parts, dir: Ino, after: u64) -> Result<Vec<(Vec<u8>, Ino, u64)>, Errno> {
    let mut names = Vec::new();
    parts.mds.readdir(dir, after, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.ino, entry.cookie));
        }
        if names.len() < CHUNK { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(names)
}
