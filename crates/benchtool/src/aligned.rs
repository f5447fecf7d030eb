//! Buffers of programs that know what a kernel likes: they begin at a page.

use std::ops::{Deref, DerefMut};

const PAGE: usize = 4096;

pub struct Aligned {
    all: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    pub fn new(len: usize, byte: u8) -> Aligned {
        let all = vec![byte; len + PAGE];
        let from = all.as_ptr().align_offset(PAGE);
        Aligned { all, from, len }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.all[self.from..self.from + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.all[self.from..self.from + self.len]
    }
}
