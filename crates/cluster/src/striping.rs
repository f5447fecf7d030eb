//! Which byte of a file is where: a file in units, dealt out to its stripes in turn.
//!
//! - I-STRIPE-1: each byte of a file has one place, and no two the same.
//! - I-STRIPE-2: the size of a file and the sizes of its stripes say each other: [`Striped::size_of_stripe`] and [`Striped::file_end`].
//!
//! It knows neither servers nor objects.

/// How a file is dealt out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Striped {
    unit: u64,
    count: u64,
}

/// A part of a range that is in one piece on one stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub stripe: usize,
    /// In the stripe's object.
    pub object_offset: u64,
    /// In the file.
    pub offset: u64,
    pub len: u64,
}

impl Striped {
    /// `None`: a unit without bytes, or no stripe.
    pub fn new(unit: u64, count: usize) -> Option<Striped> {
        (unit > 0 && count > 0).then_some(Striped { unit, count: count as u64 })
    }

    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// The stripe of a byte, and where it is in that.
    pub fn locate(&self, offset: u64) -> (usize, u64) {
        let unit = offset / self.unit;
        ((unit % self.count) as usize, unit / self.count * self.unit + offset % self.unit)
    }

    /// A range in parts, from its beginning. What is beyond the largest offset is left out.
    pub fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = Part> + use<> {
        let striped = *self;
        let end = offset.saturating_add(len);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (stripe, object_offset) = striped.locate(at);
            // With one stripe its units follow each other.
            let in_unit = if striped.count == 1 { u64::MAX } else { striped.unit - at % striped.unit };
            let part = Part { stripe, object_offset, offset: at, len: in_unit.min(end - at) };
            at += part.len;
            Some(part)
        })
    }

    /// How long a stripe's object is when the file has this size and no stripe ends early.
    pub fn size_of_stripe(&self, stripe: usize, file_size: u64) -> u64 {
        let (stripe, units, rest) = (stripe as u64, file_size / self.unit, file_size % self.unit);
        let whole = units / self.count + u64::from(stripe < units % self.count);
        whole * self.unit + if stripe == units % self.count { rest } else { 0 }
    }

    /// Where in the file a stripe's object ends: the size of the file is the largest of them.
    pub fn file_end(&self, stripe: usize, object_size: u64) -> u64 {
        let Some(last) = object_size.checked_sub(1) else { return 0 };
        let unit = (last / self.unit).saturating_mul(self.count).saturating_add(stripe as u64);
        unit.saturating_mul(self.unit).saturating_add(last % self.unit).saturating_add(1)
    }

    /// Where in the file a byte of a stripe's object is.
    pub fn file_offset(&self, stripe: usize, object_offset: u64) -> u64 {
        let unit = (object_offset / self.unit).saturating_mul(self.count).saturating_add(stripe as u64);
        unit.saturating_mul(self.unit).saturating_add(object_offset % self.unit)
    }
}
