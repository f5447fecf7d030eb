//! What the kernel is asked to forget, since it does not do so by itself for as long as it has memory: inodes that others removed, so that their
//! bytes can go; and some of those that are not in use if there are more than the session may refer to.
//!
//! A kernel that takes no such request (before Linux 6.18) goes on remembering, and the session's references are given back all the same: if
//! the inode is removed, who uses it in another way than through an opening (as his current directory, say) gets `ESTALE`.

use std::collections::BTreeSet;

use types::Ino;

use crate::Remote;

impl Remote {
    /// The server named them: nobody has them open.
    pub(crate) fn forget_nameless(&self, inos: Vec<u64>) {
        if !inos.is_empty() {
            self.forget_unused(inos);
        }
    }

    /// Called again and again.
    pub(crate) fn bound_references(&self) {
        let some = self.references.beyond(self.options.known);
        if !some.is_empty() {
            tracing::debug!(
                some = some.len(),
                "more inodes are known than are to be: some are to be forgotten"
            );
            self.forget_unused(some);
        }
    }

    /// Of those that are open or otherwise in use it is the kernel that keeps them.
    fn forget_unused(&self, mut inos: Vec<u64>) {
        let open: BTreeSet<u64> = self.openings.all().iter().map(|file| file.ino.get()).collect();
        inos.retain(|ino| *ino != Ino::ROOT.get() && !open.contains(ino));
        if self.pruning.can() {
            return self.pruning.prune(inos);
        }
        inos.into_iter().for_each(|ino| self.references.give_up(ino));
    }
}
