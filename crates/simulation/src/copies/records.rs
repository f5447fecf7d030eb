//! The database: a view for each object, stored one after the other, each in place of the one that it was made from. What is answered is durable.

use std::{collections::BTreeMap, time::Duration};

use cluster::replica::View;

use super::{
    cast::{Left, OBJECTS, first_view},
    said::Said,
    stage::Stage,
};
use crate::{
    cast::Place,
    message::Message,
    network::{Happened, Ticket},
};

struct Storing {
    ready: Duration,
    ticket: Ticket,
    object: u64,
    from: u64,
    next: View,
}

pub struct Records {
    pub views: BTreeMap<u64, View>,
    storing: Vec<Storing>,
}

impl Records {
    pub fn begin() -> Records {
        let views = (0..OBJECTS).map(|object| (object, first_view(object))).collect();
        Records { views, storing: Vec::new() }
    }

    /// What was not in its journal is gone, and was not answered.
    pub fn end(&mut self) {
        self.storing.clear();
    }

    /// What was stored now, and in place of what.
    pub fn run(&mut self, stage: &mut Stage) -> Vec<(u64, View, View)> {
        while let Some(happened) = stage.net.next_event(Place::Database) {
            let Happened::Asked { ticket, message: Message::Copies(said), .. } = happened else { continue };
            match *said {
                Said::Load { object } => {
                    if let Some(view) = self.views.get(&object).copied() {
                        stage.answer(ticket, Said::Loaded { view, stored: false });
                    }
                }
                Said::StoreView { object, from, next } => {
                    let ready = stage.now() + stage.disk();
                    self.storing.push(Storing { ready, ticket, object, from, next });
                }
                _ => (),
            }
        }
        let now = stage.now();
        let (due, later) = std::mem::take(&mut self.storing).into_iter().partition(|s| s.ready <= now);
        self.storing = later;
        let due: Vec<Storing> = due;
        due.into_iter().filter_map(|storing| self.store(stage, storing)).collect()
    }

    fn store(&mut self, stage: &mut Stage, storing: Storing) -> Option<(u64, View, View)> {
        let Storing { ticket, object, from, next, .. } = storing;
        let view = self.views.get_mut(&object)?;
        let old = *view;
        let fits = old.number == from || stage.left == Left::AnyView && next.number > from;
        if !fits {
            stage.tally.not_taken += 1;
        } else {
            *view = next;
        }
        stage.answer(ticket, Said::Loaded { view: *view, stored: fits });
        fits.then_some((object, old, next))
    }
}
