//! Sending closes: to whoever has the slots, many at a time.

use std::sync::Weak;

use proto::{
    closing::{CloseMany, Closing},
    metadata::Close,
};
use types::{Errno, Ino};

use crate::{
    Remote,
    closes::{Closes, ToClose},
    keys::inode,
};

impl Remote {
    /// A thread sends them until there will be no more.
    pub(crate) fn send_closes(remote: &Weak<Remote>, closes: &Closes) {
        while let Some(some) = closes.next() {
            let Some(remote) = remote.upgrade() else { return };
            remote.close_all(some);
        }
    }

    pub(crate) fn close_soon(&self, one: ToClose) {
        if let Some(now) = self.closes.add(one) {
            self.close_all(vec![now]);
        }
    }

    fn close_all(&self, all: Vec<ToClose>) {
        for some in self.by_owner(all, |one| one.closing.ino) {
            let closings: Vec<Closing> = some.iter().map(|one| one.closing).collect();
            let close = |head| CloseMany { head: Some(head), closings: closings.clone() };
            let (closed, sure) = self.ask_surely(close, self.want_anew());
            match closed {
                Ok(_) => some.iter().for_each(|one| self.is_closed(one, true)),
                // A slot went meanwhile, and others of them did not.
                Err(Errno::EREMOTE) => some.iter().for_each(|one| self.close_one(one)),
                Err(error) => {
                    tracing::warn!(files = some.len(), %error, "files were not closed at the server");
                    some.iter().for_each(|one| self.not_closed(one, sure));
                }
            }
        }
    }

    fn close_one(&self, one: &ToClose) {
        let Closing { opening, ino, atime } = one.closing;
        let close = |head| Close { head: Some(head), opening, atime, ino };
        let (closed, sure) = self.ask_surely(close, self.want_anew());
        if let Err(error) = closed {
            tracing::warn!(ino, %error, "a file was not closed at the server");
            return self.not_closed(one, sure);
        }
        self.is_closed(one, true);
    }

    /// The server may not have heard of it: it would count the file as open for as long as the session lasts.
    fn not_closed(&self, one: &ToClose, sure: bool) {
        if sure || self.closes.add(*one).is_some() {
            self.is_closed(one, sure);
        }
    }

    /// What it may have changed changes no more: the time of reading, and the file by an opening for writing, each by itself.
    fn is_closed(&self, one: &ToClose, sure: bool) {
        self.openings.strike(one.place);
        let Some(ino) = Ino::from_raw(one.closing.ino) else { return };
        let changes = u32::from(one.closing.atime.is_some()) + u32::from(one.write);
        (0..changes).for_each(|_| self.end_change(&[inode(ino)], sure));
    }
}
