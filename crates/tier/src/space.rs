//! The space of one tier: what is used, promised and about to be free, the measured rates, and the thresholds.

use std::time::Duration;

use types::{SAU_BYTES, TierId};

use crate::api::{Settings, Thresholds};

/// Time constant of the smoothed rates.
const SMOOTH: f64 = 5.0;
/// How fast the remembered peak of writing falls.
const PEAK_FALL: f64 = 60.0;

/// How much a tier has to free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Pressure {
    #[default]
    None,
    NormalOut,
    ForcedOut,
}

#[derive(Default)]
pub struct Space {
    pub limit: u64,
    pub used: u64,
    /// Promised to movements that end here and have not reported the bytes yet.
    pub reserved: u64,
    /// What movements and drops under way will still free.
    pub draining: u64,
    pub thresholds: Thresholds,
    /// Since the last sample.
    pub came: u64,
    pub went: u64,
    pub in_rate: f64,
    pub out_rate: f64,
    /// Peak of `in_rate`, falling slowly; 0 until something was written.
    pub in_peak: f64,
    /// The smallest and largest need among the writers told to wait; 0 for none.
    pub wait_least: u64,
    pub wait_most: u64,
    /// What a request needs free.
    pub asked: u64,
    /// The highest pressure under which nothing could be moved out, with nothing changed since.
    pub stuck: Pressure,
}

impl Space {
    pub fn available(&self) -> i64 {
        self.limit as i64 - self.used as i64 - self.reserved as i64
    }

    /// May `bytes` more be stored? Leaves C_s-w free.
    pub fn fits(&self, bytes: u64) -> bool {
        self.available().saturating_sub_unsigned(self.thresholds.s_w) >= 0
            && self.available() as u64 - self.thresholds.s_w >= bytes
    }

    /// Would as much be free above C_n-m afterwards?
    pub fn fits_easily(&self, bytes: u64) -> bool {
        self.available() > i64::try_from(self.thresholds.n_m.saturating_add(bytes)).unwrap_or(i64::MAX)
    }

    pub fn change_used(&mut self, delta: i64) {
        self.used = self.used.saturating_add_signed(delta);
    }

    pub fn sample(&mut self, passed: Duration) {
        let seconds = passed.as_secs_f64();
        let weight = 1.0 - (-seconds / SMOOTH).exp();
        self.in_rate += (self.came as f64 / seconds - self.in_rate) * weight;
        self.out_rate += (self.went as f64 / seconds - self.out_rate) * weight;
        self.in_peak = self.in_rate.max(self.in_peak * (-seconds / PEAK_FALL).exp());
        (self.came, self.went) = (0, 0);
    }

    pub fn wait_for(&mut self, bytes: u64) {
        self.wait_least = if self.wait_least == 0 { bytes.max(1) } else { self.wait_least.min(bytes.max(1)) };
        self.wait_most = self.wait_most.max(bytes.max(1));
    }
}

/// What the paper's producer-consumer rule needs to know about one tier (section 6.4).
pub struct Supply {
    pub limit: u64,
    pub s_w: u64,
    /// Write bandwidth of this tier.
    pub write_in: f64,
    /// Bandwidth of one movement to the destination of forced out, and of normal out.
    pub forced_out: f64,
    pub normal_out: f64,
    pub file_bytes: f64,
}

/// `N = B_w(tier) / B_1w(next)`, `dC = N * S_avg-f`; C_f-m = C_s-w + dC_f, C_n-m = C_f-m + dC_n. Bounded: each dC is a SAU at
/// least, C_f-m an eighth and C_n-m a quarter of the limit at most.
pub fn thresholds(supply: &Supply) -> Thresholds {
    let delta = |out: f64| {
        let files = (supply.write_in / out.max(1.0)).clamp(1.0, 1e6);
        ((files * supply.file_bytes) as u64).max(SAU_BYTES)
    };
    let s_w = supply.s_w.min(supply.limit / 16);
    let f_m = s_w.saturating_add(delta(supply.forced_out)).min(supply.limit / 8).max(s_w);
    let n_m = f_m.saturating_add(delta(supply.normal_out)).min(supply.limit / 4).max(f_m);
    Thresholds { s_w, f_m, n_m }
}

/// Measured bandwidths and sizes, with the settings' values until there are any.
pub struct Measured {
    /// Of one movement into each tier, bytes per second.
    pub mover: [f64; 3],
    pub file_bytes: f64,
}

impl Measured {
    pub fn new(settings: &Settings) -> Measured {
        Measured {
            mover: settings.bandwidth.map(|b| b.max(1) as f64),
            file_bytes: settings.file_bytes_mean.max(1) as f64,
        }
    }

    /// One movement ended. Small ones say more about latency than about bandwidth, and are left out of it.
    pub fn note(&mut self, to: TierId, bytes: u64, elapsed: Duration) {
        const WEIGHT: f64 = 1.0 / 8.0;
        if bytes == 0 {
            return;
        }
        self.file_bytes = (self.file_bytes + (bytes as f64 - self.file_bytes) * WEIGHT).clamp(4096.0, 1e10);
        if bytes >= 1 << 20 && !elapsed.is_zero() {
            let rate = bytes as f64 / elapsed.as_secs_f64();
            let mover = &mut self.mover[to.index()];
            *mover = (*mover + (rate - *mover) * WEIGHT).max(1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_thresholds_follow_the_paper() {
        // Goal: section 6.4's rule with the bounds. By hand: N_f = 4 GiB/s / 1 GiB/s = 4, N_n = 4 GiB / 128 MiB = 32.
        let mib = 1u64 << 20;
        let supply = Supply {
            limit: 64 << 30,
            s_w: 0,
            write_in: 4096.0 * mib as f64,
            forced_out: 1024.0 * mib as f64,
            normal_out: 128.0 * mib as f64,
            file_bytes: 8.0 * mib as f64,
        };
        assert_eq!(thresholds(&supply), Thresholds { s_w: 0, f_m: 32 * mib, n_m: (32 + 256) * mib });
        let small = Supply { limit: 64 * mib, ..supply };
        assert_eq!(thresholds(&small), Thresholds { s_w: 0, f_m: 8 * mib, n_m: 16 * mib });
        let none = Supply { limit: 0, ..small };
        assert_eq!(thresholds(&none), Thresholds::default());
    }

    #[test]
    fn fixed_thresholds_keep_their_order() {
        // Goal: what somebody fixed counts, within the limit, and never out of order. By hand.
        let measured = Thresholds { s_w: 10, f_m: 20, n_m: 40 };
        assert_eq!(measured.with_fixed(1000, None, None), measured);
        assert_eq!(measured.with_fixed(1000, Some(100), None), Thresholds { s_w: 10, f_m: 100, n_m: 100 });
        assert_eq!(measured.with_fixed(1000, None, Some(15)), Thresholds { s_w: 10, f_m: 20, n_m: 20 });
        assert_eq!(measured.with_fixed(1000, Some(0), Some(0)), Thresholds { s_w: 10, f_m: 10, n_m: 10 });
        assert_eq!(
            measured.with_fixed(1000, Some(900), Some(900)),
            Thresholds { s_w: 10, f_m: 500, n_m: 750 }
        );
    }

    #[test]
    fn a_tier_below_its_reserve_fits_nothing() {
        // Goal: C_s-w is never given away, also when the limit shrank below what is used.
        let mut space = Space { limit: 100, used: 90, ..Space::default() };
        space.thresholds.s_w = 5;
        assert!(space.fits(5) && !space.fits(6));
        space.used = 96;
        assert!(!space.fits(0));
        space.limit = 10;
        assert!(!space.fits(0) && space.available() == -86);
    }
}
