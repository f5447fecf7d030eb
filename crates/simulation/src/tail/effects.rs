//! What the machines want of the owner's and the standby's shell, and what they say to each other.

use std::{collections::BTreeMap, time::Duration};

use cluster::{
    NodeId,
    tail::{owner, standby},
};

use super::{
    TERMS,
    copies::{Copying, Write},
    journal::Journal,
};
use crate::{
    cast::{Broken, Place},
    message::{Ask, Known, Message, Said},
    scene::Scene,
};

impl Journal {
    /// Of another metadata server.
    pub fn heard(&mut self, scene: &mut Scene, from: NodeId, said: Said) {
        let (now, me) = (scene.local(self.place), self.me);
        match said {
            Said::Stored { copy, beat, up_to } => {
                let input = owner::Input::Stored { by: from, copy, beat, up_to };
                self.machine.iter_mut().for_each(|machine| machine.handle(now, input.clone()));
            }
            Said::Refused { copy } => {
                let input = owner::Input::Refused { by: from, copy };
                self.machine.iter_mut().for_each(|machine| machine.handle(now, input.clone()));
            }
            Said::Begin { copy, beat, base, known } => {
                let new = || Copying::new(standby::Standby::new(TERMS, me, now));
                let copying = self.copies.entry(from).or_insert_with(new);
                let before = copying.machine.has().0;
                copying.machine.handle(now, standby::Input::Begun { copy, beat, base });
                if copying.machine.has().0 != before {
                    copying.known = known;
                }
            }
            Said::Send { copy, beat, from: first, up_to, applied, records } => {
                let new = || Copying::new(standby::Standby::new(TERMS, me, now));
                let copying = self.copies.entry(from).or_insert_with(new);
                if copy == copying.machine.has().0 {
                    let of = |(number, record)| ((copy, number), record);
                    copying.incoming.extend(records.into_iter().map(of));
                }
                let came = standby::Input::Came { copy, beat, from: first, up_to, applied };
                copying.machine.handle(now, came);
            }
        }
    }

    fn say(&self, scene: &mut Scene, to: NodeId, said: Said) {
        let message = Message::Tail { from: self.me, said: Box::new(said) };
        scene.net.ask(self.place, Place::Metadata(to.0 as usize - 1), message, Duration::from_millis(500));
    }

    pub(super) fn owner_effects(&mut self, scene: &mut Scene) {
        while let Some(effect) = self.machine.as_mut().and_then(owner::Owner::poll_effect) {
            match effect {
                owner::Effect::Write { write, change } => self.write = Some((write, change)),
                owner::Effect::Carry => self.carry = Some(self.disk.last),
                owner::Effect::Begin { to, copy, beat, base } => {
                    // Of what is in no record of the copy.
                    let known: Known =
                        self.known.range(..=base).flat_map(|(_, known)| known.clone()).collect();
                    self.say(scene, to, Said::Begin { copy, beat, base, known });
                }
                owner::Effect::Send { to, copy, beat, from, up_to, applied } => {
                    let records: BTreeMap<_, _> = if from > up_to {
                        BTreeMap::new()
                    } else {
                        self.kept.range(from..=up_to).map(|(n, record)| (*n, record.clone())).collect()
                    };
                    assert_eq!(records.len() as u64, (up_to + 1).saturating_sub(from), "all are kept");
                    self.say(scene, to, Said::Send { copy, beat, from, up_to, applied, records });
                }
                owner::Effect::Answer { up_to } => self.release(scene, up_to),
                owner::Effect::Says(says) => {
                    scene.tail.complete += u64::from(matches!(says, owner::Says::Complete { .. }));
                    let me = self.me;
                    scene.note(|| format!("the copy of {me}: {says:?}"));
                }
                owner::Effect::StepDown => {}
            }
        }
    }

    pub(super) fn tend_copies(&mut self, scene: &mut Scene) {
        let now = scene.local(self.place);
        for (of, copying) in &mut self.copies {
            if copying.machine.next_deadline().is_some_and(|at| now >= at) {
                copying.machine.handle_deadline(now);
            }
            copying.write(scene.now(), now, self.disk.files.entry(*of).or_default());
        }
    }

    pub(super) fn standby_effects(&mut self, scene: &mut Scene) {
        let mut said = Vec::new();
        for (of, copying) in &mut self.copies {
            while let Some(effect) = copying.machine.poll_effect() {
                let file = self.disk.files.entry(*of).or_default();
                match effect {
                    standby::Effect::Start { copy, base } => {
                        copying.writes_later(scene, Write::Start { copy, base });
                    }
                    standby::Effect::Keep { copy, from, up_to } => {
                        let one = |n| copying.incoming.remove(&(copy, n)).map(|record| (n, record));
                        let records = (from..=up_to).filter_map(one).collect();
                        copying.writes_later(scene, Write::Keep { copy, records, up_to });
                    }
                    standby::Effect::Trim { copy, up_to } => {
                        assert_eq!(file.copy, copy, "it is stored");
                        file.trim(up_to);
                    }
                    standby::Effect::Stored { copy, beat, up_to } => {
                        said.push((*of, Said::Stored { copy, beat, up_to }));
                    }
                    standby::Effect::Refused { copy } => said.push((*of, Said::Refused { copy })),
                    standby::Effect::Look => drop(self.looks.insert(*of)),
                    standby::Effect::Take { copy, mut up_to } => {
                        if scene.broken == Broken::ShortTail {
                            up_to = up_to.saturating_sub(1).max(file.base);
                        }
                        let records = file.records.range(..=up_to).map(|(n, record)| (*n, record.clone()));
                        let records = records.collect();
                        self.take = Some((*of, Ask::Take { from: *of, copy, up_to, records }));
                    }
                    standby::Effect::Serve => {
                        let me = self.me;
                        scene.note(|| format!("{me} serves what {of} had"));
                    }
                }
            }
        }
        said.into_iter().for_each(|(to, said)| self.say(scene, to, said));
    }
}
