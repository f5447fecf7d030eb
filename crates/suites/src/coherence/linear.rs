//! Is a history linearizable: is there an order of its operations that keeps to real time and that a sequential model gives,
//! too? The search of Wing and Gong with Lowe's memory of what was tried: a set of operations that are done, with the state
//! they led to, is looked at once.
//!
//! - An operation without an answer may have happened at any time after its call, or never.
//! - The model may be undecided: it gives all states that an operation with this answer may lead to, none if it cannot have it.
//! - The search ends: after `tries` steps it says that it does not know.

use std::{collections::HashSet, hash::Hash};

/// A sequential object.
pub trait Model {
    type State: Clone + Eq + Hash;
    type Step;
    fn begin(&self) -> Self::State;
    /// The states after this step in this state; none if it cannot happen here with the answer that it had.
    fn next(&self, state: &Self::State, step: &Self::Step) -> Vec<Self::State>;
    /// Changes nothing that another step sees. Where such a step can happen, it may as well happen at once.
    fn looks(&self, step: &Self::Step) -> bool;
}

/// One step of a history. Times are of one clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed<T> {
    pub called: u64,
    /// None: not answered. It may be left out, or happen at any time after the call.
    pub returned: Option<u64>,
    pub step: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    NotLinearizable,
    /// Not found out within the bound.
    Unknown,
}

/// A step that may come next and the state that it leads to.
type Choice<S> = (usize, S);

struct Frame<S> {
    /// The step that led here; none in the first frame.
    taken: Option<usize>,
    choices: Vec<Choice<S>>,
}

/// Looks for an order; `tries` bounds the work, and so the memory.
pub fn check<M: Model>(model: &M, history: &[Timed<M::Step>], tries: usize) -> Verdict {
    let mut left = Left::new(history);
    let mut seen = HashSet::new();
    let begin = model.begin();
    let mut stack = vec![Frame { taken: None, choices: choices(model, history, &left, &begin) }];
    if left.required == 0 {
        return Verdict::Linearizable;
    }
    while let Some(top) = stack.last_mut() {
        let Some((step, state)) = top.choices.pop() else {
            if let Some(taken) = top.taken {
                left.put_back(taken);
            }
            stack.pop();
            continue;
        };
        left.take(step);
        if left.required == 0 {
            return Verdict::Linearizable;
        }
        if seen.contains(&(left.done.clone(), state.clone())) {
            left.put_back(step);
            continue;
        }
        if seen.len() == tries {
            return Verdict::Unknown;
        }
        let choices = choices(model, history, &left, &state);
        seen.insert((left.done.clone(), state));
        stack.push(Frame { taken: Some(step), choices });
    }
    Verdict::NotLinearizable
}

/// What may come next; the last one is tried first: what was answered, the earliest call first.
fn choices<M: Model>(
    model: &M,
    history: &[Timed<M::Step>],
    left: &Left,
    state: &M::State,
) -> Vec<Choice<M::State>> {
    let mut found = Vec::new();
    for step in left.minimal() {
        let mut after = model.next(state, &history[step].step);
        if model.looks(&history[step].step)
            && let Some(after) = after.pop()
        {
            return vec![(step, after)];
        }
        found.extend(after.into_iter().map(|after| (step, after)));
    }
    found.sort_by_key(|(step, _)| {
        let timed = &history[*step];
        (timed.returned.is_some(), std::cmp::Reverse(timed.called))
    });
    found
}

/// The steps that are not done yet: calls and returns in the order of time, as a list from which a step is taken and put back.
struct Left {
    /// Bits of the steps that are done.
    done: Vec<u64>,
    /// Answered steps that are not done.
    required: usize,
    /// Events: 0 is the head; a call of step i is `calls[i]`, its return `returns[i]`.
    next: Vec<usize>,
    previous: Vec<usize>,
    events: Vec<Event>,
    calls: Vec<usize>,
    returns: Vec<Option<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Head,
    // At one moment calls come before returns: who overlaps in nothing but a moment has no order.
    Call(usize),
    Return(usize),
}

impl Left {
    fn new<T>(history: &[Timed<T>]) -> Left {
        let mut timed = Vec::with_capacity(history.len() * 2);
        for (i, step) in history.iter().enumerate() {
            timed.push((step.called, Event::Call(i)));
            timed.extend(step.returned.map(|at| (at.max(step.called), Event::Return(i))));
        }
        timed.sort_unstable();
        let events: Vec<Event> =
            std::iter::once(Event::Head).chain(timed.into_iter().map(|(_, e)| e)).collect();
        let (mut calls, mut returns) = (vec![0; history.len()], vec![None; history.len()]);
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::Head => {}
                Event::Call(i) => calls[*i] = at,
                Event::Return(i) => returns[*i] = Some(at),
            }
        }
        let count = events.len();
        Left {
            done: vec![0; history.len().div_ceil(64)],
            required: history.iter().filter(|s| s.returned.is_some()).count(),
            next: (1..=count).collect(),
            previous: (0..count).map(|i| i.saturating_sub(1)).collect(),
            events,
            calls,
            returns,
        }
    }

    /// Steps that were called before any other that is left has returned.
    fn minimal(&self) -> Vec<usize> {
        let mut found = Vec::new();
        let mut at = self.next[0];
        while let Some(Event::Call(step)) = self.events.get(at) {
            found.push(*step);
            at = self.next[at];
        }
        found
    }

    fn take(&mut self, step: usize) {
        self.done[step / 64] |= 1 << (step % 64);
        self.unlink(self.calls[step]);
        if let Some(at) = self.returns[step] {
            self.unlink(at);
            self.required -= 1;
        }
    }

    /// In the reverse order of `take` only.
    fn put_back(&mut self, step: usize) {
        self.done[step / 64] &= !(1 << (step % 64));
        if let Some(at) = self.returns[step] {
            self.link(at);
            self.required += 1;
        }
        self.link(self.calls[step]);
    }

    fn unlink(&mut self, at: usize) {
        let (before, after) = (self.previous[at], self.next[at]);
        self.next[before] = after;
        if let Some(back) = self.previous.get_mut(after) {
            *back = before;
        }
    }
    fn link(&mut self, at: usize) {
        let (before, after) = (self.previous[at], self.next[at]);
        self.next[before] = at;
        if let Some(back) = self.previous.get_mut(after) {
            *back = at;
        }
    }
}

/// The shortest beginning of a history, in time, that is not linearizable: what was not answered by then is unanswered. Of it
/// everything is left out that a history may be without and still be one: steps that change nothing.
pub fn shorten<M: Model>(model: &M, history: &[Timed<M::Step>], tries: usize) -> Vec<Timed<M::Step>>
where
    M::Step: Clone,
{
    let fails = |part: &[Timed<M::Step>], tries| check(model, part, tries) == Verdict::NotLinearizable;
    let mut ends: Vec<u64> = history.iter().filter_map(|s| s.returned).collect();
    ends.sort_unstable();
    // A longer beginning of one that fails fails, too.
    let first = ends.partition_point(|end| !fails(&until(history, *end), tries));
    let Some(end) = ends.get(first) else { return history.to_vec() };
    let mut kept = until(history, *end);
    let looks: Vec<usize> = (0..kept.len()).filter(|at| model.looks(&kept[*at].step)).collect();
    for at in looks.into_iter().rev() {
        let mut without = kept.clone();
        without.remove(at);
        // What is hard to tell stays.
        if fails(&without, tries / 100) {
            kept = without;
        }
    }
    kept
}

fn until<T: Clone>(history: &[Timed<T>], end: u64) -> Vec<Timed<T>> {
    let mut part: Vec<Timed<T>> = history.iter().filter(|s| s.called <= end).cloned().collect();
    for step in &mut part {
        step.returned = step.returned.filter(|at| *at <= end);
    }
    part
}
