//! Policies between the words of commands and configuration and those of the parts.

use client::Policy;
use mds::DirPolicy as Stored;
use types::{Errno, Span};

use super::parts::failed;
use crate::{
    config::PolicyConfig,
    control::ControlError,
    policy::{CloseSync, DirPolicy, Mode, Promote, WriteBehind},
};

/// What holds where no directory says anything.
pub(super) fn default_of(config: &PolicyConfig) -> Policy {
    Policy {
        promote: stored_promote(config.promote),
        mode: stored_mode(config.mode),
        sync: config.sync.map(stored_sync),
        write_behind: stored_write_behind(config.write_behind),
    }
}

pub(super) fn to_stored(policy: DirPolicy) -> Stored {
    Stored {
        promote: policy.promote.map(stored_promote),
        mode: policy.mode.map(stored_mode),
        sync: policy.sync.map(stored_sync),
        write_behind: policy.write_behind.map(stored_write_behind),
    }
}

pub(super) fn of_stored(policy: Stored) -> DirPolicy {
    DirPolicy {
        promote: policy.promote.map(promote),
        mode: policy.mode.map(mode),
        sync: policy.sync.map(close_sync),
        write_behind: policy.write_behind.map(write_behind),
    }
}

/// A policy was not set.
pub(super) fn not_set(path: &str, errno: Errno) -> ControlError {
    let why = if errno == Errno::ENOTEMPTY {
        "with a linked directory it becomes transient, or ends to be, only while it is empty"
    } else if errno == Errno::EINVAL {
        "with a linked directory all below a transient directory is transient, and the root of the mount is not"
    } else {
        return failed(path, errno);
    };
    ControlError { message: format!("{path}: {why}"), ..ControlError::errno(path, errno) }
}

pub(super) fn promote(stored: mds::Promote) -> Promote {
    match stored {
        mds::Promote::OnOpen => Promote::OnOpen,
        mds::Promote::OnRequest => Promote::OnRequest,
    }
}

pub(super) fn mode(stored: mds::Mode) -> Mode {
    match stored {
        mds::Mode::Global => Mode::Global,
        mds::Mode::Local => Mode::Local,
        mds::Mode::Hybrid => Mode::Hybrid,
        mds::Mode::Transient => Mode::Transient,
    }
}

pub(super) fn close_sync(stored: mds::CloseSync) -> CloseSync {
    match stored {
        mds::CloseSync::Forced => CloseSync::Forced,
        mds::CloseSync::Normal => CloseSync::Normal,
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

fn stored_mode(mode: Mode) -> mds::Mode {
    match mode {
        Mode::Global => mds::Mode::Global,
        Mode::Local => mds::Mode::Local,
        Mode::Hybrid => mds::Mode::Hybrid,
        Mode::Transient => mds::Mode::Transient,
    }
}

fn stored_sync(sync: CloseSync) -> mds::CloseSync {
    match sync {
        CloseSync::Forced => mds::CloseSync::Forced,
        CloseSync::Normal => mds::CloseSync::Normal,
    }
}

fn stored_write_behind(write_behind: WriteBehind) -> mds::WriteBehind {
    match write_behind {
        WriteBehind::After(span) => mds::WriteBehind::After(span.0),
        WriteBehind::Never => mds::WriteBehind::Never,
    }
}
