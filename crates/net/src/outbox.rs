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

#[cfg(test)]
mod tests {
    //! Goal: many frames are one write, and whatever part of it a transport takes, the bytes come in order, once. Method: a transport that
    //! takes so many bytes at a time and counts.
    use std::io::IoSliceMut;

    use parking_lot::Mutex;
    use wire::frame::{Body, Header, Kind, Place, SumKey};

    use super::*;

    struct Takes {
        most: usize,
        taken: Mutex<(usize, Vec<u8>)>,
    }

    impl Transport for Takes {
        fn send(&self, parts: &[IoSlice<'_>], _: bool) -> io::Result<usize> {
            let mut taken = self.taken.lock();
            let before = taken.1.len();
            for part in parts {
                let room = self.most - (taken.1.len() - before);
                taken.1.extend(&part[..room.min(part.len())]);
            }
            taken.0 += 1;
            Ok(taken.1.len() - before)
        }

        fn receive(&self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn close(&self) {}
    }

    fn frames(lengths: &[usize]) -> Vec<Outgoing> {
        let frame = |(id, len): (usize, &usize)| Outgoing {
            header: Header { id: id as u64, ..Header::of(Kind::Request) },
            meta: vec![id as u8; 20].into(),
            body: Body::new(vec![!(id as u8); *len]),
        };
        lengths.iter().enumerate().map(frame).collect()
    }

    fn sent(lengths: &[usize], most: usize) -> (usize, Vec<u8>) {
        let place = Place::first(1, SumKey::OPEN);
        let (mut encoder, mut outbox) = (Encoder::new(place), Outbox::default());
        let transport = Takes { most, taken: Mutex::default() };
        for frame in frames(lengths) {
            assert!(outbox.has_room());
            outbox.push(&mut encoder, frame);
        }
        while !outbox.is_empty() {
            outbox.send(&transport, true).unwrap();
        }
        transport.taken.into_inner()
    }

    #[test]
    fn frames_that_meet_are_one_write_whole_or_in_pieces() {
        let lengths = [0, 4096, 10, 1024, 1025, 0, 9000, 3, 4096, 4096, 0, 0, 0, 0, 70_000, 1];
        let (writes, whole) = sent(&lengths, usize::MAX);
        assert_eq!((writes, whole.len()), (1, 16 * 100 + lengths.iter().sum::<usize>()));
        for most in [1, 79, 80, 81, 1000, 4096, 50_000] {
            let (writes, pieces) = sent(&lengths, most);
            assert!(pieces == whole, "{most} at a time");
            assert_eq!(writes, whole.len().div_ceil(most), "{most} at a time");
        }
    }

    #[test]
    fn an_outbox_has_a_bound() {
        let (mut encoder, mut outbox) = (Encoder::new(Place::first(1, SumKey::OPEN)), Outbox::default());
        let mut pushed = 0;
        for frame in frames(&[4096; 1000]) {
            if !outbox.has_room() {
                break;
            }
            outbox.push(&mut encoder, frame);
            pushed += 1;
        }
        assert!((16..=64).contains(&pushed), "{pushed} frames of 4 KiB");
    }
}
