//! Frames out of a stream of bytes that comes in any pieces.
//!
//! The decoder holds a header and a meta at the most. Bodies are never held: their bytes are handed on where they lie, or
//! are read by the shell to where they belong, and the decoder only sums them up. After an error it gives the same error for ever.

use crate::{
    frame::{Field, FrameError, FrameFault, HEADER_LEN, Head, Header, Limits, Place, SumKey, decode},
    sum,
};

/// What came next in the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// A frame begins; `body_len` bytes of body follow, as [`Piece::Body`].
    Begin { header: Header, meta: Vec<u8>, body_len: u32 },
    /// So many of the bytes given, the first of them, are of the body.
    Body(usize),
    /// The frame is whole and undamaged. Before this nothing in its body may be believed.
    End,
    /// All bytes given are used up.
    Nothing,
}

#[derive(Debug)]
enum State {
    Header { have: usize },
    Meta { head: Head },
    Body { head: Head, left: u32, sum: u32 },
    Failed(FrameError),
}

#[derive(Debug)]
pub struct Decoder {
    place: Place,
    limits: Limits,
    header: [u8; HEADER_LEN],
    meta: Vec<u8>,
    state: State,
}

impl Decoder {
    pub const fn new(place: Place, limits: Limits) -> Decoder {
        let state = State::Header { have: 0 };
        Decoder { place, limits, header: [0; HEADER_LEN], meta: Vec::new(), state }
    }

    /// From the next frame on the direction has another version, key and limits. Only between frames.
    pub fn switch(&mut self, version: u16, key: SumKey, limits: Limits) {
        self.place.version = version;
        self.place.key = key;
        self.limits = limits;
    }

    /// No frame is begun.
    pub fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Header { have: 0 })
    }

    /// How many bytes of body come next. Only these may be read elsewhere, and told with [`Decoder::body_was_read`].
    pub fn body_left(&self) -> usize {
        match self.state {
            State::Body { left, .. } => left as usize,
            State::Header { .. } | State::Meta { .. } | State::Failed(_) => 0,
        }
    }

    /// Takes from the front of `input` what belongs together; how many bytes, and what they were.
    pub fn take(&mut self, input: &[u8]) -> Result<(usize, Piece), FrameError> {
        let taken = self.advance(input);
        if let Err(error) = taken {
            self.state = State::Failed(error);
        }
        taken
    }

    /// As [`Decoder::take`] for bytes of body only: the next bytes of it, at most [`Decoder::body_left`].
    pub fn body_was_read(&mut self, bytes: &[u8]) {
        if let State::Body { left, sum, .. } = &mut self.state {
            *sum = sum::append(*sum, bytes);
            *left = left.saturating_sub(bytes.len() as u32);
        }
    }

    fn advance(&mut self, input: &[u8]) -> Result<(usize, Piece), FrameError> {
        let mut used = 0;
        loop {
            match &mut self.state {
                State::Failed(error) => return Err(*error),
                State::Header { have } => {
                    let more = (HEADER_LEN - *have).min(input.len() - used);
                    self.header[*have..*have + more].copy_from_slice(&input[used..used + more]);
                    *have += more;
                    used += more;
                    if *have < HEADER_LEN {
                        return Ok((used, Piece::Nothing));
                    }
                    let head = decode(&self.place, &self.limits, &self.header)?;
                    self.meta = Vec::with_capacity(head.meta_len as usize);
                    self.state = State::Meta { head };
                }
                State::Meta { head } => {
                    let head = *head;
                    let more = (head.meta_len as usize - self.meta.len()).min(input.len() - used);
                    self.meta.extend_from_slice(&input[used..used + more]);
                    used += more;
                    if self.meta.len() < head.meta_len as usize {
                        return Ok((used, Piece::Nothing));
                    }
                    head.check_meta(&self.place, &self.meta)?;
                    self.state = State::Body { head, left: head.body_len, sum: 0 };
                    let meta = std::mem::take(&mut self.meta);
                    return Ok((used, Piece::Begin { header: head.header, meta, body_len: head.body_len }));
                }
                State::Body { head, left: 0, sum } => {
                    let (head, sum) = (*head, *sum);
                    if sum != head.body_sum {
                        return Err(self.place.error(Field::BodySum, FrameFault::Sum));
                    }
                    self.place.pass(head.frame_len());
                    self.state = State::Header { have: 0 };
                    return Ok((used, Piece::End));
                }
                State::Body { left, .. } => {
                    let more = (*left as usize).min(input.len() - used);
                    if more == 0 {
                        return Ok((used, Piece::Nothing));
                    }
                    self.body_was_read(&input[used..used + more]);
                    return Ok((used + more, Piece::Body(more)));
                }
            }
        }
    }
}
