//! Locks of the slots, and the transaction that keeps to them.
//!
//! Invariants: slot locks are taken in rising order, then possibly the quota lock, then those of who is told; a transaction
//! reads and writes only under the locks of its slots. One that comes upon others is given up, and run
//! again with those locked too: transaction functions need no knowledge of it.

use std::{
    cell::{Cell, RefCell},
    ops::ControlFlow,
};

use kv::MetaTxn;
use namespace::{
    key::{self, Parsed},
    txn::{Bytes, KvError, Reader, Txn},
};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use types::{Ino, SLOTS, Slot, UgsdId};

use crate::{numbers::Wanted, recorder::Change};

/// The slots of an operation. Nearly always one or two.
#[derive(Clone, Debug)]
pub(crate) enum SlotSet {
    One([Slot; 1]),
    /// In rising order.
    Many {
        home: Slot,
        slots: Vec<Slot>,
    },
}

impl SlotSet {
    pub(crate) fn of(ino: Ino) -> SlotSet {
        SlotSet::One([ino.ugsd().slot()])
    }

    /// The file system's own records are in the root's slot.
    pub(crate) fn root() -> SlotSet {
        SlotSet::One([UgsdId::ROOT.slot()])
    }

    pub(crate) fn of_slot(slot: Slot) -> SlotSet {
        SlotSet::One([slot])
    }

    /// `None`: of no slots.
    pub(crate) fn of_all(slots: &[Slot]) -> Option<SlotSet> {
        let (first, others) = slots.split_first()?;
        Some(others.iter().copied().fold(SlotSet::One([*first]), SlotSet::with))
    }

    pub(crate) fn with(self, slot: Slot) -> SlotSet {
        match self {
            SlotSet::One([only]) if only == slot => SlotSet::One([only]),
            SlotSet::One([only]) => SlotSet::Many { home: only, slots: vec![only.min(slot), only.max(slot)] },
            SlotSet::Many { home, mut slots } => {
                if let Err(at) = slots.binary_search(&slot) {
                    slots.insert(at, slot);
                }
                SlotSet::Many { home, slots }
            }
        }
    }

    /// Whose owner carries the operation out.
    pub(crate) fn home(&self) -> Slot {
        match self {
            SlotSet::One([home]) | SlotSet::Many { home, .. } => *home,
        }
    }

    /// In rising order.
    pub(crate) fn slots(&self) -> &[Slot] {
        match self {
            SlotSet::One(only) => only,
            SlotSet::Many { slots, .. } => slots,
        }
    }

    fn contains(&self, slot: Slot) -> bool {
        self.slots().binary_search(&slot).is_ok()
    }
}

pub(crate) struct SlotLocks {
    slots: Box<[RwLock<()>]>,
    quotas: Mutex<()>,
}

/// Kept until the operation is done.
pub(crate) enum SlotGuards<'a> {
    One(#[expect(dead_code, reason = "held, not read")] RwLockWriteGuard<'a, ()>),
    Many(#[expect(dead_code, reason = "held, not read")] Vec<RwLockWriteGuard<'a, ()>>),
}

impl SlotLocks {
    pub(crate) fn new() -> SlotLocks {
        SlotLocks { slots: (0..SLOTS).map(|_| RwLock::new(())).collect(), quotas: Mutex::new(()) }
    }

    pub(crate) fn lock_of(&self, slot: Slot) -> &RwLock<()> {
        // Slots are less than `SLOTS`.
        &self.slots[usize::from(slot.get())]
    }

    pub(crate) fn write(&self, set: &SlotSet) -> SlotGuards<'_> {
        match set {
            SlotSet::One([slot]) => SlotGuards::One(self.lock_of(*slot).write()),
            SlotSet::Many { slots, .. } => {
                SlotGuards::Many(slots.iter().map(|slot| self.lock_of(*slot).write()).collect())
            }
        }
    }

    /// Behind a writer that waits, so that readers do not keep it out; so not while it is held already.
    pub(crate) fn read(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        self.lock_of(ino.ugsd().slot()).read()
    }
}

/// A transaction under slot locks.
pub(crate) struct SlotTxn<'a> {
    inner: MetaTxn<'a>,
    set: &'a SlotSet,
    locks: &'a SlotLocks,
    missing: RefCell<Vec<Slot>>,
    wanted: Cell<Option<Wanted>>,
    quotas: RefCell<Option<MutexGuard<'a, ()>>>,
    /// For who is told of them; `None` when nobody is.
    changes: Option<Vec<Change>>,
    /// Other servers have slots, too.
    shared: bool,
}

impl<'a> SlotTxn<'a> {
    /// Under the locks of `set`, which the caller holds.
    pub(crate) fn new(inner: MetaTxn<'a>, set: &'a SlotSet, locks: &'a SlotLocks) -> SlotTxn<'a> {
        let (missing, wanted, quotas) = (RefCell::default(), Cell::new(None), RefCell::new(None));
        SlotTxn { inner, set, locks, missing, wanted, quotas, changes: None, shared: false }
    }

    /// Somebody is told of its changes.
    pub(crate) fn told(mut self, told: bool) -> SlotTxn<'a> {
        self.changes = told.then(Vec::new);
        self
    }

    /// There are other servers, with slots of their own.
    pub(crate) fn shared(mut self, shared: bool) -> SlotTxn<'a> {
        self.shared = shared;
        self
    }

    /// Slots that it needed and did not hold. If there are any, what it read and wrote counts for nothing.
    pub(crate) fn missing(&self) -> Vec<Slot> {
        self.missing.borrow().clone()
    }

    /// It cannot go on before numbers are reserved, and counts for nothing.
    pub(crate) fn wants(&self, wanted: Wanted) -> KvError {
        self.wanted.set(Some(wanted));
        KvError::Io(String::new())
    }

    /// Numbers that it needed and that are not reserved yet, as `missing`.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        self.wanted.get()
    }

    /// It did not come upon anything that it has to be run again for.
    pub(crate) fn is_whole(&self) -> bool {
        self.missing.borrow().is_empty() && self.wanted.get().is_none()
    }

    /// Whether it is worth finding out what changed.
    pub(crate) fn is_told(&self) -> bool {
        self.changes.is_some()
    }

    /// One of its changes, in order.
    pub(crate) fn tell(&mut self, change: impl FnOnce() -> Change) {
        if let Some(changes) = &mut self.changes {
            changes.push(change());
        }
    }

    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// It is taken on a full disk, too: see [`kv::WriteSet::use_reserve`].
    pub(crate) fn use_reserve(&mut self) {
        self.inner.use_reserve();
    }

    /// Commits under all its locks, and lets the quota lock go.
    pub(crate) fn commit(self) -> Result<(), KvError> {
        debug_assert!(self.is_whole());
        self.inner.commit().map(|_| ())
    }

    /// Takes the quota lock now, and not when a quota is first touched.
    pub(crate) fn lock_quotas(&self) {
        let mut quotas = self.quotas.borrow_mut();
        if quotas.is_none() {
            *quotas = Some(self.locks.quotas.lock());
        }
    }

    fn lacks(&self, slot: Slot) -> KvError {
        let mut missing = self.missing.borrow_mut();
        if !missing.contains(&slot) {
            missing.push(slot);
        }
        KvError::Io(String::new())
    }

    /// Whether `key` may be touched now.
    fn admit(&self, key: &[u8]) -> Result<(), KvError> {
        let Some(parsed) = Parsed::new(key) else { return Ok(()) };
        match parsed.ugsd() {
            Some(ugsd) if self.set.contains(ugsd.slot()) => Ok(()),
            Some(ugsd) => Err(self.lacks(ugsd.slot())),
            None if parsed.kind == key::QUOTA => {
                // One server at a time has them, where there are several.
                let root = UgsdId::ROOT.slot();
                if self.shared && !self.set.contains(root) {
                    return Err(self.lacks(root));
                }
                self.lock_quotas();
                Ok(())
            }
            // Under a lock of the one who is told, which comes after all of ours.
            None if parsed.is_linked() => Ok(()),
            None => Err(KvError::Corrupt(format!("key {} is nobody's", key::describe(key)))),
        }
    }
}

impl Reader for SlotTxn<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.admit(key)?;
        self.inner.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), KvError> {
        self.admit(from)?;
        self.inner.scan(from, to, visit)
    }
}

impl Txn for SlotTxn<'_> {
    fn put(&mut self, key: &[u8], value: Bytes) {
        // A refusal is noted in `missing`, and nothing is committed then.
        if self.admit(key).is_ok() {
            self.inner.put(key, value);
        }
    }

    fn delete(&mut self, key: &[u8]) {
        if self.admit(key).is_ok() {
            self.inner.delete(key);
        }
    }
}
