//! The server on duty: who comes, hand-overs, and the map that says how it is.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use cluster::{
    Change, NodeId,
    load::Loads as SlotLoads,
    map::{ClusterMap, SlotEpoch},
    node::{Node, NodeState, RACK},
    plan::Plan,
    tail::choice,
};
use prost::Message;
use proto::{
    Nothing, Reason,
    owners::{
        self, Bring, JoinMetadata, JoinedMetadata, LetGo, PART_BYTES, PutState, SlotState, StatePart, TakeOn,
    },
};
use types::{Errno, Ino, Slot};
use wire::{handshake::Roles, schema::Retry};

use super::{
    Owners,
    halves::all_that_goes,
    rights::as_slots,
    turn::{Duty, Heard, SILENCE, Turn},
};
use crate::{
    answer::{Done, No, Outcome},
    metadata::MetadataService,
};

/// A message of a hand-over: more than what is inside of a slot may take. Who is not heard any more is not waited for.
const WAIT: Duration = Duration::from_secs(10);
/// The same, for a server that has clients give back what they keep in the slots.
const LET_GO_WAIT: Duration = Duration::from_secs(20);
/// What was brought for one operation goes back after so long: others of the kind may follow.
const LENT_FOR: Duration = Duration::from_secs(1);
/// Who comes while another hand-over is under way waits so long.
const TURN_WAIT: Duration = Duration::from_secs(15);
/// Before slots are let go, for a connection to who is to take them.
const REACH_WAIT: Duration = Duration::from_millis(500);
/// Of slots that do not go together, parts are tried for so long: others wait for their turn.
const HALVE_FOR: Duration = Duration::from_secs(5);
/// Loads are looked at so often.
const PERIOD: Duration = Duration::from_secs(5);
/// Slots that are nobody's are looked for so often.
const LOOK: Duration = Duration::from_secs(2);

pub(super) fn own(slots: &[u16], owner: NodeId, epochs: &[u64]) -> Vec<Change> {
    let slots = as_slots(slots).into_iter().zip(epochs);
    slots.map(|(slot, epoch)| Change::Own { slot, owner, epoch: SlotEpoch(*epoch) }).collect()
}

impl MetadataService {
    pub(super) fn on_duty(&self) -> Result<(&Owners, &Duty), No> {
        let owners = self.shared()?;
        let duty = owners.duty().ok_or_else(|| No::wrong_owner(self.nodes.epoch()))?;
        match &owners.tails {
            // Another may be on duty by now.
            Some(tails) if tails.keeper.is_over() => Err(No::wrong_owner(self.nodes.epoch())),
            Some(tails) if !tails.keeper.may_act() => Err(No::later("its standby does not answer")),
            Some(_) | None => Ok((owners, duty)),
        }
    }

    pub(in crate::metadata) fn join_metadata(&self, meta: &[u8]) -> Outcome {
        let (here, duty) = self.on_duty()?;
        let asked: JoinMetadata = proto::decode(meta)?;
        let node = NodeId(asked.node);
        let known = {
            let mut heard = duty.heard.lock();
            let (incarnation, epoch) = (asked.incarnation, cluster::Epoch(asked.epoch));
            let now = Heard { at: Instant::now(), incarnation, epoch };
            heard.insert(node, now).is_some_and(|before| before.incarnation == asked.incarnation)
        };
        let map = self.nodes.map();
        let mut changes = Vec::new();
        if !known || map.node(node).is_none_or(|there| there.addresses != asked.addresses) {
            changes.push(Change::Put(as_node(&asked, &map)?));
        }
        let claims: BTreeMap<u16, u64> =
            owners::slots(&asked.slots).into_iter().zip(asked.epochs.iter().copied()).collect();
        for (slot, epoch) in &claims {
            let Some(slot) = Slot::new(*slot) else { continue };
            if map.slot(slot).epoch < SlotEpoch(*epoch) {
                changes.push(Change::Own { slot, owner: node, epoch: SlotEpoch(*epoch) });
            }
        }
        if !known {
            // What it had in an earlier life and has not now.
            let lost = map.slots_of(node).filter(|slot| !claims.contains_key(&slot.get()));
            changes.extend(lost.map(Change::Release));
        }
        let had_left = map.node(node).is_some_and(|there| there.state == NodeState::Draining);
        self.nodes.change(&changes)?;
        if !known && had_left {
            duty.came_again.lock().insert(node);
        }
        self.doubt_strays(duty, node, &claims);
        if !known {
            here.peers.forget(node);
            tracing::info!(%node, name = asked.name, slots = claims.len(), "a metadata server has come");
        }
        let mut superblock = Vec::new();
        if asked.fresh {
            superblock = self.mds.welcome()?.superblock.encode().to_vec();
            // Whoever goes on in our place does not give the number again.
            self.settled_here()?;
        }
        let standings = Some(self.know_standings_now());
        let joined = JoinedMetadata { superblock, incarnation: self.incarnation, standings };
        let map = self.nodes.map();
        let body = if map.epoch().0 == asked.epoch { Vec::new() } else { map.encode() };
        Ok(Done::with_body(&joined, body))
    }

    /// Slots that a server has and the map says nobody has: it got them just when it came anew, and said then that it has none. They come to us.
    fn doubt_strays(&self, duty: &Duty, node: NodeId, claims: &BTreeMap<u16, u64>) {
        let map = self.nodes.map();
        let stray = |(number, epoch): (&u16, &u64)| {
            let entry = map.slot(Slot::new(*number)?);
            (entry.owner.is_none() && entry.epoch == SlotEpoch(*epoch)).then_some(*number)
        };
        let strays: Vec<u16> = claims.iter().filter_map(stray).collect();
        if strays.is_empty() {
            return;
        }
        // Else the next time: they may be on their way just now.
        if let Some(mut turn) = duty.turn.try_lock().filter(|turn| !turn.knows_any(&strays)) {
            turn.doubtful.push((strays, node));
        }
    }

    pub(in crate::metadata) fn bring_slots(&self, meta: &[u8]) -> Outcome {
        let asked: Bring = proto::decode(meta)?;
        self.bring(&owners::slots(&asked.slots), (NodeId(asked.node), asked.stay))?;
        Ok(Done::new(&Nothing {}))
    }

    /// Gives them all to one server, for an operation or so that they stay there.
    pub(super) fn bring(&self, numbers: &[u16], (to, stay): (NodeId, bool)) -> Result<(), No> {
        let (owners, duty) = self.on_duty()?;
        may_be_given(&self.nodes.map(), to, stay)?;
        let turn = duty.turn.try_lock_for(TURN_WAIT);
        let mut turn = turn.ok_or_else(|| No::later("slots are on their way for long"))?;
        for (from, slots) in by_owner(&self.nodes.map(), numbers) {
            if from == Some(to) {
                if stay {
                    turn.keep(&slots);
                }
                continue;
            }
            let from = match from {
                Some(from) => from,
                None => {
                    self.adopt(owners, &mut turn, &slots)?;
                    owners.me.id
                }
            };
            if from != to {
                self.hand_over(owners, &mut turn, &slots, (from, to))?;
            }
            if stay {
                turn.keep(&slots);
                continue;
            }
            for slot in as_slots(&slots) {
                let home = turn.lent.get(&slot).map_or(from, |(home, _)| *home);
                if home == to {
                    turn.lent.remove(&slot);
                } else {
                    turn.lent.insert(slot, (home, Instant::now()));
                }
            }
        }
        Ok(())
    }

    /// One hand-over. After an error the slots are where they were, or adrift until we take them.
    fn hand_over(
        &self,
        owners: &Owners,
        turn: &mut Turn,
        slots: &[u16],
        (from, to): (NodeId, NodeId),
    ) -> Result<(), No> {
        if from == to || slots.is_empty() {
            return Ok(());
        }
        if slots.contains(&Ino::ROOT.ugsd().slot().get()) {
            // Who has it is on duty.
            return Err(No::wrong_owner(self.nodes.epoch()));
        }
        if to != owners.me.id && !self.is_there(owners, to) {
            return Err(No::later("the metadata server that slots are for is silent"));
        }
        let state = if from == owners.me.id {
            self.let_go(owners, slots)?
        } else {
            let fetched = self.fetch_state(owners, slots, from);
            if fetched.as_ref().is_err_and(|no| no.errno() != Errno::EAGAIN) {
                turn.doubtful.push((slots.to_vec(), from));
            }
            fetched?
        };
        let mut failed = None;
        let takers = [Some(to), Some(from), None];
        for taker in takers {
            let (taker, epochs) = match taker {
                Some(taker) => (taker, self.give(owners, turn, slots, &state, taker)),
                None => {
                    let taken = self.take_at_last(owners, slots, &state);
                    (owners.me.id, taken.map(|taken| epochs_of(&taken, slots)))
                }
            };
            match epochs {
                Ok(epochs) => {
                    self.nodes.change(&own(slots, taker, &epochs))?;
                    tracing::debug!(slots = slots.len(), first = slots[0], %from, %taker, "slots have gone");
                    return failed.map_or(Ok(()), Err);
                }
                Err(no) => failed = failed.or(Some(no)),
            }
        }
        tracing::error!(slots = slots.len(), first = slots[0], "slots are adrift: nobody takes them now");
        let release: Vec<Change> = as_slots(slots).into_iter().map(Change::Release).collect();
        self.nodes.change(&release)?;
        turn.adrift.push((slots.to_vec(), state));
        failed.map_or(Ok(()), Err)
    }

    pub(super) fn is_heard(&self, node: NodeId) -> bool {
        let Ok((owners, _)) = self.on_duty() else { return false };
        node == owners.me.id || owners.is_heard(node)
    }

    /// It is heard, and can be asked: slots are not let go for one that has just died.
    pub(super) fn is_there(&self, owners: &Owners, node: NodeId) -> bool {
        let peer = || owners.peers.of(&self.nodes.map(), node).ok();
        owners.is_heard(node) && peer().is_some_and(|peer| peer.connected(REACH_WAIT).is_some())
    }

    /// Has each server that is heard a map with all of them? Else it might not find who is on duty next.
    pub(super) fn all_know_all(&self, duty: &Duty) -> bool {
        let map = self.nodes.map();
        let servers = map.nodes().filter(|node| node.roles.has(Roles::MDS));
        let last = servers.map(|node| node.joined).max();
        let heard = duty.heard.lock();
        let mut heard = heard.values().filter(|heard| heard.is_lately());
        heard.all(|heard| Some(heard.epoch) >= last)
    }

    /// What sessions had in slots that another has let go at our word.
    fn fetch_state(&self, owners: &Owners, slots: &[u16], from: NodeId) -> Result<Vec<u8>, No> {
        let peer = owners.peers.of(&self.nodes.map(), from)?;
        let let_go = LetGo { slots: owners::runs(slots.iter().copied()) };
        // Asked again it has the same answer.
        let is_heard = || owners.is_heard(from);
        let ask = |wait| peer.ask_while(&let_go, Vec::new(), wait, is_heard);
        let (gone, _) = ask(LET_GO_WAIT).or_else(|_| ask(WAIT))?;
        if gone.length > owners::STATE_BYTES_MAX {
            return Err(No::later("more is open in the slots than can go with them"));
        }
        let mut state = Vec::new();
        while (state.len() as u64) < gone.length {
            let part = StatePart { ticket: gone.ticket, offset: state.len() as u64 };
            let (_, bytes) = peer.ask_while(&part, Vec::new(), WAIT, is_heard)?;
            if bytes.is_empty() {
                return Err(Errno::EIO.into());
            }
            state.extend(bytes);
        }
        Ok(state)
    }

    /// Returns the slots' epochs.
    fn give(
        &self,
        owners: &Owners,
        turn: &mut Turn,
        slots: &[u16],
        state: &[u8],
        to: NodeId,
    ) -> Result<Vec<u64>, No> {
        let next_ugsd = self.mds.next_ugsd()?;
        if to == owners.me.id {
            // Refused if somebody has something there who was given up here: he may be whole where he asks.
            let state = SlotState::decode(state).map_err(|_| Errno::EIO)?;
            let taken = self.take_on(owners, slots, &state, next_ugsd)?;
            return Ok(epochs_of(&taken, slots));
        }
        let peer = owners.peers.of(&self.nodes.map(), to)?;
        let is_heard = || owners.is_heard(to);
        turn.tickets += 1;
        let ticket = turn.tickets;
        for (n, part) in state.chunks(PART_BYTES as usize).enumerate() {
            let offset = n as u64 * u64::from(PART_BYTES);
            peer.ask_while(&PutState { ticket, offset }, part.to_vec(), WAIT, is_heard)?;
        }
        let slots = owners::runs(slots.iter().copied());
        let take_on = TakeOn {
            slots,
            ticket,
            length: state.len() as u64,
            next_ugsd,
            standings: Some(self.know_standings_now()),
        };
        let taken = peer.ask_while(&take_on, Vec::new(), WAIT, is_heard)?;
        Ok(taken.0.epochs)
    }

    /// Takes slots that are nobody's, for whoever needs them or because somebody has to.
    fn adopt(&self, owners: &Owners, turn: &mut Turn, slots: &[u16]) -> Result<(), No> {
        self.take_adrift(owners, turn, &|some| some.iter().any(|slot| slots.contains(slot)))?;
        let map = self.nodes.map();
        let free = as_slots(slots).into_iter().filter(|slot| map.slot(*slot).owner.is_none());
        let free: Vec<u16> = free.map(Slot::get).collect();
        if free.is_empty() {
            return Ok(());
        }
        self.take_bare(owners, &free)
    }

    /// Those that were let go and taken by nobody, with what sessions have in them.
    fn take_adrift(
        &self,
        owners: &Owners,
        turn: &mut Turn,
        wanted: &dyn Fn(&[u16]) -> bool,
    ) -> Result<(), No> {
        let map = self.nodes.map();
        let nobodys = |some: &[u16]| as_slots(some).iter().any(|slot| map.slot(*slot).owner.is_none());
        let mut failed = Ok(());
        for (some, state) in std::mem::take(&mut turn.adrift) {
            if !nobodys(&some) {
                // Whoever was to take them had, and only his answer was lost.
                continue;
            }
            if failed.is_err() || !wanted(&some) {
                turn.adrift.push((some, state));
                continue;
            }
            let taken = self.take_at_last(owners, &some, &state);
            let changes = taken.map(|taken| own(&some, owners.me.id, &epochs_of(&taken, &some)));
            failed = changes.and_then(|changes| self.nodes.change(&changes));
            if failed.is_err() {
                turn.adrift.push((some, state));
            }
        }
        failed
    }

    /// What is due by itself.
    pub(in crate::metadata) fn tend_slots(&self) {
        let Ok((owners, duty)) = self.on_duty() else { return };
        let Some(mut turn) = duty.turn.try_lock() else { return };
        self.choose_standbys();
        self.settle_doubts(owners, &mut turn);
        if turn.looked.elapsed() >= LOOK
            && let Err(no) = self.take_adrift(owners, &mut turn, &|_| true)
        {
            tracing::warn!(detail = no.0.detail, "slots are adrift still");
        }
        if owners.is_leaving() {
            return;
        }
        self.return_lent(owners, &mut turn);
        self.share_with_newcomers(owners, &mut turn);
        self.hand_back(owners, &mut turn);
        if turn.relieved.elapsed() >= PERIOD {
            turn.relieved = Instant::now();
            self.relieve(owners, &mut turn);
        }
        if turn.looked.elapsed() >= LOOK {
            turn.looked = Instant::now();
            self.adopt_given_up(owners, &mut turn);
        }
    }

    /// Slots of nobody, or of a server that is silent: of those the row says whether it gave them up in order. Most often it has them still.
    fn adopt_given_up(&self, owners: &Owners, turn: &mut Turn) {
        let map = self.nodes.map();
        let known = |slot: Slot| {
            let of = |some: &Vec<u16>| some.contains(&slot.get());
            turn.doubtful.iter().any(|(some, _)| of(some)) || turn.adrift.iter().any(|(some, _)| of(some))
        };
        let may_be = map.slots().filter(|(slot, entry)| {
            !self.mds.serves(*slot) && entry.owner.is_none_or(|owner| !self.is_heard(owner)) && !known(*slot)
        });
        let may_be: Vec<u16> = may_be.map(|(slot, _)| slot.get()).collect();
        if may_be.is_empty() {
            return;
        }
        let ours = match owners.rights.take_free(&may_be) {
            Ok(ours) => ours,
            Err(why) => return tracing::debug!(why, "slots that may be nobody's were not asked for"),
        };
        let gained: Vec<u16> = ours.into_keys().collect();
        if !gained.is_empty()
            && let Err(no) = self.take_bare(owners, &gained)
        {
            tracing::warn!(
                slots = gained.len(),
                detail = no.0.detail,
                "slots that nobody has are not served"
            );
        }
    }

    /// What sessions have in them nobody could say.
    fn take_bare(&self, owners: &Owners, numbers: &[u16]) -> Result<(), No> {
        let slots = as_slots(numbers);
        let next_ugsd = self.mds.next_ugsd()?;
        let expected = self.expect_sessions(owners, &slots, false);
        let taken = match self.take_on(owners, numbers, &SlotState::default(), next_ugsd) {
            Ok(taken) => taken,
            Err(no) => {
                self.do_not_expect(owners, expected);
                return Err(no);
            }
        };
        self.nodes.change(&own(numbers, owners.me.id, &epochs_of(&taken, numbers)))
    }

    fn choose_standbys(&self) {
        let changes = choice::choose(&self.nodes.map(), |node| self.is_heard(node));
        if let Err(no) = self.nodes.change(&changes) {
            tracing::warn!(detail = no.0.detail, "standbys stay as they are");
        }
    }

    /// Slots that were let go, or not: they come to us, with what sessions have in them.
    fn settle_doubts(&self, owners: &Owners, turn: &mut Turn) {
        let map = self.nodes.map();
        for (mut slots, from) in std::mem::take(&mut turn.doubtful) {
            // Of a dead one its standby has them by now.
            slots.retain(|slot| {
                let owner = Slot::new(*slot).and_then(|slot| map.slot(slot).owner);
                owner.is_none_or(|owner| owner == from)
            });
            if !self.is_heard(from) && !slots.is_empty() {
                turn.doubtful.push((slots, from));
                continue;
            }
            // What is in doubt still is noted again.
            if let Err(no) = self.hand_over(owners, turn, &slots, (from, owners.me.id)) {
                tracing::warn!(%from, detail = no.0.detail, "slots are in doubt");
            }
        }
    }

    fn return_lent(&self, owners: &Owners, turn: &mut Turn) {
        let due: Vec<(Slot, NodeId)> = turn
            .lent
            .iter()
            .filter(|(_, (_, since))| since.elapsed() >= LENT_FOR)
            .map(|(slot, (home, _))| (*slot, *home))
            .collect();
        let map = self.nodes.map();
        let mut moves: BTreeMap<(NodeId, NodeId), Vec<u16>> = BTreeMap::new();
        for (slot, home) in due {
            turn.lent.remove(&slot);
            if let Some(owner) = map.slot(slot).owner {
                moves.entry((owner, home)).or_default().push(slot.get());
            }
        }
        for (way, slots) in moves {
            if let Err(no) = self.hand_over_what_goes(owners, turn, &slots, way) {
                tracing::debug!(detail = no.0.detail, "what was lent stays for a while");
                let map = self.nodes.map();
                let left = as_slots(&slots).into_iter().filter(|slot| map.slot(*slot).owner != Some(way.1));
                turn.lent.extend(left.map(|slot| (slot, (way.1, Instant::now()))));
            }
        }
    }

    /// As many of them as can go.
    fn hand_over_what_goes(
        &self,
        owners: &Owners,
        turn: &mut Turn,
        slots: &[u16],
        way: (NodeId, NodeId),
    ) -> Result<(), No> {
        let until = Instant::now() + HALVE_FOR;
        all_that_goes(slots, |some| {
            let no = match self.hand_over(owners, turn, some, way) {
                Ok(()) => return Ok(()),
                Err(no) => no,
            };
            let are_heard = self.is_heard(way.0) && self.is_heard(way.1);
            let map = self.nodes.map();
            let there = |slot: &Slot| map.slot(*slot).owner == Some(way.0);
            let stayed = !turn.knows_any(some) && as_slots(some).iter().all(there);
            Err((no, are_heard && stayed && Instant::now() < until))
        })
    }

    fn relieve(&self, owners: &Owners, turn: &mut Turn) {
        let map = self.nodes.map();
        let mut measured: Vec<(Slot, u32)> = owners.gates.take_requests();
        for node in map.nodes().filter(|node| node.may_serve() && node.id != owners.me.id) {
            let Ok(peer) = owners.peers.of(&map, node.id) else { continue };
            let is_heard = || owners.is_heard(node.id);
            if is_heard()
                && let Ok((loads, _)) = peer.ask_while(&owners::SlotLoads {}, Vec::new(), SILENCE, is_heard)
            {
                let slots = loads.slots.iter().filter_map(|n| Slot::new(u16::try_from(*n).ok()?));
                measured.extend(slots.zip(loads.requests));
            }
        }
        let plan = turn.relief.observe(&map, SlotLoads::of(measured));
        if !plan.is_empty() {
            tracing::info!(slots = plan.moves.len(), "a metadata server that is hot is relieved");
            self.move_slots(owners, turn, &plan);
        }
    }

    pub(super) fn move_slots(&self, owners: &Owners, turn: &mut Turn, plan: &Plan) {
        let mut ways: BTreeMap<(NodeId, NodeId), Vec<u16>> = BTreeMap::new();
        for (slot, one) in &plan.moves {
            if let Some(from) = one.from.filter(|_| *slot != Ino::ROOT.ugsd().slot()) {
                ways.entry((from, one.to)).or_default().push(slot.get());
            }
        }
        for (way, slots) in ways {
            turn.keep(&slots);
            if let Err(no) = self.hand_over_what_goes(owners, turn, &slots, way) {
                tracing::warn!(from = %way.0, to = %way.1, detail = no.0.detail, "slots stay where they are");
            }
        }
    }
}

fn epochs_of(taken: &BTreeMap<u16, u64>, slots: &[u16]) -> Vec<u64> {
    slots.iter().map(|slot| taken.get(slot).copied().unwrap_or(0)).collect()
}

/// In the order of their owners.
fn by_owner(map: &ClusterMap, numbers: &[u16]) -> BTreeMap<Option<NodeId>, Vec<u16>> {
    let mut all: BTreeMap<Option<NodeId>, Vec<u16>> = BTreeMap::new();
    for slot in as_slots(numbers) {
        all.entry(map.slot(slot).owner).or_default().push(slot.get());
    }
    all
}

/// What stays with a server is its own; an operation may need slots at any that serves some.
fn may_be_given(map: &ClusterMap, to: NodeId, stay: bool) -> Result<(), No> {
    let why = match map.node(to) {
        Some(node) if stay && node.may_serve() && node.is_standby_only() => {
            format!("{to} only keeps copies (metadata.standby_only): it is given nothing")
        }
        Some(node) if node.may_serve() => return Ok(()),
        Some(_) | None => format!("{to} is no metadata server that is up"),
    };
    Err(No::new(Errno::ENXIO, Retry::Never, Reason::None, why))
}

fn as_node(asked: &JoinMetadata, map: &ClusterMap) -> Result<Node, No> {
    let epoch = map.epoch().0.checked_add(1).ok_or(Errno::EOVERFLOW)?;
    let before = map.node(NodeId(asked.node));
    let rack = (!asked.rack.is_empty()).then(|| (RACK.to_owned(), asked.rack.clone()));
    let roles = before.map_or(Roles::MDS, |node| node.roles.and(Roles::MDS)).without(Roles::STANDBY_ONLY);
    Ok(Node {
        id: NodeId(asked.node),
        name: asked.name.clone(),
        addresses: asked.addresses.clone(),
        roles: if asked.standby_only { roles.and(Roles::STANDBY_ONLY) } else { roles },
        labels: rack.into_iter().collect(),
        state: NodeState::Up,
        joined: cluster::Epoch(epoch),
    })
}
