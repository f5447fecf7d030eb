//! What a demo came to.

use serde::Serialize;

use super::{takeover::TakeOver, workload::WorkloadRow};
use crate::control::{MdsReport, TierReport};

#[derive(Debug, Serialize)]
pub struct DemoReport {
    pub workload: Vec<WorkloadRow>,
    /// Where the data were when all was written and read.
    pub servers: Vec<Stored>,
    /// What each metadata server had of the namespace.
    pub metadata: Vec<MdsReport>,
    /// If a metadata server was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub take_over: Option<TakeOver>,
}

/// The tiers of a data server.
#[derive(Debug, Serialize)]
pub struct Stored {
    pub name: String,
    pub tiers: Vec<TierReport>,
}
