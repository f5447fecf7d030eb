//! Reading: a range in its parts, from their data servers at the same time.
//!
//! Where an object is short there is a hole or the file's end; which of them, the other objects' sizes say (`covering`). A data server that does
//! not answer gives an error, whatever the others say.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use cluster::{
    sizing::{Said, Sizing},
    striping::Part,
};
use net::{Answered, Pending};
use prost::Message;
use proto::{
    Request,
    data::{self, BYTES_MAX, Object},
};
use types::Errno;
use wire::{
    PageBuffer,
    frame::{Body, Verdict},
};

use crate::{
    Remote, ahead,
    answered::Where,
    covering::{Came, Covering, Next},
    line::{Arrived, Asking, Line, Stop, Waits},
    opening::was_read,
    openings::{OpenFile, Placed},
    pages::Piece,
    stripes::{FromStripe, ToStripe, What},
};

/// A data server that the map does not have is waited for: servers report every two seconds, and a while later after a refusal.
const UNHEARD_MAX: Duration = Duration::from_secs(10);
const UNHEARD_PAUSE: Duration = Duration::from_millis(100);

/// An object grew between its end and its size; then it is read again.
const AGAIN_MAX: u32 = 4;

/// One part's bytes.
pub(crate) struct Got {
    part: Part,
    pub(crate) bytes: PageBuffer,
    /// Of the object.
    size: u64,
    node: u64,
}

/// What the data servers said to a read.
pub(crate) enum Answers {
    /// All of it, in one piece.
    Whole(Got),
    /// With holes between them, and how many bytes there are.
    Parts(Vec<Got>, usize),
    /// What this mount keeps, one after the other.
    Kept(Vec<Piece>),
    /// The same, of what it asked for ahead.
    Ahead(Vec<ahead::Piece<Arc<Arrived>>>),
    /// Nothing was ever written, but it may have been given a size.
    Zeros(usize),
}

impl Remote {
    /// Fills `buf` from `offset`; short at the end of the file alone. At most [`BYTES_MAX`] at once.
    pub fn read(&self, file: &OpenFile, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let answers = self.ask_or_find(file, offset, buf.len())?;
        self.fill(offset, buf, answers)
    }

    /// Asks for a range. What comes is for [`Remote::fill`], unless it is whole.
    pub(crate) fn ask_for(&self, file: &OpenFile, offset: u64, len: usize) -> Result<Answers, Errno> {
        let most = len.min(BYTES_MAX as usize);
        if most == 0 {
            return Ok(Answers::Zeros(0));
        }
        was_read(file);
        match self.placed(file)? {
            Ok(placed) => {
                self.where_it_is(file, placed, &mut |placed| self.ask_placed(file, placed, offset, most))
            }
            Err(size) => Ok(Answers::Zeros(size.saturating_sub(offset).min(most as u64) as usize)),
        }
    }

    /// Of a file with a layout.
    fn ask_placed(
        &self,
        file: &OpenFile,
        placed: &Placed,
        offset: u64,
        most: usize,
    ) -> Result<Answers, Errno> {
        let begun = Instant::now();
        let parts: Vec<Part> = placed.striped.parts(offset, most as u64).collect();
        let mut got = self.read_parts(file, placed, &parts)?;
        match got.pop() {
            Some(whole) if got.is_empty() && whole.bytes.len() == most => return Ok(Answers::Whole(whole)),
            last => got.extend(last),
        }
        let came = got.iter().map(Got::came).collect();
        let mut covering = Covering::new(placed.striped, &parts, came);
        loop {
            match covering.next(begun.elapsed()) {
                Next::Read(which) => {
                    let again: Vec<Part> = which.iter().map(|n| parts[*n]).collect();
                    for (n, one) in which.into_iter().zip(self.read_parts(file, placed, &again)?) {
                        covering.read(n, one.came());
                        self.reuse(std::mem::replace(&mut got[n], one));
                    }
                }
                Next::Size(stripes) => {
                    let all = self.sizes(file, placed, &stripes)?;
                    all.into_iter().for_each(|said| covering.sized(said));
                }
                Next::Is(len) => return Ok(Answers::Parts(got, len)),
            }
        }
    }

    /// Puts together what came, at the front of `buf`.
    pub(crate) fn fill(&self, offset: u64, buf: &mut [u8], answers: Answers) -> Result<usize, Errno> {
        match answers {
            Answers::Zeros(len) => {
                buf[..len].fill(0);
                Ok(len)
            }
            Answers::Whole(got) => {
                let len = got.bytes.len();
                buf[..len].copy_from_slice(&got.bytes);
                self.reuse(got);
                Ok(len)
            }
            Answers::Kept(pieces) => {
                let mut at = 0;
                for (bytes, range) in pieces {
                    let to = at + range.len();
                    buf[at..to].copy_from_slice(&bytes[range]);
                    at = to;
                }
                Ok(at)
            }
            Answers::Ahead(pieces) => {
                let mut at = 0;
                for (came, range) in pieces {
                    let to = at + range.len();
                    buf[at..to].copy_from_slice(&(*came).as_ref()[range]);
                    at = to;
                }
                Ok(at)
            }
            Answers::Parts(all, len) => {
                for got in all {
                    let from = (got.part.offset - offset) as usize;
                    let (filled, rest) =
                        buf[from..from + got.part.len as usize].split_at_mut(got.bytes.len());
                    filled.copy_from_slice(&got.bytes);
                    rest.fill(0);
                    self.reuse(got);
                }
                Ok(len)
            }
        }
    }

    /// The next answer comes into its buffer.
    pub(crate) fn reuse(&self, got: Got) {
        if let Some(line) = self.nodes.line(got.node) {
            line.give_back(got.bytes);
        }
    }

    fn read_parts(&self, file: &OpenFile, placed: &Placed, parts: &[Part]) -> Result<Vec<Got>, Errno> {
        let request = |part: &Part| data::Read {
            object: Some(object(file, placed, part.stripe)),
            offset: part.object_offset,
            length: part.len as u32,
        };
        let askings = parts.iter().map(|part| {
            let asking = asking(&request(part), Body::default(), part.len as u32)?;
            Ok(ToStripe { stripe: part.stripe, what: What::Read(part.object_offset), asking })
        });
        let answers = self.ask_stripes(file, placed, askings.collect::<Result<_, Errno>>()?, self.waits())?;
        let mut got = Vec::with_capacity(parts.len());
        for (part, answered) in parts.iter().zip(answers) {
            let one = understood(part, answered?)?;
            got.push(if one.is_torn() {
                self.read_again((file, placed), part, &request(part))?
            } else {
                one
            });
        }
        Ok(got)
    }

    fn read_again(
        &self,
        (file, placed): (&OpenFile, &Placed),
        part: &Part,
        request: &data::Read,
    ) -> Result<Got, Errno> {
        for _ in 0..AGAIN_MAX {
            let asking = asking(request, Body::default(), part.len as u32)?;
            let one = ToStripe { stripe: part.stripe, what: What::Read(part.object_offset), asking };
            let answered =
                self.ask_stripes(file, placed, vec![one], self.waits())?.pop().ok_or(Errno::EIO)??;
            let got = understood(part, answered)?;
            if !got.is_torn() {
                return Ok(got);
            }
        }
        let node = placed.layout.stripes[part.stripe];
        tracing::warn!(node, "an object grows faster than it can be read");
        Err(Errno::EIO)
    }

    /// The sizes of these stripes' objects.
    pub(crate) fn sizes(
        &self,
        file: &OpenFile,
        placed: &Placed,
        stripes: &[usize],
    ) -> Result<Vec<Said>, Errno> {
        let askings = stripes.iter().map(|stripe| {
            let request = data::Attrs { objects: vec![object(file, placed, *stripe)] };
            let asking = asking(&request, Body::default(), 0)?;
            Ok(ToStripe { stripe: *stripe, what: What::Change, asking })
        });
        let answers = self.ask_stripes(file, placed, askings.collect::<Result<_, Errno>>()?, self.waits())?;
        stripes
            .iter()
            .zip(answers)
            .map(|(stripe, answered)| {
                let attrs =
                    data::ObjectAttrs::decode(answered?.answered.meta.as_slice()).map_err(|_| Errno::EIO)?;
                let attr = attrs.attrs.first().ok_or(Errno::EIO)?;
                proto::attr::outcome(attr.errno)?;
                let still = Duration::from_micros(attr.still_us);
                Ok(Said { stripe: *stripe, size: attr.size, still })
            })
            .collect()
    }

    /// The size of a file by its objects.
    pub(crate) fn size_of(&self, file: &OpenFile, placed: &Placed) -> Result<u64, Errno> {
        let (mut sizing, begun) = (Sizing::new(placed.striped, 0), Instant::now());
        loop {
            let stripes = sizing.ask(begun.elapsed());
            if stripes.is_empty() {
                return Ok(sizing.size());
            }
            self.sizes(file, placed, &stripes)?.into_iter().for_each(|said| sizing.came(said));
        }
    }

    /// The same request to one data server each, all at once; what fails on its connection is made again, one after the other.
    pub(crate) fn ask_nodes(
        &self,
        askings: Vec<(u64, Asking)>,
        waits: Waits,
    ) -> Result<Vec<Result<Answered, Errno>>, Errno> {
        let lines =
            askings.iter().map(|(node, _)| self.line_to(*node)).collect::<Result<Vec<Arc<Line>>, Errno>>()?;
        let alone = askings.len() == 1;
        let begun: Vec<Option<(Instant, Pending)>> = askings
            .iter()
            .zip(&lines)
            .map(|((_, asking), line)| {
                let channel = if alone { None } else { line.open_channel() }?;
                let pending = channel.begin(asking.call(Instant::now() + waits.longest)).ok()?;
                Some((line.begin(), pending))
            })
            .collect();
        Ok(askings
            .iter()
            .zip(lines)
            .zip(begun)
            .map(|(((node, asking), line), pending)| {
                match pending.and_then(|(begun, pending)| first(&line, asking, begun, pending)) {
                    Some(answered) => Ok(answered),
                    None => line.ask(asking, waits).map_err(|stop| {
                        if let Stop::Silent { why, .. } = &stop {
                            tracing::warn!(
                                request = %net::trace::current(),
                                node,
                                method = asking.method.name(),
                                why,
                                "a data server does not answer"
                            );
                        }
                        stop.errno()
                    }),
                }
            })
            .collect())
    }

    fn line_to(&self, node: u64) -> Result<Arc<Line>, Errno> {
        if let Some(line) = self.nodes.line(node) {
            return Ok(line);
        }
        // A metadata server that was just started hears of its data servers one by one.
        let end = Instant::now() + self.options.patience.min(UNHEARD_MAX);
        loop {
            self.fetch_map();
            match self.nodes.line(node) {
                Some(line) => return Ok(line),
                None if Instant::now() >= end => break,
                None => thread::sleep(UNHEARD_PAUSE),
            }
        }
        tracing::warn!(node, "the cluster map has no such data server");
        Err(Errno::EIO)
    }

    pub(crate) fn sync_waits(&self) -> Waits {
        let longest: Duration = self.options.longest_sync;
        Waits { longest, ..self.waits() }
    }
}

impl Got {
    fn came(&self) -> Came {
        Came { bytes: self.bytes.len() as u64, size: self.size }
    }

    /// Short, but the object goes on behind: it was read before and its size taken after a write.
    fn is_torn(&self) -> bool {
        (self.bytes.len() as u64) < self.part.len
            && self.size > self.part.object_offset + self.bytes.len() as u64
    }
}

fn understood(part: &Part, FromStripe { node, answered }: FromStripe) -> Result<Got, Errno> {
    let done = data::ReadDone::decode(answered.meta.as_slice()).map_err(|_| Errno::EIO)?;
    if answered.body.len() as u64 > part.len {
        return Err(Errno::EIO);
    }
    Ok(Got { part: *part, bytes: answered.body, size: done.size, node })
}

/// The answer to the first attempt, if it says yes.
fn first(line: &Line, asking: &Asking, begun: Instant, pending: Pending) -> Option<Answered> {
    let answered = pending.wait().ok().filter(|answered| answered.header.verdict == Verdict::Done);
    // What comes of another attempt is counted as one more; it comes later, as far as this one is concerned.
    line.end(asking, begun, answered.as_ref().ok_or(Errno::EAGAIN));
    answered
}

pub(crate) fn object(file: &OpenFile, placed: &Placed, stripe: usize) -> Object {
    placed.layout.object(file.ino.get(), stripe)
}

/// Where a stripe's bytes are, and the life in which they were answered there: of its data server's memory (`life`), or of both that have it. Those of a
/// stripe with two copies are lost when it goes on from what devices have, which its view counts.
pub(crate) fn place_of(file: &OpenFile, placed: &Placed, stripe: usize, life: u64) -> (Where, u64) {
    let object = object(file, placed, stripe);
    match placed.layout.views.get(stripe) {
        Some(view) => ((0, Object { view: None, ..object }), view.revivals() + 1),
        None => ((placed.layout.stripes[stripe], object), life),
    }
}

pub(crate) fn asking<R: Request>(request: &R, body: Body, answer_bytes_max: u32) -> Result<Asking, Errno> {
    request.check().map_err(|bad| bad.errno())?;
    Ok(Asking { method: R::METHOD, meta: request.encode_to_vec().into(), body, answer_bytes_max })
}
