//! Which step an inode can do next, and who has to go first: the rules of [`crate::Log`], over all that is pending.

use std::collections::{BTreeMap, BTreeSet};

use types::{FileKind, Ino};

use crate::{
    place::{Place, is_on_the_way},
    step::Step,
    work::Work,
};

pub(crate) enum Next {
    Step(Step),
    Blocked(Ino),
    /// Until the inode itself changes: its data are not to be published yet.
    Idle,
}

pub(crate) struct Board {
    root: Ino,
    pub(crate) works: BTreeMap<Ino, Work>,
    /// Of all works: who is to leave a name there, and who is to get one.
    leaving: BTreeMap<Place, Ino>,
    wanted: BTreeMap<Place, Ino>,
    /// Names that begun steps give.
    landing: BTreeMap<Place, Ino>,
    /// Who loses a name by a begun step of another, and of whom.
    victims: BTreeMap<Ino, Ino>,
    /// Steps that are with the shell, and the directories above their names.
    pub(crate) flights: BTreeMap<Ino, BTreeSet<Ino>>,
    /// Who was refused, and waits.
    pub(crate) refused: BTreeSet<Ino>,
}

impl Board {
    pub(crate) fn new(root: Ino) -> Board {
        Board {
            root,
            works: BTreeMap::new(),
            leaving: BTreeMap::new(),
            wanted: BTreeMap::new(),
            landing: BTreeMap::new(),
            victims: BTreeMap::new(),
            flights: BTreeMap::new(),
            refused: BTreeSet::new(),
        }
    }

    /// A name of the work that another leaves or is to get already.
    pub(crate) fn clash(&self, work: &Work) -> Option<Place> {
        let given = work.minus.iter().find(|at| self.leaving.contains_key(*at));
        given.or_else(|| work.plus.iter().find(|at| self.wanted.contains_key(*at))).cloned()
    }

    pub(crate) fn landing_in(&self, dir: Ino) -> impl Iterator<Item = (&Place, &Ino)> {
        names_in(&self.landing, dir)
    }

    pub(crate) fn leaving_in(&self, dir: Ino) -> impl Iterator<Item = (&Place, &Ino)> {
        names_in(&self.leaving, dir)
    }

    pub(crate) fn is_wanted_in(&self, dir: Ino) -> bool {
        names_in(&self.wanted, dir).next().is_some()
    }

    /// The step that the inode can do next.
    pub(crate) fn next_step(&self, ino: Ino, parent: &dyn Fn(Ino) -> Option<Ino>) -> Next {
        let Some(work) = self.works.get(&ino) else { return Next::Idle };
        // Its names are not sure.
        if let Some(by) = self.victims.get(&ino) {
            return Next::Blocked(*by);
        }
        let step = match &work.begun {
            Some(step) => Ok(Some(step.clone())),
            None => self.derive(ino, work),
        };
        let step = match step {
            Ok(Some(step)) => step,
            Ok(None) => return Next::Idle,
            Err(by) => return Next::Blocked(by),
        };
        match self.in_the_way(ino, work, &step, parent) {
            Some(by) => Next::Blocked(by),
            None => Next::Step(step),
        }
    }

    /// `Err`: who has to go first.
    fn derive(&self, ino: Ino, work: &Work) -> Result<Option<Step>, Ino> {
        if !work.there {
            let unpublished =
                work.kind == FileKind::Regular && (work.writing || work.written > work.published);
            let Some(at) = work.plus.first().filter(|_| work.due.is_some() || !unpublished) else {
                return Ok(None);
            };
            let over = self.vacancy(ino, work, at)?;
            return Ok(Some(Step::Create { at: at.clone(), over, data: work.due }));
        }
        if let Some(version) = work.due {
            return Ok(Some(Step::Publish { version }));
        }
        // No name of another before its data are published as they were when it got that name here.
        let may = |work: &Work, step: &Step| step.over().is_none() || work.published >= work.needs;
        match (work.minus.first().cloned(), work.plus.first().cloned()) {
            (Some(from), Some(to)) => {
                let over = self.vacancy(ino, work, &to)?;
                Ok(Some(Step::Rename { from, to, over }).filter(|step| may(work, step)))
            }
            (None, Some(at)) => {
                let over = self.vacancy(ino, work, &at)?;
                Ok(Some(Step::Link { at, over }).filter(|step| may(work, step)))
            }
            (Some(at), None) => self.removal(ino, work, at).map(Some),
            (None, None) if !work.attrs.is_empty() => Ok(Some(Step::SetAttr { what: work.attrs })),
            (None, None) if !work.xattrs.is_empty() => {
                Ok(Some(Step::SetXattr { names: work.xattrs.clone() }))
            }
            (None, None) => Ok(None),
        }
    }

    /// Whether the name `at` can be given there, and in whose place.
    fn vacancy(&self, ino: Ino, work: &Work, at: &Place) -> Result<Option<Ino>, Ino> {
        if let Some(other) = self.landing.get(at).filter(|other| **other != ino) {
            return Err(*other);
        }
        if self.works.get(&at.dir).is_some_and(|dir| !dir.there) {
            return Err(at.dir);
        }
        let Some(victim) = self.leaving.get(at).filter(|other| **other != ino) else { return Ok(None) };
        if let Some(other) = self.victims.get(victim) {
            return Err(*other);
        }
        let only_goes = |victim: &Work| victim.plus.is_empty() && victim.begun.is_none() && !victim.is_dir();
        if !work.is_dir() && self.works.get(victim).is_some_and(only_goes) {
            Ok(Some(*victim))
        } else {
            Err(*victim)
        }
    }

    fn removal(&self, ino: Ino, work: &Work, at: Place) -> Result<Step, Ino> {
        if let Some(other) = self.landing.get(&at).filter(|other| **other != ino) {
            return Err(*other);
        }
        if work.is_dir() {
            let inside = |names| names_in(names, ino).next().map(|(_, child)| *child);
            return match inside(&self.leaving).or_else(|| inside(&self.landing)) {
                Some(child) => Err(child),
                None => Ok(Step::Rmdir { at }),
            };
        }
        // Who gets the name takes it over at once; unless that is refused, perhaps for want of the room that this one has.
        match self.wanted.get(&at).copied().filter(|heir| *heir != ino && !self.refused.contains(heir)) {
            Some(heir) if self.works.get(&heir).is_some_and(|heir| !heir.is_dir()) => Err(heir),
            Some(_) | None => Ok(Step::Unlink { at }),
        }
    }

    /// Whose rename, under way or to come, the way to the step's names depends on.
    pub(crate) fn in_the_way(
        &self,
        ino: Ino,
        work: &Work,
        step: &Step,
        parent: &dyn Fn(Ino) -> Option<Ino>,
    ) -> Option<Ino> {
        let above = self.above(ino, work, step, parent);
        let moving = |dir: &&Ino| {
            let begun = self.works.get(dir).and_then(|work| work.begun.as_ref());
            **dir != ino && matches!(begun, Some(Step::Rename { .. } | Step::Rmdir { .. }))
        };
        if let Some(dir) = above.iter().find(moving) {
            return Some(*dir);
        }
        let Step::Rename { to, .. } = step else { return None };
        if !work.is_dir() {
            return None;
        }
        if let Some((flight, _)) =
            self.flights.iter().find(|(other, above)| **other != ino && above.contains(&ino))
        {
            return Some(*flight);
        }
        // Into its own inside: some directory between the two has to leave first.
        let path = self.path_up(to.dir, parent);
        let inside = path.iter().position(|dir| *dir == ino)?;
        path[..inside].iter().copied().find(|dir| {
            self.works.get(dir).is_some_and(|work| !work.minus.is_empty() || work.begun.is_some())
        })
    }

    /// The directories on the ways to all names of the step, as the back end has them.
    pub(crate) fn above(
        &self,
        ino: Ino,
        work: &Work,
        step: &Step,
        parent: &dyn Fn(Ino) -> Option<Ino>,
    ) -> BTreeSet<Ino> {
        let is_at = || work.minus.first().map(|at| at.dir).or_else(|| parent(ino));
        let dirs = [step.source().map(|at| at.dir).or_else(is_at), step.target().map(|at| at.dir)];
        dirs.into_iter().flatten().flat_map(|dir| self.path_up(dir, parent)).collect()
    }

    /// `dir` and the directories above it, as the back end has them.
    fn path_up(&self, dir: Ino, parent: &dyn Fn(Ino) -> Option<Ino>) -> Vec<Ino> {
        let mut path = vec![dir];
        let mut passed = BTreeSet::from([dir]);
        let mut at = dir;
        while at != self.root {
            let placed = self.works.get(&at).and_then(|work| work.minus.first());
            let Some(next) = placed.map(|place| place.dir).or_else(|| parent(at)) else { break };
            // Only damage makes a circle of parents, and never ending would be worse.
            if !passed.insert(next) {
                break;
            }
            path.push(next);
            at = next;
        }
        path
    }

    /// How an inode that is to be renamed leaves a name before its new one is free.
    pub(crate) fn way_out(&self, ino: Ino, work: &Work) -> Option<Step> {
        let from = work.minus.iter().find(|at| !is_on_the_way(&at.name)).cloned()?;
        if !work.there || work.begun.is_some() || work.plus.is_empty() {
            return None;
        }
        let to = Place::on_the_way(self.root, ino);
        // With another link on the way already this one can go.
        Some(if work.minus.contains(&to) {
            Step::Unlink { at: from }
        } else {
            Step::Rename { from, to, over: None }
        })
    }

    pub(crate) fn take(&mut self, ino: Ino) -> Option<Work> {
        let work = self.works.remove(&ino)?;
        let strike = |names: &mut BTreeMap<Place, Ino>, at: &Place| {
            if names.get(at) == Some(&ino) {
                names.remove(at);
            }
        };
        work.minus.iter().for_each(|at| strike(&mut self.leaving, at));
        work.plus.iter().for_each(|at| strike(&mut self.wanted, at));
        if let Some(step) = &work.begun {
            step.target().into_iter().for_each(|at| strike(&mut self.landing, at));
            if let Some(victim) = step.over() {
                self.victims.remove(&victim);
            }
        }
        Some(work)
    }

    pub(crate) fn put(&mut self, ino: Ino, work: Work) {
        self.leaving.extend(work.minus.iter().map(|at| (at.clone(), ino)));
        self.wanted.extend(work.plus.iter().map(|at| (at.clone(), ino)));
        self.index(ino, work.begun.as_ref());
        self.works.insert(ino, work);
    }

    pub(crate) fn index(&mut self, ino: Ino, begun: Option<&Step>) {
        self.landing.extend(begun.and_then(Step::target).map(|at| (at.clone(), ino)));
        self.victims.extend(begun.and_then(Step::over).map(|victim| (victim, ino)));
    }
}

fn names_in(names: &BTreeMap<Place, Ino>, dir: Ino) -> impl Iterator<Item = (&Place, &Ino)> {
    names.range(Place { dir, name: Vec::new() }..).take_while(move |(at, _)| at.dir == dir)
}
