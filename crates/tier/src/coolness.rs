//! The coolness of a file (paper, section 6.2): the coolest is moved out first.
//!
//! - Normal out: `Close * T_closed * (T_co / T_oc)`; forced out: `Open * LRU-open * (T_co / T_oc)`. `Close` and `Open` are 1
//!   or 0: a file has the one or the other value. T_co and T_oc are the means of section 6.3.
//! - What the paper leaves open. Never reopened: T_co is T_closed, the least that it can become; for an open file it
//!   is T_oc, so that the factor says nothing. Never closed: T_oc is the time since the open. A file that was closed
//!   whenever it was seen here (found at start-up): T_oc is T_co. Periods count as 1 ms at least, so neither zero
//!   divides nor hides T_closed.

use std::time::Duration;

use crate::{api::CoolnessReport, table::Object};

const PERIOD_MIN: f64 = 0.001;

/// Seconds from the last open or close to `now`.
pub fn elapsed(object: &Object, now_us: u64) -> f64 {
    Duration::from_micros(now_us.saturating_sub(object.since_us)).as_secs_f64()
}

/// The terms and the value; `rank` is the place in LRU-open counted from the most recently used.
pub fn report(object: &Object, now_us: u64, rank: Option<u32>) -> CoolnessReport {
    let elapsed = elapsed(object, now_us);
    let known_co = (object.co_n > 0).then_some(f64::from(object.t_co));
    let known_oc = (object.oc_n > 0).then_some(f64::from(object.t_oc));
    let (t_closed, t_co, t_oc) = if object.is_open() {
        let t_oc = known_oc.unwrap_or(elapsed);
        (0.0, known_co.unwrap_or(t_oc), t_oc)
    } else {
        let t_co = known_co.unwrap_or(elapsed);
        (elapsed, t_co, known_oc.unwrap_or(t_co))
    };
    let (t_co, t_oc) = (t_co.max(PERIOD_MIN), t_oc.max(PERIOD_MIN));
    let factor = if object.is_open() { f64::from(rank.unwrap_or(0)) } else { t_closed };
    CoolnessReport {
        open: object.is_open(),
        t_closed,
        t_co,
        t_oc,
        lru_rank: rank,
        value: factor * (t_co / t_oc),
    }
}

/// The first open after a time closed: one more T_co period, unless nobody was seen to close it.
pub fn note_open(object: &mut Object, now_us: u64) {
    if object.oc_n > 0 {
        let period = elapsed(object, now_us);
        object.co_n = object.co_n.saturating_add(1);
        object.t_co += (period as f32 - object.t_co) / f32::from(object.co_n);
    }
    object.since_us = now_us;
}

/// The last close: one more T_oc period.
pub fn note_close(object: &mut Object, now_us: u64) {
    let period = elapsed(object, now_us);
    object.oc_n = object.oc_n.saturating_add(1);
    object.t_oc += (period as f32 - object.t_oc) / f32::from(object.oc_n);
    object.since_us = now_us;
}
