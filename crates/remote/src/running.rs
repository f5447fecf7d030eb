//! Large reads that follow each other, and records at a constant distance: what comes next is asked for while the program is at the last one, under the lease of the file's bytes.
//!
//! Whoever has a request of the kernel's in hand asks, without waiting for anything, and answers what has come. A request for what is on its way is
//! answered by the thread that receives it, unless others wait, too; what did not come so, whatever the reason, is asked for as ever.

use std::{
    sync::{Arc, mpsc},
    time::Instant,
};

use fuse::{Call, ReadArgs};
use net::{
    Answered,
    trace::{self, Trace},
};
use proto::data;
use types::{Errno, Ino};
use wire::{
    connection::Failure,
    frame::{Body, Verdict},
};

use crate::{
    Remote,
    ahead::{BLOCK_MAX, Fetch, Step},
    cache::Waiter,
    caching::LARGE,
    kernel::{answer_read, reply_pieces},
    line::{Arrived, Asking, Line},
    opening::was_read,
    openings::{OpenFile, Placed},
    reading::{Answers, asking, object},
};

/// Shorter blocks would be more requests than reads.
const BLOCK_MIN: u64 = 256 << 10;
/// Shorter records at a constant distance go by what is kept.
const RECORD_MIN: usize = 16 << 10;
/// A read that is overtaken so often is asked for by itself.
const TURNS_MAX: usize = 8;

/// An offset and a length.
type Range = (u64, usize);

fn wide((offset, len): Range) -> (u64, u64) {
    (offset, len as u64)
}

/// Blocks that end at multiples of it are each on one data server. 0: there are none of a useful length.
fn grain(placed: &Placed) -> u64 {
    let unit = placed.layout.unit;
    let fits = placed.striped.count() == 1 || unit.is_multiple_of(BLOCK_MAX);
    match fits {
        true => BLOCK_MAX,
        false if unit >= BLOCK_MIN && BLOCK_MAX.is_multiple_of(unit) => unit,
        false => 0,
    }
}

impl Remote {
    /// Large reads go past what is kept; and so does what was asked for ahead of them.
    pub(crate) fn is_in_run(&self, file: &OpenFile, range: Range) -> bool {
        range.1 >= LARGE || self.follows(file, range)
    }

    /// A read that has what is kept. Records may be read so at first, or now and then.
    pub(crate) fn note_read(&self, file: &OpenFile, range: Range) {
        let Some(runs) = self.caching.runs.as_ref().filter(|_| range.1 >= RECORD_MIN) else { return };
        let has_blocks = file.placed.lock().as_deref().is_none_or(|placed| grain(placed) > 0);
        if has_blocks {
            runs.lock().ahead.note((file.ino, file.number), wide(range));
        }
    }

    fn follows(&self, file: &OpenFile, range: Range) -> bool {
        let Some(runs) = &self.caching.runs else { return false };
        runs.lock().ahead.follows((file.ino, file.number), wide(range))
    }

    /// With what was asked for ahead, or else as it is.
    pub(crate) fn ask_in_run(&self, file: &OpenFile, range: Range) -> Result<Answers, Errno> {
        if self.caching.runs.is_some()
            && let Some(lease) = self.lease_for(file)
        {
            self.ask_on(file, lease, range);
            for _ in 0..TURNS_MAX {
                match self.find_in_run(file, range) {
                    Step::Found(pieces) => return Ok(Answers::Ahead(pieces)),
                    Step::No => break,
                    Step::Wait(number) => {
                        let (come, came) = mpsc::sync_channel(1);
                        self.when_it_came(
                            number,
                            Box::new(move || {
                                // Who waited too long is gone.
                                let _ = come.send(());
                            }),
                        );
                        if came.recv_timeout(self.options.longest).is_err() {
                            break;
                        }
                    }
                }
            }
        }
        self.ask_for(file, range.0, range.1)
    }

    /// A read that follows others. `Some`: it is to be served as any other.
    pub(crate) fn serve_in_run(&self, call: Call, ino: Ino, args: &ReadArgs) -> Option<Call> {
        let range = (args.offset, args.size as usize);
        let file = self.openings.get(args.fh).filter(|file| file.ino == ino && file.is_well());
        let Some(file) = file.filter(|file| self.follows(file, range)) else { return Some(call) };
        // What has to be asked about first is not asked about here.
        let lease = self.bytes_lease(ino).filter(|_| self.wants_bytes(&file) && !self.backlog.has(ino));
        let Some(lease) = lease else { return Some(call) };
        let _request = trace::enter(self.traces.next());
        self.ask_on(&file, lease, range);
        self.answer_in_run(call, file, range);
        None
    }

    fn answer_in_run(&self, call: Call, file: Arc<OpenFile>, range: Range) {
        let request = trace::current();
        match self.find_in_run(&file, range) {
            Step::Found(pieces) => {
                reply_pieces(call, &pieces);
            }
            Step::Wait(number) => {
                let Some(this) = self.this.upgrade() else { return call.reply_error(Errno::EIO) };
                self.when_it_came(
                    number,
                    Box::new(move || {
                        let _request = trace::enter(request);
                        this.answer_in_run(call, file, range);
                    }),
                );
            }
            Step::No => {
                let Some(this) = self.this.upgrade() else { return call.reply_error(Errno::EIO) };
                self.data_pool.defer(move || {
                    let _request = trace::enter(request);
                    this.serve_past_run(call, &file, range);
                });
            }
        }
    }

    fn serve_past_run(&self, call: Call, file: &OpenFile, (offset, len): Range) {
        let found = match self.find_back(file.ino, offset, len) {
            Ok(Some(found)) => Ok(found),
            Ok(None) => self.ask_for(file, offset, len),
            Err(error) => Err(error),
        };
        answer_read(self, call, (offset, len), found);
    }

    /// What is there of a read, under the lease that stands now.
    fn find_in_run(&self, file: &OpenFile, range: Range) -> Step<Arc<Arrived>> {
        let (Some(runs), Some(lease)) = (&self.caching.runs, self.bytes_lease(file.ino)) else {
            return Step::No;
        };
        let found = runs.lock().ahead.find((file.ino, file.number), lease, wide(range));
        if matches!(found, Step::Found(_)) {
            was_read(file);
        }
        found
    }

    /// A read begins: it and what follows are asked for, as far as they are not.
    fn ask_on(&self, file: &OpenFile, lease: u64, range: Range) {
        let Some(runs) = &self.caching.runs else { return };
        let placed = file.placed.lock().clone();
        let grain = placed.as_deref().map_or(0, grain);
        let of = (file.ino, file.number);
        let fetches = runs.lock().ahead.read(of, lease, wide(range), grain);
        let Some(placed) = placed else { return };
        for fetch in fetches {
            if !self.begin_fetch(file, &placed, &fetch) {
                self.came(fetch.number, None);
            }
        }
    }

    /// Whether it is on its way: then it comes, or is told to have failed.
    fn begin_fetch(&self, file: &OpenFile, placed: &Placed, fetch: &Fetch) -> bool {
        let mut parts = placed.striped.parts(fetch.from, fetch.len);
        let (Some(part), None) = (parts.next(), parts.next()) else { return false };
        let request = data::Read {
            object: Some(object(file, placed, part.stripe)),
            offset: part.object_offset,
            length: part.len as u32,
        };
        let Ok(asking) = asking(&request, Body::default(), part.len as u32) else { return false };
        let Some(line) = self.nodes.line(placed.layout.stripes[part.stripe]) else { return false };
        let Some(channel) = line.channel_there() else { return false };
        let call = asking.call(Instant::now() + self.options.longest / 4);
        let (this, number, begun, request) =
            (self.this.clone(), fetch.number, line.begin(), trace::current());
        let refused = (line.clone(), asking.clone());
        let then = move |answered| {
            let Some(this) = this.upgrade() else { return };
            this.fetched((line, asking, begun, request), number, answered);
        };
        let begins = channel.begin_then(call, then).is_ok();
        if !begins {
            let (line, asking) = refused;
            line.end(&asking, begun, Err(Errno::EAGAIN));
        }
        begins
    }

    fn fetched(
        &self,
        (line, asking, begun, request): (Arc<Line>, Asking, Instant, Trace),
        number: u64,
        answered: Result<Answered, Failure>,
    ) {
        let _request = trace::enter(request);
        let answered = answered.ok().filter(|answered| answered.header.verdict == Verdict::Done);
        line.end(&asking, begun, answered.as_ref().ok_or(Errno::EAGAIN));
        let whole = answered.filter(|answered| answered.body.len() == asking.answer_bytes_max as usize);
        self.came(number, whole.map(|answered| Arc::new(Arrived::new(answered.body, line))));
    }

    /// Wakes who waits for it: here if that is one alone, so that nobody else's answers on this connection wait for long.
    fn came(&self, number: u64, bytes: Option<Arc<Arrived>>) {
        let Some(runs) = &self.caching.runs else { return };
        let (waiters, alone) = {
            let mut runs = runs.lock();
            runs.ahead.came(number, bytes);
            let waiters = runs.waiting.remove(&number).unwrap_or_default();
            let alone = runs.waiting.is_empty() && waiters.len() == 1;
            (waiters, alone)
        };
        for waiter in waiters {
            if alone {
                waiter();
            } else {
                self.data_pool.defer(waiter);
            }
        }
    }

    fn when_it_came(&self, number: u64, waiter: Waiter) {
        let Some(runs) = &self.caching.runs else { return };
        {
            let mut runs = runs.lock();
            if runs.ahead.is_asked(number) {
                return runs.waiting.entry(number).or_default().push(waiter);
            }
        }
        waiter();
    }
}
