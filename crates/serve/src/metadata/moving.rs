//! A file's stripes are moved off a data server, one after the other, while the file is in use: the steps of [`cluster::moving::Move`], carried out.
//!
//! The bulk is copied with no lock held; from the freeze to the record of the new place the file's lock is. A hand-over that a crash left open
//! is asked for again by whoever is next at the file.

use std::time::Duration;

use cluster::{
    NodeId,
    moving::{Came, Ended, Move, Step, refuge},
    pressure::{Why, outlet},
};
use kv::WriteSet;
use namespace::key;
use proto::{
    BATCH_MAX, Layout,
    data::Object,
    layout::{file_and_stripe, object_number},
    moving::{Copies, HandOver, Judge, Judged, Pull, PullState},
};
use types::{Errno, Ino};

use super::{
    MetadataService,
    files::{File, State},
    placed::{Handing, Placed},
};
use crate::answer::No;

/// Between two looks at how far a copy is: a small one is there soon.
const LOOK_FIRST: Duration = Duration::from_millis(2);
const LOOK_LAST: Duration = Duration::from_millis(32);

/// Why a file's stripes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// The node is taken out.
    Drain,
    /// The node is full, or not safe; and about how many bytes the stripe has there.
    Press(Why, u64),
}

/// One attempt: a stripe, and where it goes.
struct Attempt {
    number: u64,
    ino: Ino,
    stripe: usize,
    layout: Layout,
    from: u64,
    to: u64,
    addresses: Vec<String>,
    /// About.
    bytes: u64,
    cause: Cause,
    why: Option<No>,
}

impl Attempt {
    fn object_after(&self) -> Object {
        self.layout.with_moved(self.stripe, self.to).object(self.ino.get(), self.stripe)
    }

    fn pull(&self, freeze_ms: u32) -> Pull {
        Pull {
            attempt: self.number,
            from: Some(self.layout.object(self.ino.get(), self.stripe)),
            to: Some(self.object_after()),
            source: self.from,
            addresses: self.addresses.clone(),
            freeze_ms,
            room: match self.cause {
                Cause::Drain => 0,
                Cause::Press(..) => self.bytes.max(1),
            },
        }
    }

    fn handing(&self) -> Handing {
        Handing { stripe: self.stripe as u16, to: self.to, attempt: self.number }
    }
}

impl MetadataService {
    /// Moves all that a file has on a node elsewhere. Returns the bytes, about.
    pub(super) fn move_off(&self, ino: Ino, node: u64, cause: Cause) -> Result<u64, No> {
        // It stays ours meanwhile, and who wants its slot is not kept waiting for what is copied.
        let _inside = self.enter([ino])?;
        // Or who is at it would be taken to have left it when this ends.
        if !self.drains.moving.lock().insert(ino) {
            return Err(No::later("it is being moved already"));
        }
        let moved = self.move_held(ino, node, cause);
        self.drains.moving.lock().remove(&ino);
        moved
    }

    fn move_held(&self, ino: Ino, node: u64, cause: Cause) -> Result<u64, No> {
        // Held, or its objects might be removed meanwhile.
        if self.hold(ino, 1).is_err() {
            return Ok(0);
        }
        let moved = match self.mds.find(ino) {
            Ok(found) => {
                self.mds.held_again(&found.attr);
                match cause {
                    Cause::Drain => self.move_stripes(ino, node, cause),
                    Cause::Press(..) => self.move_group(ino, node, cause),
                }
            }
            Err(Errno::ESTALE) => Ok(0),
            Err(errno) => Err(errno.into()),
        };
        self.mds.release(ino, 1);
        moved
    }

    /// With what is here the stripes on other nodes that have only memory go, too, in the same order: half a file that is safe is of no use.
    fn move_group(&self, ino: Ino, node: u64, cause: Cause) -> Result<u64, No> {
        let mut bytes = self.move_stripes(ino, node, cause)?;
        let peers = self.peers();
        let has_only_memory = |node: u64| peers.stand(NodeId(node)).is_some_and(|stand| !stand.safe);
        let Cause::Press(_, about) = cause else { return Ok(bytes) };
        if !has_only_memory(node) {
            return Ok(bytes);
        }
        let placed = self.locked(ino, |_, state| Ok(state.placed.clone()))?;
        let mut others: Vec<u64> = placed.map_or(Vec::new(), |placed| placed.layout.stripes);
        others.sort_unstable();
        others.dedup();
        for other in others.into_iter().filter(|other| *other != node && has_only_memory(*other)) {
            match self.move_stripes(ino, other, Cause::Press(Why::Aged, about)) {
                Ok(more) => bytes += more,
                // It leaves when its own server says so.
                Err(no) => {
                    tracing::debug!(%ino, other, errno = %no.errno(), "a stripe of a group stays for now")
                }
            }
        }
        Ok(bytes)
    }

    fn move_stripes(&self, ino: Ino, node: u64, cause: Cause) -> Result<u64, No> {
        let mut bytes = 0;
        while self.may_move(node, cause)
            && let Some(mut attempt) = self.plan(ino, node, cause)?
        {
            let ended = self.carry_out_move(&mut attempt);
            self.sendings.ended(attempt.number, matches!(ended, Ok(Ended::Moved)));
            match ended? {
                Ended::Moved => bytes += attempt.bytes,
                Ended::Stayed | Ended::Open => {
                    return Err(attempt.why.unwrap_or_else(|| No::later("it stays for now")));
                }
            }
        }
        Ok(bytes)
    }

    fn may_move(&self, node: u64, cause: Cause) -> bool {
        !self.has_ended() && (cause != Cause::Drain || self.nodes.is_draining(node))
    }

    fn plan(&self, ino: Ino, node: u64, cause: Cause) -> Result<Option<Attempt>, No> {
        self.locked(ino, |file, state| {
            self.finish_cut(file, state)?;
            let Some(placed) = &state.placed else { return Ok(None) };
            let layout = placed.layout.clone();
            if layout.is_twofold() {
                return Err(No::later(
                    "there are two copies of it, of which another one is made in place of this one",
                ));
            }
            let Some(stripe) = layout.stripes.iter().position(|one| *one == node) else { return Ok(None) };
            if object_number(ino.get(), stripe).is_none() {
                return Err(Errno::EOVERFLOW.into());
            }
            let size = self.mds.find(ino)?.attr.size;
            let bytes = placed.striped().map_or(0, |striped| striped.size_of_stripe(stripe, size));
            // Of a file that is written the metadata do not know the size.
            let bytes = if let Cause::Press(_, about) = cause { bytes.max(about) } else { bytes };
            let to = self.destination(ino, &layout, node, (bytes, cause));
            let to = to.ok_or_else(|| {
                let why = "no other data server is up and has room for it";
                No::new(Errno::ENOSPC, wire::schema::Retry::Never, proto::Reason::None, why)
            })?;
            let addresses =
                self.nodes.addresses(node).ok_or_else(|| No::away(node, "it has not reported"))?;
            let (from, to, number) = (node, to.0, self.next_attempt()?);
            self.sendings.promise(number, to, bytes);
            Ok(Some(Attempt { number, ino, stripe, layout, from, to, addresses, bytes, cause, why: None }))
        })
    }

    fn destination(
        &self,
        ino: Ino,
        layout: &Layout,
        from: u64,
        (bytes, cause): (u64, Cause),
    ) -> Option<NodeId> {
        let (map, file) = (self.nodes.map(), (&layout.stripes[..], ino.get()));
        match cause {
            Cause::Drain => {
                refuge(&map, &self.nodes.measures_of_takers(), file, NodeId(from), bytes.max(layout.unit))
            }
            Cause::Press(why, _) => outlet(&map, &self.peers(), file, NodeId(from), (bytes, why)),
        }
    }

    fn carry_out_move(&self, attempt: &mut Attempt) -> Result<Ended, No> {
        let mut at = Move::begin();
        loop {
            match at.step() {
                Step::Copy => at.came(self.copy_stripe(attempt)),
                Step::Finish | Step::Record | Step::HandOver | Step::Install | Step::Cancel => {
                    let handed =
                        self.locked(attempt.ino, |file, state| self.hand(file, state, attempt, &mut at));
                    if let Err(no) = handed {
                        attempt.why = Some(no);
                        // Before anything was recorded.
                        at.came(Came::No);
                    }
                    if matches!(at.step(), Step::HandOver | Step::Install | Step::Cancel) {
                        return Ok(Ended::Open);
                    }
                }
                Step::Confirm | Step::Drop => {
                    let counts = at.step() == Step::Confirm;
                    let object = Some(attempt.object_after());
                    let judged = Judged { object, attempt: attempt.number, counts };
                    // One that was not told has it in its reports.
                    let told = self.nodes.ask_all(&[(attempt.to, Judge { copies: vec![judged] })]);
                    at.came(if told.iter().all(Result::is_ok) { Came::Yes } else { Came::Unknown });
                }
                Step::End(ended) => return Ok(ended),
            }
        }
    }

    fn copy_stripe(&self, attempt: &mut Attempt) -> Came {
        let mut pause = LOOK_FIRST;
        loop {
            if !self.may_move(attempt.from, attempt.cause) {
                attempt.why = Some(No::later("it is not drained any more"));
                return Came::No;
            }
            if self.owners.as_ref().is_some_and(|owners| owners.gates().is_wanted(attempt.ino.ugsd().slot()))
            {
                attempt.why = Some(No::later("its slot goes to another metadata server"));
                return Came::No;
            }
            match self.pulled(attempt, 0) {
                Ok(PullState::Copying) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LOOK_LAST);
                }
                Ok(PullState::Level) => return Came::Yes,
                Ok(PullState::Ready | PullState::Failed) => return Came::No,
                Err(no) => {
                    attempt.why = Some(no);
                    return Came::No;
                }
            }
        }
    }

    fn pulled(&self, attempt: &mut Attempt, freeze_ms: u32) -> Result<PullState, No> {
        let asked = [(attempt.to, attempt.pull(freeze_ms))];
        let pulled = self.nodes.ask_all(&asked).pop().unwrap_or(Err(Errno::EIO.into()))?;
        let state = PullState::try_from(pulled.state).unwrap_or(PullState::Failed);
        if state == PullState::Failed {
            let (retry, errno) = (wire::schema::Retry::Never, Errno::from_raw(pulled.errno));
            attempt.why = Some(No::new(errno, retry, proto::Reason::None, pulled.why));
        }
        Ok(state)
    }

    /// With the file's lock: from the freeze to the new place.
    fn hand(&self, file: &File, state: &mut State, attempt: &mut Attempt, at: &mut Move) -> Result<(), No> {
        self.finish_cut(file, state)?;
        let same = state.placed.as_ref().is_some_and(|placed| placed.layout == attempt.layout);
        if !same || !self.may_move(attempt.from, attempt.cause) || !self.nodes.takes_data(attempt.to) {
            return Err(No::later("things have changed"));
        }
        while at.step() == Step::Finish {
            at.came(match self.pulled(attempt, self.freeze_ms())? {
                PullState::Ready => Came::Yes,
                PullState::Copying | PullState::Level | PullState::Failed => Came::No,
            });
        }
        // From now on nobody begins to drain the destination.
        let _placing = self.drains.placing.read();
        if at.step() == Step::Record {
            if !self.nodes.takes_data(attempt.to) {
                return Err(No::later("the destination is taken out"));
            }
            at.came(self.record_handing(file, state, attempt.handing()));
        }
        if let Err(no) = self.ask_for_hand_over(file, state, at) {
            attempt.why = Some(no);
        }
        Ok(())
    }

    /// Less than an answer of the destination is waited for, which may take all of it.
    fn freeze_ms(&self) -> u32 {
        let ms = self.options.patience.as_millis() as u32 / 5 * 3;
        ms.clamp(100, proto::moving::FREEZE_MS_MAX)
    }

    fn record_handing(&self, file: &File, state: &mut State, handing: Handing) -> Came {
        let Some(placed) = state.placed.clone() else { return Came::No };
        let placed = Placed { handing: Some(handing), ..placed };
        // Also after an error: it may have been stored.
        state.placed = Some(placed.clone());
        let stored = self.store_placed(file.ino, &placed).and_then(|()| Ok(self.mds.sync()?));
        // Whoever may go on in our place has it, too: when the source has agreed, the bytes are at the new place alone.
        let stored = stored.and_then(|()| self.settled_here());
        if stored.is_ok() { Came::Yes } else { Came::Unknown }
    }

    /// What a crash left: is it at the old place or at the new one? To be asked before anything else is done with the file.
    pub(super) fn end_handing(&self, file: &File, state: &mut State) -> Result<(), No> {
        if state.placed.as_ref().is_none_or(|placed| placed.handing.is_none()) {
            return Ok(());
        }
        let mut at = Move::resume();
        self.ask_for_hand_over(file, state, &mut at)?;
        // The destination has its copy in its reports until it knows.
        if matches!(at.step(), Step::Confirm | Step::Drop) { Ok(()) } else { Err(Errno::EIO.into()) }
    }

    fn ask_for_hand_over(&self, file: &File, state: &mut State, at: &mut Move) -> Result<(), No> {
        let placed = state.placed.clone().ok_or(Errno::EIO)?;
        let (Some(handing), Step::HandOver) = (placed.handing, at.step()) else { return Ok(()) };
        let stripe = usize::from(handing.stripe);
        let node = placed.layout.stripes.get(stripe).copied().ok_or(Errno::EIO)?;
        let object = Some(placed.object(file.ino, stripe));
        let asked = [(node, HandOver { object, attempt: handing.attempt })];
        let answer = self.nodes.ask_all(&asked).pop().unwrap_or(Err(Errno::EIO.into()));
        at.came(match &answer {
            Ok(handed) if handed.done => Came::Yes,
            Ok(_) => Came::No,
            Err(_) => Came::Unknown,
        });
        let next = match &answer {
            Ok(handed) if handed.done => placed.handed_over(&handing),
            Ok(_) => Placed { handing: None, ..placed },
            Err(_) => return answer.map(drop),
        };
        let stored = self.store_placed(file.ino, &next);
        at.came(if stored.is_ok() { Came::Yes } else { Came::Unknown });
        stored?;
        state.placed = Some(next);
        Ok(())
    }

    /// Unlike a write it does not make the file one that is being written.
    pub(super) fn store_placed(&self, ino: Ino, placed: &Placed) -> Result<(), No> {
        let mut writes = WriteSet::new();
        writes.use_reserve();
        writes.put(&key::stripes(ino), placed.encode().into());
        self.store.commit(writes).map(drop).map_err(|error| {
            tracing::error!(%ino, %error, "a layout was not stored");
            Errno::EIO.into()
        })
    }

    /// Tells data servers which of their copies count.
    pub(super) fn judge_copies(&self) {
        for node in self.nodes.with_copies() {
            let mut after = 0;
            // Copies of files of other servers are in the lists, too.
            while let Some(Ok(list)) = self.nodes.ask_all(&[(node, Copies { after })]).pop() {
                let list = list.copies;
                after = list.iter().filter_map(|one| Some(one.object?.ino)).max().unwrap_or(0);
                self.judge_some(node, &list);
                if list.len() < BATCH_MAX / 2 || after == 0 {
                    break;
                }
            }
        }
    }

    fn judge_some(&self, node: u64, list: &[Judged]) {
        let judged = |one: &Judged| Some(Judged { counts: self.counts(node, one)?, ..*one });
        let copies: Vec<Judged> = list.iter().take(BATCH_MAX / 2).filter_map(judged).collect();
        if copies.is_empty() {
            return;
        }
        tracing::info!(node, copies = copies.len(), "copies of stripes that were left are looked at");
        if self.nodes.ask_all(&[(node, Judge { copies })]).iter().any(Result::is_err) {
            tracing::debug!(node, "a data server is told later which of its copies count");
        }
    }

    /// `None`: that is not decided, or cannot be found out now.
    fn counts(&self, node: u64, copy: &Judged) -> Option<bool> {
        let object = copy.object?;
        let (ino, stripe) = file_and_stripe(object.ino)?;
        let ino = Ino::from_raw(ino)?;
        // Who has the file's slot says it.
        let _inside = self.enter([ino]).ok()?;
        if self.drains.moving.lock().contains(&ino) {
            return None;
        }
        let there = self.locked(ino, |_, state| {
            let placed = state.placed.as_ref();
            let here = |placed: &Placed| placed.layout.stripes.get(stripe) == Some(&node);
            Ok(placed.is_some_and(|placed| here(placed) && placed.object(ino, stripe) == object))
        });
        there.ok()
    }
}
