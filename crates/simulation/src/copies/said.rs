//! What is asked and answered about objects with two copies.

use std::ops::Range;

use cluster::replica::{Member, View, copy::Sent};

use super::cast::Value;

/// Of cells.
pub type Values = Vec<(u64, Value)>;

#[derive(Clone, Debug)]
pub enum Said {
    // To the database.
    Load {
        object: u64,
    },
    /// In place of the one with this number.
    StoreView {
        object: u64,
        from: u64,
        next: View,
    },
    /// The one that is there; `stored`: it is the one that was to be stored.
    Loaded {
        view: View,
        stored: bool,
    },
    // To metadata servers.
    Report {
        member: Member,
        /// Of objects, by which view: this member is silent, or the second has every byte.
        words: Vec<(u64, u64, Option<Member>)>,
    },
    WhichView {
        object: u64,
    },
    ViewIs(View),
    // To data servers.
    Know {
        object: u64,
        view: View,
        asks: bool,
    },
    Known {
        by: Member,
        goes_on: bool,
        kept: bool,
    },
    /// `own`: what is here, else of all whom the view names.
    Sync {
        object: u64,
        view: View,
        own: bool,
    },
    Synced,
    Write {
        object: u64,
        view: View,
        cells: Range<u64>,
        value: u64,
    },
    Written,
    Read {
        object: u64,
        view: View,
        cells: Range<u64>,
    },
    Bytes(Vec<Value>),
    Elsewhere(Option<View>),
    // Between them.
    Store {
        object: u64,
        sent: Sent,
        values: Values,
        /// The digest of the values alone: they may be there.
        compares: bool,
    },
    Stored {
        by: Member,
        stored: bool,
        /// It is not what is there.
        differs: bool,
        newer: Option<View>,
    },
    Done {
        object: u64,
        view: View,
        done: u64,
    },
    AskLeave {
        by: Member,
        of: Member,
        knows: Vec<(u64, u64)>,
    },
    Leave {
        granted: bool,
        left_out: Vec<(u64, View)>,
    },
}
