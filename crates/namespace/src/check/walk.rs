//! Reading a range of records in chunks, so that a check can look elsewhere between them.

use std::ops::ControlFlow;

use crate::{
    error::Result,
    txn::{Bytes, Reader},
};

const CHUNK: usize = 1024;

pub(super) const EVERYTHING: (&[u8], &[u8]) = (&[], &[0xff; 16]);

pub(super) type Visit<'a> = &'a mut dyn FnMut(&[u8], &Bytes) -> Result<ControlFlow<()>>;

/// Visits each record of the range in key order until `visit` breaks. `visit` may read.
pub(super) fn walk<R: Reader + ?Sized>(
    reader: &R,
    (from, to): (&[u8], &[u8]),
    visit: Visit<'_>,
) -> Result<()> {
    let mut from = from.to_vec();
    loop {
        let mut chunk: Vec<(Vec<u8>, Bytes)> = Vec::with_capacity(CHUNK);
        reader.scan(&from, to, &mut |key, value| {
            chunk.push((key.to_vec(), Bytes::copy_from_slice(value)));
            if chunk.len() < CHUNK { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let Some((last, _)) = chunk.last() else { return Ok(()) };
        from.clone_from(last);
        from.push(0);
        for (key, value) in &chunk {
            if visit(key, value)?.is_break() {
                return Ok(());
            }
        }
    }
}
