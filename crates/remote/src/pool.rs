//! Threads for requests that wait for the network.
//!
//! The queue is bounded: each task holds one request of the kernel's, of which few are under way at once. When it is full whoever
//! brings one more does it himself, which holds up one thread of the transport and loses nothing.

use std::{io, sync::Arc, thread::JoinHandle};

use net::{Queue, Refused};
use parking_lot::Mutex;

/// More than the kernel has under way with its usual limits on all its queues together.
const QUEUED_MAX: usize = 4096;

type Task = Box<dyn FnOnce() + Send>;

pub(crate) struct Pool {
    tasks: Arc<Queue<Task>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    pub(crate) fn start(name: &str, threads: usize) -> io::Result<Pool> {
        let pool = Pool { tasks: Arc::new(Queue::new(QUEUED_MAX)), threads: Mutex::default() };
        for n in 0..threads.max(1) {
            let tasks = pool.tasks.clone();
            let builder = std::thread::Builder::new().name(format!("{name}-{n}"));
            pool.threads.lock().push(builder.spawn(move || work(&tasks))?);
        }
        Ok(pool)
    }

    /// Runs `task` on a thread, or here when there is no place. After the end it is dropped: nobody waits for it.
    pub(crate) fn defer(&self, task: impl FnOnce() + Send + 'static) {
        match self.tasks.put(Box::new(task)) {
            Ok(()) | Err(Refused::Closed(_)) => {}
            Err(Refused::Full(task)) => task(),
        }
    }

    /// Runs `task` on a thread, or not at all, and says which.
    pub(crate) fn offer(&self, task: impl FnOnce() + Send + 'static) -> bool {
        self.tasks.put(Box::new(task)).is_ok()
    }

    /// Does what is queued, and ends the threads.
    pub(crate) fn shutdown(&self) {
        self.tasks.close();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of requests ended with a panic");
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.tasks.close();
    }
}

fn work(tasks: &Queue<Task>) {
    while let Some(task) = tasks.take() {
        task();
    }
}
