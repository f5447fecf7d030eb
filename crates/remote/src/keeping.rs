//! Looks that are answered from what is kept, and what has to be known of it when something changes.
//!
//! The kernel keeps nothing: it asks each time, and is answered here, without a request over the network. To have it forget a name takes the lock of the
//! directory, which it holds itself while it waits for one of our answers; and an answer that is on its way to it cannot be called back.

use std::time::{Duration, Instant};

use lease::coherence::rights::{Key, Rights};
use proto::{
    Head, Request,
    leases::{Look, Looked, Recalled, RecalledSlots, Return, Returned, keeps, slots_of},
};
use types::{Attr, Errno, Ino};
use wire::frame::Body;

use crate::{
    Remote,
    finding::ask_line,
    held::Source,
    kept::{At, Kept, KeptCounts, Ticket},
    keys::{entry, inode},
    line::{Stop, Waits},
    names::{Place, attr_of},
    remote::Want,
    session::Session,
};

/// A name that something else takes the place of each time it is looked at is looked at so often.
const NAMES_MAX: usize = 16;

/// What is looked at: a name in a directory, or an inode.
#[derive(Clone, Copy)]
struct Looking<'a> {
    ino: Ino,
    name: &'a [u8],
    /// With a reference, without a name, too.
    referring: bool,
}

/// A request whose answer may be kept.
pub(crate) struct Asked<'a> {
    remote: &'a Remote,
    pub ticket: Ticket,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.remote.kept.lock().done(self.ticket);
    }
}

impl Remote {
    /// What is kept, and how much it answered.
    pub fn kept(&self) -> KeptCounts {
        self.kept.lock().counts()
    }

    pub(crate) fn keeps(&self) -> bool {
        self.options.leases
    }

    pub(crate) fn asked_to_keep(&self) -> Asked<'_> {
        self.listen_from_now_on();
        Asked { remote: self, ticket: self.kept.lock().ask(Instant::now()) }
    }

    /// `None`: the server has to be asked. What is found has a reference more.
    pub fn kept_lookup(&self, at: Place<'_>) -> Option<Result<Attr, Errno>> {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        let found = match kept.name(now, at.dir, at.name)? {
            None => Err(Errno::ENOENT),
            Some(ino) => {
                let attr = kept.attr(now, ino)?;
                if !self.references.add_known(ino) {
                    return None;
                }
                Ok(attr)
            }
        };
        kept.answered();
        Some(found)
    }

    pub fn kept_attr(&self, ino: Ino) -> Option<Attr> {
        let mut kept = self.kept.lock();
        let attr = kept.attr(Instant::now(), ino)?;
        kept.answered();
        Some(attr)
    }

    /// What the name is known to name: an operation that takes it away says that nothing of that is kept.
    pub(crate) fn known_as(&self, at: Place<'_>) -> Option<Ino> {
        self.kept.lock().name(Instant::now(), at.dir, at.name).flatten()
    }

    /// A name, or with an empty one the inode itself. `Err`: another server knows more of the inode that the name names.
    fn look_up(&self, of: Looking<'_>) -> Result<Result<Option<Attr>, Ino>, Errno> {
        let Looking { ino, name, referring } = of;
        let asked = self.asked_to_keep();
        let make = |head| Look { head: Some(head), ino: ino.get(), name: name.to_vec(), referring };
        let (looked, from): (Looked, Source) = self.look_and_where(make)?;
        let attr = looked.attr.map(|attr| attr_of(Some(attr))).transpose()?;
        let named = attr.map(|attr| attr.ino).or(Ino::from_raw(looked.ino));
        let at = At { ticket: asked.ticket, now: Instant::now(), from };
        {
            let mut kept = self.kept.lock();
            kept.heard_term(&at, Duration::from_millis(looked.term_ms.into()));
            self.keep(&mut kept, &at, (ino, name), (named, attr, looked.keeps));
        }
        self.listen_to(from, looked.keeps);
        Ok(named.filter(|_| attr.is_none()).map_or(Ok(attr), Err))
    }

    pub(crate) fn keep(
        &self,
        kept: &mut Kept,
        at: &At,
        (dir, name): (Ino, &[u8]),
        (named, attr, keeping): (Option<Ino>, Option<Attr>, u32),
    ) {
        if let Some(attr) = attr.filter(|_| keeping & keeps::ATTRIBUTES != 0) {
            kept.keep_attr(at, attr);
        }
        if keeping & keeps::NAME != 0 && !name.is_empty() {
            kept.keep_name(at, (dir, name), self.spreads.place(dir, name), named);
        }
    }

    /// Whoever granted something is heard when it asks for that.
    pub(crate) fn listen_to(&self, from: Source, keeping: u32) {
        if keeping != 0 {
            self.listen_at(from.node);
        }
    }

    pub(crate) fn look_name(&self, at: Place<'_>) -> Result<Attr, Errno> {
        for _ in 0..NAMES_MAX {
            let found = match self.look_known(at)? {
                None => match self.look_up(Looking { ino: at.dir, name: at.name, referring: false })? {
                    Ok(found) => found.ok_or(Errno::ENOENT)?,
                    Err(ino) => match self.look_up(Looking { ino, name: b"", referring: true }) {
                        // The name was taken away since it was read, or names something else by now.
                        Err(Errno::ESTALE) => continue,
                        found => found?.map_err(|_| Errno::EIO)?.ok_or(Errno::ENOENT)?,
                    },
                },
                Some(found) => found,
            };
            self.references.add(found.ino);
            return Ok(found);
        }
        Err(Errno::ENOENT)
    }

    /// What the name is kept to name, whose attributes are not kept: only those are asked for, of the server that has them. `None`: the name has to be
    /// asked for, too.
    fn look_known(&self, at: Place<'_>) -> Result<Option<Attr>, Errno> {
        let asked = self.asked_to_keep();
        let Some(ino) = self.known_as(at) else { return Ok(None) };
        let attr = match self.look_up(Looking { ino, name: b"", referring: true }) {
            Ok(Ok(Some(attr))) => attr,
            Ok(_) | Err(Errno::ESTALE) => return Ok(None),
            Err(error) => return Err(error),
        };
        let granted = self.spreads.place(at.dir, at.name);
        let stood = self.kept.lock().stood(asked.ticket, Instant::now(), (at.dir, at.name, granted), ino);
        if !stood {
            self.references.untold(attr.ino);
        }
        Ok(stood.then_some(attr))
    }

    pub(crate) fn look_inode(&self, ino: Ino) -> Result<Attr, Errno> {
        if self.spreads.of(ino.get()).is_some() {
            return self.attr_of_all(ino);
        }
        match self.look_up(Looking { ino, name: b"", referring: false }) {
            Err(_) if self.spreads.of(ino.get()).is_some() => self.attr_of_all(ino),
            found => found?.map_err(|_| Errno::EIO)?.ok_or(Errno::EIO),
        }
    }

    pub(crate) fn begin_change(&self, keys: &[Key]) {
        let mut kept = self.kept.lock();
        keys.iter().for_each(|key| kept.begin_change(key));
    }

    /// `sure`: it is not carried out later.
    pub(crate) fn end_change(&self, keys: &[Key], sure: bool) {
        let now = Instant::now();
        let doubtful_until = (!sure).then(|| now + self.options.longest);
        let mut kept = self.kept.lock();
        keys.iter().for_each(|key| kept.end_change(key, now, doubtful_until));
    }

    /// A change of what may be kept.
    pub(crate) fn change_of<R: Request>(
        &self,
        keys: &[Key],
        make: impl Fn(Head) -> R,
    ) -> Result<R::Answer, Errno> {
        self.ask_changing(keys, make, self.want(true)).map(|(answer, _)| answer)
    }

    pub(crate) fn ask_changing<R: Request>(
        &self,
        keys: &[Key],
        make: impl Fn(Head) -> R,
        want: Want,
    ) -> crate::remote::Asked<R::Answer> {
        let learned = self.spreads.learned();
        self.begin_change(keys);
        let (result, sure) = self.ask_surely(make, want);
        if self.spreads.learned() != learned {
            // It may have been about a part that nobody knew of when it began.
            self.kept.lock().clear();
        }
        self.spreads.changed(keys);
        self.end_change(keys, sure);
        result
    }

    /// Others want to change it, or have its slot: it is forgotten, and then the server is told.
    pub(crate) fn recalled(
        &self,
        session: &Session,
        at: Source,
        (recalls, slots): (&[Recalled], Option<RecalledSlots>),
    ) -> Result<(), Stop> {
        let returned: Vec<Returned> =
            recalls.iter().filter_map(|recalled| self.forget_recalled(at, recalled)).collect();
        let RecalledSlots { slots, grant, .. } = slots.unwrap_or_default();
        if !slots.is_empty() {
            let slots = slots_of(&slots);
            self.kept.lock().recalled_slots(&slots, |dir, name| self.spreads.place(dir, name));
        }
        if returned.is_empty() && slots.is_empty() {
            return Ok(());
        }
        self.return_at(session, at, (returned, slots, grant))
    }

    pub(crate) fn return_at(
        &self,
        session: &Session,
        at: Source,
        (returned, slots, grant): (Vec<Returned>, Vec<u8>, u64),
    ) -> Result<(), Stop> {
        let head = Some(Head { joined: at.joined, ..session.head() });
        let request = Return { head, returned, slots, grant };
        let waits = Waits::of(self.options.patience, self.options.patience);
        ask_line(&self.home_at(at.node).control, &request, Body::default(), waits).map(drop)
    }

    /// `None`: it is given back later, when the kernel has no pages of it.
    fn forget_recalled(&self, at: Source, recalled: &Recalled) -> Option<Returned> {
        let Recalled { ino, name, grant, keeps, .. } = recalled;
        let keeps = u8::try_from(*keeps).ok().and_then(Rights::from_bits).unwrap_or(Rights::NONE);
        let keeps = keeps.both(Rights::PAGES);
        let returned = Returned { ino: *ino, name: name.clone(), keeps: keeps.bits().into(), number: *grant };
        let Some(ino) = Ino::from_raw(*ino) else { return Some(returned) };
        let key = if name.is_empty() { inode(ino) } else { entry(self.spreads.whole_of(ino), name) };
        let keeps_bytes = !keeps.is_empty();
        self.kept.lock().recalled(&key, keeps_bytes);
        if !name.is_empty() {
            return Some(returned);
        }
        if self.recalled_back(ino, (at, &returned), Remote::return_inode) {
            return None;
        }
        self.return_inode(at, returned)
    }

    /// Nothing is kept back of it. `None`: it is given back when the kernel has no pages of it.
    fn return_inode(&self, at: Source, returned: Returned) -> Option<Returned> {
        let ino = Ino::from_raw(returned.ino)?;
        if returned.keeps != 0 {
            return Some(returned);
        }
        self.caching.forget(ino);
        self.recalled_pages(ino, (at, returned)).map(|(_, returned)| returned)
    }
}
