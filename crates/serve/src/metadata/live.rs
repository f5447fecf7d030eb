//! Files that are being written: how writing begins, what is true meanwhile, and how it is settled.

use std::collections::BTreeMap;

use bytes::Bytes;
use mds::{Found, Settled};
use namespace::key;
use proto::{
    BATCH_MAX,
    attr::Time,
    data::{Recorded, SetTime, Settle, Truncate},
};
use types::{Attr, Errno, FileKind, Ino, Timestamp};

use super::{
    MetadataService,
    files::{File, State},
    placed::{Cut, Placed},
    truths::{Truth, Wanted},
};
use crate::answer::No;

/// Files in one round of what is due: bounds the time for which everything else that is due waits.
const DUE_MAX: usize = 4096;

/// Where a settled file is, and the times of its stripes that are recorded.
type Settlement = (Placed, Vec<Option<Time>>);

impl MetadataService {
    /// Runs with the file's lock, and its layout looked for.
    pub(super) fn locked<R>(
        &self,
        ino: Ino,
        run: impl FnOnce(&File, &mut State) -> Result<R, No>,
    ) -> Result<R, No> {
        loop {
            let file = self.files.get_or_make(ino);
            // Whoever has it asks data servers, some times at the most.
            let Some(mut state) = file.state.try_lock_for(4 * self.options.patience) else {
                return Err(No::later("the file is in use for long"));
            };
            if state.gone {
                continue;
            }
            let ready = self.load_placed(ino, &mut state).and_then(|()| self.end_handing(&file, &mut state));
            let result = match ready {
                Ok(()) => run(&file, &mut state),
                Err(no) => Err(no),
            };
            self.files.remove_if_idle(&file, &mut state);
            return result;
        }
    }

    pub(super) fn load_placed(&self, ino: Ino, state: &mut State) -> Result<(), No> {
        if state.placed.is_some() {
            return Ok(());
        }
        let stored = self.store.get(&key::stripes(ino)).map_err(|error| {
            tracing::error!(%ino, %error, "a layout was not read");
            No::from(Errno::EIO)
        })?;
        if let Some(bytes) = stored {
            state.placed = Some(Placed::decode(&bytes).ok_or_else(|| {
                tracing::error!(%ino, "the record of a layout cannot be read");
                No::from(Errno::EIO)
            })?);
        }
        Ok(())
    }

    /// Stores where the data are, and that the file is being written.
    fn save_placed(&self, file: &File, state: &mut State, placed: Placed) -> Result<(), No> {
        let entry = ((&*key::stripes(file.ino)).into(), Some(Bytes::from(placed.encode())));
        self.mds.begin_write_with(file.ino, &[entry])?;
        state.begun = true;
        state.placed = Some(placed);
        Ok(())
    }

    /// To be called before anything of the file's data changes. `node`: of the session that writes.
    pub(super) fn begin(&self, file: &File, state: &mut State, node: u64) -> Result<Placed, No> {
        self.finish_cut(file, state)?;
        if let Some(placed) = &state.placed {
            let placed = placed.clone();
            if !state.begun {
                let found = self.mds.find(file.ino)?;
                if !found.data.live
                    && let Err(no) = self.tell_time(file, state, found.attr.mtime)
                {
                    // Its data servers show the time that is recorded, and not one that they were not told to forget.
                    tracing::debug!(ino = %file.ino, errno = %no.errno(), "a time was not told");
                }
                self.mds.begin_write(file.ino)?;
                state.begun = true;
            }
            return Ok(placed);
        }
        let size = self.mds.find(file.ino)?.attr.size;
        let placed = {
            // A data server that is being drained gets nothing: neither now nor when what it has was counted.
            let _placing = self.drains.placing.read();
            let placed = Placed {
                layout: self.choose(file.ino, state, node)?,
                cut: None,
                handing: None,
                left: Vec::new(),
            };
            self.save_placed(file, state, placed.clone())?;
            placed
        };
        if size > 0 {
            // It was given a size before it had a byte.
            self.grow_objects(file, &placed, size)?;
        }
        Ok(placed)
    }

    /// Makes attributes true that say that the file is being written, or was and is not settled.
    pub(super) fn complete(&self, found: Found) -> Result<Attr, No> {
        if found.attr.kind != FileKind::Regular || !found.data.live {
            return Ok(found.attr);
        }
        self.locked(found.attr.ino, |file, state| self.complete_locked(file, state))
    }

    pub(super) fn complete_locked(&self, file: &File, state: &mut State) -> Result<Attr, No> {
        if state.writers == 0 {
            self.settle_if_idle(file, state)?;
        }
        self.finish_cut(file, state)?;
        let found = self.mds.find(file.ino)?;
        let (true, Some(placed)) = (found.data.live, &state.placed) else { return Ok(found.attr) };
        let truth = self.truth(file, placed, found.attr.size)?;
        Ok(truth.shown(&found))
    }

    /// Records what writing came to, unless somebody writes.
    pub(super) fn settle_if_idle(&self, file: &File, state: &mut State) -> Result<(), No> {
        if self.is_to_settle(file, state)? {
            let times = self.record(file, state, false)?;
            self.settled(file.ino, state, times);
        }
        Ok(())
    }

    /// Nobody writes it, and what writing came to is to be recorded. Where nothing is, it is settled then.
    pub(super) fn is_to_settle(&self, file: &File, state: &mut State) -> Result<bool, No> {
        if state.writers > 0 {
            return Ok(false);
        }
        let found = match self.mds.find(file.ino) {
            Ok(found) => found,
            Err(Errno::ESTALE) => {
                (state.begun, state.to_tell) = (false, None);
                return Ok(false);
            }
            Err(errno) => return Err(errno.into()),
        };
        if found.attr.nlink == 0 && state.openings == 0 {
            // Nobody will see it again.
            (state.begun, state.to_tell) = (false, None);
            return Ok(false);
        }
        self.finish_cut(file, state)?;
        if found.data.stale_live && self.in_grace() {
            // Its writer may come back, and goes on writing meanwhile: what is true is asked for each time.
            return Ok(false);
        }
        if !found.data.live {
            state.begun = false;
            state.append_end = 0;
        }
        Ok(found.data.live)
    }

    /// It is recorded, with these times of its stripes, which they are told of later.
    pub(super) fn settled(&self, ino: Ino, state: &mut State, times: Vec<Option<Time>>) {
        state.to_tell = Some(times);
        self.due.lock().insert(ino);
        state.begun = false;
        state.append_end = 0;
    }

    /// Tells the metadata size and time as they are now. Returns the times of the stripes.
    pub(super) fn record(
        &self,
        file: &File,
        state: &State,
        still_open: bool,
    ) -> Result<Vec<Option<Time>>, No> {
        let known = self.mds.find(file.ino)?.attr;
        let truth = match &state.placed {
            Some(placed) => {
                self.truth_of(Wanted { ino: file.ino, placed, known: known.size, at_rest: true })?
            }
            None => Truth { size: known.size, blocks: known.blocks, mtime: None, times: Vec::new() },
        };
        let Truth { size, blocks, mtime, times } = truth;
        self.mds.settle(file.ino, &Settled { size, blocks: Some(blocks), mtime, still_open })?;
        Ok(times)
    }

    /// Cuts a file whose writing has begun, and that is longer. The cut is recorded first, with what else is set.
    pub(super) fn cut(
        &self,
        file: &File,
        state: &mut State,
        set: &mds::SetAttr,
        size: u64,
    ) -> Result<Found, No> {
        let placed = state.placed.clone().ok_or(Errno::EIO)?;
        let cut = Some(Cut { size, stripes: placed.all() });
        self.save_placed(file, state, Placed { cut, ..placed.clone() })?;
        let found = match self.mds.setattr(file.ino, set) {
            Ok(found) => found,
            Err(errno) => {
                self.save_placed(file, state, Placed { cut: None, ..placed })?;
                return Err(errno.into());
            }
        };
        state.append_end = 0;
        self.finish_cut(file, state)?;
        Ok(found)
    }

    /// Cuts the objects that a cut has not reached yet.
    pub(super) fn finish_cut(&self, file: &File, state: &mut State) -> Result<(), No> {
        let Some(placed) = state.placed.clone() else { return Ok(()) };
        let (Some(cut), Some(striped)) = (placed.cut, placed.striped()) else { return Ok(()) };
        let left: Vec<usize> = (0..striped.count()).filter(|n| cut.stripes >> n & 1 == 1).collect();
        // Or a power cut here would bring the size back of what is cut there; or this server's death.
        self.mds.sync()?;
        self.settled_here()?;
        let asked: Vec<_> = left
            .iter()
            .filter_map(|n| Some((*placed.layout.stripes.get(*n)?, *n)))
            .map(|(node, n)| {
                let (object, size) = (placed.object(file.ino, n), striped.size_of_stripe(n, cut.size));
                (node, Truncate { object: Some(object), size, grow_only: false })
            })
            .collect();
        let (mut rest, mut failed) = (0, None);
        for (n, answer) in left.iter().zip(self.nodes.ask_all(&asked)) {
            if let Err(no) = answer {
                rest |= 1 << n;
                failed = Some(self.unless_two(file.ino, &placed, no));
            }
        }
        let cut = failed.is_some().then_some(Cut { stripes: rest, ..cut });
        if cut != placed.cut {
            self.save_placed(file, state, Placed { cut, ..placed })?;
        }
        if failed.is_some() {
            self.due.lock().insert(file.ino);
        }
        failed.map_or(Ok(()), Err)
    }

    /// The metadata have the size. The object that has the last byte says it too.
    pub(super) fn grow_objects(&self, file: &File, placed: &Placed, size: u64) -> Result<(), No> {
        let (Some(striped), Some(last)) = (placed.striped(), size.checked_sub(1)) else { return Ok(()) };
        let (stripe, at) = striped.locate(last);
        let node = placed.layout.stripes.get(stripe).copied().ok_or(Errno::EIO)?;
        let object = Some(placed.object(file.ino, stripe));
        let asked = [(node, Truncate { object, size: at + 1, grow_only: true })];
        let asked = self.nodes.ask_all(&asked).pop().unwrap_or(Err(Errno::EIO.into()));
        asked.map(drop).map_err(|no| self.unless_two(file.ino, placed, no))
    }

    /// A time was set: it stands until the next write. An error is the asker's to weigh.
    pub(super) fn tell_time(&self, file: &File, state: &State, mtime: Timestamp) -> Result<(), No> {
        let Some(placed) = &state.placed else { return Ok(()) };
        let set = |object| SetTime { object: Some(object), mtime: Some(mtime.into()) };
        let asked: Vec<_> = placed.objects(file.ino).map(|(node, object)| (node, set(object))).collect();
        self.nodes.ask_all(&asked).into_iter().try_for_each(|answer| answer.map(|_| ()))
    }

    /// Settles what could not be settled before, and tells data servers what is.
    pub(super) fn do_due(&self) {
        let due: Vec<Ino> = {
            let mut due = self.due.lock();
            std::iter::from_fn(|| due.pop_first()).take(DUE_MAX).collect()
        };
        let mut again: Vec<Ino> = Vec::new();
        let mut settled = Vec::new();
        for ino in due {
            match self.locked(ino, |file, state| self.settle_due(file, state)) {
                Ok(Some(one)) => settled.push((ino, one)),
                Ok(None) => (),
                // Whoever has it now settles it.
                Err(no) if no.errno() == Errno::EREMOTE => {}
                Err(no) => {
                    tracing::debug!(%ino, errno = %no.errno(), "a file is settled later");
                    again.push(ino);
                }
            }
        }
        for part in settled.chunks(BATCH_MAX / 2) {
            again.extend(self.tell_settled(part));
        }
        self.due.lock().extend(again);
    }

    /// What its data servers are to be told, if it is settled.
    fn settle_due(&self, file: &File, state: &mut State) -> Result<Option<Settlement>, No> {
        self.finish_cut(file, state)?;
        if state.begun && state.writers == 0 {
            self.settle_if_idle(file, state)?;
        }
        let (false, Some(times), Some(placed)) = (state.begun, &state.to_tell, &state.placed) else {
            return Ok(None);
        };
        Ok(Some((placed.clone(), times.clone())))
    }

    /// Many at once, and without their locks: who begins to write one of them meanwhile makes a later time, which stays. Returns
    /// those that could not be told.
    fn tell_settled(&self, settled: &[(Ino, Settlement)]) -> Vec<Ino> {
        let mut by_node: BTreeMap<u64, Vec<Recorded>> = BTreeMap::new();
        for (ino, (placed, times)) in settled {
            for ((node, object), mtime) in placed.objects(*ino).zip(times) {
                by_node.entry(node).or_default().push(Recorded { object: Some(object), mtime: *mtime });
            }
            for (node, object) in placed.other_objects(*ino) {
                // Whose times nobody looks at; and one that cannot be told is no second any more soon.
                let of_no_time = Recorded { object: Some(object), mtime: None };
                by_node.entry(node).or_default().push(of_no_time);
            }
        }
        let asked: Vec<_> = by_node
            .iter()
            .flat_map(|(node, objects)| objects.chunks(BATCH_MAX / 2).map(|some| (*node, some)))
            .map(|(node, some)| (node, Settle { objects: some.to_vec() }))
            .collect();
        let answers = self.nodes.ask_all(&asked);
        let failed: Vec<u64> = asked
            .iter()
            .zip(answers)
            .filter(|(_, answer)| answer.is_err())
            .map(|((node, _), _)| *node)
            .collect();
        let mut again = Vec::new();
        for (ino, (placed, times)) in settled {
            let told = !placed.layout.stripes.iter().any(|node| failed.contains(node));
            let done = self.locked(*ino, |_, state| {
                if told && state.to_tell.as_ref() == Some(times) {
                    state.to_tell = None;
                }
                Ok(())
            });
            if !told || done.is_err() {
                again.push(*ino);
            }
        }
        again
    }
}
