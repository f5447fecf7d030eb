//! The sequential model of names in two directories: what each step of a call does to them, and which answer it can have.
//!
//! A call with a path finds a file first and then does something to it (`Find`, `Onto`): that is so on every Linux file system, and the file
//! may have lost that name in between. An error that comes of two names says what each was at a moment of its own (`Holds`).

use std::collections::BTreeMap;

use super::{
    entry::{At, EntryAnswer, EntryOp, NAMES, Refusal},
    linear::Model,
};
use crate::op::RenameKind;

/// The call that made it.
type Id = u32;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Node {
    File {
        mode: u16,
        size: u64,
        links: u32,
    },
    /// `below` is its one possible name.
    Directory {
        mode: u16,
        below: Option<Id>,
        linked: bool,
    },
}

/// All names, what they are of, and what calls that are under way have found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    names: BTreeMap<At, Id>,
    nodes: BTreeMap<Id, Node>,
    found: BTreeMap<u32, Option<Id>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    Absent(At),
    Present(At),
    IsFile(At),
    IsDirectory(At),
    NotEmpty(At),
    EitherAbsent(At, At),
}

/// What an answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    Itself,
    /// The name below it, which was to be made or removed.
    NewBelow,
    OldBelow,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Changes nothing; was so at a moment.
    Holds(Fact),
    /// The name was looked up.
    Find { call: u32, at: At },
    /// The operation was done, as answered, to what was found or to names.
    Done { call: u32, op: EntryOp },
    /// Something was done to what was found, with this answer, which changed nothing.
    Seen { call: u32, answer: EntryAnswer, sought: Sought },
    /// The operation was carried out with whatever result, and nobody was told.
    Untold { call: u32, op: EntryOp },
    /// That, or not.
    Perhaps(Box<Step>),
}

impl Step {
    /// The steps of a call that was answered.
    pub fn of(call: u32, op: &EntryOp, answer: &EntryAnswer) -> Vec<Step> {
        match answer {
            EntryAnswer::Refused(why) => refused(call, op, *why),
            EntryAnswer::Names(names) => {
                let EntryOp::List { dir } = op else { return vec![Step::impossible()] };
                listed(*dir, names)
            }
            EntryAnswer::File { .. } | EntryAnswer::Directory { .. } => match found_first(op) {
                Some(at) => vec![
                    Step::Find { call, at },
                    Step::Seen { call, answer: answer.clone(), sought: Sought::Itself },
                ],
                None => vec![Step::impossible()],
            },
            EntryAnswer::Done => {
                let find = found_first(op).map(|at| Step::Find { call, at });
                find.into_iter().chain([Step::Done { call, op: *op }]).collect()
            }
        }
    }

    /// The steps of a call of which nobody knows; none if it changes nothing.
    pub fn unanswered(call: u32, op: &EntryOp) -> Vec<Step> {
        match op {
            EntryOp::Stat { .. } | EntryOp::List { .. } => vec![],
            EntryOp::Create { .. }
            | EntryOp::Mkdir { .. }
            | EntryOp::Unlink { .. }
            | EntryOp::Rmdir { .. }
            | EntryOp::Rename { .. }
            | EntryOp::Link { .. }
            | EntryOp::Chmod { .. }
            | EntryOp::Truncate { .. }
            | EntryOp::CreateBelow { .. }
            | EntryOp::UnlinkBelow { .. } => {
                let find = found_first(op).map(|at| Step::Find { call, at });
                find.into_iter().chain([Step::Untold { call, op: *op }]).collect()
            }
        }
    }

    /// An answer that no state explains.
    fn impossible() -> Step {
        let nobody = At { dir: u8::MAX, name: u8::MAX };
        Step::Holds(Fact::Present(nobody))
    }
}

/// The name whose file a call finds before it does something.
fn found_first(op: &EntryOp) -> Option<At> {
    match op {
        EntryOp::Create { .. }
        | EntryOp::Mkdir { .. }
        | EntryOp::Unlink { .. }
        | EntryOp::Rmdir { .. }
        | EntryOp::List { .. } => None,
        // Two names of one file are no work, and the kernel sees to that by itself.
        EntryOp::Rename { from, kind: RenameKind::Replace | RenameKind::Exchange, .. } => Some(*from),
        EntryOp::Rename { kind: RenameKind::NoReplace, .. } => None,
        EntryOp::Link { from, .. } => Some(*from),
        EntryOp::Stat { at }
        | EntryOp::Chmod { at, .. }
        | EntryOp::Truncate { at, .. }
        | EntryOp::CreateBelow { at, .. }
        | EntryOp::UnlinkBelow { at } => Some(*at),
    }
}

/// A name that was there all the time is listed, one that was not is not; of others either may be.
fn listed(dir: u8, names: &[u8]) -> Vec<Step> {
    if names.iter().any(|name| *name >= NAMES) || names.windows(2).any(|two| two[0] == two[1]) {
        return vec![Step::impossible()];
    }
    let fact = |name| {
        let at = At { dir, name };
        Step::Holds(if names.contains(&name) { Fact::Present(at) } else { Fact::Absent(at) })
    };
    (0..NAMES).map(fact).collect()
}

fn refused(call: u32, op: &EntryOp, why: Refusal) -> Vec<Step> {
    let facts = |facts: &[Fact]| facts.iter().copied().map(Step::Holds).collect();
    let found = |at: At, sought| {
        vec![Step::Find { call, at }, Step::Seen { call, answer: EntryAnswer::Refused(why), sought }]
    };
    match (op, why) {
        (EntryOp::Create { at, .. } | EntryOp::Mkdir { at, .. }, Refusal::There) => {
            facts(&[Fact::Present(*at)])
        }
        (EntryOp::Unlink { at } | EntryOp::Rmdir { at }, Refusal::NotThere) => facts(&[Fact::Absent(*at)]),
        (EntryOp::Unlink { at } | EntryOp::Truncate { at, .. }, Refusal::IsDirectory) => {
            facts(&[Fact::IsDirectory(*at)])
        }
        (EntryOp::Rmdir { at }, Refusal::NotDirectory) => facts(&[Fact::IsFile(*at)]),
        (EntryOp::Rmdir { at }, Refusal::NotEmpty) => facts(&[Fact::NotEmpty(*at)]),
        (EntryOp::Rename { from, to, kind: RenameKind::Exchange }, Refusal::NotThere) => {
            facts(&[Fact::EitherAbsent(*from, *to)])
        }
        (EntryOp::Rename { from, .. }, Refusal::NotThere) => facts(&[Fact::Absent(*from)]),
        (
            EntryOp::Rename { from, to, kind: RenameKind::NoReplace } | EntryOp::Link { from, to },
            Refusal::There,
        ) => facts(&[Fact::Present(*from), Fact::Present(*to)]),
        (EntryOp::Rename { from, to, kind: RenameKind::Replace }, Refusal::NotDirectory) => {
            facts(&[Fact::IsDirectory(*from), Fact::IsFile(*to)])
        }
        (EntryOp::Rename { from, to, kind: RenameKind::Replace }, Refusal::IsDirectory) => {
            facts(&[Fact::IsFile(*from), Fact::IsDirectory(*to)])
        }
        (EntryOp::Rename { from, to, kind: RenameKind::Replace }, Refusal::NotEmpty) => {
            facts(&[Fact::IsDirectory(*from), Fact::NotEmpty(*to)])
        }
        (EntryOp::Link { from, .. }, Refusal::NotPermitted) => facts(&[Fact::IsDirectory(*from)]),
        (EntryOp::Link { from, .. }, Refusal::NotThere) => found(*from, Sought::Itself),
        (
            EntryOp::Stat { at } | EntryOp::Chmod { at, .. } | EntryOp::Truncate { at, .. },
            Refusal::NotThere,
        ) => facts(&[Fact::Absent(*at)]),
        (EntryOp::CreateBelow { at, .. } | EntryOp::UnlinkBelow { at }, Refusal::NotDirectory) => {
            facts(&[Fact::IsFile(*at)])
        }
        (EntryOp::CreateBelow { at, .. }, Refusal::There | Refusal::NotThere) => found(*at, Sought::NewBelow),
        (EntryOp::UnlinkBelow { at }, Refusal::NotThere) => found(*at, Sought::OldBelow),
        (EntryOp::List { .. }, Refusal::Moved) => vec![Step::impossible()],
        // The kernel found a directory that another client moved, and could not put it where it is now, since somebody here was changing
        // the directory where it was. Of anything but a directory it says no such thing.
        (EntryOp::Stat { at }, Refusal::Moved) => facts(&[Fact::IsDirectory(*at)]),
        // Nothing was done, and nothing is said.
        (_, Refusal::Moved) => vec![],
        _ => vec![Step::impossible()],
    }
}

/// The model.
pub struct Entries;

impl Model for Entries {
    type State = State;
    type Step = Step;

    fn begin(&self) -> State {
        State::default()
    }

    fn next(&self, state: &State, step: &Step) -> Vec<State> {
        match step {
            Step::Holds(fact) => {
                if state.holds(*fact) {
                    vec![state.clone()]
                } else {
                    vec![]
                }
            }
            Step::Find { call, at } => {
                let mut after = state.clone();
                after.found.insert(*call, state.names.get(at).copied());
                vec![after]
            }
            Step::Seen { call, answer, sought } => {
                let Some(found) = state.found.get(call) else { return vec![] };
                if !state.shows(*found, answer, *sought) {
                    return vec![];
                }
                vec![state.without(*call).swept()]
            }
            Step::Done { call, op } => state.done(*call, op),
            Step::Untold { call, op } => {
                if found_first(op).is_some() && !state.found.contains_key(call) {
                    return vec![];
                }
                // Without a change it need not have happened.
                state.done(*call, op).into_iter().filter(|after| after != state).collect()
            }
            Step::Perhaps(step) => {
                let mut after = self.next(state, step);
                after.push(state.clone());
                after
            }
        }
    }

    fn looks(&self, step: &Step) -> bool {
        match step {
            Step::Holds(_) | Step::Seen { .. } => true,
            Step::Find { .. } | Step::Done { .. } | Step::Untold { .. } | Step::Perhaps(_) => false,
        }
    }
}

impl State {
    fn node(&self, at: At) -> Option<&Node> {
        self.names.get(&at).and_then(|id| self.nodes.get(id))
    }
    fn is_directory(&self, at: At) -> bool {
        matches!(self.node(at), Some(Node::Directory { .. }))
    }
    fn is_file(&self, at: At) -> bool {
        matches!(self.node(at), Some(Node::File { .. }))
    }
    fn not_empty(&self, at: At) -> bool {
        matches!(self.node(at), Some(Node::Directory { below: Some(_), .. }))
    }

    fn holds(&self, fact: Fact) -> bool {
        let absent = |at| !self.names.contains_key(&at);
        match fact {
            Fact::Absent(at) => absent(at),
            Fact::Present(at) => !absent(at),
            Fact::IsFile(at) => self.is_file(at),
            Fact::IsDirectory(at) => self.is_directory(at),
            Fact::NotEmpty(at) => self.not_empty(at),
            Fact::EitherAbsent(one, other) => absent(one) || absent(other),
        }
    }

    /// Can this be answered of what was found, or of the name below it?
    fn shows(&self, found: Option<Id>, answer: &EntryAnswer, sought: Sought) -> bool {
        let Some(node) = found.and_then(|id| self.nodes.get(&id)) else {
            return *answer == EntryAnswer::Refused(Refusal::NotThere);
        };
        match (answer, node, sought) {
            (EntryAnswer::Refused(Refusal::NotThere), Node::File { links, .. }, Sought::Itself) => {
                *links == 0
            }
            (EntryAnswer::Refused(Refusal::NotThere), Node::Directory { linked, .. }, Sought::NewBelow) => {
                !linked
            }
            (EntryAnswer::Refused(Refusal::NotThere), Node::Directory { below, .. }, Sought::OldBelow) => {
                below.is_none()
            }
            (EntryAnswer::Refused(Refusal::There), Node::Directory { below, .. }, Sought::NewBelow) => {
                below.is_some()
            }
            (EntryAnswer::File { mode, links, size }, Node::File { .. }, Sought::Itself) => {
                *node == Node::File { mode: *mode, links: *links, size: *size }
            }
            (EntryAnswer::Directory { mode }, Node::Directory { mode: real, .. }, Sought::Itself) => {
                mode == real
            }
            _ => false,
        }
    }

    /// The states after a success; none if it cannot succeed.
    fn done(&self, call: u32, op: &EntryOp) -> Vec<State> {
        let mut after = self.without(call);
        let found = self.found.get(&call).copied().flatten();
        let possible = match *op {
            EntryOp::Create { at, mode } => after.make(call, at, Node::File { mode, size: 0, links: 0 }),
            EntryOp::Mkdir { at, mode } => {
                after.make(call, at, Node::Directory { mode, below: None, linked: false })
            }
            EntryOp::Unlink { at } => self.is_file(at) && after.remove(at),
            EntryOp::Rmdir { at } => self.is_directory(at) && !self.not_empty(at) && after.remove(at),
            EntryOp::Rename { from, to, kind } => return self.renamed(after, found, from, to, kind),
            EntryOp::Link { to, .. } => after.link(found, to),
            EntryOp::Chmod { mode, .. } => after.chmod(found, mode),
            EntryOp::Truncate { size, .. } => after.truncate(found, size),
            EntryOp::CreateBelow { mode, .. } => after.make_below(call, found, mode),
            EntryOp::UnlinkBelow { .. } => after.remove_below(found),
            EntryOp::Stat { .. } | EntryOp::List { .. } => false,
        };
        if possible { vec![after.swept()] } else { vec![] }
    }

    /// The server's rename, of what the names are now; or nothing, where the kernel found one file behind both names, one after the other.
    fn renamed(&self, mut after: State, found: Option<Id>, from: At, to: At, kind: RenameKind) -> Vec<State> {
        let mut states = Vec::new();
        if kind != RenameKind::NoReplace && found.is_some() && found == self.names.get(&to).copied() {
            states.push(after.clone().swept());
        }
        if after.rename(from, to, kind) {
            states.push(after.swept());
        }
        states
    }

    fn rename(&mut self, from: At, to: At, kind: RenameKind) -> bool {
        let Some(source) = self.names.get(&from).copied() else { return false };
        match (kind, self.names.get(&to).copied()) {
            (RenameKind::Exchange, None) | (RenameKind::NoReplace, Some(_)) => return false,
            (RenameKind::Exchange, Some(target)) => {
                self.names.insert(from, target);
                self.names.insert(to, source);
                return true;
            }
            (RenameKind::Replace, Some(target)) if target == source => return true,
            (RenameKind::Replace, Some(_)) => {
                if self.is_directory(from) != self.is_directory(to) || self.not_empty(to) {
                    return false;
                }
                self.remove(to);
            }
            (RenameKind::Replace | RenameKind::NoReplace, None) => {}
        }
        self.names.remove(&from);
        self.names.insert(to, source);
        true
    }

    fn make(&mut self, call: u32, at: At, node: Node) -> bool {
        if self.names.contains_key(&at) {
            return false;
        }
        self.nodes.insert(call, node);
        self.link_node(call);
        self.names.insert(at, call);
        true
    }

    fn link_node(&mut self, id: Id) {
        match self.nodes.get_mut(&id) {
            Some(Node::File { links, .. }) => *links += 1,
            Some(Node::Directory { linked, .. }) => *linked = true,
            None => {}
        }
    }
    fn unlink_node(&mut self, id: Id) {
        match self.nodes.get_mut(&id) {
            Some(Node::File { links, .. }) => *links = links.saturating_sub(1),
            Some(Node::Directory { linked, .. }) => *linked = false,
            None => {}
        }
    }

    fn remove(&mut self, at: At) -> bool {
        let Some(id) = self.names.remove(&at) else { return false };
        self.unlink_node(id);
        true
    }

    fn link(&mut self, found: Option<Id>, to: At) -> bool {
        let Some(id) = found else { return false };
        let alive = matches!(self.nodes.get(&id), Some(Node::File { links: 1.., .. }));
        if !alive || self.names.contains_key(&to) {
            return false;
        }
        self.link_node(id);
        self.names.insert(to, id);
        true
    }

    fn chmod(&mut self, found: Option<Id>, new: u16) -> bool {
        match found.and_then(|id| self.nodes.get_mut(&id)) {
            Some(Node::File { mode, .. } | Node::Directory { mode, .. }) => {
                *mode = new;
                true
            }
            None => false,
        }
    }

    fn truncate(&mut self, found: Option<Id>, new: u64) -> bool {
        match found.and_then(|id| self.nodes.get_mut(&id)) {
            Some(Node::File { size, .. }) => {
                *size = new;
                true
            }
            Some(Node::Directory { .. }) | None => false,
        }
    }

    fn make_below(&mut self, call: u32, found: Option<Id>, mode: u16) -> bool {
        match found.and_then(|id| self.nodes.get_mut(&id)) {
            Some(Node::Directory { below: below @ None, linked: true, .. }) => *below = Some(call),
            Some(Node::Directory { .. } | Node::File { .. }) | None => return false,
        }
        self.nodes.insert(call, Node::File { mode, size: 0, links: 1 });
        true
    }

    fn remove_below(&mut self, found: Option<Id>) -> bool {
        let below = match found.and_then(|id| self.nodes.get_mut(&id)) {
            Some(Node::Directory { below, .. }) => below.take(),
            Some(Node::File { .. }) | None => None,
        };
        let Some(id) = below else { return false };
        self.unlink_node(id);
        true
    }

    /// The call has ended: what it found is not needed any more.
    fn without(&self, call: u32) -> State {
        let mut after = self.clone();
        after.found.remove(&call);
        after
    }

    /// Without what has no name and is not in the hands of a call.
    fn swept(mut self) -> State {
        let State { nodes, found, .. } = &mut self;
        nodes.retain(|id, node| match node {
            Node::File { links, .. } => *links > 0 || found.values().any(|held| *held == Some(*id)),
            Node::Directory { linked, .. } => *linked || found.values().any(|held| *held == Some(*id)),
        });
        self
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a look may be told `ESTALE` of a directory and of nothing else. Method: the steps of such answers.
    use super::*;

    #[test]
    fn regression_a_look_is_told_that_it_moved_of_directories_alone() {
        let at = At { dir: 1, name: 2 };
        let stat = refused(1, &EntryOp::Stat { at }, Refusal::Moved);
        assert_eq!(stat, [Step::Holds(Fact::IsDirectory(at))]);
        let list = refused(1, &EntryOp::List { dir: 1 }, Refusal::Moved);
        assert_eq!(list, [Step::impossible()], "it begins with no name that can move");
    }
}
