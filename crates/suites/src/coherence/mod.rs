//! Two mounts of one file system seen as one: threads call through both at once, everything is recorded, and afterwards the
//! history is held against what one file system on one machine could have answered.
//!
//! - [`linear`] is the checker, [`history`] what is recorded, [`round`] the threads, [`beside`] a program that
//!   moves what they use from server to server.
//! - A [`Workload`] draws calls and says what is wrong with a history: [`blocks`] of files, [`entries`] of directories, sizes and
//!   cuts of a file ([`lengths`]), [`appends`], [`locks`].

pub mod appends;
pub mod beside;
pub mod blocks;
pub mod entries;
pub mod entries_model;
pub mod entry;
pub mod history;
pub mod lengths;
pub mod linear;
pub mod locks;
pub mod round;

use std::{fmt::Debug, io, path::PathBuf};

use anyhow::Result;
use serde::{Serialize, de::DeserializeOwned};

use crate::random::Random;
use history::{Call, Clock, Failure, Header};
use linear::{Model, Timed, Verdict, check, shorten};

pub type CallOf<W> = Call<<W as Workload>::Op, <W as Workload>::Answer>;

/// One kind of calls, and what is right for them.
pub trait Workload: Sized + Sync {
    const KIND: &'static str;
    type Op: Clone + Debug + Send + Serialize + DeserializeOwned;
    type Answer: Clone + Debug + Send + Serialize + DeserializeOwned;
    /// What a thread has open.
    type Hand;

    /// Why this cannot be tested here.
    fn missing(mounts: &[PathBuf]) -> Result<Option<&'static str>> {
        let _ = mounts;
        Ok(None)
    }
    /// Makes what a round needs in a fresh directory, of which `dirs` are the paths on each mount.
    fn prepare(dirs: Vec<PathBuf>, random: &mut Random) -> Result<Self>;
    fn hand(&self, mount: usize) -> Result<Self::Hand>;
    fn draw(&self, random: &mut Random) -> Self::Op;
    /// Carries a call out and measures it.
    fn perform(&self, hand: &mut Self::Hand, op: &Self::Op, clock: Clock) -> Performed<Self::Answer>;
    /// After all threads have ended: what is to be looked at once more, as calls of the first mount.
    fn look_back(&self, clock: Clock) -> Result<Vec<CallOf<Self>>> {
        let _ = clock;
        Ok(Vec::new())
    }
    fn judge(header: &Header, calls: &[CallOf<Self>]) -> Judgement;
}

/// When a call began and ended, and what it gave.
pub struct Performed<A> {
    pub called: u64,
    pub returned: u64,
    pub answer: Result<A, Failure>,
}

impl<A> Performed<A> {
    pub fn of<T>(
        (called, returned, result): (u64, u64, io::Result<T>),
        answer: impl FnOnce(T) -> A,
    ) -> Performed<A> {
        Performed { called, returned, answer: result.map(answer).map_err(Failure::from) }
    }
}

/// What came out of a history.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Objects that were checked, each with a history of its own.
    pub objects: u64,
    /// Of which it was not found out.
    pub unknown: u64,
    /// What is wrong: a sentence, then the part of the history that shows it.
    pub wrong: Vec<String>,
}

/// Steps of the search for one object. A state and its set take some hundred bytes.
const TRIES: usize = 1_000_000;
/// Steps of a wrong history that are shown: its last ones say most.
const SHOWN: usize = 60;

impl Judgement {
    /// Counts one object's history.
    pub fn add<M: Model>(&mut self, what: &str, model: &M, steps: &[Timed<M::Step>])
    where
        M::Step: Clone + Debug,
    {
        self.objects += 1;
        match check(model, steps, TRIES) {
            Verdict::Linearizable => {}
            Verdict::Unknown => self.unknown += 1,
            Verdict::NotLinearizable => {
                let part = shorten(model, steps, TRIES);
                let mut said = format!("{what}: no order of these explains the answers (microseconds)");
                let before = part.len().saturating_sub(SHOWN);
                if before > 0 {
                    said.push_str(&format!("\n  ({before} earlier ones)"));
                }
                for step in &part[before..] {
                    said.push_str(&format!("\n  {}", shown(step)));
                }
                self.wrong.push(said);
            }
        }
    }

    /// Without faults every call is answered.
    pub fn add_unanswered<O: Debug, A>(&mut self, header: &Header, calls: &[Call<O, A>]) {
        if header.faults.is_empty() && !header.client_killed {
            let unanswered = calls.iter().filter_map(|c| c.answer.as_ref().err().map(|why| (c, why)));
            self.wrong.extend(unanswered.map(|(c, why)| {
                format!(
                    "{:?} through mount {} failed with \"{}\" at {} us",
                    c.op,
                    c.mount,
                    why.said,
                    c.called / 1000
                )
            }));
        }
    }
}

fn shown<T: Debug>(step: &Timed<T>) -> String {
    let end = step.returned.map_or_else(|| "maybe".to_owned(), |at| (at / 1000).to_string());
    format!("{:>10} .. {:>10}  {:?}", step.called / 1000, end, step.step)
}
