//! Inodes that others removed and that the kernel here only remembers: it is asked to forget them, so that their bytes can go.
//!
//! A kernel that takes no such request (before Linux 6.18) goes on remembering, and the session's references are given back all the same: who
//! uses one in another way than through an opening (as his current directory, say) gets `ESTALE`.

use std::collections::BTreeSet;

use crate::Remote;

impl Remote {
    /// The server named them: nobody has them open.
    pub(crate) fn forget_nameless(&self, inos: Vec<u64>) {
        if inos.is_empty() {
            return;
        }
        if self.pruning.can() {
            return self.pruning.prune(inos);
        }
        let open: BTreeSet<u64> = self.openings.all().iter().map(|file| file.ino.get()).collect();
        inos.into_iter().filter(|ino| !open.contains(ino)).for_each(|ino| self.references.give_up(ino));
    }
}
