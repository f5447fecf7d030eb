//! A listing that crosses from one thread to another in batches, so that a directory of any size takes little memory and a
//! reader sees its beginning soon. The deadline is from one batch to the next.

use std::{
    mem,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use link::{BackEnd, Found, Way};
use types::Errno;

use crate::{call::Call, lanes::Lanes};

type Batch = Vec<(Vec<u8>, Found)>;

const BATCH: usize = 256;
/// Batches that wait to be visited: the next is collected while one is visited, no more is gained by more.
const WAITING: usize = 2;
/// A slow back end shows by this that it does not hang.
const BATCH_TIME: Duration = Duration::from_millis(200);

pub(crate) fn list<B: BackEnd + 'static>(
    inner: Arc<B>,
    lanes: &Lanes,
    way: Vec<Vec<u8>>,
    visit: &mut dyn FnMut(&[u8], Found) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let (batches, arriving) = bounded::<Batch>(WAITING);
    let deadline = lanes.limits.deadline;
    let mut until = Instant::now() + deadline;
    let ticket = lanes.looks.begin((), None, move |()| collect(inner.as_ref(), &way, batches));
    loop {
        match arriving.recv_deadline(until) {
            Ok(batch) => {
                if visited(batch, visit).is_break() {
                    ticket.leave();
                    return Ok(());
                }
                until = Instant::now() + deadline;
            }
            // It is done, or nobody is waited for any longer.
            Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {
                lanes.told(Call::List, ticket.wait(until, deadline))?;
                break;
            }
        }
    }
    // It came to its end: what it sent just when it was given up is here.
    let _ = arriving.try_iter().try_for_each(|batch| visited(batch, visit));
    Ok(())
}

fn visited(batch: Batch, visit: &mut dyn FnMut(&[u8], Found) -> ControlFlow<()>) -> ControlFlow<()> {
    batch.into_iter().try_for_each(|(name, found)| visit(&name, found))
}

fn collect<B: BackEnd>(inner: &B, way: &Way, batches: Sender<Batch>) -> Result<(), Errno> {
    let mut batch = Batch::with_capacity(BATCH);
    let mut sent = Instant::now();
    let mut left = false;
    inner.list(way, &mut |name, found| {
        batch.push((name.to_vec(), found));
        if batch.len() < BATCH && sent.elapsed() < BATCH_TIME {
            return ControlFlow::Continue(());
        }
        sent = Instant::now();
        // The visitor has left when it cannot be sent.
        left = batches.send(mem::replace(&mut batch, Batch::with_capacity(BATCH))).is_err();
        if left { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if !left && !batch.is_empty() {
        // Who has left does not miss it.
        let _ = batches.send(batch);
    }
    Ok(())
}
