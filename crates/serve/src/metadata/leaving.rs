//! Sessions that were given up, until all that they have is.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use proto::SessionId;

use super::{session::Session, terms::Due};

/// Sessions on their way out.
#[derive(Default)]
pub(super) struct Leaving {
    /// They were given up, and what they have is theirs until the verdict is durable.
    pub condemned: Mutex<HashMap<SessionId, Arc<Session>>>,
    /// What could not be made durable yet.
    pub undone: Mutex<Due>,
}
