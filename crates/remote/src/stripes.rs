//! Asking the stripes of a file, all at once: each at its data server, or at one of the two that have it.
//!
//! Of two the right one is asked, or the next, as `members` says; that somebody does not answer is told to the metadata server beside that, and what it
//! says of the stripe's members ends the asking by the old ones.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use net::{Answered, CallError, Pending};
use proto::{
    Reason,
    copies::{FindView, View},
};
use types::Errno;
use wire::{frame::Verdict, schema::Retry};

use crate::{
    Remote,
    line::{Asking, Line, Waits},
    members::{Came, Ends, Kind, Look, Members, Then, Trial},
    openings::{OpenFile, Placed},
};

/// For a connection, while there is another member or somebody to say that there is none.
const CONNECT: Duration = Duration::from_secs(1);

/// What is asked of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// From there in the object.
    Read(u64),
    /// A write, or what is as soon answered.
    Change,
    /// What waits for devices.
    Slow,
}

pub(crate) struct ToStripe {
    pub stripe: usize,
    pub what: What,
    pub asking: Asking,
}

pub(crate) struct FromStripe {
    pub node: u64,
    pub answered: Answered,
}

/// A request that is under way.
struct Begun {
    since: Instant,
    line: Arc<Line>,
    pending: Pending,
}

struct Tried<'a> {
    remote: &'a Remote,
    file: &'a OpenFile,
    placed: &'a Placed,
    one: &'a ToStripe,
    trial: Trial,
    begun: Option<Begun>,
}

impl Remote {
    /// In the order in which they are asked.
    pub(crate) fn ask_stripes(
        &self,
        file: &OpenFile,
        placed: &Placed,
        asked: Vec<ToStripe>,
        waits: Waits,
    ) -> Result<Vec<Result<FromStripe, Errno>>, Errno> {
        if !placed.layout.is_twofold() {
            let to_node = |one: ToStripe| (placed.layout.stripes[one.stripe], one.asking);
            let askings: Vec<(u64, Asking)> = asked.into_iter().map(to_node).collect();
            let nodes: Vec<u64> = askings.iter().map(|(node, _)| *node).collect();
            let answers = self.ask_nodes(askings, waits)?.into_iter().zip(nodes);
            return Ok(answers
                .map(|(answered, node)| answered.map(|answered| FromStripe { node, answered }))
                .collect());
        }
        let mut all: Vec<Tried> = asked.iter().map(|one| self.tried((file, placed), one, waits)).collect();
        // One has its answer waited for at once.
        if all.len() > 1 {
            all.iter_mut().for_each(Tried::begin_at_once);
        }
        Ok(all.into_iter().map(Tried::finish).collect())
    }

    fn tried<'a>(
        &'a self,
        (file, placed): (&'a OpenFile, &'a Placed),
        one: &'a ToStripe,
        waits: Waits,
    ) -> Tried<'a> {
        let now = Instant::now();
        let kind = match one.what {
            What::Read(offset) => Kind::Read { offset, own: self.own().near },
            What::Change => Kind::Change,
            What::Slow => Kind::Slow,
        };
        let ends = Ends { give_up: now + waits.patience, end: now + waits.longest };
        let members = members(&placed.layout.views[one.stripe]);
        let trial = Trial::new((members, kind), (now, ends), &mut self.doubts.lock());
        Tried { remote: self, file, placed, one, trial, begun: None }
    }

    /// Asks the metadata server, and does not wait for it.
    fn look_beside(&self, file: &OpenFile, placed: &Placed, stripe: usize, look: Look) {
        let key = (file.number, stripe);
        if !self.looks_under_way.lock().insert(key) {
            return;
        }
        let view = placed.layout.views[stripe];
        let silent = match look {
            Look::Silent(node) => view.all().find(|member| member.node == node),
            Look::Layout => None,
        };
        let this = self.this.clone();
        let offered = self.looks.offer(move || {
            let Some(this) = this.upgrade() else { return };
            if let Some(file) = this.openings.get(key.0) {
                let found = this.look(|head| FindView {
                    head: Some(head),
                    ino: file.ino.get(),
                    stripe: stripe as u32,
                    view: view.number,
                    silent,
                });
                if let Some(layout) = found.ok().and_then(|found| found.layout) {
                    let _ = this.place(&file, layout);
                }
            }
            this.looks_under_way.lock().remove(&key);
        });
        if !offered {
            self.looks_under_way.lock().remove(&key);
        }
    }
}

impl Tried<'_> {
    /// Only over a connection that is there.
    fn begin_at_once(&mut self) {
        let line = self.remote.nodes.line(self.trial.at());
        self.begun = line.filter(|line| line.is_connected()).and_then(|line| self.begin_on(line).ok());
    }

    fn begin_on(&self, line: Arc<Line>) -> Result<Begun, CallError> {
        let connect_by = Instant::now() + CONNECT;
        let pending = line.begin_once(&self.one.asking, connect_by, self.trial.end())?;
        Ok(Begun { since: line.begin(), line, pending })
    }

    fn begin(&self) -> Result<Begun, Came> {
        let node = self.trial.at();
        let line = self.remote.nodes.line(node).or_else(|| {
            self.remote.fetch_map();
            self.remote.nodes.line(node)
        });
        let line = line.ok_or(Came::Lost)?;
        let begun = self.begin_on(line.clone());
        // The own one's socket may be away, and itself there.
        let other_way = begun.as_ref().err().is_some_and(|error| line.has_other_way(error));
        if other_way { self.begin_on(line) } else { begun }.map_err(|error| {
            tracing::debug!(request = %net::trace::current(), node, %error, "one of two does not answer");
            Came::Lost
        })
    }

    fn finish(mut self) -> Result<FromStripe, Errno> {
        loop {
            let node = self.trial.at();
            let came = match self.wait() {
                Ok(answered) => {
                    self.remote.doubts.lock().answered(node);
                    return Ok(FromStripe { node, answered });
                }
                Err(came) => {
                    if self.is_changed() {
                        Came::OtherView
                    } else {
                        came
                    }
                }
            };
            let (look, then) = self.trial.came(Instant::now(), came, &mut self.remote.doubts.lock());
            if let Some(look) = look {
                self.remote.look_beside(self.file, self.placed, self.one.stripe, look);
            }
            match then {
                Then::Wait => {}
                Then::Ask { pause, .. } => {
                    self.leave();
                    thread::sleep(pause);
                }
                Then::Say(errno) => {
                    if errno == Errno::EIO {
                        let (ino, stripe) = (self.file.ino.get(), self.one.stripe);
                        let request = net::trace::current();
                        tracing::warn!(%request, ino, stripe, node, ?came, "none of the two that have a stripe gives an answer");
                    }
                    return Err(errno);
                }
            }
        }
    }

    /// The answer that says yes.
    fn wait(&mut self) -> Result<Answered, Came> {
        let Begun { since, line, pending } = self.begun.take().map_or_else(|| self.begin(), Ok)?;
        let answered = match pending.wait_until(self.trial.until(Instant::now())) {
            Ok(answered) => answered,
            Err(pending) => {
                self.begun = Some(Begun { since, line, pending });
                return Err(Came::Nothing);
            }
        };
        let came = answered.map_or(Err(Came::Lost), understood);
        let counted = came.as_ref().map_err(|came| match came {
            Came::Error(errno) => *errno,
            Came::Lost | Came::Nothing | Came::Later(_) | Came::OtherView | Came::PrimaryOnly => {
                Errno::EAGAIN
            }
        });
        line.end(&self.one.asking, since, counted);
        if !matches!(came, Err(Came::Lost)) {
            line.answered();
        }
        came
    }

    /// What is under way is not waited for any more. A change may still be carried out: its connection is cut.
    fn leave(&mut self) {
        if let Some(Begun { since, line, pending }) = self.begun.take() {
            drop(pending);
            line.end(&self.one.asking, since, Err(Errno::EAGAIN));
        }
    }

    /// It is known by now that others have the stripe.
    fn is_changed(&self) -> bool {
        let placed = self.file.placed.lock().clone();
        placed.is_some_and(|now| {
            now.layout.views.get(self.one.stripe) != self.placed.layout.views.get(self.one.stripe)
        })
    }
}

impl Drop for Tried<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

fn members(view: &View) -> Members {
    let second = view.counting().nth(1).map(|second| second.node);
    Members { primary: view.primary.node, second }
}

fn understood(answered: Answered) -> Result<Answered, Came> {
    match answered.header.verdict {
        Verdict::Done => Ok(answered),
        Verdict::Refused => Err(Came::Lost),
        Verdict::Fault => {
            let fault = proto::fault::read(&answered.meta);
            Err(match Reason::of(&fault) {
                Reason::OtherView | Reason::Moved => Came::OtherView,
                Reason::AskPrimary => Came::PrimaryOnly,
                _ if Retry::try_from(fault.retry) == Ok(Retry::After) => {
                    Came::Later(Duration::from_millis(fault.after_ms.into()))
                }
                Reason::None
                | Reason::SessionGone
                | Reason::AnswerGone
                | Reason::DataServerAway
                | Reason::TooMuch
                | Reason::WrongOwner
                | Reason::Bare
                | Reason::Spread
                | Reason::Leaving
                | Reason::OtherState => Came::Error(Errno::from_raw(fault.errno)),
            })
        }
    }
}
