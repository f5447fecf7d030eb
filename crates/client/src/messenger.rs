//! Tells the kernel what looks at a linked directory found.
//!
//! Invariants: only the thread of this module tells the kernel of names: whoever makes a look may do so for a lookup in the
//! very directory, which the kernel keeps locked. What does not fit in its line is found by the kernel itself, which
//! keeps nothing of a linked directory for longer than the interval of looks.

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use linked::News;
use parking_lot::Mutex;

/// Looks whose news wait for the kernel. Each is about one directory.
const LINE: usize = 256;

/// Who tells the kernel. `false`: there is nobody to tell any more.
pub(crate) type Tell = dyn Fn(&News) -> bool + Send;

#[derive(Default)]
pub(crate) struct Messenger {
    line: Mutex<Option<Sender<News>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Messenger {
    pub(crate) fn start(&self, tell: Box<Tell>) -> std::io::Result<()> {
        let (line, news) = bounded::<News>(LINE);
        *self.line.lock() = Some(line);
        let thread = std::thread::Builder::new().name("onfs-news".into());
        *self.thread.lock() = Some(thread.spawn(move || run(&news, &tell))?);
        Ok(())
    }

    /// Waits for nothing.
    pub(crate) fn pass_on(&self, news: News) {
        if let Some(line) = &*self.line.lock() {
            let _ = line.try_send(news);
        }
    }

    pub(crate) fn shutdown(&self) {
        drop(self.line.lock().take());
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that tells the kernel of news ended with a panic");
        }
    }
}

fn run(news: &Receiver<News>, tell: &Tell) {
    for news in news {
        if !tell(&news) {
            return;
        }
    }
}
