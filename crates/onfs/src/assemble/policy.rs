//! Policies between the words of commands and configuration and those of the parts.

use client::Policy;
use mds::DirPolicy as Stored;
use types::Span;

use crate::{
    config::PolicyConfig,
    policy::{DirPolicy, Promote, WriteBehind},
};

/// What holds where no directory says anything.
pub(super) fn default_of(config: &PolicyConfig) -> Policy {
    Policy {
        promote: stored_promote(config.promote),
        transient: config.transient,
        write_behind: stored_write_behind(config.write_behind),
    }
}

pub(super) fn to_stored(policy: DirPolicy) -> Stored {
    Stored {
        promote: policy.promote.map(stored_promote),
        transient: policy.transient,
        write_behind: policy.write_behind.map(stored_write_behind),
    }
}

pub(super) fn of_stored(policy: Stored) -> DirPolicy {
    DirPolicy {
        promote: policy.promote.map(promote),
        transient: policy.transient,
        write_behind: policy.write_behind.map(write_behind),
    }
}

pub(super) fn promote(stored: mds::Promote) -> Promote {
    match stored {
        mds::Promote::OnOpen => Promote::OnOpen,
        mds::Promote::OnRequest => Promote::OnRequest,
    }
}

pub(super) fn write_behind(stored: mds::WriteBehind) -> WriteBehind {
    match stored {
        mds::WriteBehind::After(delay) => WriteBehind::After(Span(delay)),
        mds::WriteBehind::Never => WriteBehind::Never,
    }
}

fn stored_promote(promote: Promote) -> mds::Promote {
    match promote {
        Promote::OnOpen => mds::Promote::OnOpen,
        Promote::OnRequest => mds::Promote::OnRequest,
    }
}

fn stored_write_behind(write_behind: WriteBehind) -> mds::WriteBehind {
    match write_behind {
        WriteBehind::After(span) => mds::WriteBehind::After(span.0),
        WriteBehind::Never => mds::WriteBehind::Never,
    }
}
