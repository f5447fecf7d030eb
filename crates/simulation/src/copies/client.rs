//! A client's process: a program that reads, writes and syncs at either member, by the view that it knows.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use cluster::{
    replica::{Member, View},
    tenure::Time,
};

use super::{
    cast::{CALL_WAIT, CELLS, KEEPERS, Left, OBJECTS, epoch, place_of},
    said::Said,
    stage::Stage,
    truth::Op,
};
use crate::{
    cast::{Place, WORK_UNTIL},
    message::Message,
    network::Happened,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Read,
    Write,
    Sync,
}

struct Doing {
    what: What,
    object: u64,
    cells: Range<u64>,
    /// Of this attempt: one that was not answered may be done, and what is made again is another write.
    value: u64,
    called: Duration,
    by: Option<View>,
    again: Time,
}

pub struct Client {
    at: usize,
    views: BTreeMap<u64, View>,
    doing: Option<Doing>,
    call: Option<u64>,
    /// In which epoch writes were answered that are not synced.
    unsynced: BTreeMap<u64, u64>,
}

impl Client {
    pub fn begin(at: usize) -> Client {
        Client { at, views: BTreeMap::new(), doing: None, call: None, unsynced: BTreeMap::new() }
    }

    fn place(&self) -> Place {
        Place::Client(self.at)
    }

    pub fn run(&mut self, stage: &mut Stage) {
        while let Some(happened) = stage.net.next_event(self.place()) {
            match happened {
                Happened::Answered { call, message } if self.call == Some(call) => {
                    self.call = None;
                    let said = if let Message::Copies(said) = message { Some(*said) } else { None };
                    self.answered(stage, said);
                }
                Happened::Failed { call } if self.call == Some(call) => {
                    self.call = None;
                    self.answered(stage, None);
                }
                Happened::Asked { .. } | Happened::Answered { .. } | Happened::Failed { .. } => (),
            }
        }
        if self.doing.is_none() && stage.now() < WORK_UNTIL && stage.random.one_in(4) {
            self.begin_one(stage);
        }
        let now = stage.local(self.place());
        if self.call.is_none() && self.doing.as_ref().is_some_and(|doing| doing.again <= now) {
            self.ask(stage);
        }
    }

    fn begin_one(&mut self, stage: &mut Stage) {
        let random = &mut stage.random;
        let what = match random.below(10) {
            0 => What::Sync,
            1..5 => What::Write,
            _ => What::Read,
        };
        let (object, first) = (random.below(OBJECTS), random.below(CELLS));
        let cells = first..(first + 1 + random.below(2)).min(CELLS);
        let (value, called) = (stage.number(), stage.now());
        let again = Time::ZERO;
        self.doing = Some(Doing { what, object, cells, value, called, by: None, again });
    }

    fn ask(&mut self, stage: &mut Stage) {
        let now = stage.local(self.place());
        let (value, called) = (stage.number(), stage.now());
        let Some(doing) = &mut self.doing else { return };
        let (object, cells) = (doing.object, doing.cells.clone());
        doing.by = self.views.get(&object).copied();
        let Some(view) = doing.by else {
            doing.again = now + Duration::from_millis(30);
            let keeper = Place::Metadata(stage.random.below(KEEPERS as u64) as usize);
            let patience = Duration::from_millis(300);
            self.call = Some(stage.ask(self.place(), keeper, Said::WhichView { object }, patience));
            return;
        };
        (doing.value, doing.called) = (value, called);
        let members: Vec<Member> = view.members().collect();
        let (to, said) = match doing.what {
            What::Read => {
                let to = stage.random.any(&members).unwrap_or(view.primary);
                (to, Said::Read { object, view, cells })
            }
            What::Write => {
                for cell in cells.clone() {
                    let op = Op { writes: true, value: Some(value), called, answered: None };
                    stage.truth.note((object, cell), epoch(&view), op);
                }
                (view.primary, Said::Write { object, view, cells, value })
            }
            What::Sync => (view.primary, Said::Sync { object, view, own: false }),
        };
        self.call = Some(stage.ask(self.place(), place_of(to), said, CALL_WAIT));
    }

    fn answered(&mut self, stage: &mut Stage, said: Option<Said>) {
        let now = stage.local(self.place());
        let at = self.at;
        let Some(mut doing) = self.doing.take() else { return };
        let object = doing.object;
        let Some(view) = doing.by else {
            if let Some(Said::ViewIs(view)) = said {
                self.views.insert(object, view);
                doing.again = Time::ZERO;
            }
            self.doing = Some(doing);
            return;
        };
        let (number, answered) = (epoch(&view), Some(stage.now()));
        match (doing.what, said) {
            (What::Read, Some(Said::Bytes(values))) => {
                stage.tally.reads += 1;
                for (cell, value) in doing.cells.clone().zip(values) {
                    let op = Op { writes: false, value, called: doing.called, answered };
                    stage.truth.note((object, cell), number, op);
                }
            }
            (What::Write, Some(Said::Written)) => {
                stage.tally.writes += 1;
                for cell in doing.cells.clone() {
                    stage.truth.written((object, cell), number, doing.value, stage.net.now);
                }
                stage.truth.wrote(at, object, number);
                self.unsynced.entry(object).or_insert(number);
            }
            (What::Sync, Some(Said::Synced)) => {
                stage.tally.syncs += 1;
                let since = self.unsynced.remove(&object);
                let told = since.is_some_and(|of| of != number) && stage.left != Left::UntoldLoss;
                stage.tally.told += u64::from(told);
                let verdict = stage.truth.synced(at, object, (number, doing.called), told);
                stage.judge(verdict);
            }
            // Of a write it is not known whether it is done.
            (_, said) => {
                stage.tally.elsewhere += 1;
                match said {
                    Some(Said::Elsewhere(Some(newer))) if newer.number > view.number => {
                        self.views.insert(object, newer);
                    }
                    _ => drop(self.views.remove(&object)),
                }
                doing.again = now + Duration::from_millis(20);
                self.doing = Some(doing);
            }
        }
    }

    pub fn end(&mut self, stage: &mut Stage) {
        stage.truth.client_ends(self.at);
    }

    pub fn is_at_rest(&self) -> bool {
        self.doing.is_none()
    }

    pub fn waits(&self) -> Option<String> {
        let doing = self.doing.as_ref()?;
        Some(format!("client {}: {:?} of {} by {:?}", self.at, doing.what, doing.object, doing.by))
    }
}
