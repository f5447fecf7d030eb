//! The running parts, as the modules beside this one share them.

use std::{sync::Arc, time::Instant};

use client::Client;
use ds::DataServer;
use fuse::Session;
use kv::MetaStore;
use linked::Linked;
use mds::Mds;
use types::Errno;

use super::upward::Upward;
use crate::{config::Config, control::ControlError, guard::Ward};

pub(crate) struct Parts {
    pub store: Arc<MetaStore>,
    pub mds: Arc<Mds>,
    pub ds: Arc<DataServer>,
    pub client: Arc<Client>,
    pub linked: Option<Arc<Linked>>,
    pub upward: Upward,
    pub session: Session,
    pub config: Config,
    pub began: Instant,
    /// Of a guarded mount.
    pub ward: Option<Arc<Ward>>,
}

/// Of a file system's own error, for messages of commands.
pub(super) fn failed(what: &str, errno: Errno) -> ControlError {
    ControlError::errno(what, errno)
}
