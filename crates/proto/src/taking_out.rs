//! Messages among metadata servers about data servers that are taken out: all know of it, and each says what is left in its slots.

use prost::Message;

use crate::{
    Bad, Head, Method, Nothing, Request,
    control::NAME_MAX,
    metadata::text,
    moving::Standing,
    slots::{Run, in_order},
};

/// Data servers of one cluster, at the most.
const STANDINGS_MAX: usize = 1024;

/// Which data servers are drained or removed, from the server on duty. Who answers gives none of them anything from then on.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KnowStandings {
    /// Rises with each change, also over changes of the duty.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Node, name and kind of each that is not as all others.
    #[prost(message, repeated, tag = "2")]
    pub standings: Vec<Standing>,
}

/// What have data servers that are drained, in your slots? The body is [`DrainLooks`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LookAtDrains {}

/// Of one data server.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DrainLook {
    #[prost(message, optional, tag = "1")]
    pub standing: Option<Standing>,
    /// The slots of which the numbers are, since it is being drained: all of them were looked through.
    #[prost(message, repeated, tag = "2")]
    pub slots: Vec<Run>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DrainLooks {
    #[prost(message, repeated, tag = "1")]
    pub looks: Vec<DrainLook>,
}

impl DrainLooks {
    pub fn check(&self) -> Result<(), Bad> {
        bounded(self.looks.len())?;
        self.looks.iter().try_for_each(|look| in_order(&look.slots))
    }
}

impl KnowStandings {
    pub(crate) fn within(&self) -> Result<(), Bad> {
        bounded(self.standings.len())?;
        self.standings.iter().try_for_each(|one| text("node's name", &one.name, NAME_MAX))
    }
}

fn bounded(len: usize) -> Result<(), Bad> {
    let max = STANDINGS_MAX;
    if len > max { Err(Bad::TooLong { what: "standings", len, max }) } else { Ok(()) }
}

impl Request for KnowStandings {
    const METHOD: Method = Method::KnowStandings;
    type Answer = Nothing;

    fn head(&self) -> Option<&Head> {
        None
    }

    fn check(&self) -> Result<(), Bad> {
        self.within()
    }
}

impl Request for LookAtDrains {
    const METHOD: Method = Method::LookAtDrains;
    type Answer = Nothing;

    fn head(&self) -> Option<&Head> {
        None
    }

    fn check(&self) -> Result<(), Bad> {
        Ok(())
    }
}
