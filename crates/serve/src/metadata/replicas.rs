//! Files with two copies: who is said not to answer, whose second copy is complete, which stripes lack one; and what is asked about that.
//!
//! What becomes of it is [`super::views`]'. Nothing here is stored: what lacks a copy is found again by a look through all layouts, at the start, and
//! whenever data servers come or go.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::ControlFlow,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use namespace::key::{self, Parsed};
use parking_lot::{Condvar, Mutex};
use proto::{
    Reason,
    copies::{CopyWord, FindView, Member, ViewFound},
    layout::file_and_stripe,
};
use types::{Errno, Ino};

use super::{MetadataService, placed::Placed};
use crate::answer::{Done, No, Outcome};

/// Words that wait; more are said again.
const WORDS_MAX: usize = 1 << 14;
/// Who asks for a newer view waits so long for it.
const WAIT: Duration = Duration::from_millis(800);
/// Of a member that answers us somebody else has to complain for so long, at least so often, before it is believed.
pub(super) const DOUBTED_FOR: Duration = Duration::from_secs(4);
pub(super) const DOUBTED_AGAIN: Duration = Duration::from_millis(1500);
/// So long others are tried before one that did not answer the other data server.
pub(super) const APART_FOR: Duration = Duration::from_secs(30);
/// What lacks a copy is looked at so often.
const AGAIN: Duration = Duration::from_secs(1);
/// All layouts are looked through so often, and when data servers have come or gone.
const LOOK: Duration = Duration::from_secs(60);
/// Files at once.
const AT_ONCE: usize = 8;

/// What was said of a stripe, in this view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Heard {
    pub ino: Ino,
    pub stripe: usize,
    pub view: u64,
    /// This member does not answer; none: the second has every byte.
    pub silent: Option<Member>,
    /// By a client, who may be wrong.
    pub doubtful: bool,
}

#[derive(Default)]
pub(super) struct Replicas {
    heard: Mutex<BTreeSet<Heard>>,
    /// Somebody was heard, or a view was stored.
    woken: Condvar,
    wakes: Mutex<u64>,
    /// Of members that answered us: when somebody complained first, and last.
    pub doubted: Mutex<HashMap<(Ino, usize, Member), (Instant, Instant)>>,
    /// Members that were left out upon another data server's word, and when: the two may not reach each other, whoever else reaches both.
    pub apart: Mutex<HashMap<(Ino, usize, u64), Instant>>,
    /// Files of which a stripe lacks a copy, or has one somewhere where it is not to stay.
    pub lacking: Mutex<BTreeSet<Ino>>,
    looked: Mutex<Option<(Instant, BTreeMap<u64, (u64, bool)>, u64)>>,
    tended: Mutex<Option<Instant>>,
    /// There is one.
    seen: AtomicBool,
    pub changed: AtomicU64,
    pub revived: AtomicU64,
}

impl Replicas {
    /// By data servers.
    pub fn hear(&self, words: &[CopyWord]) {
        for word in words {
            let Some(object) = word.object else { continue };
            let Some((ino, stripe)) = file_and_stripe(object.ino) else { continue };
            let (Some(ino), Some(view)) = (Ino::from_raw(ino), object.view) else { continue };
            self.note(Heard { ino, stripe, view: view.number, silent: word.silent, doubtful: false });
        }
    }

    pub fn note(&self, heard: Heard) {
        {
            let mut all = self.heard.lock();
            if all.len() < WORDS_MAX {
                all.insert(heard);
            }
        }
        self.seen.store(true, Ordering::Release);
        self.wake();
    }

    pub fn wake(&self) {
        *self.wakes.lock() += 1;
        self.woken.notify_all();
    }

    pub fn is_new(&self, ino: Ino, pairs: &[(Member, Option<Member>)]) {
        self.seen.store(true, Ordering::Release);
        if pairs.iter().any(|(_, second)| second.is_none()) {
            self.lacking.lock().insert(ino);
        }
    }

    /// Objects with fewer than two copies that count, or a file in which there is such a one; by files.
    pub fn lacking(&self) -> u64 {
        self.lacking.lock().len() as u64
    }
}

impl MetadataService {
    pub(super) fn has_twofold(&self) -> bool {
        self.options.twofold || self.replicas.seen.load(Ordering::Acquire)
    }

    pub(super) fn layout_now(&self, ino: Ino) -> Result<proto::Layout, No> {
        self.locked(ino, |_, state| Ok(state.placed.as_ref().ok_or(Errno::ENODATA)?.layout.clone()))
    }

    /// The newest views of a file; one of its members may be silent.
    pub(super) fn find_view(&self, asked: &FindView) -> Outcome {
        let (ino, stripe) = (proto::attr::ino(asked.ino)?, asked.stripe as usize);
        let number = |layout: &proto::Layout| layout.views.get(stripe).map(|view| view.number);
        let mut layout = self.layout_now(ino)?;
        let known = number(&layout).ok_or(Errno::EINVAL)?;
        if let Some(silent) = asked.silent.filter(|_| known <= asked.view) {
            self.replicas.note(Heard { ino, stripe, view: known, silent: Some(silent), doubtful: true });
            let until = Instant::now() + WAIT;
            while number(&layout) == Some(known) {
                let mut wakes = self.replicas.wakes.lock();
                if self.replicas.woken.wait_until(&mut wakes, until).timed_out() {
                    break;
                }
                drop(wakes);
                layout = self.layout_now(ino)?;
            }
        }
        Ok(Done::new(&ViewFound { layout: Some(layout) }))
    }

    /// What a data server of the file answered, or did not. Of two one may be gone: then another view is made, and whoever asked comes again.
    pub(super) fn unless_two(&self, ino: Ino, placed: &Placed, no: No) -> No {
        // Of several objects each has an error number alone.
        let is_away = matches!(Reason::of(&no.0), Reason::DataServerAway)
            || matches!(no.errno(), Errno::EAGAIN | Errno::ESTALE);
        if !placed.layout.is_twofold() || !is_away {
            return no;
        }
        self.replicas.lacking.lock().insert(ino);
        *self.replicas.tended.lock() = None;
        self.replicas.wake();
        let mut later = No::later("one of the two that have the file is waited for");
        later.0.after_ms = 100;
        later
    }

    /// Called again and again.
    pub(super) fn tend_replicas(&self) {
        if self.has_ended() || self.may_vouch().is_err() || !self.nodes.has_map() {
            return;
        }
        self.look_for_lacking();
        let heard: Vec<Heard> = std::mem::take(&mut *self.replicas.heard.lock()).into_iter().collect();
        self.at_once(&heard, |one| self.tend_heard(one));
        let due = self.replicas.tended.lock().is_none_or(|at| at.elapsed() >= AGAIN);
        if due {
            *self.replicas.tended.lock() = Some(Instant::now());
            let lacking: Vec<Ino> = self.replicas.lacking.lock().iter().copied().collect();
            self.at_once(&lacking, |ino| self.tend_lacking(*ino));
        }
        self.replicas.doubted.lock().retain(|_, (_, last)| last.elapsed() < DOUBTED_AGAIN);
        self.replicas.apart.lock().retain(|_, at| at.elapsed() < APART_FOR);
        // Whoever is heard does not wait for the next round.
        let mut wakes = self.replicas.wakes.lock();
        if self.replicas.heard.lock().is_empty() {
            self.replicas.woken.wait_for(&mut wakes, AGAIN / 10);
        }
    }

    fn at_once<T: Sync>(&self, all: &[T], tend: impl Fn(&T) + Sync) {
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(all.len()) {
                scope.spawn(|| {
                    while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                        if self.has_ended() {
                            return;
                        }
                        tend(one);
                    }
                });
            }
        });
    }

    fn tend_heard(&self, heard: &Heard) {
        let tended = self.heard_of(heard);
        if let Err(no) = tended {
            tracing::debug!(ino = %heard.ino, errno = %no.errno(), why = no.0.detail, "what was said of a copy is looked at later");
        }
    }

    fn tend_lacking(&self, ino: Ino) {
        match self.make_whole(ino) {
            Ok(true) => drop(self.replicas.lacking.lock().remove(&ino)),
            Ok(false) => (),
            Err(no) if matches!(no.errno(), Errno::ESTALE | Errno::EREMOTE | Errno::ENODATA) => {
                // It was removed, or is another server's.
                self.replicas.lacking.lock().remove(&ino);
            }
            Err(no) => {
                tracing::debug!(%ino, errno = %no.errno(), why = no.0.detail, "a second copy is made later");
            }
        }
    }

    /// Looks through all layouts, if there is reason to.
    fn look_for_lacking(&self) {
        let (lives, standings) = (self.nodes.lives(), self.nodes.standings_version());
        {
            let looked = self.replicas.looked.lock();
            if let Some((at, before, version)) = &*looked
                && (!self.has_twofold() || *before == lives && *version == standings && at.elapsed() < LOOK)
            {
                return;
            }
        }
        let mut lacking = BTreeSet::new();
        let mut seen = false;
        let (from, to) = (key::inode(Ino::ROOT), [0xff; key::PREFIX_BYTES]);
        let scanned = self.store.scan(&from, &to, &mut |key, value| {
            if let Some(Parsed { raw_ino, kind: key::STRIPES, .. }) = Parsed::new(key)
                && let Some(ino) = Ino::from_raw(raw_ino).filter(|ino| self.mds.serves(ino.ugsd().slot()))
                && let Some(placed) = Placed::decode(value).filter(|placed| placed.layout.is_twofold())
            {
                seen = true;
                if !self.is_whole(&placed, &lives) {
                    lacking.insert(ino);
                }
            }
            if self.has_ended() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if let Err(error) = scanned {
            return tracing::error!(%error, "the layouts were not read");
        }
        if seen {
            self.replicas.seen.store(true, Ordering::Release);
        }
        self.replicas.lacking.lock().extend(lacking);
        *self.replicas.looked.lock() = Some((Instant::now(), lives, standings));
    }
}
