//! Sources and versions of a back end behind a deadline. They are closed by its threads too: closing may hang.

use std::{mem, sync::Arc};

use link::{Attributes, Found, Source, Version};
use types::Errno;

use crate::{call::Call, lanes::Lanes, owned::OwnedAttributes, ticket::Late};

pub(crate) struct HandedSource {
    /// Until it is dropped.
    inner: Option<Arc<dyn Source>>,
    lanes: Arc<Lanes>,
}

impl HandedSource {
    pub(crate) fn new(inner: Box<dyn Source>, lanes: Arc<Lanes>) -> HandedSource {
        HandedSource { inner: Some(Arc::from(inner)), lanes }
    }

    fn inner(&self) -> Result<&Arc<dyn Source>, Errno> {
        self.inner.as_ref().ok_or(Errno::EBADF)
    }
}

impl Source for HandedSource {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let inner = self.inner()?.clone();
        let (mut bytes, wanted) = (self.lanes.take_buffer(), buf.len());
        let (bytes, length) = self.lanes.read(Call::Read, move || {
            // Zeros only where the buffer grows.
            bytes.resize(wanted, 0);
            let length = inner.read_at(&mut bytes, offset)?;
            Ok((bytes, length))
        })?;
        buf[..length].copy_from_slice(&bytes[..length]);
        self.lanes.give_buffer(bytes);
        Ok(length)
    }

    /// On the thread that asks: it waits for no device, and to cross threads for it would cost what it saves.
    fn read_nowait(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>, Errno> {
        self.inner()?.read_nowait(buf, offset)
    }

    fn look(&self) -> Result<Found, Errno> {
        let inner = self.inner()?.clone();
        self.lanes.read(Call::Look, move || inner.look())
    }
}

impl Drop for HandedSource {
    fn drop(&mut self) {
        let inner = self.inner.take();
        self.lanes.reads.later(move || drop(inner));
    }
}

/// A call that hangs keeps the inner version, and gives it up when it returns; every later call is `ETIMEDOUT`.
pub(crate) struct HandedVersion {
    inner: Option<Box<dyn Version>>,
    lanes: Arc<Lanes>,
}

impl HandedVersion {
    pub(crate) fn new(inner: Box<dyn Version>, lanes: Arc<Lanes>) -> HandedVersion {
        HandedVersion { inner: Some(inner), lanes }
    }

    fn have(
        &mut self,
        call: Call,
        work: impl FnOnce(&mut dyn Version) -> Result<(), Errno> + Send + 'static,
    ) -> Result<(), Errno> {
        let inner = self.inner.take().ok_or(Errno::ETIMEDOUT)?;
        let answer = self.lanes.changes.call(inner, None, move |mut inner| {
            let done = work(inner.as_mut());
            (inner, done)
        });
        let answer = match answer {
            Ok((inner, done)) => {
                self.inner = Some(inner);
                Ok(done)
            }
            Err(Late::InLine(inner)) => {
                self.inner = Some(inner);
                Err(Late::InLine(()))
            }
            Err(Late::Hangs) => Err(Late::Hangs),
        };
        self.lanes.told(call, answer)
    }
}

impl Version for HandedVersion {
    fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Errno> {
        let mut bytes = self.lanes.take_buffer();
        bytes.clear();
        bytes.extend_from_slice(data);
        let lanes = Arc::downgrade(&self.lanes);
        self.have(Call::Write, move |inner| {
            let done = inner.write_at(&bytes, offset);
            if let Some(lanes) = lanes.upgrade() {
                lanes.give_buffer(bytes);
            }
            done
        })
    }

    fn set_len(&mut self, len: u64) -> Result<(), Errno> {
        self.have(Call::SetLen, move |inner| inner.set_len(len))
    }

    fn finish(mut self: Box<Self>, attributes: &Attributes<'_>) -> Result<Found, Errno> {
        let inner = self.inner.take().ok_or(Errno::ETIMEDOUT)?;
        let attributes = OwnedAttributes::of(attributes);
        let answer = self.lanes.changes.call(inner, None, move |inner| inner.finish(&attributes.as_ref()));
        let answer = match answer {
            Ok(done) => Ok(done),
            Err(Late::InLine(inner)) => {
                // It goes as every version that is not finished.
                self.inner = Some(inner);
                Err(Late::InLine(()))
            }
            Err(Late::Hangs) => Err(Late::Hangs),
        };
        self.lanes.told(Call::Finish, answer)
    }
}

impl Drop for HandedVersion {
    fn drop(&mut self) {
        if let Some(inner) = mem::take(&mut self.inner) {
            self.lanes.changes.later(move || drop(inner));
        }
    }
}
