//! Threads that carry requests out, so that no connection's reader waits for a device, a lock or another server.
//!
//! Bounded: requests that wait, and the bytes of their bodies. Who comes beyond that is told to come later.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use net::{Incoming, Reply};
use parking_lot::Mutex;

use crate::answer::{No, Outcome, answered};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub threads: usize,
    /// Requests that wait. Each connection has its window; this is for all together.
    pub waiting: usize,
    /// Of bodies, of those that wait or are carried out and of their answers.
    pub bytes: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        // Threads mostly wait, for devices and other servers. What waits is 4,096 small requests of 16 clients' windows, or
        // a second of a fast network in bytes.
        Bounds { threads: 16, waiting: 4096, bytes: 1 << 30 }
    }
}

/// What is done with a request: by a service, on a worker's thread.
pub trait Serve: Send + Sync + 'static {
    fn serve(&self, incoming: &mut Incoming) -> Outcome;
}

struct Job {
    service: Arc<dyn Serve>,
    incoming: Incoming,
    reply: Reply,
    taken: Taken,
}

/// Bytes in work, given back when it is dropped.
struct Taken(Arc<AtomicU64>, u64);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}

pub struct Workers {
    bytes_max: u64,
    bytes: Arc<AtomicU64>,
    jobs: Mutex<Option<Sender<Box<Job>>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    pub fn start(name: &str, bounds: Bounds) -> io::Result<Workers> {
        let (jobs, taken) = bounded(bounds.waiting);
        let mut threads = Vec::new();
        for n in 0..bounds.threads.max(1) {
            let taken: Receiver<Box<Job>> = taken.clone();
            let thread = std::thread::Builder::new().name(format!("{name}-{n}"));
            threads.push(thread.spawn(move || taken.iter().for_each(|job| carry_out(*job)))?);
        }
        Ok(Workers {
            bytes_max: bounds.bytes,
            bytes: Arc::default(),
            jobs: Mutex::new(Some(jobs)),
            threads: Mutex::new(threads),
        })
    }

    /// Has a request carried out and answered, now or never.
    pub fn take(&self, service: Arc<dyn Serve>, incoming: Incoming, reply: Reply) {
        let bytes = incoming.body().len() as u64 + u64::from(incoming.header.answer_bytes_max);
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        let taken = Taken(self.bytes.clone(), bytes);
        // One that is alone is taken however long it is.
        if before > 0 && before.saturating_add(bytes) > self.bytes_max {
            return refuse(reply, "as many bytes in work as it takes");
        }
        let job = Box::new(Job { service, incoming, reply, taken });
        let jobs = self.jobs.lock().clone();
        match jobs.map(|jobs| jobs.try_send(job)) {
            Some(Ok(())) => (),
            Some(Err(TrySendError::Full(job) | TrySendError::Disconnected(job))) => {
                refuse(job.reply, "as many requests in work as it takes");
            }
            // The reply says that it was dropped.
            None => (),
        }
    }

    /// Takes no more, and ends when what was taken is done.
    pub fn shutdown(&self) {
        drop(self.jobs.lock().take());
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a worker ended with a panic");
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn refuse(reply: Reply, why: &str) {
    answered(reply, Err(No::later(why)));
}

fn carry_out(job: Job) {
    let Job { service, mut incoming, reply, taken } = job;
    let outcome = if Instant::now() >= incoming.deadline {
        // Nobody waits, and nothing was begun.
        Err(No::later("its time was over before it was begun"))
    } else {
        service.serve(&mut incoming)
    };
    answered(reply, outcome);
    drop(incoming);
    drop(taken);
}
