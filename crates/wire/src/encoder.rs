//! Frames into bytes: keeps the direction's place, and writes headers. Metas and bodies go as they are.

use crate::frame::{Body, HEADER_LEN, Header, Place, SumKey, encode};

#[derive(Debug)]
pub struct Encoder {
    place: Place,
}

impl Encoder {
    pub const fn new(place: Place) -> Encoder {
        Encoder { place }
    }

    /// As [`Decoder::switch`](crate::Decoder::switch).
    pub fn switch(&mut self, version: u16, key: SumKey) {
        self.place.version = version;
        self.place.key = key;
    }

    /// The header of the next frame. The caller sends it, `meta` and `body`, in this order and at once or not at all.
    pub fn header(&mut self, header: &Header, meta: &[u8], body: &Body) -> [u8; HEADER_LEN] {
        let bytes = encode(&self.place, header, meta, body);
        self.place.pass((HEADER_LEN + meta.len() + body.len()) as u64);
        bytes
    }
}
