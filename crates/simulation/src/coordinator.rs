//! A coordinator's process: the machine of members, and the shell that gets it the right to coordinate and divides the slots.

use cluster::{
    Change, ClusterMap, Loads, Node, NodeId, NodeState, SlotEpoch,
    assignment::{NoServer, assign, fail_over, release},
    members::{Effect, Input, Members},
    tail::choice::choose,
    tenure::Time,
};

use types::Slot;

use crate::{
    cast::{METADATA_SERVERS, Place, TERMS, node_of, slots},
    message::{Message, Process, RowSeen, State},
    network::Happened,
    scene::Scene,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Called {
    Claim,
    Store,
    LetGo(Slot),
}

/// A hand-over in order.
struct Moving {
    slot: Slot,
    from: NodeId,
    to: NodeId,
    /// Then it is given up, and whoever let it go takes it again.
    until: Time,
}

pub struct Coordinator {
    me: Process,
    members: Option<Members>,
    storing: Option<ClusterMap>,
    next: Time,
    calls: Vec<(u64, Called)>,
    moving: Option<Moving>,
    /// With journals: what the rows were, when they were asked for last.
    rows: Option<Vec<RowSeen>>,
    /// Rows that were asked for before say nothing.
    handed_over: Time,
}

impl Coordinator {
    pub fn new(me: Process) -> Coordinator {
        Coordinator {
            me,
            members: None,
            storing: None,
            next: Time::ZERO,
            calls: Vec::new(),
            moving: None,
            rows: None,
            handed_over: Time::ZERO,
        }
    }

    fn place(&self) -> Place {
        Place::Coordinator(self.me.0)
    }

    pub fn run(&mut self, scene: &mut Scene) {
        while let Some(happened) = scene.net.next_event(self.place()) {
            let now = scene.local(self.place());
            match happened {
                Happened::Asked { from: Place::Metadata(at), ticket, message: Message::Said(saying) } => {
                    scene.net.answer(ticket, Message::Yes);
                    if let Some(members) = &mut self.members {
                        let node = node_of(at, scene.third_only && at + 1 == METADATA_SERVERS);
                        members.handle(now, Input::Said { saying, node: Some(Box::new(node)) });
                    }
                }
                Happened::Asked { .. } => (),
                Happened::Answered { call, message } => {
                    self.calls.retain(|(of, _)| *of != call);
                    match message {
                        Message::LetGone(state) => self.hand_over(scene, *state),
                        message => self.answered(now, message),
                    }
                }
                Happened::Failed { call } => self.calls.retain(|(of, _)| *of != call),
            }
            self.effects(scene);
        }
        self.coordinate(scene);
        self.effects(scene);
    }

    fn answered(&mut self, now: Time, message: Message) {
        match message {
            Message::Claimed { asked, map: Some(map), rows } => {
                self.rows = (asked > self.handed_over).then_some(rows);
                let until = TERMS.may_until(asked);
                let new = || Members::new(*map, TERMS, now, until);
                self.members.get_or_insert_with(new).handle(now, Input::Tenure { until });
            }
            Message::Claimed { map: None, .. } => self.step_down(),
            Message::Stored { epoch, is: true } => {
                self.storing.take_if(|map| map.epoch() == epoch);
                if let Some(members) = &mut self.members {
                    members.handle(now, Input::Stored(epoch));
                }
            }
            Message::Stored { epoch, is: false } => {
                if let (Some(members), true) =
                    (&mut self.members, self.storing.as_ref().is_some_and(|map| map.epoch() == epoch))
                {
                    members.handle(now, Input::Superseded);
                }
            }
            _ => (),
        }
    }

    fn step_down(&mut self) {
        (self.members, self.storing, self.moving) = (None, None, None);
    }

    /// Somebody let a slot go: whoever is to have it gets what belongs to it, and then the slot.
    fn hand_over(&mut self, scene: &mut Scene, state: State) {
        let now = scene.local(self.place());
        let (Some(moving), Some(members)) =
            (self.moving.take_if(|moving| moving.slot == state.slot), &mut self.members)
        else {
            return;
        };
        let entry = members.map().slot(moving.slot);
        if entry.owner == Some(moving.from) {
            let to = Place::Metadata(moving.to.0 as usize - 1);
            scene.net.push(Place::Coordinator(self.me.0), to, Message::Bring(Box::new(state)));
            let epoch = SlotEpoch(entry.epoch.0 + 1);
            let own = Change::Own { slot: moving.slot, owner: moving.to, epoch };
            (self.rows, self.handed_over) = (None, now);
            members.handle(now, Input::Changes(vec![own]));
        }
    }

    fn move_slots(&mut self, scene: &mut Scene, now: Time) {
        let Some(members) = &self.members else { return };
        if self.moving.is_none() && scene.random.one_in(scene.weather.moves) {
            let slot = scene.random.any(&slots());
            let map = members.map();
            let up: Vec<NodeId> = map.nodes().filter(|node| node.takes_slots()).map(|node| node.id).collect();
            let well = |owner: &NodeId| map.node(*owner).is_some_and(Node::may_serve);
            let from = slot.and_then(|slot| map.slot(slot).owner).filter(well);
            let others: Vec<NodeId> = up.into_iter().filter(|node| Some(*node) != from).collect();
            let to = scene.random.any(&others);
            if let (Some(slot), Some(from), Some(to)) = (slot, from, to) {
                self.moving = Some(Moving { slot, from, to, until: now + TERMS.lease });
            }
        }
        self.moving.take_if(|moving| now >= moving.until);
        if let Some(Moving { slot, from, .. }) = self.moving {
            let called = Called::LetGo(slot);
            if !self.calls.iter().any(|(_, of)| *of == called) {
                let from = Place::Metadata(from.0 as usize - 1);
                let call = scene.net.ask(self.place(), from, Message::LetGo { slot }, TERMS.lease);
                self.calls.push((call, called));
            }
        }
    }

    fn effects(&mut self, scene: &mut Scene) {
        while let Some(effect) = self.members.as_mut().and_then(Members::poll_effect) {
            match effect {
                Effect::Store(map) => {
                    self.storing = Some(map);
                    self.next = Time::ZERO;
                }
                Effect::Publish(difference) => {
                    for at in 0..METADATA_SERVERS {
                        let message = Message::Publish(Box::new(difference.clone()));
                        scene.net.push(self.place(), Place::Metadata(at), message);
                    }
                }
                Effect::Answer { to, answer } => {
                    let to = Place::Metadata(to.0 as usize - 1);
                    scene.net.push(self.place(), to, Message::Grant(answer));
                }
                Effect::GivenUp(node) => scene.note(|| format!("{node} is given up")),
                Effect::Suspected(_) | Effect::NotTaken { .. } => (),
                Effect::StepDown => self.step_down(),
            }
        }
    }

    /// The shell's part: claims, stores, slots of those that are down or nobody's.
    fn coordinate(&mut self, scene: &mut Scene) {
        let now = scene.local(self.place());
        if let Some(members) = &mut self.members
            && members.next_deadline().is_some_and(|deadline| deadline <= now)
        {
            members.handle_deadline(now);
            assert!(members.next_deadline().is_none_or(|deadline| deadline > now), "no busy loop");
        }
        if now < self.next {
            return;
        }
        self.next = now + TERMS.beat_every;
        self.move_slots(scene, now);
        let asks = |called: Called, calls: &[(u64, Called)]| !calls.iter().any(|(_, c)| *c == called);
        if asks(Called::Claim, &self.calls) {
            self.ask(scene, Called::Claim, Message::Claim { by: self.me, asked: now });
        }
        if let Some(map) = &self.storing {
            if asks(Called::Store, &self.calls) {
                let message = Message::Store { by: self.me, map: Box::new(map.clone()) };
                self.ask(scene, Called::Store, message);
            }
        } else if let Some(members) = &mut self.members {
            let changes = match &self.rows {
                Some(rows) if scene.journals => follow(members.map(), rows),
                None if scene.journals => Vec::new(),
                Some(_) | None => divide(members.map()),
            };
            if !changes.is_empty() {
                members.handle(now, Input::Changes(changes));
            }
        }
    }

    fn ask(&mut self, scene: &mut Scene, called: Called, message: Message) {
        let call = scene.net.ask(self.place(), Place::Database, message, TERMS.lease);
        self.calls.push((call, called));
    }
}

/// The changes that slots need; a few stand for all.
fn divide(map: &ClusterMap) -> Vec<Change> {
    let mut changes = Vec::new();
    let owned = |node| slots().iter().any(|slot| map.slot(*slot).owner == Some(node));
    for node in map.nodes().filter(|node| node.state == NodeState::Down && owned(node.id)) {
        match fail_over(map, node.id, &Loads::none()) {
            Ok(plan) => changes.extend(plan.changes(map)),
            Err(NoServer) => changes.extend(release(map, node.id)),
        }
    }
    let used = slots();
    let free = used.iter().any(|slot| map.slot(*slot).owner.is_none());
    if free && let Ok(mut plan) = assign(map, &Loads::none()) {
        plan.moves.retain(|slot, _| used.contains(slot));
        changes.extend(plan.changes(map));
    }
    changes
}

/// With journals the rows rule: nobody gets what another one has, and the map says what they say. And each server has a standby.
fn follow(map: &ClusterMap, rows: &[RowSeen]) -> Vec<Change> {
    let mut changes = Vec::new();
    let serves = |node: NodeId| map.node(node).is_some_and(Node::may_serve);
    for row in rows {
        let entry = map.slot(row.slot);
        let next = SlotEpoch(entry.epoch.0.max(row.epoch.0) + 1);
        let own = |owner, epoch| Change::Own { slot: row.slot, owner, epoch };
        match row.owner.filter(|_| !row.free) {
            Some(owner) if serves(owner) && entry.owner != Some(owner) => {
                let epoch = if row.epoch > entry.epoch { row.epoch } else { next };
                changes.push(own(owner, epoch));
            }
            Some(owner) if entry.owner == Some(owner) && row.epoch > entry.epoch => {
                changes.push(own(owner, row.epoch));
            }
            // A node that is down does not come back while the map gives it anything.
            Some(_) if entry.owner.is_some_and(|owner| !serves(owner)) => {
                changes.push(Change::Release(row.slot));
            }
            None if entry.owner.is_none_or(|owner| !serves(owner)) => {
                let of = |only: bool| map.nodes().find(|n| n.may_serve() && n.is_standby_only() == only);
                changes.extend(of(false).or_else(|| of(true)).map(|node| own(node.id, next)));
            }
            Some(_) | None => (),
        }
    }
    changes.extend(choose(map, serves));
    changes
}
