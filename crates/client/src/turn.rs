//! On which thread a request is being served, and what it may do there.

use types::Errno;

/// Who serves the request now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// The transport's thread, which must not wait.
    Transport,
    /// A worker.
    Worker,
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// Serve the request again on a worker. Nothing was changed.
    MustWait,
    Failed(Errno),
}

pub(crate) type Answer<T> = Result<T, Stop>;

impl Turn {
    /// To be called before anything that may wait, and before the first change.
    pub(crate) fn wait(self) -> Answer<()> {
        match self {
            Turn::Transport => Err(Stop::MustWait),
            Turn::Worker => Ok(()),
        }
    }

    pub(crate) fn wait_if(self, must: bool) -> Answer<()> {
        if must { self.wait() } else { Ok(()) }
    }
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Stop {
        Stop::Failed(error)
    }
}
