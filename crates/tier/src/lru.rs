//! The LRU table of one tier (paper, section 6.3): a doubly linked list through the object records with three
//! pointers, Header, Closed-tail and Tail. Closed files are in front, in the order in which they were closed; open
//! files follow, in the order of their last access. Every operation is O(1).
//!
//! Only objects that could be moved out are in it: one that is pinned, read by passthrough, moving or resting after a
//! failure is taken out and put back later, so that a choice never has to pass over such objects. It goes back at the
//! end of its part.

use crate::table::{NIL, Ob, Object, ObjectTable};

pub struct List {
    /// Which of an object's links and LINKED flags this list uses.
    lane: usize,
    header: Ob,
    closed_tail: Ob,
    tail: Ob,
    pub closed: u64,
    pub open: u64,
}

impl List {
    pub fn new(lane: usize) -> List {
        List { lane, header: NIL, closed_tail: NIL, tail: NIL, closed: 0, open: 0 }
    }

    /// Puts `ob` at the end of the closed part if it is closed, at the Tail if it is open.
    pub fn link(&mut self, table: &mut ObjectTable, ob: Ob) {
        let open = table.get(ob).is_some_and(Object::is_open);
        self.link_after(table, ob, if open { self.tail } else { self.closed_tail });
    }

    /// Puts `ob` at the head of its part.
    pub fn link_first(&mut self, table: &mut ObjectTable, ob: Ob) {
        let open = table.get(ob).is_some_and(Object::is_open);
        self.link_after(table, ob, if open { self.closed_tail } else { NIL });
    }

    fn link_after(&mut self, table: &mut ObjectTable, ob: Ob, prev: Ob) {
        let Some(object) = table.get_mut(ob) else { return };
        object.set(Object::LINKED[self.lane], true);
        if object.is_open() {
            self.open += 1;
        } else {
            self.closed += 1;
            if prev == self.closed_tail {
                self.closed_tail = ob;
            }
        }
        let next = self.next_of(table, prev);
        if let Some(object) = table.get_mut(ob) {
            object.links[self.lane].prev = prev;
            object.links[self.lane].next = next;
        }
        self.set_next(table, prev, ob);
        self.set_prev(table, next, ob);
    }

    /// Takes `ob` out. Its open or closed state must be what it was when it was linked.
    pub fn unlink(&mut self, table: &mut ObjectTable, ob: Ob) {
        let Some(object) = table.get_mut(ob) else { return };
        object.set(Object::LINKED[self.lane], false);
        let link = object.links[self.lane];
        if object.is_open() {
            self.open -= 1;
        } else {
            self.closed -= 1;
        }
        if self.closed_tail == ob {
            self.closed_tail = link.prev;
        }
        self.set_next(table, link.prev, link.next);
        self.set_prev(table, link.next, link.prev);
    }

    /// The closed files, longest closed first.
    pub fn closed_part<'a>(&self, table: &'a ObjectTable) -> impl Iterator<Item = (Ob, &'a Object)> + 'a {
        let first = if self.closed_tail == NIL { NIL } else { self.header };
        self.walk(table, first).take_while(|(_, o)| !o.is_open())
    }

    /// The open files, least recently used first.
    pub fn open_part<'a>(&self, table: &'a ObjectTable) -> impl Iterator<Item = (Ob, &'a Object)> + 'a {
        self.walk(table, self.next_of(table, self.closed_tail))
    }

    /// From `first` to the Tail.
    pub fn walk<'a>(
        &self,
        table: &'a ObjectTable,
        first: Ob,
    ) -> impl Iterator<Item = (Ob, &'a Object)> + use<'a> {
        let (mut at, lane) = (first, self.lane);
        std::iter::from_fn(move || {
            let object = table.get(at)?;
            Some((std::mem::replace(&mut at, object.links[lane].next), object))
        })
    }

    /// What follows `ob`; the Header for `NIL`.
    fn next_of(&self, table: &ObjectTable, ob: Ob) -> Ob {
        table.get(ob).map_or(self.header, |o| o.links[self.lane].next)
    }

    fn set_next(&mut self, table: &mut ObjectTable, ob: Ob, next: Ob) {
        match table.get_mut(ob) {
            Some(o) => o.links[self.lane].next = next,
            None => self.header = next,
        }
    }

    fn set_prev(&mut self, table: &mut ObjectTable, ob: Ob, prev: Ob) {
        match table.get_mut(ob) {
            Some(o) => o.links[self.lane].prev = prev,
            None => self.tail = prev,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::Ino;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Open(u64),
        Close(u64),
        Touch(u64),
        /// Back to the head of its part.
        First(u64),
        Drop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        (0..5u8, 1..12u64).prop_map(|(k, n)| match k {
            0 => Step::Open(n),
            1 => Step::Close(n),
            2 => Step::Touch(n),
            3 => Step::First(n),
            _ => Step::Drop(n),
        })
    }

    proptest! {
        /// Goal: the list is closed files by close time, then open files by access. Method: compare with two vectors.
        #[test]
        fn the_list_is_two_queues(steps in prop::collection::vec(step(), 0..120)) {
            let (mut table, mut list) = (ObjectTable::new(), List::new(1));
            let (mut closed, mut open) = (Vec::<u64>::new(), Vec::<u64>::new());
            for step in steps {
                let (Step::Open(n) | Step::Close(n) | Step::Touch(n) | Step::First(n) | Step::Drop(n)) = step;
                let ob = table.ensure(Ino::from_raw(n).unwrap(), 0);
                let was_open = table.get(ob).unwrap().is_open();
                if matches!(step, Step::Touch(_)) && !was_open {
                    continue;
                }
                if table.get(ob).unwrap().has(Object::LINKED[1]) {
                    list.unlink(&mut table, ob);
                    closed.retain(|x| *x != n);
                    open.retain(|x| *x != n);
                }
                match step {
                    Step::Drop(_) => { table.remove(ob); continue }
                    Step::Open(_) | Step::Touch(_) => { table.get_mut(ob).unwrap().opens = 1; open.push(n) }
                    Step::Close(_) => { table.get_mut(ob).unwrap().opens = 0; closed.push(n) }
                    Step::First(_) => if was_open { open.insert(0, n) } else { closed.insert(0, n) }
                }
                if matches!(step, Step::First(_)) {
                    list.link_first(&mut table, ob);
                } else {
                    list.link(&mut table, ob);
                }
                let names = |v: Vec<(Ob, &Object)>| v.iter().map(|(_, o)| o.ino.get()).collect::<Vec<_>>();
                prop_assert_eq!(&names(list.closed_part(&table).collect()), &closed);
                prop_assert_eq!(&names(list.open_part(&table).collect()), &open);
                prop_assert_eq!((list.closed, list.open), (closed.len() as u64, open.len() as u64));
            }
        }
    }
}
