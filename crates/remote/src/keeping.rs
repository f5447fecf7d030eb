//! Looks that are answered from what is kept, and what has to be known of it when something changes.
//!
//! The kernel keeps nothing: it asks each time, and is answered here, without a request over the network. To have it forget a name takes the lock of the
//! directory, which it holds itself while it waits for one of our answers; and an answer that is on its way to it cannot be called back.

use std::time::{Duration, Instant};

use lease::coherence::rights::{Key, Rights};
use proto::{
    Head, Request,
    leases::{Look, Looked, Recalled, Return, Returned, keeps},
};
use types::{Attr, Errno, Ino};

use crate::{
    Remote,
    kept::{Kept, KeptCounts, Ticket},
    keys::{entry, inode},
    line::Stop,
    names::{Place, attr_of},
    remote::Want,
    session::Session,
};

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

    /// Of several metadata servers none grants anything.
    pub(crate) fn keeps(&self) -> bool {
        self.options.leases && !self.has_homes()
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

    /// A name, or with an empty one the inode itself.
    fn look_up(&self, ino: Ino, name: &[u8]) -> Result<Option<Attr>, Errno> {
        let asked = self.asked_to_keep();
        let looked: Looked =
            self.look(|head| Look { head: Some(head), ino: ino.get(), name: name.to_vec() })?;
        let attr = looked.attr.map(|attr| attr_of(Some(attr))).transpose()?;
        let mut kept = self.kept.lock();
        let now = Instant::now();
        kept.heard_term(asked.ticket, now, Duration::from_millis(looked.term_ms.into()));
        self.keep(&mut kept, (asked.ticket, now), (ino, name), (attr, looked.keeps));
        drop(kept);
        Ok(attr)
    }

    pub(crate) fn keep(
        &self,
        kept: &mut Kept,
        at: (Ticket, Instant),
        (dir, name): (Ino, &[u8]),
        (attr, keeping): (Option<Attr>, u32),
    ) {
        if let Some(attr) = attr.filter(|_| keeping & keeps::ATTRIBUTES != 0) {
            kept.keep_attr(at, attr);
        }
        if keeping & keeps::NAME != 0 && !name.is_empty() {
            kept.keep_name(at, (dir, name), attr.map(|attr| attr.ino));
        }
    }

    pub(crate) fn look_name(&self, at: Place<'_>) -> Result<Attr, Errno> {
        let attr = self.look_up(at.dir, at.name)?.ok_or(Errno::ENOENT)?;
        self.references.add(attr.ino);
        Ok(attr)
    }

    pub(crate) fn look_inode(&self, ino: Ino) -> Result<Attr, Errno> {
        self.look_up(ino, b"")?.ok_or(Errno::EIO)
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
        self.begin_change(keys);
        let (result, sure) = self.ask_surely(make, want);
        self.end_change(keys, sure);
        result
    }

    /// Others want to change it: it is forgotten, and then the server is told.
    pub(crate) fn recalled(&self, session: &Session, recalls: &[Recalled]) -> Result<(), Stop> {
        if recalls.is_empty() {
            return Ok(());
        }
        let returned: Vec<Returned> =
            recalls.iter().filter_map(|recalled| self.forget_recalled(session, recalled)).collect();
        if returned.is_empty() {
            return Ok(());
        }
        let request = Return { head: Some(session.head()), returned };
        self.ask_control(&request, self.options.patience).map(drop)
    }

    /// `None`: it is given back later, when the kernel has no pages of it.
    fn forget_recalled(&self, session: &Session, recalled: &Recalled) -> Option<Returned> {
        let Recalled { ino, name, grant, keeps, .. } = recalled;
        let keeps = u8::try_from(*keeps).ok().and_then(Rights::from_bits).unwrap_or(Rights::NONE);
        let keeps = keeps.both(Rights::PAGES);
        let returned = Returned { ino: *ino, name: name.clone(), keeps: keeps.bits().into(), number: *grant };
        let Some(ino) = Ino::from_raw(*ino) else { return Some(returned) };
        let key = if name.is_empty() { inode(ino) } else { entry(ino, name) };
        let keeps_bytes = !keeps.is_empty();
        self.kept.lock().recalled(&key, keeps_bytes);
        if !name.is_empty() {
            return Some(returned);
        }
        if self.recalled_back(ino, session, &returned, Remote::return_inode) {
            return None;
        }
        self.return_inode(session, returned)
    }

    /// Nothing is kept back of it. `None`: it is given back when the kernel has no pages of it.
    fn return_inode(&self, session: &Session, returned: Returned) -> Option<Returned> {
        let ino = Ino::from_raw(returned.ino)?;
        if returned.keeps != 0 {
            return Some(returned);
        }
        self.caching.forget(ino);
        self.recalled_pages(ino, (session.joined, returned)).map(|(_, returned)| returned)
    }
}
