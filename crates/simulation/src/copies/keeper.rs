//! A metadata server's process: the keeper of views. One thing at a time is done about an object; a view is stored before anybody is told of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cluster::{
    NodeId,
    replica::{Member, View, keeper::Known},
    tenure::Time,
};

use super::{
    cast::{CALL_WAIT, Left, OBJECTS, REVIVED, SILENCE, all_of, place_of},
    said::Said,
    stage::Stage,
};
use crate::{
    cast::Place,
    message::Message,
    network::{Happened, Ticket},
};

const LOOK_EVERY: Duration = Duration::from_millis(80);
/// The other keeper may have stored another view.
const LOAD_EVERY: Duration = Duration::from_millis(600);

#[derive(Clone, Debug)]
enum Called {
    Load {
        object: u64,
    },
    Store {
        object: u64,
        old: View,
    },
    Ask {
        object: u64,
        of: Member,
        view: View,
    },
    Kept {
        object: u64,
        of: Member,
        view: View,
    },
    Sync {
        object: u64,
        view: View,
    },
    /// Each that counted, whether it is there in another life.
    Gone {
        object: u64,
        view: View,
        of: Member,
    },
    Told,
}

/// Both copies are lost, as far as was heard: in which lives those are there who counted.
struct Gone {
    view: View,
    lives: BTreeMap<NodeId, Member>,
}

pub struct Keeper {
    at: usize,
    heard: BTreeMap<NodeId, (Member, Time)>,
    views: BTreeMap<u64, View>,
    words: BTreeMap<u64, (u64, Option<Member>)>,
    calls: BTreeMap<u64, Called>,
    /// Objects of which something is being done.
    busy: BTreeSet<u64>,
    gone: BTreeMap<u64, Gone>,
    loaded: BTreeMap<u64, Time>,
    look_at: Time,
}

impl Keeper {
    pub fn begin(at: usize) -> Keeper {
        Keeper {
            at,
            heard: BTreeMap::new(),
            views: BTreeMap::new(),
            words: BTreeMap::new(),
            calls: BTreeMap::new(),
            busy: BTreeSet::new(),
            gone: BTreeMap::new(),
            loaded: BTreeMap::new(),
            look_at: Time::ZERO,
        }
    }

    fn place(&self) -> Place {
        Place::Metadata(self.at)
    }

    pub fn run(&mut self, stage: &mut Stage) {
        while let Some(happened) = stage.net.next_event(self.place()) {
            match happened {
                Happened::Asked { ticket, message: Message::Copies(said), .. } => {
                    self.asked(stage, ticket, *said);
                }
                Happened::Asked { .. } => (),
                Happened::Answered { call, message } => {
                    let said = if let Message::Copies(said) = message { Some(*said) } else { None };
                    self.ended(stage, call, said);
                }
                Happened::Failed { call } => self.ended(stage, call, None),
            }
        }
        let now = stage.local(self.place());
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
            for object in 0..OBJECTS {
                if !self.busy.contains(&object) {
                    self.look(stage, now, object);
                }
            }
        }
    }

    fn asked(&mut self, stage: &mut Stage, ticket: Ticket, said: Said) {
        match said {
            Said::Report { member, words } => {
                let now = stage.local(self.place());
                self.heard.insert(member.node, (member, now));
                for (object, view, silent) in words {
                    if self.views.get(&object).is_some_and(|known| known.number == view) {
                        self.words.insert(object, (view, silent));
                    }
                }
                stage.answer(ticket, Said::Synced);
            }
            Said::WhichView { object } => match self.views.get(&object).copied() {
                Some(view) => stage.answer(ticket, Said::ViewIs(view)),
                None => stage.answer(ticket, Said::Elsewhere(None)),
            },
            _ => (),
        }
    }

    fn ask(&mut self, stage: &mut Stage, to: Place, called: Called, said: Said) {
        let call = stage.ask(self.place(), to, said, CALL_WAIT);
        self.calls.insert(call, called);
    }

    fn is_up(&self, now: Time, member: Member) -> bool {
        let heard = self.heard.get(&member.node);
        heard.is_some_and(|(known, at)| *known == member && now < *at + SILENCE)
    }

    /// It is heard of in another life. That may have been before the one that the view names.
    fn seems_gone(&self, member: Member) -> bool {
        self.heard.get(&member.node).is_some_and(|(known, _)| *known != member)
    }

    fn look(&mut self, stage: &mut Stage, now: Time, object: u64) {
        let loaded = self.loaded.get(&object).copied();
        let Some(view) =
            self.views.get(&object).copied().filter(|_| loaded.is_some_and(|at| now < at + LOAD_EVERY))
        else {
            self.busy.insert(object);
            return self.ask(stage, Place::Database, Called::Load { object }, Said::Load { object });
        };
        if view.members().all(|member| self.seems_gone(member)) {
            return self.both_gone(stage, object, view);
        }
        if let Some(silent) = all_of(&view).into_iter().find(|member| !self.is_up(now, *member)) {
            return self.without(stage, now, object, view, silent);
        }
        let word = self.words.remove(&object).filter(|(of, _)| *of == view.number);
        match word {
            Some((_, Some(silent))) => self.without(stage, now, object, view, silent),
            Some((_, None)) => self.complete(stage, now, object, view),
            None if view.second.is_none() => self.add(stage, now, object, view),
            // Who has not heard that it is to copy does not, and nobody has to ask by this view.
            None if view.members().count() < 2 && stage.left != Left::ToldOnce => {
                let said = Said::Know { object, view, asks: false };
                self.ask(stage, place_of(view.primary), Called::Told, said);
            }
            None => (),
        }
    }

    fn without(&mut self, stage: &mut Stage, now: Time, object: u64, view: View, silent: Member) {
        let known = Known::Silent(silent);
        if let Some(of) = view.asks(known) {
            self.busy.insert(object);
            let said = Said::Know { object, view, asks: true };
            return self.ask(stage, place_of(of), Called::Ask { object, of, view }, said);
        }
        self.next(stage, now, (object, view), known);
    }

    /// What it has is durable before it counts.
    fn complete(&mut self, stage: &mut Stage, now: Time, object: u64, view: View) {
        let Some(second) = view.second.filter(|second| !second.counts) else { return };
        if stage.left == Left::SecondUnsynced {
            return self.next(stage, now, (object, view), Known::Complete { view: view.number });
        }
        self.busy.insert(object);
        let said = Said::Sync { object, view, own: true };
        self.ask(stage, place_of(second.member), Called::Sync { object, view }, said);
    }

    fn add(&mut self, stage: &mut Stage, now: Time, object: u64, view: View) {
        let others: Vec<Member> = self
            .heard
            .values()
            .map(|(member, _)| *member)
            .filter(|member| member.node != view.primary.node && self.is_up(now, *member))
            .collect();
        if let Some(of) = stage.random.any(&others) {
            self.busy.insert(object);
            let said = Said::Know { object, view, asks: false };
            self.ask(stage, place_of(of), Called::Kept { object, of, view }, said);
        }
    }

    /// Whoever counted is asked in which life it is there: what was heard before says nothing of a life that began later.
    fn both_gone(&mut self, stage: &mut Stage, object: u64, view: View) {
        if stage.left == Left::OldLives {
            let now = stage.local(self.place());
            let there = view.members().filter_map(|of| Some(self.heard.get(&of.node)?.0));
            let there: Vec<Member> = there.filter(|member| self.is_up(now, *member)).collect();
            if let Some(primary) = there.first().copied() {
                self.revive(stage, object, view, primary);
            }
            return;
        }
        self.busy.insert(object);
        self.gone.insert(object, Gone { view, lives: BTreeMap::new() });
        for of in view.members() {
            let said = Said::Know { object, view, asks: false };
            self.ask(stage, place_of(of), Called::Gone { object, view, of }, said);
        }
    }

    fn heard_in_life(&mut self, stage: &mut Stage, object: u64, view: View, by: Option<Member>) {
        let Some(by) = by.filter(|by| !view.members().any(|member| member == *by)) else {
            self.gone.remove(&object);
            self.busy.remove(&object);
            return;
        };
        let Some(gone) = self.gone.get_mut(&object).filter(|gone| gone.view == view) else { return };
        gone.lives.insert(by.node, by);
        if gone.lives.len() == view.members().count() {
            let primary = view.members().find_map(|of| gone.lives.get(&of.node).copied());
            self.gone.remove(&object);
            if let Some(primary) = primary {
                self.revive(stage, object, view, primary);
            }
        }
    }

    /// One of those that counted goes on with what outlived it.
    fn revive(&mut self, stage: &mut Stage, object: u64, view: View, primary: Member) {
        let number = ((view.number >> REVIVED) + 1) << REVIVED;
        let next = View { number, primary, since: number, second: None };
        self.store(stage, object, view, next);
    }

    fn next(&mut self, stage: &mut Stage, now: Time, (object, view): (u64, View), known: Known) {
        match view.next(known, |member| self.is_up(now, member)) {
            Some(next) => {
                stage.tally.rejoined += u64::from(matches!(known, Known::Room { kept: true, .. }));
                self.store(stage, object, view, next);
            }
            None => drop(self.busy.remove(&object)),
        }
    }

    fn store(&mut self, stage: &mut Stage, object: u64, old: View, next: View) {
        self.busy.insert(object);
        if stage.left == Left::EarlyView {
            self.views.insert(object, next);
            self.tell(stage, object, &old, next);
        }
        let said = Said::StoreView { object, from: old.number, next };
        self.ask(stage, Place::Database, Called::Store { object, old }, said);
    }

    /// Who does not hear it hears it from who asks by it.
    fn tell(&mut self, stage: &mut Stage, object: u64, old: &View, view: View) {
        let mut members = [all_of(old), all_of(&view)].concat();
        members.sort_unstable();
        members.dedup();
        for member in members {
            let said = Said::Know { object, view, asks: false };
            self.ask(stage, place_of(member), Called::Told, said);
        }
    }

    fn ended(&mut self, stage: &mut Stage, call: u64, said: Option<Said>) {
        let now = stage.local(self.place());
        let Some(called) = self.calls.remove(&call) else { return };
        match (called, said) {
            (Called::Load { object }, said) => {
                if let Some(Said::Loaded { view, .. }) = said {
                    self.views.insert(object, view);
                    self.loaded.insert(object, now);
                }
                self.busy.remove(&object);
            }
            (Called::Store { object, old }, said) => {
                match said {
                    Some(Said::Loaded { view, stored }) => {
                        self.views.insert(object, view);
                        self.loaded.insert(object, now);
                        if stored && stage.left != Left::EarlyView {
                            self.tell(stage, object, &old, view);
                        }
                    }
                    // It may have been stored: whoever wants it reads what is there.
                    _ => drop(self.views.remove(&object)),
                }
                self.busy.remove(&object);
            }
            (Called::Ask { object, of, view }, Some(Said::Known { by, goes_on: true, .. })) if by == of => {
                self.next(stage, now, (object, view), Known::GoesOn { by, view: view.number });
            }
            (Called::Kept { object, of, view }, Some(Said::Known { by, kept, .. })) if by == of => {
                self.next(stage, now, (object, view), Known::Room { member: by, kept });
            }
            (Called::Sync { object, view }, Some(Said::Synced)) => {
                self.next(stage, now, (object, view), Known::Complete { view: view.number });
            }
            (Called::Gone { object, view, of }, said) => {
                let by = if let Some(Said::Known { by, .. }) = said { Some(by) } else { None };
                self.heard_in_life(stage, object, view, by.filter(|by| *by != of));
            }
            (Called::Ask { object, .. } | Called::Kept { object, .. } | Called::Sync { object, .. }, _) => {
                self.busy.remove(&object);
            }
            (Called::Told, _) => (),
        }
    }
}
