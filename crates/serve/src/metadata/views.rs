//! The keeper of views of files with two copies: [`cluster::replica::keeper`] with a durable record, and data servers that are asked.
//!
//! - I-VIEW-1: a view is durable, also at the standby, before anybody is told of it; it is made from the one that was stored, under the file's lock.
//! - I-VIEW-2: who counts alone said so in the view before, or all who counted have lost what was not in a tier that outlives them: then one of them goes
//!   on with what it has, in a view whose number says so in its upper half.
//! - I-VIEW-3: whoever counts is taken to have lost what it had only if its data server, asked now, says that it is in another life, or was removed. A
//!   report may be of an earlier life than the view: of a data server that was heard late, or by who takes over.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Instant};

use cluster::{
    NodeId,
    moving::refuge,
    placement::Measures,
    replica::{self, keeper::Known},
};
use proto::{
    copies::{DropCopies, KnowView, Member, REVIVED, View, ViewKnown},
    data::Object,
};
use types::{Errno, Ino};

use super::{
    MetadataService,
    placed::Placed,
    replicas::{DOUBTED_FOR, Heard},
};
use crate::{
    answer::No,
    views::{member, said_member, said_view, view},
};

/// In which life each data server is, and whether it is there.
type Lives = BTreeMap<u64, (u64, bool)>;

fn is_up(lives: &Lives, of: Member) -> bool {
    lives.get(&of.node) == Some(&(of.life, true))
}

impl MetadataService {
    /// It will not come back in that life (I-VIEW-3).
    fn is_gone(&self, lives: &Lives, of: Member, object: Object) -> bool {
        if self.is_removed(of.node) || self.replicas.gone.lock().contains(&of) {
            return true;
        }
        let seems = lives.get(&of.node).is_some_and(|(life, _)| *life != of.life);
        let is_gone = seems && self.life_now(of.node, object).is_some_and(|life| life != of.life);
        if is_gone {
            self.replicas.is_gone(of);
        }
        is_gone
    }

    /// As its data server says itself.
    fn life_now(&self, node: u64, object: Object) -> Option<u64> {
        let said = self.ask(node, KnowView { object: Some(object), asks: false }).ok()?;
        Some(said.life).filter(|life| *life != 0)
    }

    /// It is there, and stays.
    fn stays(&self, lives: &Lives, of: Member) -> bool {
        is_up(lives, of) && !self.nodes.is_draining(of.node)
    }

    /// Each stripe has two copies that count, where they are to stay.
    pub(super) fn is_whole(&self, placed: &Placed, lives: &Lives) -> bool {
        let good = |view: &View| {
            view.counting().count() == 2 && view.counting().all(|member| self.stays(lives, member))
        };
        placed.layout.views.iter().all(good)
    }

    fn placed_now(&self, ino: Ino) -> Result<Placed, No> {
        self.locked(ino, |_, state| Ok(state.placed.clone().ok_or(Errno::ENODATA)?))
    }

    /// Somebody said something of a stripe.
    pub(super) fn heard_of(&self, heard: &Heard) -> Result<(), No> {
        let Heard { ino, stripe, .. } = *heard;
        let _inside = self.enter([ino])?;
        let placed = self.placed_now(ino)?;
        let Some(now) = placed.layout.views.get(stripe).filter(|view| view.number == heard.view) else {
            return Ok(());
        };
        let Some(silent) = heard.silent else {
            return self.is_complete(ino, stripe, &placed, now);
        };
        if heard.doubtful && !self.is_believed(heard, &placed, silent) {
            return Ok(());
        }
        if self.without(ino, stripe, &placed, silent)? && !heard.doubtful {
            self.replicas.apart.lock().insert((ino, stripe, silent.node), Instant::now());
        }
        self.replicas.lacking.lock().insert(ino);
        Ok(())
    }

    /// A client says that a member does not answer: that may be so for the client alone, or for a moment.
    fn is_believed(&self, heard: &Heard, placed: &Placed, silent: Member) -> bool {
        if !is_up(&self.nodes.lives(), silent) {
            return true;
        }
        let asked = KnowView { object: Some(placed.object(heard.ino, heard.stripe)), asks: false };
        if self.ask(silent.node, asked).is_err() {
            return true;
        }
        let now = Instant::now();
        let mut doubted = self.replicas.doubted.lock();
        let (first, last) = doubted.entry((heard.ino, heard.stripe, silent)).or_insert((now, now));
        *last = now;
        first.elapsed() >= DOUBTED_FOR
    }

    fn ask(&self, node: u64, asked: KnowView) -> Result<ViewKnown, No> {
        self.nodes.ask_all(&[(node, asked)]).pop().unwrap_or(Err(Errno::EIO.into()))
    }

    /// The primary says that the second has every byte. What it has is durable before it counts, as what was synced meanwhile is.
    fn is_complete(&self, ino: Ino, stripe: usize, placed: &Placed, now: &View) -> Result<(), No> {
        let Some(second) = now.second.filter(|second| !second.counts) else { return Ok(()) };
        let sync = proto::data::Sync { object: Some(placed.object(ino, stripe)) };
        self.nodes.ask_all(&[(second.member.node, sync)]).pop().unwrap_or(Err(Errno::EIO.into()))?;
        let known = Known::Complete { view: now.number };
        self.next_view(ino, stripe, now, known)?;
        self.drop_what_is_left(ino)
    }

    /// Another view, in which this member has nothing any more, if somebody else goes on.
    fn without(&self, ino: Ino, stripe: usize, placed: &Placed, silent: Member) -> Result<bool, No> {
        let Some(now) = placed.layout.views.get(stripe).copied() else { return Ok(false) };
        let known = Known::Silent(member(silent));
        if let Some(other) = view(&now).asks(known) {
            let object = placed.object(ino, stripe);
            let said = self.ask(other.node.0, KnowView { object: Some(object), asks: true })?;
            if !said.goes_on {
                tracing::debug!(%ino, stripe, node = other.node.0, ours = now.number, theirs = said.number, "a data server does not go on alone");
                return Ok(false);
            }
            return self.next_view(ino, stripe, &now, Known::GoesOn { by: other, view: now.number });
        }
        self.next_view(ino, stripe, &now, known)
    }

    /// Stores the view that comes of what is known, and tells who is in it. False: it stays.
    fn next_view(&self, ino: Ino, stripe: usize, now: &View, known: Known) -> Result<bool, No> {
        let lives = self.nodes.lives();
        let up = |of: replica::Member| is_up(&lives, said_member(of));
        let Some(next) = view(now).next(known, up) else { return Ok(false) };
        self.install(ino, stripe, now, said_view(&next))?;
        Ok(true)
    }

    fn install(&self, ino: Ino, stripe: usize, now: &View, next: View) -> Result<(), No> {
        let placed = {
            // Who is being drained gets nothing more.
            let _placing = self.drains.placing.read();
            let added = next.second.filter(|second| now.second.is_none_or(|old| old.member != second.member));
            if added.is_some_and(|second| !self.nodes.takes_data(second.member.node)) {
                return Err(No::later("it is taken out"));
            }
            self.locked(ino, |file, state| {
                let placed = state.placed.clone().ok_or(Errno::ENODATA)?;
                if placed.layout.views.get(stripe) != Some(now) {
                    return Err(No::later("there is another view already"));
                }
                let placed = placed.with_view(stripe, next);
                let stored = self.store_placed(file.ino, &placed).and_then(|()| Ok(self.mds.sync()?));
                if let Err(no) = stored.and_then(|()| self.settled_here()) {
                    // It may have been stored: whoever wants it reads what is there.
                    state.placed = None;
                    return Err(no);
                }
                state.placed = Some(placed.clone());
                Ok(placed)
            })?
        };
        self.replicas.changed.fetch_add(1, Ordering::Relaxed);
        tracing::info!(%ino, stripe, before = ?now, next = ?next, "an object has another view");
        self.replicas.wake();
        self.tell(ino, stripe, &placed, now);
        Ok(())
    }

    /// All whom the views name and who are there. Who does not hear it hears it from who asks by it.
    fn tell(&self, ino: Ino, stripe: usize, placed: &Placed, before: &View) {
        let Some(next) = placed.layout.views.get(stripe) else { return };
        let lives = self.nodes.lives();
        let mut members: Vec<Member> =
            next.all().chain(before.all()).filter(|one| is_up(&lives, *one)).collect();
        members.sort_unstable();
        members.dedup();
        let object = Some(placed.object(ino, stripe));
        let asked: Vec<_> =
            members.into_iter().map(|member| (member.node, KnowView { object, asks: false })).collect();
        for ((node, _), told) in asked.iter().zip(self.nodes.ask_all(&asked)) {
            if let Err(no) = told {
                tracing::debug!(%ino, node, why = no.0.detail, "a data server hears of a view later");
            }
        }
    }

    /// What lacks a copy gets one; true: nothing is lacking any more.
    pub(super) fn make_whole(&self, ino: Ino) -> Result<bool, No> {
        let _inside = self.enter([ino])?;
        let count = self.placed_now(ino)?.layout.views.len();
        for stripe in 0..count {
            self.make_stripe_whole(ino, stripe)?;
        }
        let placed = self.placed_now(ino)?;
        if !self.is_whole(&placed, &self.nodes.lives()) {
            return Ok(false);
        }
        self.replicas.is_whole(ino, count);
        self.drop_what_is_left(ino)?;
        Ok(true)
    }

    fn make_stripe_whole(&self, ino: Ino, stripe: usize) -> Result<(), No> {
        let placed = self.placed_now(ino)?;
        let Some(now) = placed.layout.views.get(stripe).copied() else { return Ok(()) };
        let lives = self.nodes.lives();
        let counting: Vec<Member> = now.counting().collect();
        let object = placed.object(ino, stripe);
        let gone = counting.iter().filter(|one| self.is_gone(&lives, **one, object)).count();
        if gone == counting.len() {
            return self.revive(ino, stripe, &now, object);
        }
        if let Some(lost) = now.all().find(|one| !is_up(&lives, *one)) {
            self.without(ino, stripe, &placed, lost)?;
            return Ok(());
        }
        if let (2, Some(leaving)) = (counting.len(), counting.iter().find(|one| !self.stays(&lives, **one))) {
            // Its place is taken by another one, which gets everything from who is left.
            if self.place_for_second(ino, stripe, &placed, &lives, &counting).is_some() {
                self.without(ino, stripe, &placed, *leaving)?;
            }
            return Ok(());
        }
        if now.second.is_some() {
            self.tell_again(ino, stripe, &now, object);
            return Ok(());
        }
        if !self.replicas.may_try((ino, stripe), Instant::now()) {
            return Ok(());
        }
        let Some((second, kept)) = self.place_for_second(ino, stripe, &placed, &lives, &counting) else {
            tracing::debug!(%ino, stripe, ?lives, "no data server is there that could have a second copy");
            return Ok(());
        };
        self.replicas.tries((ino, stripe), Instant::now());
        self.next_view(ino, stripe, &now, Known::Room { member: member(second), kept }).map(drop)
    }

    /// Who was not reached when this view was made does not copy, and nobody has to ask by it.
    fn tell_again(&self, ino: Ino, stripe: usize, now: &View, object: Object) {
        if !self.replicas.may_tell((ino, stripe), now.number, Instant::now()) {
            return;
        }
        match self.ask(now.primary.node, KnowView { object: Some(object), asks: false }) {
            Ok(said) if said.number >= now.number => {
                self.replicas.is_told((ino, stripe), now.number, Instant::now());
            }
            Ok(_) => (),
            Err(no) => tracing::debug!(%ino, stripe, why = no.0.detail, "a primary hears of a view later"),
        }
    }

    /// One of those that counted goes on with what outlived it, in the life in which it answers.
    fn revive(&self, ino: Ino, stripe: usize, now: &View, object: Object) -> Result<(), No> {
        let back = now.counting().filter(|one| !self.is_removed(one.node)).find_map(|one| {
            let life = self.life_now(one.node, object).filter(|life| *life != one.life)?;
            Some(Member { node: one.node, life })
        });
        let Some(primary) = back else { return Ok(()) };
        let number = ((now.number >> REVIVED) + 1) << REVIVED;
        tracing::error!(%ino, stripe, node = primary.node, "both copies were lost: what was in a tier that outlives its data server goes on, what was in memory alone is gone");
        self.replicas.revived.fetch_add(1, Ordering::Relaxed);
        self.install(ino, stripe, now, View { number, primary, since: number, second: None })?;
        self.note_lost(ino);
        Ok(())
    }

    /// Who gets the second copy: one that has kept what it had, or one in another rack, or another one. And whether it has kept it.
    fn place_for_second(
        &self,
        ino: Ino,
        stripe: usize,
        placed: &Placed,
        lives: &Lives,
        counting: &[Member],
    ) -> Option<(Member, bool)> {
        let primary = counting.first()?;
        let is_other = |node: u64| counting.iter().all(|one| one.node != node);
        let of = |node: u64| lives.get(&node).map(|(life, _)| Member { node, life: *life });
        let takers: Measures = self
            .nodes
            .measures_of_takers()
            .into_iter()
            .filter(|(node, _)| is_other(node.0) && lives.get(&node.0).is_some_and(|(_, up)| *up))
            .collect();
        let takers = self.replicas.least_apart((ino, stripe), takers);
        let object = placed.object(ino, stripe);
        let before = placed.left.iter().rev().filter(|node| takers.contains_key(&NodeId(**node)));
        for node in before.copied() {
            let said = self.ask(node, KnowView { object: Some(object), asks: false });
            let taker = of(node)?;
            if said.is_ok_and(|said| said.kept && said.life == taker.life) {
                return Some((taker, true));
            }
        }
        let map = self.nodes.map();
        let rack = |node: NodeId| map.node(node).and_then(|node| node.rack().map(str::to_owned));
        let own = rack(NodeId(primary.node));
        let job = self.sessions.with_jobs_of(primary.node);
        let among = |fits: &dyn Fn(NodeId) -> bool| -> Measures {
            takers.iter().filter(|(node, _)| fits(**node)).map(|(node, measure)| (*node, *measure)).collect()
        };
        let (in_other_rack, without_job) =
            (|node: NodeId| own.is_none() || rack(node) != own, |node: NodeId| !job.contains(&node));
        let best: [Measures; 4] = [
            among(&|node| in_other_rack(node) && without_job(node)),
            among(&in_other_rack),
            among(&without_job),
            takers.clone(),
        ];
        let (file, from) = ((&placed.layout.stripes[..], ino.get()), NodeId(primary.node));
        let room = placed.layout.unit;
        let node = best.iter().find_map(|takers| refuge(&map, takers, file, from, room))?;
        Some((of(node.0)?, false))
    }

    /// Where a file has all its copies, others need nothing of it any more.
    fn drop_what_is_left(&self, ino: Ino) -> Result<(), No> {
        let placed = self.placed_now(ino)?;
        let lives = self.nodes.lives();
        if placed.left.is_empty() || !self.is_whole(&placed, &lives) {
            return Ok(());
        }
        let objects: Vec<Object> = (0..placed.layout.views.len()).map(|n| placed.object(ino, n)).collect();
        let there = placed.left.iter().filter(|node| lives.get(node).is_some_and(|(_, up)| *up));
        let asked: Vec<_> = there.map(|node| (*node, DropCopies { objects: objects.clone() })).collect();
        let answers = self.nodes.ask_all(&asked);
        let dropped: Vec<u64> =
            asked.iter().zip(answers).filter(|(_, told)| told.is_ok()).map(|((node, _), _)| *node).collect();
        if dropped.is_empty() {
            return Ok(());
        }
        self.locked(ino, |file, state| {
            let Some(now) = state.placed.clone().filter(|now| now.layout == placed.layout) else {
                return Ok(());
            };
            let left = now.left.iter().copied().filter(|node| !dropped.contains(node)).collect();
            let next = Placed { left, ..now };
            self.store_placed(file.ino, &next)?;
            state.placed = Some(next);
            Ok(())
        })
    }
}
