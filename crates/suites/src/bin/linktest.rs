//! A linked directory and its mount, both changed at random, with kills of the daemon in between. After each round both trees are
//! the same, byte for byte and attribute for attribute, and nothing that one side made and did not take back is missing.
//!
//! The mount has directories and files of all modes, which change, too. Of what is transient the linked directory has never
//! anything, and it is in the mount as it was after each kill, each change of the other side and each remount.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use suites::{
    modes::{self, Modes, Named, Transient, Tree},
    random::Random,
    rig::{Rig, RigOptions, save_lines, scratch_dir},
    tally::Tally,
};

#[derive(Parser)]
#[command(args_override_self = true)]
struct Args {
    /// The onfs binary.
    #[arg(long, env = "SUITES_ONFS", default_value = "target/release/onfs")]
    onfs: PathBuf,
    /// Scratch directories are made here, on a disk.
    #[arg(long, env = "SUITES_ROOT", default_value = "/var/tmp")]
    root: PathBuf,
    /// The memory tier's size.
    #[arg(long, default_value = "64MiB")]
    memory: String,
    /// Further options of `onfs mount`, separated by spaces.
    #[arg(long, env = "SUITES_MOUNT_OPTIONS", default_value = "", allow_hyphen_values = true)]
    mount_options: String,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds, one test case each.
    #[arg(long, default_value_t = 4)]
    runs: u64,
    /// Rounds of a case.
    #[arg(long, default_value_t = 8)]
    rounds: u64,
    /// Changes of a round.
    #[arg(long, default_value_t = 25)]
    changes: u64,
}

/// Names that everything is made of, so that the two sides meet.
const DIRS: [&str; 3] = ["a", "b", "c"];
const FILES: [&str; 6] = ["f1", "f2", "f3", "f4", "f5", "f6"];
/// The mount looks at each use. It publishes soon, or only when it is told to: then what a kill finds is not there yet.
const SOON: [&str; 4] = ["--set", "nearline.look_every=0s", "--set", "nearline.publish_after=50ms"];
const LATE: [&str; 4] = ["--set", "nearline.look_every=0s", "--set", "nearline.publish_after=1h"];
const SETTLE: Duration = Duration::from_secs(60);

/// Who changes something in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Ours,
    Theirs,
    /// Each in top directories of its own.
    Apart,
    /// Ours, and after a kill theirs, of what they had before: conflicts come.
    Both,
}

fn main() -> ExitCode {
    let args = Args::parse();
    rustix::process::umask(rustix::fs::Mode::empty());
    match run(&args) {
        Ok(code) => code,
        Err(e) => {
            println!("FAIL link/set-up: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let mut tally = Tally::new("link");
    for seed in args.seed..args.seed + args.runs {
        let scratch = scratch_dir(&args.root, "onfs-link")?;
        let mut case = Case::new(args, &scratch, seed)?;
        let mut outcome = case.all(args);
        if outcome.is_err() {
            let log = std::env::var_os("SUITES_LOGS").map_or_else(|| scratch.clone(), PathBuf::from);
            let saved = save_lines(&log.join(format!("link-seed-{seed}.log")), &case.history);
            let tail = case.rig.log_tail();
            outcome =
                outcome.with_context(|| format!("what was done: {saved:?}; the daemon's log ends:\n{tail}"));
        }
        let _ = case.rig.kill().and_then(|()| case.rig.finish_kill());
        tally.record(&format!("seed {seed}, {} rounds", args.rounds), outcome);
        drop(case);
        let _ = fs::remove_dir_all(&scratch);
    }
    Ok(tally.exit_code())
}

struct Case {
    rig: Rig,
    seed: u64,
    random: Random,
    modes: Modes,
    /// Inode numbers of what the linked directory's side made or moved.
    made_there: BTreeSet<u64>,
    made: u64,
    history: Vec<String>,
}

impl Case {
    fn new(args: &Args, scratch: &Path, seed: u64) -> Result<Case> {
        let words = if is_late(seed) { LATE } else { SOON };
        let words = words.iter().map(|word| (*word).to_owned());
        let extra = words.chain(args.mount_options.split_whitespace().map(str::to_owned)).collect();
        let rig = Rig::new(RigOptions {
            onfs: args.onfs.clone(),
            scratch: scratch.to_owned(),
            memory: args.memory.clone(),
            extra,
            disk: None,
            link: true,
        })?;
        let (random, modes, made_there) = (Random::new(seed), Modes::default(), BTreeSet::new());
        Ok(Case { rig, seed, random, modes, made_there, made: 0, history: Vec::new() })
    }

    fn all(&mut self, args: &Args) -> Result<()> {
        let theirs = self.rig.nearline();
        for _ in 0..args.changes {
            self.change(&theirs, &DIRS)?;
        }
        self.rig.mount()?;
        self.settle("the beginning")?;
        for round in 0..args.rounds {
            let others = if is_late(self.seed) { 4 } else { 3 };
            let who = [Who::Ours, Who::Theirs, Who::Apart, Who::Both][self.random.below(others) as usize];
            self.history.push(format!("round {round}: {who:?}"));
            self.round(who, args.changes).with_context(|| format!("round {round}, {who:?}"))?;
        }
        let before = self.transient("before the unmount")?;
        self.rig.unmount()?;
        self.rig.mount()?;
        self.transient("after a remount")?.must_be(&before)?;
        self.rig.unmount()
    }

    /// All that is transient here. The linked directory has nothing of it.
    fn transient(&self, when: &str) -> Result<Transient> {
        let (ours, theirs) = (self.rig.mountpoint(), self.rig.nearline());
        let seen = || -> Result<Transient> {
            let tree = self.modes.tree(&ours)?;
            self.none_leaked(&tree)?;
            let kept = modes::transient(&ours, &tree)?;
            let there = contents(&theirs)?;
            let line = kept.lines().find(|line| there.contains_key(line));
            ensure!(
                line.is_none(),
                "{line:?} is transient, and there: {:?}",
                line.as_ref().map(|line| &there[line])
            );
            Ok(kept)
        };
        seen().with_context(|| format!("what is transient, {when}"))
    }

    fn none_leaked(&self, tree: &Tree) -> Result<()> {
        let leaked = modes::leaked(tree, &listing(&self.rig.nearline())?, &self.made_there);
        ensure!(leaked.is_empty(), "transient here, and there: {leaked:?}");
        Ok(())
    }

    fn round(&mut self, who: Who, changes: u64) -> Result<()> {
        let (ours, theirs) = (self.rig.mountpoint(), self.rig.nearline());
        let before = contents(&theirs)?;
        let (mut wanted, mut transient) = (BTreeMap::new(), self.transient("at the beginning")?);
        for n in 0..changes {
            let mine = match who {
                Who::Ours => true,
                Who::Theirs => false,
                Who::Apart => self.random.chance(50),
                Who::Both => n < changes / 2,
            };
            if who == Who::Both && n == changes / 2 {
                wanted = contents(&ours)?;
                transient = self.transient("before a kill")?;
                self.history.push("kill".to_owned());
                self.rig.kill()?;
                self.rig.finish_kill()?;
                // What is global is there already, and theirs to write over.
                let published = contents(&theirs)?;
                wanted.retain(|made, _| !published.contains_key(made));
            }
            let dirs = match who {
                Who::Apart if mine => &DIRS[..1],
                Who::Apart => &DIRS[1..2],
                Who::Ours | Who::Theirs | Who::Both => &DIRS[..],
            };
            if mine && self.random.chance(25) {
                self.change_mode(&ours, dirs)?;
            }
            self.change(if mine { &ours } else { &theirs }, dirs)?;
            if mine && who != Who::Both && self.random.chance(3) {
                self.kill()?;
            }
        }
        // What either side made in this round, and has still, must be there in the end, under some name.
        if who == Who::Both {
            wanted.extend(contents(&theirs)?);
            self.rig.mount()?;
            self.transient("after a kill")?.must_be(&transient)?;
        } else {
            wanted.extend(made_alone(who, contents(&ours)?, contents(&theirs)?));
        }
        self.settle(&format!("{who:?}"))?;
        let mut after = contents(&theirs)?;
        // A file of which a part is lost has its first line still.
        after.extend(contents(&ours)?);
        for (made, at) in wanted.iter().filter(|(made, _)| !before.contains_key(*made)) {
            ensure!(after.contains_key(made), "what was written to {at:?} is nowhere: {made}");
        }
        if who == Who::Theirs {
            self.transient("after changes there")?.must_be(&transient)?;
        }
        if who != Who::Both {
            let beside =
                listing(&theirs)?.into_keys().find(|path| path.to_string_lossy().contains("conflict"));
            ensure!(beside.is_none(), "a conflict where there was none: {beside:?}");
        }
        self.remove_conflicts(&theirs)
    }

    fn kill(&mut self) -> Result<()> {
        let before = self.transient("before a kill")?;
        self.history.push("kill".to_owned());
        self.rig.kill()?;
        self.rig.finish_kill()?;
        self.rig.mount()?;
        self.transient("after a kill")?.must_be(&before)
    }

    /// So that names do not grow for ever.
    fn remove_conflicts(&mut self, theirs: &Path) -> Result<()> {
        let ours = self.rig.mountpoint();
        for path in listing(&ours)?.into_keys().rev() {
            if is_a_lost_part(&ours.join(&path)) {
                fs::remove_file(ours.join(path))?;
            }
        }
        for path in listing(theirs)?.into_keys().rev() {
            if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".onfs-conflict-")) {
                let path = theirs.join(path);
                self.history.push(format!("remove {}", path.display()));
                if path.is_dir() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
            }
        }
        self.settle("conflicts removed")
    }

    /// Both sides come to be the same.
    fn settle(&mut self, when: &str) -> Result<()> {
        let (ours, theirs) = (self.rig.mountpoint(), self.rig.nearline());
        let until = Instant::now() + SETTLE;
        let before = self.transient(when)?;
        loop {
            let flushed = self.rig.command(&["flush", "--wait"], &[&ours])?;
            ensure!(flushed.status.success(), "flush: {}", String::from_utf8_lossy(&flushed.stderr));
            // The first walk has the mount look at everything.
            let _ = listing(&ours);
            match self.modes.tree(&ours).and_then(|tree| same(&ours, &theirs, &tree)) {
                Ok(()) => return self.transient(when)?.must_be(&before),
                Err(error) if Instant::now() > until => {
                    return Err(error.context(format!("{when}: the two sides do not come to be the same")));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// One change of one side, below the top directories given.
    fn change(&mut self, root: &Path, tops: &[&str]) -> Result<()> {
        let dir = self.some_dir(tops);
        let name = *self.random.pick(&FILES).context("no names")?;
        let (dir, path) = (root.join(&dir), root.join(dir.join(name)));
        let other = root.join(self.some_dir(tops)).join(*self.random.pick(&FILES).context("no names")?);
        let kind = self.random.below(100);
        let what = match kind {
            0..=29 => "write",
            30..=39 => "append",
            40..=44 => "overwrite a part",
            45..=49 => "truncate",
            50..=57 => "rename",
            58..=65 => "unlink",
            66..=73 => "mkdir",
            74..=77 => "rmdir",
            78..=82 => "symlink",
            83..=88 => "chmod",
            89..=92 => "rewrite aside",
            93..=95 => "rename a directory",
            _ => "set times",
        };
        let done = match kind {
            0..=29 => self.write(&path),
            30..=39 => self.append(&path),
            40..=44 => self.overwrite(&path),
            45..=49 => self.truncate(&path),
            50..=57 => fs::rename(&path, &other),
            58..=65 => fs::remove_file(&path),
            66..=73 => fs::create_dir_all(&dir),
            74..=77 => fs::remove_dir(&dir),
            78..=82 => symlink(format!("to-{}", self.made), &path),
            83..=88 => fs::set_permissions(
                &path,
                fs::Permissions::from_mode(0o600 + self.random.below(0o100) as u32),
            ),
            89..=92 => self.rewrite(&dir, &path),
            93..=95 => other.parent().map_or(Ok(()), |to| fs::rename(&dir, to)),
            _ => self.set_times(&path),
        };
        self.history.push(format!("{what}: {} ({}): {done:?}", path.display(), other.display()));
        if root == self.rig.nearline() {
            self.note_made_there(root, [&path, &other], what)?;
        }
        tolerated(what, &path, done)
    }

    /// What its side made or moved there, with what is in a directory that was moved.
    fn note_made_there(&mut self, root: &Path, paths: [&Path; 2], what: &str) -> Result<()> {
        let number = |at: &Path| Some(fs::symlink_metadata(at).ok()?.ino());
        self.made_there.extend(paths.into_iter().filter_map(number));
        let [Some(dir), Some(to)] = paths.map(Path::parent) else { return Ok(()) };
        match what {
            "mkdir" => {
                self.made_there.extend(dir.ancestors().take_while(|at| *at != root).filter_map(number))
            }
            "rename a directory" if to.is_dir() => {
                self.made_there.extend(number(to));
                self.made_there.extend(listing(to)?.values().map(MetadataExt::ino));
            }
            _ => {}
        }
        Ok(())
    }

    /// One change of the modes of the mount.
    fn change_mode(&mut self, root: &Path, tops: &[&str]) -> Result<()> {
        let dir = root.join(self.some_dir(tops));
        let path = dir.join(*self.random.pick(&FILES).context("no names")?);
        let of_dir = *self.random.pick(&modes::OF_DIRS).context("no modes")?;
        let of_file = *self.random.pick(&modes::OF_FILES).context("no modes")?;
        let word = *self.random.pick(&["forced", "normal", "inherit"]).context("no words")?;
        let (what, done) = match self.random.below(10) {
            0..=2 => (format!("of the directory, {of_dir:?}"), self.modes.set(&dir, of_dir)),
            // Only an empty one can become transient.
            3..=4 => {
                let dir = dir.join(*self.random.pick(&DIRS).context("no names")?);
                let made = fs::create_dir_all(&dir).and_then(|()| self.modes.set(&dir, of_dir));
                (format!("make {}, {of_dir:?}", dir.display()), made)
            }
            5..=8 => (format!("of a file, {of_file:?}"), self.modes.set(&path, of_file)),
            _ => (format!("sync={word}"), Modes::set_sync(&dir, word)),
        };
        self.history.push(format!("mode: {what}: {}: {done:?}", path.display()));
        tolerated(&what, &path, done)
    }

    fn some_dir(&mut self, tops: &[&str]) -> PathBuf {
        let mut dir = PathBuf::from(*self.random.pick(tops).unwrap_or(&"a"));
        while self.random.chance(35) && dir.components().count() < 4 {
            dir.push(*self.random.pick(&DIRS).unwrap_or(&"a"));
        }
        dir
    }

    /// Bytes that nobody else wrote: a line with a number, and what follows from that.
    fn bytes(&mut self) -> Vec<u8> {
        self.made += 1;
        let long = if self.random.chance(10) { 9 << 20 } else { 20_000 };
        let length = self.random.below(long) as usize;
        let mut bytes = format!("made {}\n", self.made).into_bytes();
        let made = self.made;
        bytes.extend((0..length).map(|n| (n as u64).wrapping_mul(made).to_le_bytes()[1]));
        bytes
    }

    fn write(&mut self, path: &Path) -> std::io::Result<()> {
        let bytes = self.bytes();
        let mut file = File::create(path)?;
        file.write_all(&bytes)?;
        if self.random.chance(10) { file.sync_all() } else { Ok(()) }
    }

    fn append(&mut self, path: &Path) -> std::io::Result<()> {
        let bytes = self.bytes();
        OpenOptions::new().append(true).open(path)?.write_all(&bytes)
    }

    fn overwrite(&mut self, path: &Path) -> std::io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        let size = file.metadata()?.len();
        let at = self.random.below(size.max(1));
        self.made += 1;
        // The first line names the content.
        file.write_all_at(format!("made {}\n", self.made).as_bytes(), 0)?;
        file.write_all_at(b"a part of it", at.max(30))
    }

    fn truncate(&mut self, path: &Path) -> std::io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        let size = file.metadata()?.len();
        file.set_len(self.random.below(size + 5000).max(30))?;
        self.made += 1;
        file.write_all_at(format!("made {}\n", self.made).as_bytes(), 0)
    }

    fn rewrite(&mut self, dir: &Path, path: &Path) -> std::io::Result<()> {
        let aside = dir.join(".aside");
        self.write(&aside)?;
        fs::rename(&aside, path)
    }

    fn set_times(&mut self, path: &Path) -> std::io::Result<()> {
        let file = File::open(path)?;
        let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + self.random.below(1_000_000));
        file.set_modified(time)
    }
}

/// What is not there, or there already, or of another kind: nothing happened.
fn tolerated(what: &str, path: &Path, done: std::io::Result<()>) -> Result<()> {
    match done {
        Err(error) => match error.raw_os_error() {
            Some(1 | 2 | 16 | 17 | 18 | 20 | 21 | 22 | 39 | 40) => Ok(()),
            _ => bail!("{what} {}: {error}", path.display()),
        },
        Ok(()) => Ok(()),
    }
}

/// Does this seed publish late, so that both sides can change the same?
fn is_late(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// What is at each path, the root aside.
fn listing(root: &Path) -> Result<BTreeMap<PathBuf, fs::Metadata>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(root.join(&dir)).with_context(|| format!("list {}", dir.display()))? {
            let path = dir.join(entry?.file_name());
            let meta =
                fs::symlink_metadata(root.join(&path)).with_context(|| format!("{}", path.display()))?;
            if meta.is_dir() {
                dirs.push(path.clone());
            }
            found.insert(path, meta);
        }
    }
    Ok(found)
}

/// The first lines of all files, which name what was written, and where.
fn contents(root: &Path) -> Result<BTreeMap<String, OsString>> {
    let mut found = BTreeMap::new();
    for (path, meta) in listing(root)? {
        if meta.is_file() && !path.to_string_lossy().contains(".onfs-way-") {
            let mut start = [0; 30];
            let got = File::open(root.join(&path))?.read(&mut start).unwrap_or(0);
            let text = String::from_utf8_lossy(&start[..got]).into_owned();
            if let Some((line, _)) = text.split_once('\n') {
                found.insert(line.to_owned(), path.into_os_string());
            }
        }
    }
    Ok(found)
}

/// What a side has that the other did not touch in this round.
fn made_alone(
    who: Who,
    ours: BTreeMap<String, OsString>,
    theirs: BTreeMap<String, OsString>,
) -> BTreeMap<String, OsString> {
    let below = |tree: BTreeMap<String, OsString>, top: &str| {
        let inside = |at: &OsString| Path::new(at).starts_with(top);
        tree.into_iter().filter(|(_, at)| inside(at)).collect::<BTreeMap<_, _>>()
    };
    match who {
        Who::Ours => ours,
        Who::Theirs => theirs,
        Who::Apart => below(ours, DIRS[0]).into_iter().chain(below(theirs, DIRS[1])).collect(),
        Who::Both => BTreeMap::new(),
    }
}

fn is_a_lost_part(path: &Path) -> bool {
    path.to_string_lossy().contains(".onfs-conflict-")
        && fs::read(path).is_err_and(|e| e.raw_os_error() == Some(5))
}

/// Both sides, what is transient aside.
fn same(ours: &Path, theirs: &Path, modes: &Tree) -> Result<()> {
    let (mut left, mut right) = (listing(ours)?, listing(theirs)?);
    left.retain(|path, _| !modes.get(path).is_some_and(|named| named.apart));
    right.retain(|path, _| !modes::is_hidden(modes, path));
    // Of a file that both changed, what was never read of theirs may be gone with it: it stays here, and says so.
    left.retain(|path, meta| {
        right.contains_key(path) || !meta.is_file() || !is_a_lost_part(&ours.join(path))
    });
    let names = |tree: &BTreeMap<PathBuf, fs::Metadata>| tree.keys().cloned().collect::<BTreeSet<_>>();
    let (l, r) = (names(&left), names(&right));
    let only_here: Vec<_> = l.difference(&r).collect();
    let only_there: Vec<_> = r.difference(&l).collect();
    ensure!(l == r, "only in the mount: {only_here:?}; only in the directory: {only_there:?}");
    for (path, a) in &left {
        let b = &right[path];
        let kind = |m: &fs::Metadata| (m.is_dir(), m.is_file(), m.is_symlink(), m.file_type().is_fifo());
        ensure!(kind(a) == kind(b), "{}: kinds differ", path.display());
        let attributes = |m: &fs::Metadata| (m.mode(), m.uid(), m.gid());
        ensure!(
            attributes(a) == attributes(b),
            "{}: {:?} here, {:?} there",
            path.display(),
            attributes(a),
            attributes(b)
        );
        // The times of a transient directory tell of names that the other side does not have.
        let is_border = modes.get(path).is_some_and(Named::is_border);
        if !a.is_symlink() && !is_border {
            let times = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec());
            ensure!(
                times(a) == times(b),
                "{}: mtime {:?} here, {:?} there",
                path.display(),
                times(a),
                times(b)
            );
        }
        if a.is_symlink() {
            ensure!(
                fs::read_link(ours.join(path))? == fs::read_link(theirs.join(path))?,
                "{}: targets differ",
                path.display()
            );
        }
        if a.is_file() {
            ensure!(a.len() == b.len(), "{}: {} bytes here, {} there", path.display(), a.len(), b.len());
            let (here, there) = (fs::read(ours.join(path))?, fs::read(theirs.join(path))?);
            let at = here.iter().zip(&there).position(|(a, b)| a != b);
            ensure!(here == there, "{}: bytes differ at {at:?}", path.display());
        }
    }
    Ok(())
}
