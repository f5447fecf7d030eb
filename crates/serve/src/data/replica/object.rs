//! One object: the machine, and those who wait for it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use cluster::{
    replica::{
        Member, View,
        copy::{Copy, Effect, Input, Of, Patience, Range, Sent, Source},
    },
    tenure::Time,
};
use parking_lot::{Condvar, Mutex};
use proto::data::Object;
use types::Ino;

use super::{
    change::Change,
    peers::Peers,
    room::{Room, Share},
    words::{Word, Words},
};
use crate::{
    answer::No,
    data::admission::{Admitted, Asker},
};

/// Who was told to come again finds what became of his write for so long.
const LEFT_FOR: Duration = Duration::from_secs(10);

/// Where a call is.
#[derive(Clone, Debug)]
pub(super) enum At {
    /// It waits for its turn, for the other one, or for leave.
    Waits,
    /// Its bytes are to be stored here, and whoever waits for it does that.
    Store(u64),
    Storing,
    /// It could not be stored here.
    Failed {
        number: u64,
        why: No,
    },
    Done(Result<(), No>),
    /// The bytes may be shown.
    Show,
    /// Not here.
    Elsewhere,
}

pub(super) struct Call {
    /// `None`: it reads.
    pub change: Option<Arc<Change>>,
    pub asker: Asker,
    pub at: At,
    /// Somebody waits for it.
    pub waited: bool,
    pub since: Instant,
    /// What it has under way, until it is done.
    pub admitted: Option<Admitted>,
}

/// What is to be sent, or done, with no lock held.
pub(super) enum Out {
    Send { to: Member, sent: Sent, source: Source },
    Done { to: Member, view: View, done: u64 },
    Store(u64),
}

pub(super) struct State {
    pub core: Copy,
    pub calls: HashMap<u64, Call>,
    last_call: u64,
    pub outbox: Vec<Out>,
    /// What the primary sent and is to be stored here: of its calls, by since and serial.
    pub to_store: HashMap<(u64, u64), u64>,
    pub said_stored: HashSet<(u64, u64)>,
    /// On the way to the second: serials, and the views by which they were sent.
    pub on_the_way: HashSet<(u64, u64)>,
    /// How long the object was when the second became that.
    pub length: u64,
    /// It may have had the object before: pieces are compared, but for those that are known to differ, by serials and views.
    pub compares: bool,
    pub differs: HashSet<(u64, u64)>,
    /// The last view for which it was said that we go on alone.
    pub goes_on: Option<u64>,
    /// Something could not be stored here.
    pub failed: bool,
    /// For who syncs: since when the second does not let us answer, and when that was wanted last.
    pub unheard: Option<(Instant, Instant)>,
    /// Of the pieces that are under way here.
    share: Share,
}

/// See the module's page.
pub(in crate::data) struct Replica {
    /// Without a view.
    pub object: Object,
    pub ino: Ino,
    pub(super) state: Mutex<State>,
    pub changed: Condvar,
    /// The view with which we became the second, for which what was older was taken away.
    pub wiped: Mutex<u64>,
    /// What was here then can be compared with; `spoils`: something could not be stored over it.
    pub has_older: AtomicBool,
    pub spoils: AtomicBool,
}

/// What the machine is carried out with.
pub(super) struct World<'a> {
    pub me: Member,
    pub patience: Patience,
    pub peers: &'a Peers,
    pub words: &'a Words,
    pub room: &'a Room,
}

impl World<'_> {
    fn now(&self) -> Time {
        self.peers.now()
    }
}

impl Replica {
    pub(super) fn new(object: Object, ino: Ino, world: &World<'_>) -> Replica {
        let state = State {
            core: Copy::new(world.me, world.patience),
            calls: HashMap::new(),
            last_call: 0,
            outbox: Vec::new(),
            to_store: HashMap::new(),
            said_stored: HashSet::new(),
            on_the_way: HashSet::new(),
            length: 0,
            compares: false,
            differs: HashSet::new(),
            goes_on: None,
            failed: false,
            unheard: None,
            share: Share::default(),
        };
        let object = Object { view: None, ..object };
        Replica {
            object,
            ino,
            state: Mutex::new(state),
            changed: Condvar::new(),
            wiped: Mutex::default(),
            has_older: AtomicBool::new(false),
            spoils: AtomicBool::new(false),
        }
    }
}

impl State {
    pub fn view(&self) -> Option<View> {
        self.core.view().copied()
    }

    pub fn number(&self) -> u64 {
        self.core.view().map_or(0, |view| view.number)
    }

    /// Another call; it is not told to the machine yet.
    fn call(&mut self, change: Option<Arc<Change>>, asker: Asker) -> u64 {
        self.last_call += 1;
        let call = Call { change, asker, at: At::Waits, waited: true, since: Instant::now(), admitted: None };
        self.calls.insert(self.last_call, call);
        self.last_call
    }

    pub fn read(&mut self, range: Range) -> u64 {
        let call = self.call(None, Asker { server: 0, joined: 0 });
        self.core.handle(Input::Read { call, range });
        call
    }

    pub fn write(&mut self, change: Arc<Change>, asker: Asker) -> u64 {
        let range = change.range();
        let call = self.call(Some(change), asker);
        self.core.handle(Input::Write { call, range });
        call
    }

    /// For so long that the metadata server is to be told? Who waits for it comes again and again.
    pub fn is_unheard_for_long(&mut self, patience: Duration) -> bool {
        let now = Instant::now();
        let lately = |(_, last): &(Instant, Instant)| now.duration_since(*last) < patience;
        let since = self.unheard.filter(lately).map_or(now, |(since, _)| since);
        let is_long = now.duration_since(since) >= patience;
        self.unheard = Some((if is_long { now } else { since }, now));
        is_long
    }

    /// The same by the same asker, who was told to come again.
    pub fn left_by(&mut self, change: &Change, asker: Asker) -> Option<u64> {
        let is_it =
            |call: &Call| !call.waited && call.asker == asker && call.change.as_deref() == Some(change);
        let (number, call) = self.calls.iter_mut().find(|(_, call)| is_it(call))?;
        call.waited = true;
        Some(*number)
    }

    /// A view that may be newer. `length`: of the object here.
    pub fn adopt(&mut self, view: &View, length: u64, world: &World<'_>, ino: Ino) {
        let known = self.view();
        if known.is_some_and(|known| known.number >= view.number) {
            return;
        }
        if self.failed && !view.has(world.me) {
            self.begin_anew(world);
        }
        let second = |view: &View| view.second.map(|second| (second.member, second.since));
        let led = known.filter(|known| known.primary == world.me).and_then(|known| second(&known));
        if view.primary == world.me && second(view) != led {
            self.length = length;
            // One that has kept what it had is sent what differs alone.
            self.compares = view.second.is_some_and(|second| !second.counts && !second.kept);
            self.differs.clear();
        }
        self.core.handle(Input::View { view: *view, length });
        world.words.forget(ino, view.number);
    }

    /// What is here is of no use; whoever waits is to go elsewhere.
    fn begin_anew(&mut self, world: &World<'_>) {
        self.core = Copy::new(world.me, world.patience);
        self.failed = false;
        self.to_store.clear();
        self.on_the_way.clear();
        self.calls.values_mut().for_each(|call| call.at = At::Elsewhere);
    }

    /// Lets the machine go on, and takes what it wants.
    pub fn pump(&mut self, world: &World<'_>, replica: &Replica) {
        self.carry_out(world, replica);
        self.end_failed(world, replica);
        let leave = world.peers.leave(&self.core, replica.ino);
        world.room.go_on(&mut self.share, &mut self.core, |core| core.go_on(world.now(), leave));
        self.carry_out(world, replica);
        self.forget_calls();
        replica.changed.notify_all();
    }

    pub fn is_at_rest(&self) -> bool {
        let waits = self.core.lacks_pieces();
        !waits && self.core.next_deadline().is_none() && self.calls.is_empty() && self.outbox.is_empty()
    }

    fn carry_out(&mut self, world: &World<'_>, replica: &Replica) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Send { to, sent, source } => self.outbox.push(Out::Send { to, sent, source }),
                Effect::SayDone { to, view, done } => self.outbox.push(Out::Done { to, view, done }),
                Effect::SayStored { since, serial, .. } => drop(self.said_stored.insert((since, serial))),
                Effect::Store { number, of: Of::Call(call), .. } => self.is_at(call, At::Store(number)),
                Effect::Store { number, of: Of::Sent { since, serial }, .. } => {
                    self.to_store.insert((since, serial), number);
                }
                Effect::Written(call) => {
                    if !self.calls.get(&call).is_some_and(|call| matches!(call.at, At::Done(_))) {
                        self.is_at(call, At::Done(Ok(())));
                    }
                    // What it had under way is done.
                    if let Some(call) = self.calls.get_mut(&call) {
                        call.admitted = None;
                    }
                }
                Effect::Show(call) => self.is_at(call, At::Show),
                Effect::AskElsewhere(call, _) => self.is_at(call, At::Elsewhere),
                Effect::WantsLeave(member) => world.peers.want(member),
                Effect::Complain(member) => self.complain(world, replica, member),
                Effect::GoesOn { view } => self.goes_on = Some(view),
                Effect::Complete { .. } => self.say(world, replica, None),
                Effect::LeaveOut { member, view } => world.peers.leave_out(member, replica.ino, view),
            }
        }
    }

    fn is_at(&mut self, call: u64, at: At) {
        let Some(there) = self.calls.get_mut(&call) else { return };
        // Nobody waits for it: somebody else stores it.
        if let (At::Store(_), false) = (&at, there.waited) {
            self.outbox.push(Out::Store(call));
        }
        there.at = at;
    }

    /// The member does not answer, or cannot go on.
    pub fn complain(&self, world: &World<'_>, replica: &Replica, member: Member) {
        self.say(world, replica, Some(member));
    }

    fn say(&self, world: &World<'_>, replica: &Replica, silent: Option<Member>) {
        if let Some(view) = self.view() {
            world.words.say(Word { object: replica.object, ino: replica.ino, view, silent });
        }
    }

    /// The call whose bytes are to be stored here now.
    pub fn begin_storing(&mut self, call: u64) -> Option<(u64, Arc<Change>)> {
        let there = self.calls.get_mut(&call)?;
        let At::Store(number) = there.at else { return None };
        there.at = At::Storing;
        Some((number, there.change.clone()?))
    }

    /// They are, or could not be.
    pub fn end_storing(&mut self, call: u64, number: u64, stored: Result<(), No>) {
        match stored {
            Ok(()) => self.core.handle(Input::StoredHere(number)),
            Err(why) => {
                self.failed = true;
                if let Some(there) = self.calls.get_mut(&call).filter(|call| matches!(call.at, At::Storing)) {
                    there.at = At::Failed { number, why };
                }
            }
        }
    }

    /// What could not be stored here: the other one goes on if there is one that counts (I-TWO-4), or who waits is told.
    fn end_failed(&mut self, world: &World<'_>, replica: &Replica) {
        if !self.failed {
            return;
        }
        let Some(view) = self.view().filter(|view| view.primary == world.me) else { return };
        let failed: Vec<(u64, u64, No)> = self
            .calls
            .iter()
            .filter_map(|(call, there)| match &there.at {
                At::Failed { number, why } => Some((*call, *number, why.clone())),
                At::Waits | At::Store(_) | At::Storing | At::Done(_) | At::Show | At::Elsewhere => None,
            })
            .collect();
        match view.second {
            Some(second) if second.counts => self.complain(world, replica, world.me),
            Some(second) if !failed.is_empty() => self.complain(world, replica, second.member),
            Some(_) | None => {
                for (call, number, why) in failed {
                    if let Some(there) = self.calls.get_mut(&call) {
                        there.at = At::Done(Err(why));
                    }
                    self.core.handle(Input::StoredHere(number));
                }
                self.failed = false;
            }
        }
    }

    /// Those that are over, and that nobody waits for or comes back for.
    fn forget_calls(&mut self) {
        self.calls.retain(|_, call| {
            let is_over = matches!(call.at, At::Done(_) | At::Elsewhere | At::Show);
            call.waited || !is_over || call.since.elapsed() < LEFT_FOR
        });
    }
}
