//! What sessions keep of names, attributes and bytes: operations claim what they change, looks grant, recalls come back.
//!
//! - I-KEEP-1: before a change begins, all that others may keep of it is given back or has lapsed; nothing of the kind is granted until it has ended.
//! - I-KEEP-2: what may be kept is read after the grant. Of a file that is being written no attributes are granted: its data servers know better.
//!   Its bytes are to who alone has it open for writing.
//! - I-KEEP-3: operations that change a name are alone with it, so what it names is what was claimed.
//! - I-KEEP-4: of several metadata servers each grants what is in its own slots, inside of their gates. What is elsewhere its owner grants. A slot goes
//!   when nobody keeps anything in it ([`super::vacating`]); so claims count also for what comes while they last.

use std::time::{Duration, Instant};

use lease::coherence::{
    message::Party,
    rights::{Claim, Key, Rights},
    server::Refused,
};
use mds::Found;
use parking_lot::{MutexGuard, RwLockReadGuard};
use proto::{
    Bad, Head, Nothing, Reason,
    leases::{Keep, Kept, Look, Looked, Return, Returned, keeps, slots_of},
    metadata::DirEntry,
};
use types::{Attr, Errno, FileKind, Ino};

use super::{
    MetadataService,
    owners::Inside,
    session::Session,
    terms::{Counts, lease_term},
    turns::Name,
    verdicts::{self, Presence},
};
use crate::answer::{Done, No, Outcome};

/// For so long a thread waits for what is recalled; then whoever asked comes again.
const CLAIM_MAX: Duration = Duration::from_millis(50);
/// Numbers of claims of openings, which have their client's number.
const OPENING: u64 = 1 << 62;
/// A name that something else takes the place of each time it is looked at is looked at so often.
const NAMES_MAX: usize = 16;

fn entry((dir, name): &Name<'_>) -> Key {
    Key::Entry { dir: *dir, name: (*name).into() }
}

/// An operation that has begun; it ends when this is dropped.
pub(super) struct Claimed<'a> {
    service: &'a MetadataService,
    by: Party,
    operation: u64,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.service.terms.end(self.by, self.operation);
    }
}

/// What was granted of an entry of a listing.
#[derive(Clone, Copy, Default)]
pub(super) struct EntryGrant {
    named: bool,
    /// The number of the inode's.
    inode: Option<u64>,
}

/// A change of names under way. The claims end before others get their turn.
pub(super) struct Changing<'a> {
    _claimed: Vec<Claimed<'a>>,
    _turns: Vec<MutexGuard<'a, ()>>,
    /// Directories are neither spread nor gathered.
    _parts: RwLockReadGuard<'a, ()>,
    /// Slots of the names stay.
    _inside: Option<Inside<'a>>,
}

impl MetadataService {
    pub fn lease_counts(&self) -> Counts {
        self.terms.counts()
    }

    pub(super) fn term_ms(&self) -> u32 {
        lease_term(&self.options.sessions).as_millis() as u32
    }

    /// Before a session has its first lock, or may keep something: a later life waits for it.
    pub(super) fn arrive(&self, session: &Session, keeping: bool) -> Result<(), No> {
        self.arrive_with(session, if keeping { Presence::Keeping } else { Presence::Locks })
    }

    pub(super) fn arrive_with(&self, session: &Session, has: Presence) -> Result<(), No> {
        let mut recorded = session.recorded.lock();
        if recorded.is_some_and(|known| known >= has) {
            return Ok(());
        }
        let known = verdicts::arrive(&self.notes, session.id, has).map_err(|error| {
            tracing::error!(session = %session.id, %error, "that a session is there was not recorded");
            No::from(Errno::EIO)
        })?;
        *recorded = Some(known);
        drop(recorded);
        if known >= Presence::Writing {
            self.leaving.writers.lock().insert(session.id);
        }
        if session.has.lock().over {
            self.depart(session);
        }
        Ok(())
    }

    /// Also one that an earlier life recorded.
    pub(super) fn depart(&self, session: &Session) {
        self.leaving.writers.lock().remove(&session.id);
        if let Err(error) = verdicts::depart(&self.notes, session.id) {
            tracing::warn!(session = %session.id, %error, "a session that has ended is waited for after the next start");
        }
    }

    fn claim_as(&self, by: Party, operation: u64, claims: Vec<(Key, Claim)>) -> Result<Claimed<'_>, No> {
        self.begin_claims(by, operation, claims)?;
        Ok(Claimed { service: self, by, operation })
    }

    fn begin_claims(&self, by: Party, operation: u64, claims: Vec<(Key, Claim)>) -> Result<(), No> {
        let (begun, due) = self.terms.begin(by, operation, claims);
        self.carry_on(due);
        match begun {
            Ok(true) => Ok(()),
            Ok(false) if self.terms.wait(by, operation, Instant::now() + CLAIM_MAX) => Ok(()),
            Ok(false) => {
                self.terms.end(by, operation);
                Err(No::later("what others keep is being asked back"))
            }
            Err(Refused::Later) => Err(No::later("who keeps what is not known yet")),
            Err(Refused::TooMany) => Err(No::too_much("as many operations as it takes")),
            Err(Refused::Gone) => Err(No::session_gone()),
        }
    }

    /// Until the result is dropped others keep nothing that this changes.
    pub(super) fn claim(&self, session: &Session, ino: Ino, claim: Claim) -> Result<Claimed<'_>, No> {
        self.all_have_said(session, ino)?;
        self.claim_here(session, ino, claim)
    }

    /// The same of what was granted here: who says what it has waits for nobody who has to do so.
    pub(super) fn claim_here(&self, session: &Session, ino: Ino, claim: Claim) -> Result<Claimed<'_>, No> {
        let claims = vec![(Key::Inode(ino), claim)];
        self.claim_as(session.party(), self.turns.next(), claims)
    }

    /// An opening for writing: others keep nothing of the file until it is closed.
    pub(super) fn claim_opening(&self, session: &Session, number: u64, ino: Ino) -> Result<(), No> {
        let claims = vec![(Key::Inode(ino), Claim::Modify)];
        self.begin_claims(session.party(), of_opening(number), claims)
    }

    pub(super) fn end_opening(&self, session: &Session, number: u64) {
        self.carry_on(self.terms.end_opening(session.party(), of_opening(number)));
    }

    /// Names come, go or move: one is alone with each of them, and others keep nothing of them, of their directories, of `inodes`, and of what they name.
    pub(super) fn change_names(
        &self,
        (session, head): (&Session, Option<Head>),
        names: &[Name<'_>],
        inodes: &[Ino],
    ) -> Result<Changing<'_>, No> {
        let inside = self.enter_needed(names.iter().map(|name| name.0))?;
        let parts = self.not_spreading()?;
        self.are_whole(names)?;
        let turns = self.turns.take(names)?;
        let head = head.unwrap_or_default();
        let (mut own, mut all) = (Vec::new(), Vec::new());
        for name in names {
            own.push((entry(name), Claim::Change));
            own.push((Key::Inode(name.0), Claim::Modify));
            // What cannot be looked up the operation itself will refuse: the directory is here.
            if let Ok((ino, _)) = self.mds.lookup_entry(name.0, name.1) {
                let knows = [head.dropped, head.dropped_too].contains(&ino.get());
                let claims = if knows { &mut own } else { &mut all };
                claims.push((Key::Inode(ino), Claim::Change));
            }
        }
        own.extend(inodes.iter().map(|ino| (Key::Inode(*ino), Claim::Change)));
        let mut claimed = vec![self.claim_as(session.party(), self.turns.next(), own)?];
        if !all.is_empty() {
            claimed.push(self.claim_as(Party::SERVER, self.turns.next(), all)?);
        }
        Ok(Changing { _claimed: claimed, _turns: turns, _parts: parts, _inside: inside })
    }

    pub(super) fn look(&self, session: &Session, asked: &Look) -> Outcome {
        let keeping = self.arrive(session, true).is_ok();
        let (ino, term_ms) = (proto::attr::ino(asked.ino)?, self.term_ms());
        let answer = Looked { attr: None, keeps: 0, term_ms, ino: 0 };
        if asked.name.is_empty() {
            if !asked.referring && self.owners.is_some() && self.mds.spread_of(ino)?.is_some() {
                return Err(No::spread());
            }
            let (attr, keeps) = self.look_at(session, ino, keeping)?;
            if asked.referring {
                self.refer(session, ino)?;
            }
            return Ok(Done::new(&Looked { attr: Some(attr.into()), keeps, ..answer }));
        }
        let name = (ino, &asked.name[..]);
        let named = if keeping && self.may_keep(session, &entry(&name)) { keeps::NAME } else { 0 };
        for _ in 0..NAMES_MAX {
            let found = match self.mds.lookup(ino, &asked.name) {
                Err(Errno::ENOENT) => return Ok(Done::new(&Looked { keeps: named, ..answer })),
                Err(Errno::EREMOTE) => self.mds.lookup_entry(ino, &asked.name)?.0,
                found => found?.attr.ino,
            };
            let Ok(_inside) = self.enter([found]) else {
                return Ok(Done::new(&Looked { keeps: named, ino: found.get(), ..answer }));
            };
            let looked = self.look_at(session, found, keeping);
            match looked.and_then(|looked| self.refer(session, found).map(|()| looked)) {
                // It was removed since the name was read: the name is no more, or names something else.
                Err(no) if no.errno() == Errno::ESTALE && Reason::of(&no.0) == Reason::None => (),
                looked => {
                    let (attr, keeps) = looked?;
                    return Ok(Done::new(&Looked {
                        attr: Some(attr.into()),
                        keeps: keeps | named,
                        ..answer
                    }));
                }
            }
        }
        Err(Errno::ENOENT.into())
    }

    fn may_keep(&self, session: &Session, key: &Key) -> bool {
        self.terms.grant(session.party(), key, Rights::ATTRIBUTES).is_some()
    }

    /// Attributes, and what may be kept of the inode.
    fn look_at(&self, session: &Session, ino: Ino, keeping: bool) -> Result<(Attr, u32), No> {
        let key = Key::Inode(ino);
        // Before the grant: who is told to come later is not told of it.
        self.all_have_said(session, ino)?;
        let grant = if keeping { self.terms.grant(session.party(), &key, Rights::ATTRIBUTES) } else { None };
        let _looking = self.look_through_here(session, ino)?;
        let found = self.mds.find(ino)?;
        let written = self.is_theirs(&found);
        let attr = self.complete(found)?;
        Ok((attr, self.kept_of(session, ino, grant, written)))
    }

    /// What may be kept of an inode, after a look at it: of a file that is being written the grant goes back.
    fn kept_of(&self, session: &Session, ino: Ino, grant: Option<u64>, written: bool) -> u32 {
        match grant {
            Some(number) if written => {
                // What its holder may keep back it has by an earlier grant.
                self.grant_no_more(session, ino, (number, Rights::PAGES.with(Rights::WRITE_BACK)));
                0
            }
            Some(_) => keeps::ATTRIBUTES,
            None => 0,
        }
    }

    /// Others know more of it than the metadata here: data servers of what is being written, and who has its parts of a directory that is spread.
    pub(super) fn is_theirs(&self, found: &Found) -> bool {
        is_written(found) || (self.owners.is_some() && found.spread.is_some())
    }

    /// What was just granted is taken back but for `keeps`: it was not told.
    fn grant_no_more(&self, session: &Session, ino: Ino, (number, keeps): (u64, Rights)) {
        let returned = Returned { number, keeps: keeps.bits().into(), ..Returned::default() };
        let due = self.terms.returned(session.party(), &[(Key::Inode(ino), returned)]);
        self.carry_on(due);
    }

    /// May what the session reads of the file from now on be kept? Who has it open for writing excludes that, by his claim; a session of an earlier
    /// life may have it open for writing and did not come back yet.
    pub(super) fn keep_bytes(&self, session: &Session, ino: Ino) -> Kept {
        if self.arrive(session, true).is_err() {
            return Kept::default();
        }
        let none = Kept { keeps: 0, term_ms: self.term_ms() };
        let unknown = self.in_grace() || self.all_have_said(session, ino).is_err();
        if unknown || self.terms.grant(session.party(), &Key::Inode(ino), Rights::PAGES).is_none() {
            return none;
        }
        Kept { keeps: keeps::BYTES, ..none }
    }

    pub(super) fn keep(&self, session: &Session, asked: &Keep) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        self.mds.find(ino)?;
        Ok(Done::new(&self.keep_bytes(session, ino)))
    }

    /// Before an entry of a listing is looked at. It may have changed since the listing was read.
    pub(super) fn grant_entry(&self, session: &Session, dir: Ino, entry_of: &DirEntry) -> EntryGrant {
        let name = (dir, &entry_of.name[..]);
        if !self.may_keep(session, &entry(&name)) {
            return EntryGrant::default();
        }
        match self.mds.lookup_entry(dir, &entry_of.name) {
            Ok((ino, _)) if ino.get() == entry_of.ino => {
                let here = self.enter([ino]);
                let grant = || self.terms.grant(session.party(), &Key::Inode(ino), Rights::ATTRIBUTES);
                EntryGrant { named: true, inode: here.ok().and_then(|_inside| grant()) }
            }
            Ok(_) | Err(_) => EntryGrant::default(),
        }
    }

    /// After the look.
    pub(super) fn kept_of_entry(&self, session: &Session, ino: Ino, grant: EntryGrant, written: bool) -> u32 {
        let named = if grant.named { keeps::NAME } else { 0 };
        self.kept_of(session, ino, grant.inode, written) | named
    }

    /// `None`: nothing may be kept of listings.
    pub(super) fn listing_term(&self, session: &Session) -> Option<u32> {
        self.arrive(session, true).is_ok().then(|| self.term_ms())
    }

    pub(super) fn give_back(&self, session: &Session, asked: &Return) -> Outcome {
        let key = |one: &Returned| -> Result<Key, Bad> {
            let ino = proto::attr::ino(one.ino)?;
            Ok(if one.name.is_empty() { Key::Inode(ino) } else { entry(&(ino, &one.name)) })
        };
        let returned: Vec<(Key, Returned)> =
            asked.returned.iter().map(|one| Ok((key(one)?, one.clone()))).collect::<Result<_, Bad>>()?;
        let due = self.terms.returned(session.party(), &returned);
        self.carry_on(due);
        if !asked.slots.is_empty() {
            let slots = slots_of(&asked.slots);
            let due = self.terms.returned_slots(session.party(), &slots, asked.grant);
            self.carry_on(due);
        }
        Ok(Done::new(&Nothing {}))
    }
}

/// Its data servers know more of it than the metadata.
pub(super) fn is_written(found: &Found) -> bool {
    found.attr.kind == FileKind::Regular && found.data.live
}

pub(super) fn of_opening(number: u64) -> u64 {
    (number & (OPENING - 1)) | OPENING
}
