//! What users ask for: migrate, flush, prefetch. A request waits for slots, room and other movements of its objects,
//! at most [`crate::Settings::request_patience`] without progress, and always ends in one `RequestDone` (I-TIER-6).

use types::{Ino, TierId, TierSet};

use crate::api::{Effect, MoveFailure, MoveId, MoveKind, Request, RequestError, RequestId, RequestReport};
use crate::machine::{Tiering, Timer};
use crate::table::{Ob, Object};
use crate::unfinished::{Asked, Item, Move, Start, What};

enum Step {
    Started(MoveId),
    Blocked(RequestError),
    Done,
    Skipped,
    Failed(RequestError),
}

impl Tiering {
    pub(crate) fn ask(&mut self, id: RequestId, request: Request) {
        let (what, list) = match request {
            Request::Migrate { ino, to } => (What::Migrate(to), vec![ino]),
            Request::Flush { ino } => (What::Flush, vec![ino]),
            Request::Prefetch { list } => (What::Prefetch, list),
        };
        let mut asked = Asked {
            id,
            what,
            list,
            next: 0,
            items: Vec::new(),
            report: RequestReport::default(),
            error: None,
            blocked: RequestError::Busy,
            deadline: self.now + self.settings.request_patience,
        };
        if self.requests.len() >= self.settings.requests_max {
            asked.error = Some(RequestError::TooMany);
            return self.finish_request(asked);
        }
        let seq = self.next_request;
        self.next_request += 1;
        self.timers.insert((asked.deadline, Timer::Patience(seq)));
        self.requests.insert(seq, asked);
    }

    pub(crate) fn cancel_request(&mut self, id: RequestId) {
        if let Some(seq) = self.requests.iter().find(|(_, asked)| asked.id == id).map(|(seq, _)| *seq) {
            self.fail_request(seq, RequestError::Cancelled);
        }
    }

    /// Nothing new starts for it; it ends once its movements have.
    fn fail_request(&mut self, seq: u64, error: RequestError) {
        let Some(asked) = self.requests.get_mut(&seq) else { return };
        asked.error = asked.error.or(Some(error));
        let moving: Vec<MoveId> = asked.items.iter().filter_map(|item| item.moving).collect();
        moving.into_iter().for_each(|id| self.cancel_move(id));
        self.requests_ready = true;
    }

    pub(crate) fn patience_ended(&mut self, seq: u64) {
        let Some(asked) = self.requests.get_mut(&seq) else { return };
        if asked.items.iter().any(|item| item.moving.is_some()) {
            // What moves is progress; the shell ends every movement.
            asked.deadline = self.now + self.settings.request_patience;
            self.timers.insert((asked.deadline, Timer::Patience(seq)));
        } else {
            let blocked = asked.blocked;
            self.fail_request(seq, blocked);
        }
    }

    pub(crate) fn pump_requests(&mut self) {
        if !std::mem::take(&mut self.requests_ready) {
            return;
        }
        self.spaces.iter_mut().flatten().for_each(|s| s.asked = 0);
        let all: Vec<u64> = self.requests.keys().copied().collect();
        for seq in all {
            let Some(mut asked) = self.requests.remove(&seq) else { continue };
            self.go_on(seq, &mut asked);
            if asked.is_over() {
                self.timers.remove(&(asked.deadline, Timer::Patience(seq)));
                self.finish_request(asked);
            } else {
                self.requests.insert(seq, asked);
            }
        }
    }

    fn finish_request(&mut self, asked: Asked) {
        let result = asked.error.map_or(Ok(asked.report), Err);
        self.effects.push_back(Effect::RequestDone { id: asked.id, result });
    }

    /// Steps every object of the request, and takes up new ones while there is width. Steps are bounded: each ends an
    /// object, starts a movement, or finds that nothing can be done now.
    fn go_on(&mut self, seq: u64, asked: &mut Asked) {
        loop {
            let mut at = 0;
            while at < asked.items.len() {
                let over = self.step(seq, asked, at);
                if over {
                    asked.items.remove(at);
                } else {
                    at += 1;
                }
            }
            let width = match asked.what {
                What::Migrate(_) | What::Flush => 1,
                What::Prefetch => self.settings.parallel[0].max(1),
            };
            if asked.error.is_some() || asked.next == asked.list.len() || asked.items.len() >= width {
                return;
            }
            let ino = asked.list[asked.next];
            asked.next += 1;
            match self.take_up(asked.what, ino) {
                Ok(item) => asked.items.push(item),
                Err(_) if asked.what == What::Prefetch => asked.report.files_skipped += 1,
                Err(error) => asked.error = Some(error),
            }
        }
    }

    /// Is the object over for this request?
    fn step(&mut self, seq: u64, asked: &mut Asked, at: usize) -> bool {
        let item = &mut asked.items[at];
        if item.moving.is_some() {
            return false;
        }
        if asked.error.is_some() {
            return true;
        }
        let step = match asked.what {
            What::Migrate(_) | What::Prefetch => self.step_move(seq, item, asked.what == What::Prefetch),
            What::Flush => self.step_flush(seq, item),
        };
        match step {
            Step::Started(id) => {
                item.moving = Some(id);
                return false;
            }
            Step::Blocked(why) => {
                asked.blocked = why;
                return false;
            }
            Step::Done => asked.report.files_moved += u64::from(item.moved),
            Step::Skipped => asked.report.files_skipped += 1,
            Step::Failed(_) if asked.what == What::Prefetch => asked.report.files_skipped += 1,
            Step::Failed(error) => asked.error = Some(error),
        }
        true
    }

    fn take_up(&self, what: What, ino: Ino) -> Result<Item, RequestError> {
        let found = self.table.find(ino).and_then(|ob| self.table.get(ob));
        let object = found.ok_or(RequestError::NoSuchObject)?;
        let exists = |t: &TierId| self.spaces[t.index()].is_some();
        let to = match what {
            What::Migrate(to) => Some(to).filter(exists),
            What::Flush => self.persistent().next(),
            What::Prefetch => TierId::ALL.into_iter().find(exists),
        };
        let to = to.ok_or(RequestError::NoSuchTier)?;
        let holding = |t: &TierId| *t != to && object.holds(*t) > 0;
        let sources = match what {
            What::Migrate(_) => TierId::ALL.into_iter().filter(holding).fold(TierSet::EMPTY, TierSet::with),
            What::Prefetch => self.slower(to).filter(holding).fold(TierSet::EMPTY, TierSet::with),
            What::Flush => TierSet::MEMORY,
        };
        if what != What::Flush && sources.iter().any(|t| t < to && object.pinned.contains(t)) {
            return Err(RequestError::Pinned);
        }
        Ok(Item { ino, to, sources, moving: None, moved: false })
    }

    /// The next movement of an object towards `item.to`.
    fn step_move(&mut self, seq: u64, item: &mut Item, prefetch: bool) -> Step {
        let Some(ob) = self.table.find(item.ino) else { return Step::Failed(RequestError::NoSuchObject) };
        let Some(object) = self.table.get(ob) else { return Step::Failed(RequestError::NoSuchObject) };
        item.sources =
            item.sources.iter().filter(|t| object.holds(*t) > 0).fold(TierSet::EMPTY, TierSet::with);
        let Some(from) = item.sources.fastest() else { return Step::Done };
        if from < item.to && object.pinned.contains(from) {
            return Step::Failed(RequestError::Pinned);
        }
        let bytes = self.estimate(object, from, item.to);
        if object.has(Object::PASSTHROUGH | Object::MOVING | Object::RESTING) {
            // A user's wish goes before our own eviction of the same file.
            if self.move_of(ob).is_some_and(|(_, m)| m.is_eviction()) {
                self.cancel_move_of(ob);
            }
            return Step::Blocked(RequestError::Busy);
        }
        if prefetch && !self.space(item.to).is_some_and(|s| s.fits_easily(bytes)) {
            return Step::Skipped;
        }
        if let Some(step) = self.obstacle(item.to, bytes) {
            return step;
        }
        let (to, keep_source) = (item.to, item.to < from);
        let (kind, then) = (MoveKind::Request, TierSet::EMPTY);
        Step::Started(
            self.start(ob, Start { from, to, kind, keep_source, request: Some(seq), then, most: u64::MAX }),
        )
    }

    fn step_flush(&mut self, seq: u64, item: &mut Item) -> Step {
        let Some(ob) = self.table.find(item.ino) else { return Step::Failed(RequestError::NoSuchObject) };
        let Some(object) = self.table.get(ob) else { return Step::Failed(RequestError::NoSuchObject) };
        // The copy that this request waited for holds all that was there when it ended.
        if item.sources.is_empty() || !object.dirty.contains(TierId::Memory) {
            return Step::Done;
        }
        let resting = object.has(Object::RESTING);
        if let Some((id, m)) = self.move_of(ob) {
            let useful = m.kind == Some(MoveKind::WriteBehind) && !m.cancelled && m.request.is_none();
            let Some(m) = self.moves.get_mut(&id).filter(|_| useful) else {
                return Step::Blocked(RequestError::Busy);
            };
            // From now on a write does not cancel it.
            m.request = Some(seq);
            return Step::Started(id);
        }
        if resting {
            return Step::Blocked(RequestError::Busy);
        }
        let to = self.flush_target(ob).unwrap_or(item.to);
        let bytes = self.table.get(ob).map_or(0, |o| self.estimate(o, TierId::Memory, to));
        if let Some(step) = self.obstacle(to, bytes) {
            return step;
        }
        let (from, kind, then) = (TierId::Memory, MoveKind::Request, TierSet::EMPTY);
        Step::Started(
            self.start(
                ob,
                Start { from, to, kind, keep_source: true, request: Some(seq), then, most: u64::MAX },
            ),
        )
    }

    /// The fastest persistent tier with room.
    fn flush_target(&self, ob: Ob) -> Option<TierId> {
        let object = self.table.get(ob)?;
        let fits =
            |to: &TierId| self.space(*to).is_some_and(|s| s.fits(self.estimate(object, TierId::Memory, *to)));
        self.persistent().find(fits)
    }

    /// What keeps `bytes` from being moved to `to` now. Room that is lacking is asked of the tier's eviction.
    fn obstacle(&mut self, to: TierId, bytes: u64) -> Option<Step> {
        let free_slot = self.free_slot(MoveKind::Request, to);
        let Some(space) = self.spaces[to.index()].as_mut() else {
            return Some(Step::Failed(RequestError::NoSuchTier));
        };
        if space.fits(bytes) {
            return (!free_slot).then_some(Step::Blocked(RequestError::Busy));
        }
        if bytes > space.limit.saturating_sub(space.thresholds.s_w) {
            return Some(Step::Failed(RequestError::NoSpace));
        }
        space.asked = space.asked.max(bytes);
        Some(Step::Blocked(RequestError::NoSpace))
    }

    /// A movement of this request ended.
    pub(crate) fn request_moved(&mut self, seq: u64, id: MoveId, m: &Move, result: Result<u64, MoveFailure>) {
        let (now, patience) = (self.now, self.settings.request_patience);
        let Some(asked) = self.requests.get_mut(&seq) else { return };
        let Some(at) = asked.items.iter().position(|item| item.moving == Some(id)) else { return };
        let item = &mut asked.items[at];
        item.moving = None;
        self.requests_ready = true;
        let error = match result {
            Ok(bytes) => {
                item.sources = item.sources.without(m.from);
                item.moved = true;
                asked.report.bytes_moved += bytes;
                self.timers.remove(&(asked.deadline, Timer::Patience(seq)));
                asked.deadline = now + patience;
                self.timers.insert((asked.deadline, Timer::Patience(seq)));
                return;
            }
            Err(MoveFailure::Io) => RequestError::Io,
            Err(MoveFailure::Gone) => RequestError::NoSuchObject,
            // Tried again after its rest, as long as patience lasts.
            Err(MoveFailure::NoSpace) => {
                asked.blocked = RequestError::NoSpace;
                return;
            }
            Err(MoveFailure::Cancelled | MoveFailure::Busy | MoveFailure::Uncovered) => {
                asked.blocked = RequestError::Busy;
                return;
            }
        };
        if asked.what == What::Prefetch {
            asked.items.remove(at);
            asked.report.files_skipped += 1;
        } else {
            asked.error = asked.error.or(Some(error));
        }
    }
}
