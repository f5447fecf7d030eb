//! Sending closes: to whoever has the slots, many at a time.

use std::sync::Weak;

use proto::{
    closing::{CloseMany, Closing},
    metadata::Close,
};
use types::Errno;

use crate::{Remote, closes::Closes};

impl Remote {
    /// A thread sends them until there will be no more.
    pub(crate) fn send_closes(remote: &Weak<Remote>, closes: &Closes) {
        while let Some(some) = closes.next() {
            let Some(remote) = remote.upgrade() else { return };
            remote.close_all(some);
        }
    }

    pub(crate) fn close_soon(&self, closing: Closing) {
        if let Some(now) = self.closes.add(closing) {
            self.close_all(vec![now]);
        }
    }

    fn close_all(&self, closings: Vec<Closing>) {
        for some in self.by_owner(closings, |closing| closing.ino) {
            let close = |head| CloseMany { head: Some(head), closings: some.clone() };
            match self.look(close) {
                Ok(_) => {}
                // A slot went meanwhile, and others of them did not.
                Err(Errno::EREMOTE) => some.iter().for_each(|one| self.close_one(*one)),
                Err(error) => {
                    tracing::warn!(files = some.len(), %error, "files were not closed at the server")
                }
            }
        }
    }

    fn close_one(&self, Closing { opening, ino, atime }: Closing) {
        let closed = self.look(|head| Close { head: Some(head), opening, atime, ino });
        if let Err(error) = closed {
            tracing::warn!(ino, %error, "a file was not closed at the server");
        }
    }
}
