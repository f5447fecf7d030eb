//! Who is there: sessions, the map, data servers.

use std::{sync::atomic::Ordering, time::Duration};

use lease::coherence::message::{Joined, Party};
use prost::Message;
use proto::{
    Head, Nothing, Reason, Request,
    control::{
        Facts, Hello, MapNow, MapSince, Mount, Mounted, NodeReport, NodeReported, Renew, Renewed, Unmount,
    },
    moving::StandingKind,
};
use types::{Errno, Ino};
use wire::{
    handshake::{Peer, Roles},
    schema::Retry,
};

use super::{MetadataService, fencing::data_lease, owners::Owners, session::Session, verdicts::Presence};
use crate::{
    answer::{Done, No, Outcome},
    standing,
    states::Who,
};

impl MetadataService {
    pub(super) fn hello(&self, meta: &[u8], most: usize) -> Outcome {
        let _: Hello = proto::decode(meta)?;
        if !self.nodes.has_map() {
            return Err(No::later("it has just come, and was not told the map yet"));
        }
        let map = self.nodes.map();
        let facts = Facts {
            epoch: map.epoch().0,
            node: self.options.me.as_ref().map_or(0, |me| me.id.0),
            renew_ms: millis(self.options.renew),
            silence_ms: millis(self.options.sessions.silence),
            incarnation: self.incarnation,
            life: self.terms.life().0,
            began_empty: self.began_empty,
        };
        fits(Done::with_body(&facts, map.encode()), most)
    }

    pub(super) fn map_since(&self, meta: &[u8], most: usize) -> Outcome {
        let asked: MapSince = proto::decode(meta)?;
        let map = self.nodes.map();
        let epoch = map.epoch().0;
        let body = if asked.epoch == epoch { Vec::new() } else { map.encode() };
        fits(Done::with_body(&MapNow { epoch }, body), most)
    }

    /// `client`: as who asks is called on his connection.
    pub(super) fn mount(&self, meta: &[u8], body: &[u8], (client, most): (u64, usize)) -> Outcome {
        let asked: Mount = proto::decode(meta)?;
        let id = asked.head().map(Head::session).ok_or(proto::Bad::Missing("session"))?;
        let root = match self.mds.find(Ino::ROOT) {
            // Another's.
            Err(Errno::EREMOTE) => None,
            other => Some(other?.attr.into()),
        };
        let had = Self::had(id, body)?;
        // What was said to another life is not about this one.
        if asked.life != 0 && asked.life != self.terms.life().0 {
            return Err(No::session_gone());
        }
        let brings = !had.locks.is_empty();
        // As what it came, and came back, whoever goes on with it does not know.
        let here = asked.resumes.then(|| self.sessions.asking(asked.head()).ok()).flatten();
        let joined = match &here {
            Some(session) => session.party().joined.0,
            None => self.joined(Party { session: id, joined: Joined(asked.before) }, had, asked.stamp)?,
        };
        self.sessions.mount(Party { session: id, joined: Joined(joined) }, &asked.host, (asked.node, client));
        if let Some(session) = self.sessions.get(id) {
            session.is_of_job(&asked.job);
            // What it came back with is waited for by the next life, too.
            if asked.before != 0 || brings {
                self.arrive(&session, false)?;
            }
        }
        let locks = here.and_then(|session| self.resumed(session.party()));
        let limits = self.options.sessions;
        let mounted = Mounted {
            root,
            incarnation: self.incarnation,
            uuid: self.mds.uuid().to_vec(),
            renew_ms: millis(self.options.renew),
            silence_ms: millis(limits.silence),
            openings_max: limits.openings as u64,
            references_max: limits.references as u64,
            operations_max: limits.operations as u64,
            joined,
            was_here: locks.is_some(),
        };
        let locks = locks.map_or_else(Vec::new, |locks| locks.encode_to_vec());
        fits(Done::with_body(&mounted, locks), most)
    }

    /// One that is not there has nothing.
    pub(super) fn unmount(&self, meta: &[u8]) -> Outcome {
        let asked: Unmount = proto::decode(meta)?;
        if let Ok(session) = self.sessions.asking(asked.head()) {
            let due = self.terms.leave(session.party());
            self.carry_on(due);
        }
        Ok(Done::new(&Nothing {}))
    }

    pub(super) fn renew(&self, session: &Session, asked: &Renew) -> Outcome {
        // Its answer says that what we granted stands.
        self.may_speak()?;
        asked.node.into_iter().for_each(|node| session.is_at(node));
        if asked.writes {
            self.arrive_with(session, Presence::Writing)?;
        }
        let (map_epoch, bare) = (self.nodes.epoch(), self.last_bare());
        let nameless = self.merely_known(session);
        Ok(Done::new(&Renewed { map_epoch, bare, writes: asked.writes, nameless }))
    }

    /// Of a server about itself: with TLS only who has a server's certificate can say that it is one.
    pub(super) fn node_report(&self, from: &Peer, meta: &[u8]) -> Outcome {
        let mut asked: NodeReport = proto::decode(meta)?;
        if !from.roles.has(Roles::DS) {
            return Err(Errno::EPERM.into());
        }
        self.check_state(&asked)?;
        let words = std::mem::take(&mut asked.copy_words);
        let map_epoch = self.nodes.reported(&asked)?;
        self.may_vouch()?;
        self.replicas.hear(&words);
        let wants_peers = asked.life != 0 && asked.peers_epoch != map_epoch;
        let keeps_to = asked.refuses;
        let (safe_room, any_room) = self.room_beside(asked.node);
        let nothing_safe = !self.has_what_outlives(&asked)?;
        Ok(Done::new(&NodeReported {
            map_epoch,
            again_ms: millis(self.options.report),
            safe_room,
            any_room,
            nothing_safe,
            lease_ms: if keeps_to { millis(data_lease(&self.options.sessions)) } else { 0 },
            roster: self.roster_for(asked.roster).filter(|_| keeps_to),
            peers: if wants_peers { self.nodes.peers() } else { Vec::new() },
            server: self.owners.as_ref().map_or(0, Owners::node),
        }))
    }
}

impl MetadataService {
    /// With another state it has none of the data that are known by the number.
    fn check_state(&self, report: &NodeReport) -> Result<(), No> {
        let node = report.node;
        // It is refused all the same, and gets no number.
        if self.nodes.standing(node).is_some_and(|standing| standing.kind == StandingKind::Removed) {
            return Ok(());
        }
        let who = self.states.who(node, &report.state).map_err(|error| {
            tracing::error!(node, %error, "which state a data server has was not recorded");
            No::from(Errno::EIO)
        })?;
        let Who::Other { news } = who else { return Ok(()) };
        let at = self.nodes.addresses(node).unwrap_or_default().join(", ");
        let at = if at.is_empty() { at } else { format!(" (at {at})") };
        let why = format!(
            "node {node} is another server{at}, with another state directory: give this one a node.id of its own; \
             if it is to take the place of a dead one, see \"A data server that is gone for good\" in docs/operations.md"
        );
        if news {
            let (name, addresses) = (&report.name, report.addresses.join(", "));
            tracing::warn!(node, name, addresses, why, "a data server's report is not taken");
        }
        Err(No::new(Errno::EEXIST, Retry::Never, Reason::OtherState, why))
    }

    /// Whether a data server of the cluster has, or ever had, a tier that outlives its machine. One of before the report of that is believed to.
    fn has_what_outlives(&self, report: &NodeReport) -> Result<bool, No> {
        let safe = report.pressure.is_none_or(|pressure| pressure.safe);
        if safe && !self.outlives.load(Ordering::Acquire) {
            standing::save_outlives(&self.notes).map_err(|error| {
                tracing::error!(%error, "that data can be safe was not recorded");
                No::from(Errno::EIO)
            })?;
            self.outlives.store(true, Ordering::Release);
        }
        Ok(self.outlives.load(Ordering::Acquire))
    }
}

/// A body that the asker has no room for is none.
fn fits(done: Done, most: usize) -> Outcome {
    if done.body.len() > most { Err(No::from(Errno::ERANGE)) } else { Ok(done) }
}

fn millis(of: Duration) -> u32 {
    u32::try_from(of.as_millis()).unwrap_or(u32::MAX)
}
