//! Linked near-line: the other side is looked at before names and attributes are used, and the kernel is told what a look
//! found.

use std::sync::{Arc, Weak};

use ds::Object;
use fuse::{OpenFlags, OpenOut};
use linked::{Held, Host, News};
use mds::Found;
use types::{Errno, Ino};

use crate::{
    Client, FileInUse,
    inode::Inodes,
    turn::{Answer, Turn},
};

/// What the shell of linked near-line asks of us. Weak: it may outlive us.
struct AsHost(Weak<Client>);

impl Host for AsHost {
    fn hear(&self, news: News) {
        if let Some(client) = self.0.upgrade() {
            client.messenger.pass_on(news);
        }
    }

    fn hold(&self, ino: Ino) -> Result<Box<dyn Held>, Errno> {
        let client = self.0.upgrade().ok_or(Errno::EIO)?;
        let file = client.use_file(ino)?;
        // What a crash left unsettled is settled: otherwise it would count as a file that somebody writes.
        file.settle_if_idle()?;
        Ok(Box::new(file))
    }
}

impl Held for FileInUse {
    fn object(&self) -> &Arc<Object> {
        FileInUse::object(self)
    }
}

impl Client {
    /// For [`linked::Linked::start`].
    pub fn as_host(&self) -> Box<dyn Host> {
        Box::new(AsHost(self.this.clone()))
    }

    /// Before names of a directory are used.
    pub(crate) fn visit_dir(&self, turn: Turn, dir: Ino) -> Answer<()> {
        if let Some(linked) = self.options.linked.as_ref().filter(|linked| linked.are_names_due(dir)) {
            turn.wait()?;
            linked.visit_dir(dir)?;
        }
        self.options.linked.iter().for_each(|linked| linked.walked(dir));
        Ok(())
    }

    /// The kernel keeps the names of a directory that is linked no longer than they are what was seen there.
    pub(crate) fn open_linked_dir(&self, turn: Turn, dir: Ino) -> Answer<OpenOut> {
        self.visit_dir(turn, dir)?;
        let mut flags = OpenFlags::CACHE_DIR;
        let keeps = self.options.linked.as_ref().is_some_and(|linked| linked.may_keep_names(dir));
        flags.set(OpenFlags::KEEP_CACHE, keeps);
        Ok(OpenOut { fh: 0, flags, backing: None })
    }

    /// Before attributes or data of an inode are used. Whether there was a look: what was known of it is perhaps old.
    pub(crate) fn visit(&self, turn: Turn, ino: Ino) -> Answer<bool> {
        let Some(linked) = self.options.linked.as_ref().filter(|linked| linked.is_due(ino)) else {
            return Ok(false);
        };
        turn.wait()?;
        linked.visit(ino)?;
        Ok(true)
    }

    /// Before the attributes of those that come next in a directory are shown. Of those that cannot be looked at none are.
    pub(crate) fn visit_listed(&self, turn: Turn, dir: Ino, cookie: u64) -> Answer<()> {
        if let Some(linked) = self.options.linked.as_ref().filter(|linked| linked.are_listed_due(dir, cookie))
        {
            turn.wait()?;
            if let Err(errno) = linked.visit_listed(dir, cookie) {
                tracing::debug!(%dir, %errno, "files of a directory could not be looked at together");
            }
        }
        Ok(())
    }

    /// Is a look at it due? Who lists many does not wait for one at each.
    pub(crate) fn is_to_be_visited(&self, ino: Ino) -> bool {
        self.options.linked.as_ref().is_some_and(|linked| linked.is_due(ino))
    }

    pub(crate) fn tell_kernel(&self, news: &News) {
        let Some(kernel) = self.kernel() else { return };
        for (dir, name) in &news.names {
            // Most were never asked for.
            let _ = kernel.inval_entry(dir.get(), name);
        }
        for ino in &news.inodes {
            let _ = kernel.inval_inode(ino.get(), -1, 0);
        }
        for ino in &news.pages {
            self.versions.changed(*ino);
            self.invalidator.ask(ino.get(), 0, u64::MAX >> 1);
        }
    }
}

impl Client {
    /// Where a regular file's bytes are, without taking it into use where that can be told.
    pub fn glance(&self, found: &Found) -> Result<ds::Glance, Errno> {
        let hint = self.inodes.hint(found)?;
        if let Some(glance) = self.ds.glance(found.attr.ino, &hint)? {
            return Ok(glance);
        }
        let in_use = self.use_file(found.attr.ino)?;
        Ok(self.ds.glance(in_use.object().ino(), &hint)?.unwrap_or_default())
    }
}

impl Inodes {
    /// What the metadata know of its object.
    pub(crate) fn hint(&self, found: &Found) -> Result<ds::ObjectHint, Errno> {
        Ok(ds::ObjectHint {
            size: found.attr.size,
            written: found.data.written,
            // Of a file that nobody uses and that is not settled the object alone knows the size, even if it was
            // this mount that failed to settle it.
            stale_live: found.data.live,
            memory_generation: found.data.memory_generation,
            linked: self.their_size(found)?,
        })
    }

    /// Of a linked file, what theirs has.
    pub(crate) fn their_size(&self, found: &Found) -> Result<Option<u64>, Errno> {
        let linked = self.linked.as_ref().filter(|_| found.data.linked);
        linked.map_or(Ok(None), |linked| linked.their_size(found.attr.ino, found.data))
    }

    /// Closed files whose bytes are to be in near-line as soon as may be.
    pub(crate) fn publish_soon(&self, files: &[Ino]) {
        if let Some(linked) = self.linked.as_ref().filter(|_| !files.is_empty())
            && let Err(errno) = linked.publish_soon(files)
        {
            tracing::warn!(%errno, "closed files come to the linked directory later");
        }
    }
}
