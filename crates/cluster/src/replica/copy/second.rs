//! What the second does: it stores what the primary sends, once, and keeps in mind what it may not show.

use super::{Copy, Effect, Of, Sent, touch};
use crate::replica::View;

impl Copy {
    pub(super) fn take(&mut self, sent: Sent) {
        self.adopt(sent.view, 0);
        if self.view != Some(sent.view) || self.leads() || !sent.view.has(self.me) {
            return;
        }
        if sent.view.second.is_some_and(|second| second.kept) && !self.has_kept {
            // It made room after it had said so.
            return self.effects.push_back(Effect::Complain(self.me));
        }
        self.has_kept = true;
        self.note_done(&sent.view, sent.done);
        if sent.serial <= self.done || self.stored.contains_key(&sent.serial) {
            return self.say_stored(sent.serial);
        }
        // What is being stored here comes to its end first; it is sent again.
        let busy = self.here.values().any(|(_, range)| touch(*range, sent.range));
        if busy {
            return;
        }
        self.numbers += 1;
        let of = Of::Sent { since: sent.view.since, serial: sent.serial };
        self.here.insert(self.numbers, (of, sent.range));
        self.storing.insert(sent.serial, sent.range);
        self.effects.push_back(Effect::Store { number: self.numbers, of, range: sent.range });
    }

    /// The bytes are as they were.
    pub(super) fn not_stored(&mut self, number: u64) {
        let Some((Of::Sent { since, serial }, _)) = self.here.get(&number).copied() else { return };
        self.here.remove(&number);
        if self.view.is_some_and(|view| view.since == since) {
            self.storing.remove(&serial);
        }
    }

    pub(super) fn say_stored(&mut self, serial: u64) {
        if let Some(view) = self.view {
            self.effects.push_back(Effect::SayStored { to: view.primary, since: view.since, serial });
        }
    }

    pub(super) fn note_done(&mut self, view: &View, done: u64) {
        let known = self.view.filter(|known| known.since == view.since && known.primary != self.me);
        if known.is_some() && done > self.done {
            self.done = done;
            self.stored = self.stored.split_off(&(done + 1));
        }
    }
}
