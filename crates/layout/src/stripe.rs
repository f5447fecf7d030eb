//! How a striped file divides into the objects of its group (paper, G-size and G-count): unit `n` of the file
//! is unit `n / count` of member `n mod count`.

/// The shape of a striped file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stripe {
    unit: u64,
    count: u16,
}

/// A byte of one member's object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StripeSpot {
    /// Below the stripe's count.
    pub member: u16,
    /// Bytes from the start of the member's object.
    pub offset: u64,
}

impl Stripe {
    /// `unit` (G-size) in bytes and `count` (G-count) members; `None` when either is 0.
    pub const fn new(unit: u64, count: u16) -> Option<Stripe> {
        if unit == 0 || count == 0 { None } else { Some(Stripe { unit, count }) }
    }
    pub const fn unit(self) -> u64 {
        self.unit
    }
    pub const fn count(self) -> u16 {
        self.count
    }

    pub const fn spot(self, offset: u64) -> StripeSpot {
        let (unit, within) = (offset / self.unit, offset % self.unit);
        let (row, member) = (unit / self.count as u64, unit % self.count as u64);
        StripeSpot { member: member as u16, offset: row * self.unit + within }
    }

    /// The file offset of a spot; `None` when the member is none of ours or the offset does not fit.
    pub fn offset(self, spot: StripeSpot) -> Option<u64> {
        if spot.member >= self.count {
            return None;
        }
        let (row, within) = (spot.offset / self.unit, spot.offset % self.unit);
        let unit = row.checked_mul(u64::from(self.count))?.checked_add(u64::from(spot.member))?;
        unit.checked_mul(self.unit)?.checked_add(within)
    }

    /// Bytes that `member`'s object has when the file has `size`.
    pub fn object_size(self, member: u16, size: u64) -> u64 {
        let (units, rest) = (size / self.unit, size % self.unit);
        let (rows, over) = (units / u64::from(self.count), units % u64::from(self.count));
        let last = match u64::from(member).cmp(&over) {
            std::cmp::Ordering::Less => self.unit,
            std::cmp::Ordering::Equal => rest,
            std::cmp::Ordering::Greater => 0,
        };
        rows * self.unit + last
    }
}
