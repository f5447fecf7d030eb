//! Bytes that go out in one write: small frames are copied together, large bodies go as they are.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
};

use bytes::{Buf, Bytes, BytesMut};
use wire::{Encoder, connection::Outgoing};

use crate::transport::Transport;

/// Up to here a copy costs less than another part of a write.
const COPIED_MAX: usize = 1024;
/// A write has at most so many parts, and the outbox at most so many bytes beyond the last frame's: enough that the calls do not count, and
/// little enough that a cancellation or a ping is not behind much.
const PARTS_MAX: usize = 64;
const BYTES_MAX: usize = 256 << 10;

#[derive(Default)]
pub(crate) struct Outbox {
    parts: VecDeque<Bytes>,
    /// Behind them, still growing.
    tail: BytesMut,
    bytes: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn has_room(&self) -> bool {
        self.bytes < BYTES_MAX && self.parts.len() + 3 <= PARTS_MAX
    }

    pub(crate) fn push(&mut self, encoder: &mut Encoder, frame: Outgoing) {
        let header = encoder.header(&frame.header, &frame.meta, &frame.body);
        self.bytes += header.len() + frame.meta.len() + frame.body.len();
        self.tail.extend_from_slice(&header);
        for part in [frame.meta, frame.body.into_bytes()] {
            if part.len() <= COPIED_MAX {
                self.tail.extend_from_slice(&part);
            } else {
                self.close_tail();
                self.parts.push_back(part);
            }
        }
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push_back(self.tail.split().freeze());
        }
    }

    /// One write, and forgets what it took.
    pub(crate) fn send(&mut self, transport: &dyn Transport, wait: bool) -> io::Result<()> {
        self.close_tail();
        let slices: Vec<IoSlice<'_>> = self.parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut sent = transport.send(&slices, wait)?;
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.bytes = self.bytes.saturating_sub(sent);
        while let Some(first) = self.parts.front_mut() {
            if sent < first.len() {
                first.advance(sent);
                break;
            }
            sent -= first.len();
            self.parts.pop_front();
        }
        Ok(())
    }
}
