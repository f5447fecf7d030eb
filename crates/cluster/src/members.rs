//! The coordinator's side: who is in, who is suspected, who is given up. It alone makes maps.
//!
//! - I-MEMBER-2: a member is given up only after its last grant has ended by our clock, drift included, and from the verdict on it
//!   gets no grant under that joining. Nobody joins again while its former self has slots or may act.
//! - I-MEMBER-3: a map is published when it is stored, and each has a higher epoch; nothing is said under a map that is not.
//! - I-MEMBER-4: we grant only before our own right to coordinate has run out. A coordinator that begins waits for all that an
//!   earlier one may have granted.
//!
//! An event machine: [`Members::handle`] and [`Members::handle_deadline`], then [`Members::poll_effect`] until there is none. Reports of
//! clients make suspicious and shorten the wait, but give nobody up who is heard: the clients may be who is cut off.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    change::{Change, Refused},
    difference::Difference,
    map::{ClusterMap, Epoch},
    membership::{Answer, Saying},
    node::{Node, NodeId, NodeState},
    tenure::{Terms, Time},
};

/// Changes that wait for the map before theirs to be stored. All nodes may want in or be given up at once; what people and the division
/// of slots ask for beyond that is refused.
const WANTED_MAX: usize = 2 * crate::map::NODES_MAX;

/// Two that complain are enough to make suspicious; more are for people.
const REPORTERS_MAX: usize = 16;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Our right to coordinate, for longer.
    Tenure {
        until: Time,
    },
    /// From a node; what a node that joins is, comes along.
    Said {
        saying: Saying,
        node: Option<Box<Node>>,
    },
    /// Somebody's calls to a node time out.
    Report {
        by: NodeId,
        about: NodeId,
    },
    /// Of slots, states, standbys: what was decided elsewhere.
    Changes(Vec<Change>),
    Stored(Epoch),
    /// Another coordinator stored one.
    Superseded,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// In place of the map with the epoch before, and only of that.
    Store(ClusterMap),
    /// To everybody: the map is this.
    Publish(Difference),
    Answer {
        to: NodeId,
        answer: Answer,
    },
    /// For people, and for a look from elsewhere.
    Suspected(NodeId),
    /// Durably: its slots are free for others.
    GivenUp(NodeId),
    NotTaken {
        changes: Vec<Change>,
        why: Refused,
    },
    /// Nothing more comes from this machine.
    StepDown,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Wanted {
    Join(Box<Node>),
    Down(NodeId),
    Changes(Vec<Change>),
}

#[derive(Clone, Debug)]
struct Member {
    heard: Time,
    granted: Time,
    suspected: bool,
    /// Who complained, and when last. A complaint counts for as long as a lease.
    reported: BTreeMap<NodeId, Time>,
    /// Its next self asks to join, so this one is over.
    replaced: bool,
    /// The verdict is made, and not stored perhaps.
    condemned: bool,
}

#[derive(Clone, Debug)]
pub struct Members {
    terms: Terms,
    map: ClusterMap,
    storing: Option<ClusterMap>,
    until: Time,
    members: BTreeMap<NodeId, Member>,
    /// By which attempt a node is in, or wants in.
    attempts: BTreeMap<NodeId, u64>,
    wanted: VecDeque<Wanted>,
    effects: VecDeque<Effect>,
    over: bool,
    /// Our right had run out when we last looked.
    lapsed: bool,
}

impl Members {
    /// `map` is the stored one; read after the right to coordinate was given.
    pub fn new(map: ClusterMap, terms: Terms, now: Time, until: Time) -> Members {
        let mut members = Members {
            terms,
            map,
            storing: None,
            until,
            members: BTreeMap::new(),
            attempts: BTreeMap::new(),
            wanted: VecDeque::new(),
            effects: VecDeque::new(),
            over: false,
            lapsed: false,
        };
        members.follow(now);
        members
    }

    /// The stored one.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub fn handle(&mut self, now: Time, input: Input) {
        if self.over {
            return;
        }
        match input {
            Input::Tenure { until } => self.until = self.until.max(until),
            Input::Said { saying: Saying::Join { attempt, .. }, node } => {
                if let Some(node) = node {
                    self.join(now, *node, attempt);
                }
            }
            Input::Said { saying: Saying::Beat { node, joined, number }, .. } => {
                self.beat(now, node, joined, number);
            }
            Input::Report { by, about } => {
                if by != about
                    && let Some(member) = self.members.get_mut(&about)
                {
                    member.reported.retain(|_, at| now < at.saturating_add(self.terms.lease));
                    if member.reported.len() < REPORTERS_MAX {
                        member.reported.insert(by, now);
                    }
                }
            }
            Input::Changes(changes) => self.want(Wanted::Changes(changes)),
            Input::Stored(epoch) => self.stored(now, epoch),
            Input::Superseded => self.step_down(),
        }
        self.handle_deadline(now);
    }

    /// When something happens by itself.
    pub fn next_deadline(&self) -> Option<Time> {
        // Without our right we judge nobody; the input that renews it is looked at anyway.
        if self.over || self.lapsed {
            return None;
        }
        let times = self.members.values().filter(|member| !member.condemned).flat_map(|member| {
            let suspect = (!member.suspected).then(|| member.heard.saturating_add(self.terms.suspect_after));
            [Some(self.verdict_at(member)), suspect].into_iter().flatten()
        });
        times.min()
    }

    pub fn handle_deadline(&mut self, now: Time) {
        if self.over {
            return;
        }
        self.lapsed = now >= self.until;
        let ids: Vec<NodeId> = self.members.keys().copied().collect();
        for id in ids {
            self.judge(now, id);
        }
        self.propose();
    }

    /// Who is complained about, or replaced, is given up when its grant has ended; of others a pause is thought first.
    fn verdict_at(&self, member: &Member) -> Time {
        let ended = self.terms.ended_at(member.granted);
        let known = member.replaced || member.reported.len() > 1;
        if known { ended } else { ended.saturating_add(self.terms.suspect_after) }
    }

    fn judge(&mut self, now: Time, id: NodeId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.reported.retain(|_, at| now < at.saturating_add(self.terms.lease));
        let Some(member) = self.members.get(&id) else { return };
        let silent = now.saturating_sub(member.heard) >= self.terms.suspect_after;
        let doubtful = silent || member.replaced || member.reported.len() > 1;
        let verdict = !member.condemned
            && now >= self.verdict_at(member)
            && (silent || member.replaced)
            && !self.lapsed;
        let first = doubtful && !member.suspected;
        if let Some(member) = self.members.get_mut(&id) {
            member.suspected = doubtful;
            member.condemned |= verdict;
        }
        if first {
            self.effects.push_back(Effect::Suspected(id));
        }
        if verdict {
            self.want(Wanted::Down(id));
        }
    }

    fn beat(&mut self, now: Time, id: NodeId, joined: Epoch, number: u64) {
        let current = self.map.node(id).filter(|node| node.joined == joined);
        let alive = current.is_some_and(|node| node.state != NodeState::Down);
        let (Some(member), true) = (self.members.get_mut(&id), alive) else {
            let answer = Answer::Refused { joined, epoch: self.map.epoch() };
            return self.effects.push_back(Effect::Answer { to: id, answer });
        };
        // The verdict stands, stored or not; and without our own right we have none to give.
        if member.condemned || member.replaced || now >= self.until {
            return;
        }
        member.heard = now;
        member.granted = now;
        let answer = Answer::Granted { joined, number };
        self.effects.push_back(Effect::Answer { to: id, answer });
    }

    fn join(&mut self, now: Time, node: Node, attempt: u64) {
        let id = node.id;
        let last = self.attempts.get(&id).copied();
        if last.is_some_and(|last| attempt < last) {
            return;
        }
        let present = self.map.node(id).filter(|node| node.state != NodeState::Down);
        match present {
            Some(present) if last == Some(attempt) && self.members.get(&id).is_some_and(|m| !m.replaced) => {
                let answer = Answer::Joined { attempt, joined: present.joined };
                if now < self.until {
                    self.effects.push_back(Effect::Answer { to: id, answer });
                }
            }
            Some(_) => {
                self.attempts.insert(id, attempt);
                if let Some(member) = self.members.get_mut(&id) {
                    member.replaced = true;
                }
            }
            None => {
                self.attempts.insert(id, attempt);
                let waits = self.wanted.iter().any(|w| matches!(w, Wanted::Join(n) if n.id == id));
                let storing = self.storing.as_ref().and_then(|map| map.node(id));
                let coming = storing.is_some_and(|node| node.state != NodeState::Down);
                if !waits && !coming && self.map.slots_of(id).next().is_none() {
                    self.want(Wanted::Join(Box::new(node)));
                }
            }
        }
    }

    fn want(&mut self, wanted: Wanted) {
        if self.wanted.len() < WANTED_MAX {
            return self.wanted.push_back(wanted);
        }
        match wanted {
            // They ask again.
            Wanted::Join(_) => (),
            Wanted::Down(id) => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.condemned = false;
                }
            }
            Wanted::Changes(changes) => {
                self.effects.push_back(Effect::NotTaken { changes, why: Refused::Busy });
            }
        }
    }

    /// One map at a time is on its way to the store; what is wanted meanwhile goes into the next.
    fn propose(&mut self) {
        if self.storing.is_some() || self.wanted.is_empty() {
            return;
        }
        let next = Epoch(self.map.epoch().0.saturating_add(1));
        let mut all: Vec<Change> = Vec::new();
        let mut proposed = None;
        for wanted in std::mem::take(&mut self.wanted) {
            let changes = match wanted {
                Wanted::Join(node) => {
                    vec![Change::Put(Node { state: NodeState::Up, joined: next, ..*node })]
                }
                Wanted::Down(node) => vec![Change::State { node, state: NodeState::Down }],
                Wanted::Changes(changes) => changes,
            };
            let with: Vec<Change> = all.iter().chain(&changes).cloned().collect();
            match self.map.next(&with) {
                Ok(map) => {
                    proposed = Some(map);
                    all = with;
                }
                Err(why) => self.effects.push_back(Effect::NotTaken { changes, why }),
            }
        }
        if let Some(map) = proposed {
            self.effects.push_back(Effect::Store(map.clone()));
            self.storing = Some(map);
        }
    }

    fn stored(&mut self, now: Time, epoch: Epoch) {
        let Some(map) = self.storing.take_if(|map| map.epoch() == epoch) else { return };
        let down = |map: &ClusterMap, id| map.node(id).is_some_and(|node| node.state == NodeState::Down);
        let given_up: Vec<NodeId> =
            map.nodes().map(|node| node.id).filter(|id| down(&map, *id) && !down(&self.map, *id)).collect();
        if let Ok(difference) = Difference::between(&self.map, &map) {
            self.effects.push_back(Effect::Publish(difference));
        }
        self.map = map;
        self.follow(now);
        self.effects.extend(given_up.into_iter().map(Effect::GivenUp));
    }

    /// Members are those of the stored map that are not down. One that we know nothing of may have been granted anything until this
    /// moment.
    fn follow(&mut self, now: Time) {
        let map = &self.map;
        self.members.retain(|id, _| map.node(*id).is_some_and(|node| node.state != NodeState::Down));
        for node in map.nodes().filter(|node| node.state != NodeState::Down) {
            self.members.entry(node.id).or_insert(Member {
                heard: now,
                granted: now,
                suspected: false,
                reported: BTreeMap::new(),
                replaced: false,
                condemned: false,
            });
        }
    }

    fn step_down(&mut self) {
        self.over = true;
        self.effects.push_back(Effect::StepDown);
    }
}
