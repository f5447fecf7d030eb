//! Data servers that are taken out: which, how far they are, and the threads that move their files elsewhere.
//!
//! - I-DRAIN-1: a data server that is being drained is durably so, and gets no stripe from the moment at which draining was answered.
//! - I-DRAIN-2: one that is found to hold nothing after that holds nothing until it is taken back; only such a one is removed.

use std::{
    collections::{BTreeMap, HashSet},
    ops::ControlFlow,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use namespace::key::{self, Parsed};
use parking_lot::Mutex;
use prost::Message;
use proto::{
    Nothing,
    control::Pressure,
    moving::{DrainNode, RemoveNode, Standing as Said, StandingKind, StandingList, Standings, WHY_MAX},
};
use types::{Errno, Ino};

use super::{MetadataService, drains::Drain, moving::Cause, owners::Other, placed::Placed, wishes::DirWish};
use crate::{
    answer::{Done, No, Outcome},
    standing::{self, Standing},
};

/// Files at once. Each is durable at several places one after the other, which those that are moved at once
/// share; half of a data server's workers stay for others.
const MOVERS: usize = 8;
/// Of one look; more are found by the next. 16 bytes each.
const FOUND_MAX: usize = 1 << 20;
/// A file that could not be moved is tried again later, and later each time.
const REST: Duration = Duration::from_millis(500);
const REST_MAX: Duration = Duration::from_secs(60);
/// A look reads all metadata, so it rests so many times as long as it took.
const LOOKS_REST: u32 = 10;

impl MetadataService {
    /// Higher than all that were before for a file of ours, in earlier lives and by earlier owners of its slot.
    pub(super) fn next_attempt(&self) -> Result<u64, No> {
        let front = if self.owners.is_some() { self.attempt_era()? } else { self.terms.life().0 };
        Ok(u64::from(front) << 32 | (self.drains.attempts.fetch_add(1, Ordering::Relaxed) + 1))
    }

    /// Returns when nothing is being moved any more.
    pub(super) fn end_moves(&self) {
        for at_work in [&self.drains.at_work, &self.sendings.at_work] {
            if at_work.try_lock_for(4 * self.options.patience).is_none() {
                tracing::warn!("a file is still being moved");
            }
        }
    }

    pub(super) fn drain_node(&self, meta: &[u8]) -> Outcome {
        let DrainNode { node, undo } = proto::decode(meta)?;
        let _changing = self.drains.changing.lock();
        drop(self.inside_duty()?);
        let before = self.nodes.standing(node);
        let heard = self.nodes.name_of(node);
        let name = heard.or(before.as_ref().map(|standing| standing.name.clone()));
        // One that has died before this server was started has no name any more.
        let name = name.or_else(|| self.states.knows(node).then(String::new));
        let kind = before.map_or(StandingKind::In, |standing| standing.kind);
        let now = match (kind, undo) {
            (StandingKind::Removed, false) => {
                return Err(refused(Errno::EINVAL, &format!("node {node} was removed already")));
            }
            (StandingKind::In, true) => {
                return Err(refused(
                    Errno::EINVAL,
                    &format!("node {node} is neither being drained nor removed"),
                ));
            }
            (_, true) => None,
            // One that has not been heard of since this server was started may hold something, too; anybody else is a mistake.
            (_, false) => {
                let name = name.clone().ok_or_else(|| {
                    refused(
                        Errno::ENOENT,
                        &format!("no data server {node} has reported since this server was started"),
                    )
                })?;
                Some(Standing { kind: StandingKind::Draining, name })
            }
        };
        self.set_standing(node, now)?;
        match self.tell_standings() {
            // Who does not hear gives it nothing for a while.
            Err(no) if undo => tracing::info!(node, why = no.0.detail, "a data server is taken back"),
            told => told?,
        }
        tracing::info!(node, undo, "a data server is drained, or taken back");
        let others = self.looks_of_others()?;
        Ok(Done::new(&self.said(node, name.unwrap_or_default(), &others)))
    }

    fn set_standing(&self, node: u64, now: Option<Standing>) -> Result<(), No> {
        // Nobody is choosing, and whoever chooses later knows it.
        let _alone = self.drains.placing.write();
        {
            let _inside = self.inside_duty()?;
            standing::save(self.standings_store(), node, now.as_ref()).map_err(|error| {
                tracing::error!(node, %error, "what becomes of a data server was not stored");
                No::from(Errno::EIO)
            })?;
            self.settled_here()?;
        }
        if now.as_ref().is_some_and(|standing| standing.kind == StandingKind::Removed) {
            self.forget_state(node);
        }
        let same = now.is_some() && now == self.nodes.standing(node);
        self.nodes.set_standing(node, now)?;
        if !same {
            self.has_other_standing(node);
        }
        Ok(())
    }

    /// Whoever comes with its number when it is taken back is as good as any: it held nothing.
    pub(super) fn forget_state(&self, node: u64) {
        if let Err(error) = self.states.forget(node) {
            tracing::error!(node, %error, "which state a removed data server had is not forgotten");
        }
    }

    pub(super) fn has_other_standing(&self, node: u64) {
        self.drains.table.lock().remove(&node);
        self.drains.resting.lock().clear();
    }

    pub(super) fn remove_node(&self, meta: &[u8]) -> Outcome {
        let RemoveNode { node } = proto::decode(meta)?;
        let _changing = self.drains.changing.lock();
        drop(self.inside_duty()?);
        if self.is_metadata_alone(node) {
            self.remove_metadata(node)?;
            return Ok(Done::new(&Nothing {}));
        }
        let others = self.looks_of_others()?;
        let before = self.nodes.standing(node);
        let Some(standing) = before.filter(|standing| standing.kind == StandingKind::Draining) else {
            if self.nodes.standing(node).is_some() {
                return Err(refused(Errno::EINVAL, &format!("node {node} was removed already")));
            }
            return Err(refused(
                Errno::EBUSY,
                &format!(
                    "node {node} is not drained: `onfs node drain {node}` moves what it holds elsewhere"
                ),
            ));
        };
        let drain = self.said(node, String::new(), &others);
        if !drain.known {
            let why = if drain.why.is_empty() { drain.why } else { format!(": {}", drain.why) };
            return Err(refused(Errno::EBUSY, &format!("it is not known yet what node {node} holds{why}")));
        }
        if drain.files_left > 0 {
            let files = drain.files_left;
            return Err(refused(
                Errno::EBUSY,
                &format!("node {node} still holds something of {files} files"),
            ));
        }
        self.set_standing(node, Some(Standing { kind: StandingKind::Removed, ..standing }))?;
        if let Err(no) = self.tell_standings() {
            // It gets nothing already.
            tracing::info!(node, why = no.0.detail, "a data server is removed");
        }
        tracing::info!(node, "a data server is removed");
        if self.is_metadata_alone(node)
            && let Err(no) = self.remove_metadata(node)
        {
            tracing::info!(node, why = no.0.detail, "its metadata server stays");
        }
        Ok(Done::new(&Nothing {}))
    }

    pub(super) fn standings(&self, meta: &[u8], most: usize) -> Outcome {
        let _: Standings = proto::decode(meta)?;
        let _changing = self.drains.changing.lock();
        drop(self.inside_duty()?);
        let others = self.looks_of_others()?;
        let mut names: BTreeMap<u64, String> =
            self.nodes.standings().into_iter().map(|(node, standing)| (node, standing.name)).collect();
        // And those that are full, or sent something away.
        let full = self.nodes.pressures().into_iter().filter(|one| one.pressure.lacking > 0);
        let sent = self.sendings.table.lock().clone();
        for node in full.map(|one| one.node).chain(sent.into_keys()) {
            names.entry(node).or_insert_with(|| self.nodes.name_of(node).unwrap_or_default());
        }
        for look in others.iter().flat_map(|other| &other.looks).filter_map(|look| look.standing.as_ref()) {
            names.entry(look.node).or_insert_with(|| look.name.clone());
        }
        let standings = names.into_iter().map(|(node, name)| self.said(node, name, &others)).collect();
        let body = StandingList { standings }.encode_to_vec();
        if body.len() > most { Err(Errno::ERANGE.into()) } else { Ok(Done::with_body(&Nothing {}, body)) }
    }

    /// Of all metadata servers.
    fn said(&self, node: u64, name: String, others: &[Other]) -> Said {
        self.said_by_all(self.said_here(node, name), others)
    }

    pub(super) fn said_here(&self, node: u64, name: String) -> Said {
        let kind = self.nodes.standing(node).map_or(StandingKind::In, |standing| standing.kind);
        let drain = match kind {
            StandingKind::Draining => self.drains.table.lock().get(&node).cloned().unwrap_or_default(),
            StandingKind::In | StandingKind::Removed => Drain::default(),
        };
        let sent = self.sendings.table.lock().get(&node).cloned().unwrap_or_default();
        let pressure = self.nodes.pressures().into_iter().find(|one| one.node == node);
        let Pressure { lacking, waiting, aged, .. } = pressure.map(|one| one.pressure).unwrap_or_default();
        Said {
            full: lacking > 0,
            files_sent: sent.files,
            bytes_sent: sent.bytes,
            // What waited before does not any more.
            stuck: if lacking + waiting + aged > 0 { sent.stuck } else { String::new() },
            node,
            name,
            kind: kind.into(),
            known: drain.known,
            files_left: drain.files_left,
            bytes_left: drain.bytes_left,
            files_moved: drain.files_moved,
            bytes_moved: drain.bytes_moved,
            files_failed: drain.failed,
            why: drain.why,
        }
    }

    /// Called again and again.
    pub(super) fn tend_moves(&self) {
        let _at_work = self.drains.at_work.lock();
        if self.has_ended() || self.may_vouch().is_err() || !self.nodes.has_map() {
            return;
        }
        self.judge_copies();
        for node in self.nodes.draining() {
            let due = {
                let comings = self.mds.comings();
                let now = Instant::now();
                let mut table = self.drains.table.lock();
                let drain = table.entry(node).or_default();
                let has_more = drain.comings != comings && drain.rests_until.is_none_or(|until| now >= until);
                has_more || drain.next.is_none_or(|next| now >= next)
            };
            if due {
                self.drain_more(node);
            }
        }
    }

    /// Looks for what a node holds, and moves what may be moved now.
    fn drain_more(&self, node: u64) {
        let began = Instant::now();
        let comings = self.mds.comings();
        let before = self.nodes.standings_version();
        let slots = self.served();
        let (found, files) = match self.held_by(node) {
            Ok(held) => held,
            Err(no) => {
                tracing::error!(node, errno = %no.errno(), "what a data server holds was not found");
                return self.drained(node, |drain| {
                    drain.next = Some(Instant::now() + REST);
                    drain.why = why(&no);
                });
            }
        };
        let took = began.elapsed();
        let bytes = found.iter().map(|(_, bytes)| bytes).sum();
        let there: HashSet<u16> = self.served().into_iter().collect();
        let placing = self.drains.placing.read();
        if before != self.nodes.standings_version() {
            // It may have been taken back meanwhile, and be drained again.
            return;
        }
        self.drained(node, |drain| {
            (drain.known, drain.files_left, drain.bytes_left) = (true, files, bytes);
            drain.slots = slots.into_iter().filter(|slot| there.contains(slot)).collect();
            (drain.comings, drain.rests_until) = (comings, Some(Instant::now() + REST + took * LOOKS_REST));
            if files == 0 {
                // It gets nothing any more.
                (drain.failed, drain.why) = (0, String::new());
                drain.next = Some(Instant::now() + Duration::from_secs(3600));
            } else {
                drain.next = Some(Instant::now() + REST + took * LOOKS_REST);
            }
        });
        drop(placing);
        let now = Instant::now();
        let due: Vec<(Ino, u64)> = {
            let resting = self.drains.resting.lock();
            let rests = |ino: &Ino| resting.get(ino).is_some_and(|(until, _)| *until > now);
            found.into_iter().filter(|(ino, _)| !rests(ino)).collect()
        };
        self.move_all(node, due);
    }

    fn move_all(&self, node: u64, due: Vec<(Ino, u64)>) {
        let movers = MOVERS.min(due.len());
        let due = Mutex::new(due.into_iter());
        std::thread::scope(|scope| {
            for _ in 0..movers {
                scope.spawn(|| {
                    loop {
                        let next = due.lock().next();
                        let Some((ino, bytes)) = next else { return };
                        if self.has_ended() || !self.nodes.is_draining(node) {
                            return;
                        }
                        let moved = self.move_off(ino, node, Cause::Drain);
                        self.tried(node, ino, bytes, moved);
                    }
                });
            }
        });
    }

    fn tried(&self, node: u64, ino: Ino, bytes: u64, moved: Result<u64, No>) {
        let mut resting = self.drains.resting.lock();
        match moved {
            Ok(_) => {
                resting.remove(&ino);
                drop(resting);
                self.drained(node, |drain| {
                    drain.files_left = drain.files_left.saturating_sub(1);
                    drain.bytes_left = drain.bytes_left.saturating_sub(bytes);
                    drain.files_moved += 1;
                    drain.bytes_moved += bytes;
                    // What is left is counted anew, not assumed to be nothing.
                    drain.known &= drain.files_left > 0;
                    drain.next = None;
                });
            }
            Err(no) if proto::Reason::of(&no.0) == proto::Reason::WrongOwner => {
                // It is another's to move.
                resting.remove(&ino);
                drop(resting);
                self.drained(node, |drain| drain.next = None);
            }
            Err(no) => {
                let rest = resting.get(&ino).map_or(REST, |(_, before)| (*before * 2).min(REST_MAX));
                resting.insert(ino, (Instant::now() + rest, rest));
                let failed = resting.len() as u64;
                drop(resting);
                tracing::info!(node, %ino, errno = %no.errno(), why = no.0.detail, "a file is moved off a data server later");
                self.drained(node, |drain| {
                    drain.failed = failed;
                    drain.why = format!("inode {ino}: {}", why(&no)).chars().take(WHY_MAX / 4).collect();
                });
            }
        }
    }

    fn drained(&self, node: u64, change: impl FnOnce(&mut Drain)) {
        if let Some(drain) = self.drains.table.lock().get_mut(&node) {
            change(drain);
        }
    }

    /// Files with a stripe on a node, or one that may be going there, with about how many bytes they have there; and how many they are.
    fn held_by(&self, node: u64) -> Result<(Vec<(Ino, u64)>, u64), No> {
        let (mut found, mut files, mut damaged) = (Vec::new(), 0, false);
        let (from, to) = (key::inode(Ino::ROOT), [0xff; key::PREFIX_BYTES]);
        let scanned = self.store.scan(&from, &to, &mut |key, value| {
            if let Some(Parsed { raw_ino, kind: key::STRIPES, .. }) = Parsed::new(key) {
                let ino = Ino::from_raw(raw_ino).filter(|ino| self.mds.serves(ino.ugsd().slot()));
                match Placed::decode(value).zip(ino) {
                    Some((placed, ino)) if holds(&placed, node) => {
                        files += 1;
                        if found.len() < FOUND_MAX {
                            found.push((ino, placed));
                        }
                    }
                    Some(_) => (),
                    None if ino.is_none() => (),
                    // A directory has what it says of new files under the same key.
                    None => damaged |= DirWish::decode(value).is_none(),
                }
            }
            if self.has_ended() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        scanned.map_err(|error| {
            tracing::error!(%error, "the layouts were not read");
            No::from(Errno::EIO)
        })?;
        if damaged || self.has_ended() {
            return Err(refused(Errno::EIO, "a layout cannot be read"));
        }
        let with_bytes = |(ino, placed): (Ino, Placed)| (ino, self.bytes_on(ino, &placed, node));
        Ok((found.into_iter().map(with_bytes).collect(), files))
    }

    fn bytes_on(&self, ino: Ino, placed: &Placed, node: u64) -> u64 {
        let size = self.mds.find(ino).map_or(0, |found| found.attr.size);
        let Some(striped) = placed.striped() else { return 0 };
        let here = placed.layout.stripes.iter().enumerate().filter(|(_, one)| **one == node);
        here.map(|(stripe, _)| striped.size_of_stripe(stripe, size)).sum()
    }
}

fn holds(placed: &Placed, node: u64) -> bool {
    let second = |view: &proto::copies::View| view.second.is_some_and(|second| second.member.node == node);
    placed.layout.stripes.contains(&node)
        || placed.layout.views.iter().any(second)
        || placed.left.contains(&node)
        || placed.handing.is_some_and(|handing| handing.to == node)
}

fn refused(errno: Errno, why: &str) -> No {
    No::new(errno, wire::schema::Retry::Never, proto::Reason::None, why)
}

fn why(no: &No) -> String {
    if no.0.detail.is_empty() { no.errno().to_string() } else { no.0.detail.clone() }
}
