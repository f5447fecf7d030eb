//! The running parts, as the modules beside this one share them.

use std::{sync::Arc, time::Instant};

use client::Client;
use ds::{DataServer, Object, ObjectHint};
use fuse::Session;
use kv::MetaStore;
use mds::{Found, Mds};
use types::{Errno, Ino};

use crate::{config::Config, control::ControlError};

pub(crate) struct Parts {
    pub store: Arc<MetaStore>,
    pub mds: Arc<Mds>,
    pub ds: Arc<DataServer>,
    pub client: Arc<Client>,
    pub session: Session,
    pub config: Config,
    pub began: Instant,
}

/// Of a file system's own error, for messages of commands.
pub(super) fn failed(what: &str, errno: Errno) -> ControlError {
    ControlError::errno(what, errno)
}

pub(super) fn attach(parts: &Parts, ino: Ino, found: &Found) -> Result<Arc<Object>, Errno> {
    // A file in use may be unsettled without any crash, and what the client knows of its object is right.
    if let Some(object) = parts.client.object(ino) {
        return Ok(object);
    }
    let hint = ObjectHint {
        size: found.attr.size,
        written: found.data.written,
        stale_live: found.data.live,
        memory_generation: found.data.memory_generation,
    };
    parts.ds.attach(ino, &hint)
}
