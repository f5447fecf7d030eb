//! Files with two copies are looked after: what was heard of them, what they lack, and what clients ask about that.

use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use namespace::key::{self, Parsed};
use proto::{
    Reason,
    copies::{FindView, ViewFound},
};
use types::{Errno, Ino};

use super::{
    MetadataService,
    placed::Placed,
    replicas::{APART_FOR, Heard, Looked},
};
use crate::answer::{Done, No, Outcome};

/// Who asks for a newer view waits so long for it.
const WAIT: Duration = Duration::from_millis(800);
pub(super) const DOUBTED_AGAIN: Duration = Duration::from_millis(1500);
/// What lacks a copy is looked at so often.
const AGAIN: Duration = Duration::from_secs(1);
/// All layouts are looked through so often, and when data servers have come or gone.
const LOOK: Duration = Duration::from_secs(60);
/// And so long after a look if slots have come since, each of which may have such files.
const LOOK_AT_SLOTS: Duration = Duration::from_secs(5);
/// Files at once.
const AT_ONCE: usize = 8;

impl MetadataService {
    pub(super) fn has_twofold(&self) -> bool {
        self.replicas.seen.load(Ordering::Acquire)
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
        if due {
            self.replicas.forget_others();
        }
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
                tracing::debug!(%ino, errno = %no.errno(), "what lacked a copy is not here any more");
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
            if let Some(looked) = &*looked
                && (!self.has_twofold() || looked.lives == lives && looked.standings == standings)
                && (looked.at.elapsed() < LOOK || !self.has_twofold())
                && (looked.at.elapsed() < LOOK_AT_SLOTS || looked.comings == self.mds.comings())
            {
                return;
            }
        }
        // Before the look: what comes meanwhile may not be in it.
        let comings = self.mds.comings();
        let (mut lacking, mut lost) = (BTreeSet::new(), Vec::new());
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
                if super::listing::lost_parts(&placed) > 0 {
                    lost.push((ino, placed));
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
        self.list_lost(&lost);
        *self.replicas.looked.lock() = Some(Looked { at: Instant::now(), lives, standings, comings });
    }
}
