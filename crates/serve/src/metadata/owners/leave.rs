//! A metadata server that ends in order: its slots go to others before, with what sessions have in them, and the duty, too.
//!
//! A server that was stopped is not a dead one: all that it answered is in the engine when it lets a slot go. So others serve it at once. What cannot
//! go (nobody is there to take it, or clients may still come back to it) stays its own, and waits for it.

use std::{
    thread,
    time::{Duration, Instant},
};

use cluster::{
    Change, ClusterMap, NodeId,
    assignment::vacate,
    load::Loads,
    node::{Node, NodeState},
    plan::Plan,
};
use proto::{
    Nothing,
    owners::{Bare, BareSlots, Leaving, Left, PART_BYTES, PutState, SlotState, TakeDuty, runs},
};
use types::{Errno, Slot, UgsdId};
use wire::schema::Retry;

use super::{
    Owners,
    rights::as_slots,
    turn::{Duty, Turn},
};
use crate::{
    answer::{Done, No, Outcome},
    metadata::{MetadataService, session::Session},
};

/// A message about the duty: more than what is inside of the root's slot may take. Who is not heard any more is not waited for.
const WAIT: Duration = Duration::from_secs(10);
/// For whoever orders the hand-overs while another is under way.
const TURN_WAIT: Duration = Duration::from_secs(15);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Slots of which sessions are to say what they have in them.
pub(in crate::metadata) struct Expected {
    slots: Vec<Slot>,
    grace: [Instant; 2],
}

impl MetadataService {
    /// Before an end in order: hands all slots to other servers, and the duty. Returns how many are left after `patience`, which wait for this
    /// server's next start; `None`: it is the only metadata server.
    pub fn leave(&self, patience: Duration) -> Option<usize> {
        let owners = self.owners.as_ref()?;
        owners.begin_leaving();
        let until = Instant::now() + patience;
        loop {
            let tried = match owners.duty() {
                Some(duty) => self.leave_duty(owners, duty),
                None => self.ask_to_leave(owners, until),
            };
            let left = owners.rights.ours().len();
            match tried {
                _ if left == 0 => break,
                Err(no) if no.0.retry == i32::from(Retry::Never) || Instant::now() + PAUSE >= until => {
                    tracing::warn!(left, detail = no.0.detail, "slots stay this server's, and wait for it");
                    return Some(left);
                }
                Ok(()) | Err(_) if Instant::now() + PAUSE >= until => return Some(left),
                Ok(()) | Err(_) => thread::sleep(PAUSE),
            }
        }
        tracing::info!("all slots have gone to other metadata servers");
        Some(0)
    }

    /// Whoever is on duty has them brought to others.
    fn ask_to_leave(&self, owners: &Owners, until: Instant) -> Result<(), No> {
        let map = self.nodes.map();
        let on_duty =
            map.slot(UgsdId::ROOT.slot()).owner.ok_or_else(|| No::later("nobody on duty is known"))?;
        let wait = until.saturating_duration_since(Instant::now());
        let leaving = Leaving { node: owners.me.id.0 };
        owners.peers.of(&map, on_duty)?.ask(&leaving, Vec::new(), wait).map(|_| ())
    }

    /// On duty, for another.
    pub(in crate::metadata) fn let_leave(&self, meta: &[u8]) -> Outcome {
        let (owners, duty) = self.on_duty()?;
        let node = NodeId(proto::decode::<Leaving>(meta)?.node);
        if node == owners.me.id {
            return Err(Errno::EINVAL.into());
        }
        let mut turn = take_turn(duty)?;
        self.vacate(owners, &mut turn, node)?;
        let slots = self.nodes.map().slots_of(node).count() as u32;
        Ok(Done::new(&Left { slots }))
    }

    /// All that it has but the root's slot goes to the others, as evenly as can be.
    fn vacate(&self, owners: &Owners, turn: &mut Turn, node: NodeId) -> Result<(), No> {
        let map = self.nodes.map();
        let there = map.node(node).ok_or(Errno::ENOENT)?;
        if there.state != NodeState::Draining {
            self.nodes.change(&[Change::State { node, state: NodeState::Draining }])?;
        }
        // What it lent does not go back.
        turn.lent.retain(|_, (home, _)| *home != node);
        let map = self.hearable(&self.nodes.map());
        let Ok(Plan { mut moves }) = vacate(&map, node, &Loads::none()) else {
            return Err(No::new(
                Errno::ENXIO,
                Retry::Never,
                proto::Reason::None,
                "no other metadata server is up",
            ));
        };
        moves.remove(&UgsdId::ROOT.slot());
        self.move_slots(owners, turn, &Plan { moves });
        Ok(())
    }

    /// Without the servers that are silent.
    pub(super) fn hearable(&self, map: &ClusterMap) -> ClusterMap {
        let silent = map.nodes().filter(|node| node.may_serve() && !self.is_heard(node.id));
        let changes: Vec<Change> =
            silent.map(|node| Change::State { node: node.id, state: NodeState::Draining }).collect();
        map.next(&changes).unwrap_or_else(|_| map.clone())
    }

    fn leave_duty(&self, owners: &Owners, duty: &Duty) -> Result<(), No> {
        let mut turn = take_turn(duty)?;
        self.vacate(owners, &mut turn, owners.me.id)?;
        let map = self.nodes.map();
        if map.slots_of(owners.me.id).count() > 1 || !turn.doubtful.is_empty() || !turn.adrift.is_empty() {
            return Err(No::later("not all slots have gone yet"));
        }
        let heard = map.nodes().filter(|node| node.may_serve() && self.is_heard(node.id));
        // The one with the least to do.
        let key = |node: &&Node| (node.is_standby_only(), map.slots_of(node.id).count());
        let Some(to) = heard.min_by_key(key) else {
            return Err(No::later("no other metadata server is heard"));
        };
        self.hand_duty(owners, to)
    }

    /// The root's slot goes, and with it the duty.
    pub(super) fn hand_duty(&self, owners: &Owners, to: &Node) -> Result<(), No> {
        if !owners.duty().is_some_and(|duty| self.all_know_all(duty)) {
            return Err(No::later("not all metadata servers have heard of each other"));
        }
        let root = UgsdId::ROOT.slot().get();
        let next_ugsd = self.mds.next_ugsd()?;
        let map = self.nodes.map();
        let peer = owners.peers.of(&map, to.id)?;
        if !self.is_there(owners, to.id) {
            return Err(No::later("the metadata server that is to be on duty is silent"));
        }
        let is_heard = || owners.is_heard(to.id);
        let state = self.let_go(owners, &[root])?;
        let give = || -> Result<ClusterMap, No> {
            for (n, part) in state.chunks(PART_BYTES as usize).enumerate() {
                let offset = n as u64 * u64::from(PART_BYTES);
                peer.ask_while(&PutState { ticket: u64::MAX, offset }, part.to_vec(), WAIT, is_heard)?;
            }
            let take = TakeDuty { ticket: u64::MAX, length: state.len() as u64, next_ugsd };
            let (_, body) = peer.ask_while(&take, map.encode(), WAIT, is_heard)?;
            ClusterMap::decode(&body).map_err(|_| Errno::EIO.into())
        };
        // Asked again it has the same answer.
        match give().or_else(|_| give()) {
            Ok(map) => {
                tracing::info!(to = %to.id, epoch = map.epoch().0, "another metadata server is on duty");
                owners.resign();
                self.nodes.follow_from(map);
                Ok(())
            }
            Err(no) => {
                if let Ok(taken) = self.take_at_last(owners, &[root], &state) {
                    let epochs: Vec<u64> = taken.into_values().collect();
                    self.nodes.change(&super::duty::own(&[root], owners.me.id, &epochs))?;
                    return Err(no);
                }
                // It was taken, only not said.
                owners.resign();
                self.nodes.follow(true);
                Ok(())
            }
        }
    }

    pub(in crate::metadata) fn take_duty(&self, meta: &[u8], body: &[u8]) -> Outcome {
        let owners = self.shared()?;
        let asked: TakeDuty = proto::decode(meta)?;
        if !owners.is_on_duty() {
            if owners.is_leaving() {
                return Err(No::later("it is about to end itself"));
            }
            if !self.mds.serves(UgsdId::ROOT.slot()) {
                let map = ClusterMap::decode(body).map_err(|_| Errno::EINVAL)?;
                let state = self.coming(owners, asked.ticket, asked.length)?;
                self.nodes.adopt(map);
                self.take_on(owners, &[UgsdId::ROOT.slot().get()], &state, asked.next_ugsd)?;
            }
            self.begin_duty(owners)?;
        }
        Ok(Done::with_body(&Nothing {}, self.nodes.map().encode()))
    }

    /// Makes the map from now on. The root's slot is ours.
    pub(super) fn begin_duty(&self, owners: &Owners) -> Result<(), No> {
        // A number that nobody had before: maps of later duties have higher epochs.
        let number = self.mds.welcome()?.superblock.epoch;
        let map = owners.next_map(&self.nodes.map(), number).map_err(|refused| {
            tracing::error!(%refused, "the map cannot be made");
            No::from(Errno::EIO)
        })?;
        tracing::info!(epoch = map.epoch().0, "this metadata server is on duty");
        self.nodes.make_maps(map);
        self.load_standings()?;
        owners.come_on_duty();
        Ok(())
    }

    /// Nobody on duty was heard for long: if the root's slot is nobody's, it was given up in order, and this server is on duty.
    pub(super) fn try_duty(&self, owners: &Owners) {
        let root = UgsdId::ROOT.slot();
        // What was taken with the root is served from a start on.
        if owners.is_leaving() || self.has_to_begin_anew() {
            return;
        }
        let taken = match owners.rights.take_free(&[root.get()]) {
            Ok(taken) => taken.contains_key(&root.get()),
            Err(why) => return tracing::debug!(why, "the root's slot was not asked for"),
        };
        if !taken {
            return;
        }
        if !self.mds.serves(root) {
            let expected = self.expect_sessions(owners, &[root], false);
            if let Err(no) = self.take_on(owners, &[root.get()], &SlotState::default(), 0) {
                self.do_not_expect(owners, expected);
                return tracing::warn!(detail = no.0.detail, "the root's slot is not served");
            }
        }
        if let Err(no) = self.begin_duty(owners) {
            tracing::warn!(detail = no.0.detail, "nobody is on duty yet");
        }
    }

    /// Slots are taken of which it is not known what sessions have in them: they say it before they ask for anything there, and for as long as they
    /// may come nothing is removed. `answers`: what was answered there is known, so that operations that are asked again are not carried out twice.
    pub(in crate::metadata) fn expect_sessions(
        &self,
        owners: &Owners,
        slots: &[Slot],
        answers: bool,
    ) -> Option<Expected> {
        let used: Vec<Slot> = slots.iter().copied().filter(|slot| self.is_used(*slot)).collect();
        if used.is_empty() {
            return None;
        }
        let grace = self.begin_grace();
        let number = owners.bares.add(&used, answers);
        self.terms.unsettle(&used, number, self.options.sessions.silence);
        self.terms.doubt(&used);
        Some(Expected { slots: used, grace })
    }

    /// Of a server in whose place an earlier life went on sessions have said nothing yet, or to that life.
    pub(in crate::metadata) fn expect_of_before(&self, owners: &Owners) {
        if owners.tails.as_ref().is_some_and(|tails| tails.went_on) {
            let ours: Vec<u16> = owners.rights.ours().into_keys().collect();
            self.expect_sessions(owners, &as_slots(&ours), true);
        }
    }

    /// They did not come.
    pub(in crate::metadata) fn do_not_expect(&self, owners: &Owners, expected: Option<Expected>) {
        let Some(Expected { slots, grace }) = expected else { return };
        owners.bares.remove(&slots);
        self.terms.not_taken(&slots);
        self.undo_grace(grace);
    }

    /// Who has which lock in slots that were taken is known when those who may have some have said so.
    pub(in crate::metadata) fn tend_bares(&self) {
        if self.owners.is_none() {
            return;
        }
        let (slots, due) = self.terms.overdue(|id, since| match self.sessions.get(id) {
            // It had nothing there, or comes too late with that: in place of one that was given up it would be the next one.
            Some(session) if session.times().0 < since => u64::MAX,
            Some(session) => session.brought(),
            None => 0,
        });
        if !slots.is_empty() {
            self.carry_on(due);
            if !self.leaving.condemned.lock().is_empty() {
                // What they may believe to have there is free when no data server carries out anything of them.
                return;
            }
            let due = self.terms.settle(&slots);
            self.carry_on(due);
        }
    }

    /// Has the session to say what it has in one of these?
    pub(in crate::metadata) fn not_bare(&self, session: &Session, slots: &[Slot]) -> Result<(), No> {
        let Some(owners) = &self.owners else { return Ok(()) };
        let brought = session.brought();
        match slots.iter().find_map(|slot| owners.bares.lacks(*slot, brought)) {
            Some(answers) => Err(No(Box::new(proto::fault::bare(answers)))),
            None => Ok(()),
        }
    }

    pub(in crate::metadata) fn last_bare(&self) -> u64 {
        self.owners.as_ref().map_or(0, |owners| owners.bares.last())
    }

    pub(in crate::metadata) fn bare(&self, session: &Session, asked: &Bare, body: &[u8]) -> Outcome {
        let owners = self.shared()?;
        // Asked again it was said already, and may be given up by now.
        if asked.brought > session.brought() {
            let had = Self::had(session.id, body)?;
            if !had.locks.is_empty() {
                self.arrive(session, false)?;
            }
            let (has, due) = self.terms.bring(session.party(), &had.locks, asked.stamp);
            self.carry_on(due);
            if !has {
                return Err(No::session_gone());
            }
        }
        session.has_brought(asked.brought);
        let (number, slots) = owners.bares.after(session.brought());
        Ok(Done::new(&BareSlots { number, slots: runs(slots) }))
    }
}

pub(super) fn take_turn(duty: &Duty) -> Result<parking_lot::MutexGuard<'_, Turn>, No> {
    duty.turn.try_lock_for(TURN_WAIT).ok_or_else(|| No::later("slots are on their way for long"))
}
