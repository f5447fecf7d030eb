//! Data servers that are taken out, where there are several metadata servers. Who is on duty keeps the record beside the names, tells all, and adds up what
//! each says of its own slots; each moves the files in its slots.
//!
//! - I-OUT-1: draining is answered when all who may choose a place have heard of it. Who joins, and who gets slots, is told before.
//! - I-OUT-2: a data server is empty when each slot was looked through by a server that had it all the time, after that server had heard, and nothing was
//!   found. Nothing comes to it any more, so that stays true of a slot wherever it goes.
//! - I-OUT-3: attempts to move a stripe begin with a number of the file system's that nobody had before, asked for after the slot came: so they are higher than
//!   those of all earlier owners of the slot.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cluster::NodeId;
use kv::MetaStore;
use namespace::superblock::{Stored, Superblock};
use prost::Message;
use proto::{
    Nothing,
    moving::{Standing as Said, StandingKind},
    owners::{runs, slots},
    taking_out::{DrainLook, DrainLooks, KnowStandings, LookAtDrains},
};
use types::{Errno, Ino, SLOTS, Slot};
use wire::{handshake::Roles, schema::Retry};

use super::{Inside, start::about};
use crate::{
    answer::{Done, No, Outcome},
    metadata::MetadataService,
    standing::Standing,
};

/// Another metadata server's answer.
const WAIT: Duration = Duration::from_secs(2);

/// What one of the others says; nothing, if it does not answer.
pub(crate) struct Other {
    name: String,
    heard: bool,
    pub looks: Vec<DrainLook>,
}

impl MetadataService {
    /// Where it is recorded who is taken out.
    pub(in crate::metadata) fn standings_store(&self) -> &Arc<MetaStore> {
        if self.owners.is_some() { &self.store } else { &self.notes }
    }

    /// Of several this is the one on duty, and stays it until this is dropped.
    pub(in crate::metadata) fn inside_duty(&self) -> Result<Option<Inside<'_>>, No> {
        if self.owners.is_some() {
            self.on_duty()?;
        }
        self.enter([Ino::ROOT])
    }

    pub(super) fn know_standings_now(&self) -> KnowStandings {
        let version = self.nodes.standings_version();
        let said = |(node, standing): (u64, Standing)| Said {
            node,
            name: standing.name,
            kind: standing.kind.into(),
            ..Said::default()
        };
        KnowStandings { version, standings: self.nodes.standings().into_iter().map(said).collect() }
    }

    /// Tells all others. Whoever does not hear may give such a data server something: then it is an error, and they are told when they join.
    pub(in crate::metadata) fn tell_standings(&self) -> Result<(), No> {
        let Some(owners) = &self.owners else { return Ok(()) };
        let (map, told) = (self.nodes.map(), self.know_standings_now());
        let mut silent = Vec::new();
        for node in map.nodes().filter(|node| node.roles.has(Roles::MDS) && node.id != owners.me.id) {
            let told = owners.peers.of(&map, node.id).and_then(|peer| peer.ask(&told, Vec::new(), WAIT));
            let may_place = || self.is_heard(node.id) || map.slots_of(node.id).next().is_some();
            if told.is_err() && may_place() {
                silent.push(node.name.clone());
            }
        }
        if silent.is_empty() {
            return Ok(());
        }
        let why = format!(
            "it is recorded, but not all metadata servers have heard of it ({}): ask again when they run",
            silent.join(", ")
        );
        Err(No::new(Errno::EBUSY, Retry::Never, proto::Reason::None, why))
    }

    pub(in crate::metadata) fn know_standings(&self, meta: &[u8]) -> Outcome {
        let asked: KnowStandings = proto::decode(meta)?;
        if self.shared()?.is_on_duty() {
            return Err(No::wrong_owner(self.nodes.epoch()));
        }
        self.take_standings(&asked)?;
        Ok(Done::new(&Nothing {}))
    }

    pub(super) fn take_standings(&self, told: &KnowStandings) -> Result<(), No> {
        if told.version == self.nodes.standings_version() {
            return Ok(());
        }
        let mut standings = BTreeMap::new();
        for Said { node, name, kind, .. } in &told.standings {
            let kind = StandingKind::try_from(*kind).map_err(|_| Errno::EINVAL)?;
            standings.insert(*node, Standing { kind, name: name.clone() });
        }
        // Nobody is choosing, and whoever chooses later knows it.
        let _alone = self.drains.placing.write();
        for node in self.nodes.adopt_standings(told.version, standings) {
            if self.nodes.standing(node).is_some_and(|standing| standing.kind == StandingKind::Removed) {
                self.forget_state(node);
            }
            self.has_other_standing(node);
        }
        Ok(())
    }

    /// On duty from now on: as it is recorded.
    pub(in crate::metadata) fn load_standings(&self) -> Result<(), No> {
        let _alone = self.drains.placing.write();
        let standings = crate::standing::load(self.standings_store()).map_err(|error| {
            tracing::error!(%error, "which data servers are taken out is not known");
            No::from(Errno::EIO)
        })?;
        self.nodes.know(standings);
        Ok(())
    }

    /// Slots that are served here; of one metadata server all.
    pub(in crate::metadata) fn served(&self) -> Vec<u16> {
        Slot::all().filter(|slot| self.mds.serves(*slot)).map(Slot::get).collect()
    }

    pub(in crate::metadata) fn look_at_drains(&self, meta: &[u8]) -> Outcome {
        let _: LookAtDrains = proto::decode(meta)?;
        let mut nodes: BTreeSet<u64> = self.nodes.draining().into_iter().collect();
        nodes.extend(self.sendings.table.lock().keys());
        let look = |node: u64| {
            let name = self.nodes.name_of(node).unwrap_or_default();
            let slots = self.drains.table.lock().get(&node).map(|drain| drain.slots.clone());
            DrainLook { standing: Some(self.said_here(node, name)), slots: runs(slots.unwrap_or_default()) }
        };
        let looks = DrainLooks { looks: nodes.into_iter().map(look).collect() };
        Ok(Done::with_body(&Nothing {}, looks.encode_to_vec()))
    }

    /// What the others say of their slots. For who is on duty.
    pub(in crate::metadata) fn looks_of_others(&self) -> Result<Vec<Other>, No> {
        if self.owners.is_none() {
            return Ok(Vec::new());
        }
        let (owners, _) = self.on_duty()?;
        let map = self.nodes.map();
        let others = map.nodes().filter(|node| node.roles.has(Roles::MDS) && node.id != owners.me.id);
        let look = |id: NodeId| -> Result<Vec<DrainLook>, No> {
            let (_, body) = owners.peers.of(&map, id)?.ask(&LookAtDrains {}, Vec::new(), WAIT)?;
            let looks = DrainLooks::decode(&body[..]).map_err(|_| Errno::EIO)?;
            looks.check()?;
            Ok(looks.looks)
        };
        let asked = others.map(|node| {
            let looks = look(node.id);
            Other { name: node.name.clone(), heard: looks.is_ok(), looks: looks.unwrap_or_default() }
        });
        Ok(asked.collect())
    }

    /// What this server says of a data server, and what the others do.
    pub(in crate::metadata) fn said_by_all(&self, here: Said, others: &[Other]) -> Said {
        if self.owners.is_none() {
            return here;
        }
        let own = self.drains.table.lock().get(&here.node).map(|drain| drain.slots.clone());
        let own = own.filter(|_| here.known);
        let mut looked: BTreeSet<u16> = own.unwrap_or_default().into_iter().collect();
        let mut all = here;
        for look in others.iter().flat_map(|other| &other.looks) {
            let Some(said) = look.standing.as_ref().filter(|said| said.node == all.node) else { continue };
            if said.kind == all.kind {
                // One that moved the last of what it found looks again.
                looked.extend(slots(&look.slots).into_iter().filter(|_| said.known));
                add(&mut all, said);
            }
            all.full |= said.full;
            all.files_sent += said.files_sent;
            all.bytes_sent += said.bytes_sent;
            if all.stuck.is_empty() {
                all.stuck.clone_from(&said.stuck);
            }
        }
        if all.kind() == StandingKind::Draining {
            all.known = looked.len() == SLOTS as usize;
            let silent = others.iter().find(|other| !other.heard);
            if let (false, true, Some(silent)) = (all.known, all.why.is_empty(), silent) {
                all.why = format!("metadata server {} does not answer", silent.name);
            }
        }
        all
    }

    /// What attempts begin with.
    pub(in crate::metadata) fn attempt_era(&self) -> Result<u32, No> {
        let mut era = self.drains.era.lock();
        let comings = self.mds.comings();
        if let Some((_, number)) = era.filter(|(at, _)| *at == comings) {
            return Ok(number);
        }
        let number = self.fresh_number()?;
        *era = Some((comings, number));
        Ok(number)
    }

    /// A number that nobody had before.
    fn fresh_number(&self) -> Result<u32, No> {
        let owners = self.shared()?;
        if owners.is_on_duty() {
            let number = self.mds.welcome()?.superblock.epoch;
            self.settled_here()?;
            return Ok(number);
        }
        let map = self.nodes.map();
        let on_duty = map.slot(Ino::ROOT.ugsd().slot()).owner;
        let on_duty = on_duty.ok_or_else(|| No::later("nobody on duty is known"))?;
        let asked = about(&owners.following.joining, (self.incarnation, map.epoch().0), true);
        let (joined, _) = owners.peers.of(&map, on_duty)?.ask(&asked, Vec::new(), WAIT)?;
        match Superblock::decode(&joined.superblock) {
            Some(Stored::Here(superblock)) => Ok(superblock.epoch),
            Some(_) | None => Err(No::later("the server on duty gave no number")),
        }
    }
}

fn add(all: &mut Said, said: &Said) {
    all.files_left += said.files_left;
    all.bytes_left += said.bytes_left;
    all.files_moved += said.files_moved;
    all.bytes_moved += said.bytes_moved;
    all.files_failed += said.files_failed;
    if all.why.is_empty() {
        all.why.clone_from(&said.why);
    }
}
