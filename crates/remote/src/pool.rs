//! Threads for requests that wait for the network.
//!
//! The queue is bounded: each task holds one request of the kernel's, of which few are under way at once. When it is full whoever
//! brings one more does it himself, which holds up one thread of the transport and loses nothing.

use std::{io, thread::JoinHandle};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use parking_lot::Mutex;

/// More than the kernel has under way with its usual limits on all its queues together.
const QUEUED_MAX: usize = 4096;

type Task = Box<dyn FnOnce() + Send>;

pub(crate) struct Pool {
    sender: Mutex<Option<Sender<Task>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    pub(crate) fn start(name: &str, threads: usize) -> io::Result<Pool> {
        let (sender, receiver) = bounded(QUEUED_MAX);
        let mut started = Vec::with_capacity(threads);
        for n in 0..threads.max(1) {
            let receiver = receiver.clone();
            let builder = std::thread::Builder::new().name(format!("{name}-{n}"));
            started.push(builder.spawn(move || work(&receiver))?);
        }
        Ok(Pool { sender: Mutex::new(Some(sender)), threads: Mutex::new(started) })
    }

    /// Runs `task` on a thread, or here when there is no place or the pool has ended.
    pub(crate) fn defer(&self, task: impl FnOnce() + Send + 'static) {
        let task: Task = Box::new(task);
        let sender = self.sender.lock().clone();
        match sender.map(|sender| sender.try_send(task)) {
            Some(Ok(())) => {}
            Some(Err(TrySendError::Full(task) | TrySendError::Disconnected(task))) => task(),
            None => {}
        }
    }

    /// Does what is queued, and ends the threads. What comes later is dropped: nobody waits for it.
    pub(crate) fn shutdown(&self) {
        drop(self.sender.lock().take());
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of requests ended with a panic");
            }
        }
    }
}

fn work(receiver: &Receiver<Task>) {
    while let Ok(task) = receiver.recv() {
        task();
    }
}
