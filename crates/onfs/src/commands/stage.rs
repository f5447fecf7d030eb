//! `onfs stage-in` and `onfs stage-out`: what goes where, on which side ONFS has to be, and how it ended.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use signal_hook::consts::{SIGINT, SIGTERM};
use types::TierId;

use super::{ask::ask, files::flushed};
use crate::{
    args::{StageArgs, StageInArgs, StageOutArgs, Wait},
    control::{Request, Response},
    exit::{Exit, Failure, Outcome, system_text},
    locate::{Located, locate},
    render::{self, Meter},
    stage::{
        self, Ended, Options, PREFIX, PREFIX_LINKED, StageReport, Watch,
        pairs::{self, Pair},
    },
};

const JOBS: std::ops::RangeInclusive<usize> = 4..=16;
/// A tier of ONFS's own has it, a linked directory has not.
const TIER_FILE: &str = "onfs-tier.toml";

pub fn stage_in(args: &StageInArgs) -> Outcome {
    let end = args.stage.deadline.map(|d| Instant::now() + d.0);
    let plan = Plan::new(&args.stage, false)?;
    if let Some(mount) = &plan.onfs {
        plan.pairs.iter().try_for_each(|pair| is_not_there_already(&pair.src, mount))?;
    }
    // Elsewhere than on ONFS it is safe when it is durable.
    let durable = args.wait && plan.onfs.is_none();
    let options = options(&args.stage, &plan, args.verify, durable);
    let mut report = copied(plan.clone(), options, "staging in", end)?;
    if args.wait && report.complete && plan.onfs.is_some() {
        let roots: Vec<PathBuf> = plan.pairs.into_iter().map(|pair| pair.dst).collect();
        report.durable = made_safe(&roots, end, &mut report)?;
    }
    finish(&report, &args.stage, args.wait)
}

pub fn stage_out(args: &StageOutArgs) -> Outcome {
    let end = args.stage.deadline.map(|d| Instant::now() + d.0);
    let plan = Plan::new(&args.stage, true)?;
    if let Some(mount) = &plan.onfs {
        plan.pairs.iter().try_for_each(|pair| is_not_its_own(pair, mount))?;
    }
    let options = options(&args.stage, &plan, !args.no_verify, true);
    let report = copied(plan, options, "staging out", end)?;
    finish(&report, &args.stage, false)
}

fn options(args: &StageArgs, plan: &Plan, verify: bool, durable: bool) -> Options {
    let processors = std::thread::available_parallelism().map_or(*JOBS.start(), usize::from);
    Options {
        jobs: args.jobs.map_or(processors.clamp(*JOBS.start(), *JOBS.end()), usize::from),
        verify,
        durable,
        checksum: args.checksum,
        dry_run: args.dry_run,
        parents: args.manifest.is_some(),
        prefix: plan.prefix,
    }
}

fn copied(plan: Plan, options: Options, doing: &str, deadline: Option<Instant>) -> Outcome<StageReport> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the process as if nothing were done about it; the order of the two says so.
        let set = signal_hook::flag::register_conditional_default(signal, interrupted.clone())
            .and_then(|_| signal_hook::flag::register(signal, interrupted.clone()));
        set.map_err(|e| Failure::failed(format!("signals: {e}")))?;
    }
    let mut meter = Meter::new(doing);
    let mut progress = |step: &crate::control::Progress| meter.show(step);
    let watch = Watch { deadline, interrupted: &interrupted, progress: &mut progress };
    let report = stage::run(plan.pairs, options, plan.out, &plan.journal, watch);
    meter.finish();
    report
}

/// Whether everything is in a persistent tier.
fn made_safe(roots: &[PathBuf], end: Option<Instant>, report: &mut StageReport) -> Outcome<bool> {
    let deadline = end.map(|end| types::Span(end.saturating_duration_since(Instant::now())));
    let moved = flushed(roots, Wait { wait: true, deadline })?;
    if moved.at_risk_bytes > 0 {
        let at_risk = render::units::bytes(moved.at_risk_bytes);
        report.notes.push(format!("{at_risk} are still only in memory"));
    }
    report.failed_count += moved.failed.len() as u64;
    report.failed.extend(moved.failed);
    report.complete = report.failed_count == 0;
    Ok(report.complete && moved.at_risk_bytes == 0)
}

fn finish(report: &StageReport, args: &StageArgs, safe: bool) -> Outcome {
    if args.output.json {
        render::json(report)?;
    } else {
        render::print(&render::stage(report, args.dry_run))?;
    }
    let goes_on = "what is there stays; the same command goes on";
    let ended =
        |exit, why: &str| Err(Failure::new(exit, format!("not everything was copied: {why}")).hint(goes_on));
    match (report.ended_by.as_str(), report.failed_count) {
        ("", 0) if safe && report.complete && !report.durable => {
            Err(Failure::new(Exit::DataAtRisk, "all of it is there, but not all is safe"))
        }
        ("", 0) => Ok(()),
        ("", n) => ended(Exit::DataAtRisk, &format!("{} failed", render::units::files(n))),
        (why @ Ended::DEADLINE, _) => ended(Exit::TimedOut, why),
        (why, _) => ended(Exit::DataAtRisk, why),
    }
}

/// What goes where, found before anything is changed.
#[derive(Clone)]
struct Plan {
    pairs: Vec<Pair>,
    out: bool,
    /// The mount that is staged to, or from.
    onfs: Option<Located>,
    prefix: &'static str,
    journal: PathBuf,
}

impl Plan {
    fn new(args: &StageArgs, out: bool) -> Outcome<Plan> {
        let wanted = Wanted::new(args)?;
        let onto = located(wanted.first())?;
        let prefix = if onto.is_some() { PREFIX } else { PREFIX_LINKED };
        let pairs = wanted.pairs(out, prefix)?;
        pairs::check(&pairs).map_err(Failure::usage)?;
        pairs.iter().try_for_each(check_source)?;
        let side = pairs.iter().map(|pair| if out { &pair.src } else { &pair.dst });
        let onfs = on_onfs(side, args.any_fs)?;
        let journal = wanted.journal(&pairs, out, prefix, args.dry_run)?;
        Ok(Plan { pairs, out, onfs, prefix, journal })
    }
}

/// The words of the command.
enum Wanted {
    Listed(Vec<Pair>),
    /// To the copy itself, or below a directory.
    Words {
        sources: Vec<PathBuf>,
        dst: PathBuf,
        itself: bool,
        is_dir: bool,
    },
}

impl Wanted {
    fn new(args: &StageArgs) -> Outcome<Wanted> {
        if let Some(manifest) = &args.manifest {
            return listed(manifest);
        }
        let [sources @ .., dst] = args.path.as_slice() else {
            return Err(Failure::usage("what is to be copied, and where to?"));
        };
        if sources.is_empty() {
            return Err(Failure::usage(format!("{}: where is it to be copied to?", dst.display())));
        }
        let is_dir = fs::metadata(dst).is_ok_and(|meta| meta.is_dir());
        let itself = args.no_target_directory || !is_dir;
        if itself && sources.len() > 1 {
            return Err(Failure::usage(format!("{}: not a directory that is there", dst.display())));
        }
        Ok(Wanted::Words { sources: sources.to_vec(), dst: dst.clone(), itself, is_dir })
    }

    /// A destination.
    fn first(&self) -> &Path {
        match self {
            Wanted::Listed(pairs) => pairs.first().map_or(Path::new("."), |pair| &pair.dst),
            Wanted::Words { dst, .. } => dst,
        }
    }

    fn pairs(&self, out: bool, prefix: &str) -> Outcome<Vec<Pair>> {
        match self {
            Wanted::Listed(pairs) => Ok(pairs.clone()),
            Wanted::Words { sources, dst, itself, .. } => {
                if let [source] = sources.as_slice() {
                    let one = vec![pairs::itself(source, dst).map_err(Failure::usage)?];
                    // A copy that was begun when DST was not there goes on as that.
                    if *itself || stage::journal_of(&one, out, prefix, &places(&one)).is_some() {
                        return Ok(one);
                    }
                }
                pairs::into(sources, dst).map_err(Failure::usage)
            }
        }
    }

    fn journal(&self, pairs: &[Pair], out: bool, prefix: &str, dry_run: bool) -> Outcome<PathBuf> {
        let places = places(pairs);
        if let Some(path) = stage::journal_of(pairs, out, prefix, &places) {
            return Ok(path);
        }
        let inside = match self {
            Wanted::Listed(_) => false,
            Wanted::Words { is_dir, .. } => {
                *is_dir && pairs.iter().any(|pair| places.last() == Some(&pair.dst.as_path()))
            }
        };
        let place = if inside { places.last() } else { places.first() };
        let Some(place) = place else { return Err(Failure::usage("nothing is to be copied")) };
        if let (Wanted::Listed(_), false) = (self, dry_run) {
            fs::create_dir_all(place).map_err(|error| failed(place, &error))?;
        }
        if !dry_run && !place.is_dir() {
            return Err(Failure::usage(format!("{}: no such directory", place.display())));
        }
        Ok(place.join(stage::journal_name(pairs, out, prefix)))
    }
}

/// Where the journal may be: the directory that the first copy is in, or the copy if it was there before.
fn places(pairs: &[Pair]) -> Vec<&Path> {
    let Some(first) = pairs.first() else { return Vec::new() };
    let above = first.dst.parent().unwrap_or(Path::new("/"));
    if first.dst.is_dir() { vec![above, &first.dst] } else { vec![above] }
}

fn listed(manifest: &Path) -> Outcome<Wanted> {
    let mut text = Vec::new();
    if manifest == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut text).map_err(|error| failed(manifest, &error))?;
    } else {
        text = fs::read(manifest).map_err(|error| failed(manifest, &error))?;
    }
    let wrong = |what: String| Failure::usage(format!("{}: {what}", manifest.display()));
    let lines = stage::manifest::parse(&text).map_err(wrong)?;
    let pairs = pairs::listed(&lines).map_err(wrong)?;
    if pairs.is_empty() { Err(wrong("nothing is to be copied".into())) } else { Ok(Wanted::Listed(pairs)) }
}

/// It is there, and what it is copied to is not within it, by whatever names.
fn check_source(pair: &Pair) -> Outcome {
    let meta = fs::symlink_metadata(&pair.src).map_err(|error| failed(&pair.src, &error))?;
    if meta.is_dir()
        && let (Ok(src), Ok(dst)) = (fs::canonicalize(&pair.src), fs::canonicalize(nearest(&pair.dst)))
        && dst.starts_with(&src)
    {
        let (src, dst) = (pair.src.display(), pair.dst.display());
        return Err(Failure::usage(format!("{src} cannot be copied into itself ({dst})")));
    }
    Ok(())
}

/// All paths of one side have to be on ONFS, so that what is not mounted is not taken for it. The mount of the first.
fn on_onfs<'a>(paths: impl Iterator<Item = &'a PathBuf>, any: bool) -> Outcome<Option<Located>> {
    let mut devices: BTreeMap<u64, &Path> = BTreeMap::new();
    for path in paths {
        let place = nearest(path);
        let meta = fs::symlink_metadata(place).map_err(|error| failed(place, &error))?;
        devices.entry(meta.dev()).or_insert(place);
    }
    let mut first = None;
    for place in devices.into_values() {
        match located(place)? {
            Some(mount) => first = first.or(Some(mount)),
            None if any => {}
            None => {
                let text = format!("{}: not on an ONFS mount", place.display());
                return Err(
                    Failure::new(Exit::NotOnfs, text).hint("is it mounted? --any-fs copies all the same")
                );
            }
        }
    }
    Ok(first)
}

fn located(path: &Path) -> Outcome<Option<Located>> {
    let mut place = nearest(path);
    // What a symbolic link leads to is of no interest.
    if fs::symlink_metadata(place).is_ok_and(|meta| meta.is_symlink()) {
        place = place.parent().unwrap_or(place);
    }
    match locate(if place.as_os_str().is_empty() { Path::new(".") } else { place }) {
        Ok(located) => Ok(Some(located)),
        Err(failure) if failure.exit == Exit::NotOnfs && !failure.message.contains("does not run") => {
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// The path, or what of the way to it is there.
fn nearest(path: &Path) -> &Path {
    let there = path.ancestors().find(|place| {
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        fs::symlink_metadata(place).is_ok()
    });
    there.unwrap_or(Path::new("/"))
}

/// The directory that the mount is linked to, and where the mount is. A daemon that does not tell is no reason not to copy.
fn linked(mount: &Located) -> Option<(PathBuf, PathBuf)> {
    let Ok(Response::Status(status)) = ask(mount, Request::Status {}) else { return None };
    let tier = status.tiers.iter().find(|tier| tier.name == TierId::Nearline);
    let dir = match tier {
        Some(tier) => PathBuf::from(&tier.dir),
        None => noted_link(Path::new(&status.state_dir))?,
    };
    let dir = fs::canonicalize(dir).ok()?;
    let at = fs::canonicalize(&status.mountpoint).ok()?;
    (!dir.join(TIER_FILE).exists()).then_some((dir, at))
}

/// As the state of the file system has it.
fn noted_link(state: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(state.join("tiers.toml")).ok()?;
    let table: toml::Table = text.parse().ok()?;
    Some(PathBuf::from(table.get("link")?.as_str()?))
}

fn is_not_there_already(src: &Path, mount: &Located) -> Outcome {
    let Some((dir, at)) = linked(mount) else { return Ok(()) };
    let Ok(real) = fs::canonicalize(src) else { return Ok(()) };
    let Ok(below) = real.strip_prefix(&dir) else { return Ok(()) };
    let there = at.join(below);
    let text = format!("{} is on the mount already, which is linked to {}", src.display(), dir.display());
    Err(Failure::usage(text).hint(format!("bring it up with: onfs prefetch --wait {}", there.display())))
}

fn is_not_its_own(pair: &Pair, mount: &Located) -> Outcome {
    let Some((dir, at)) = linked(mount) else { return Ok(()) };
    let (Ok(src), Ok(place)) = (fs::canonicalize(&pair.src), fs::canonicalize(nearest(&pair.dst))) else {
        return Ok(());
    };
    let rest = pair.dst.strip_prefix(nearest(&pair.dst)).unwrap_or(Path::new(""));
    let dst: PathBuf = place.join(rest).components().collect();
    if dst.strip_prefix(&dir).is_ok_and(|below| at.join(below) == src) {
        let text = format!("{} is where the mount writes {} to by itself", pair.dst.display(), src.display());
        return Err(
            Failure::usage(text).hint(format!("wait for it with: onfs flush --wait {}", src.display()))
        );
    }
    Ok(())
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("{}: {}", path.display(), system_text(error)))
}
