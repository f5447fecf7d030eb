//! Workers for requests that must wait.
//!
//! Invariants: the queue is bounded; when it is full the caller runs the task itself, which delays one
//! transport thread and loses nothing (what tasks wait for never depends on another request); every task is watched
//! until it ends ([`Watch`]). It knows nothing of what the tasks do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use parking_lot::Mutex;

use crate::watch::{Label, Ticket, Watch};

/// Sizes and times of the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolOptions {
    pub workers: usize,
    /// Tasks waiting for a worker. Each holds one request, so this bounds the memory of waiting requests.
    pub queue: usize,
    pub deadline: Duration,
}

type Task = Box<dyn FnOnce() + Send>;

struct Queued {
    ticket: Ticket,
    task: Task,
}

/// Counters that `Client::stats` shows.
#[derive(Default)]
pub(crate) struct PoolCounters {
    pub deferred: AtomicU64,
    pub run_inline: AtomicU64,
}

pub(crate) struct Pool {
    sender: Mutex<Option<Sender<Queued>>>,
    stop_watch: Mutex<Option<Sender<()>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    watch: Arc<Watch>,
    counters: PoolCounters,
}

impl Pool {
    pub(crate) fn start(options: PoolOptions) -> std::io::Result<Pool> {
        let (sender, receiver) = bounded::<Queued>(options.queue.max(1));
        let watch = Arc::new(Watch::new());
        let mut threads = Vec::with_capacity(options.workers + 1);
        for n in 0..options.workers.max(1) {
            let receiver = receiver.clone();
            threads.push(
                std::thread::Builder::new()
                    .name(format!("onfs-wait-{n}"))
                    .spawn(move || run_worker(&receiver))?,
            );
        }
        // One message, ever: the end.
        let (stop_watch, stopped) = bounded::<()>(1);
        let watched = watch.clone();
        let deadline = options.deadline;
        threads.push(
            std::thread::Builder::new()
                .name("onfs-watch".into())
                .spawn(move || watched.run(&stopped, deadline))?,
        );
        Ok(Pool {
            sender: Mutex::new(Some(sender)),
            stop_watch: Mutex::new(Some(stop_watch)),
            threads: Mutex::new(threads),
            watch,
            counters: PoolCounters::default(),
        })
    }

    /// Runs `task` on a worker, or here when the queue is full or the pool has ended.
    pub(crate) fn defer(&self, label: Label, task: impl FnOnce() + Send + 'static) {
        self.counters.deferred.fetch_add(1, Ordering::Relaxed);
        let queued = Queued { ticket: self.watch.enter(label), task: Box::new(task) };
        let sender = self.sender.lock().clone();
        let refused = match sender {
            Some(sender) => match sender.try_send(queued) {
                Ok(()) => return,
                Err(TrySendError::Full(queued) | TrySendError::Disconnected(queued)) => queued,
            },
            None => queued,
        };
        self.counters.run_inline.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(
            operation = label.operation,
            ino = label.ino,
            "the queue of waiting requests is full"
        );
        self.watch.handed_over();
        (refused.task)();
        drop(refused.ticket);
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(crate) fn counters(&self) -> &PoolCounters {
        &self.counters
    }

    /// Finishes what is queued and ends the threads. Later tasks run on their callers.
    pub(crate) fn shutdown(&self) {
        drop(self.sender.lock().take());
        drop(self.stop_watch.lock().take());
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a worker thread ended with a panic");
            }
        }
    }
}

fn run_worker(receiver: &Receiver<Queued>) {
    // Ends when the pool drops its sender and the queue is empty.
    while let Ok(queued) = receiver.recv() {
        (queued.task)();
        drop(queued.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: Label = Label { operation: "fsync", ino: 7 };

    fn pool(workers: usize, queue: usize) -> Pool {
        Pool::start(PoolOptions { workers, queue, deadline: Duration::from_secs(60) }).unwrap()
    }

    /// Goal: a full queue does not block or lose tasks. Method: one worker is held by a gate, the queue has one
    /// place; the third task must have run on the caller when `defer` returns.
    #[test]
    fn a_full_queue_runs_the_task_on_the_caller() {
        let pool = pool(1, 1);
        let (gate, wait) = bounded::<()>(0);
        let (done, results) = bounded::<&str>(3);
        let started = {
            let (tell, started) = bounded::<()>(1);
            let done = done.clone();
            pool.defer(LABEL, move || {
                tell.send(()).unwrap();
                wait.recv().unwrap();
                done.send("held").unwrap();
            });
            started
        };
        started.recv().unwrap();
        let queued = done.clone();
        pool.defer(LABEL, move || queued.send("queued").unwrap());
        pool.defer(LABEL, move || done.send("inline").unwrap());
        assert_eq!(results.try_recv(), Ok("inline"));
        gate.send(()).unwrap();
        pool.shutdown();
        assert_eq!(results.iter().collect::<Vec<_>>(), ["held", "queued"]);
        assert_eq!(pool.counters().run_inline.load(Ordering::Relaxed), 1);
        assert_eq!(pool.counters().deferred.load(Ordering::Relaxed), 3);
    }

    /// Goal: after shutdown nothing is lost. Method: defer after it and look that the task ran.
    #[test]
    fn an_ended_pool_runs_tasks_on_the_caller() {
        let pool = pool(2, 4);
        pool.shutdown();
        let (done, results) = bounded::<()>(1);
        pool.defer(LABEL, move || done.send(()).unwrap());
        assert_eq!(results.try_recv(), Ok(()));
    }
}
