//! Goal: the placement rules hold in every situation, and stripes are a bijection.
//! Method: all states times all situations (they are few); random offsets for the stripes.
#![allow(clippy::unwrap_used, reason = "a test")]

use layout::*;
use proptest::prelude::*;
use types::{TierId, TierSet};

fn sets() -> impl Iterator<Item = TierSet> + Clone {
    (0u8..8).filter_map(TierSet::from_bits)
}

fn states() -> impl Iterator<Item = Sau> + Clone {
    sets().map(Sau::in_tiers).chain([Sau::LOST])
}

fn wishes() -> impl Iterator<Item = WriteWish> + Clone {
    sets().flat_map(|room| {
        sets().flat_map(move |present| {
            [(false, false), (false, true), (true, false), (true, true)].map(move |(sync, whole)| WriteWish {
                room,
                present,
                sync,
                whole,
            })
        })
    })
}

fn situations() -> impl Iterator<Item = (Sau, WriteWish)> {
    states().flat_map(|s| wishes().map(move |w| (s, w)))
}

#[test]
fn reads_come_from_the_fastest_copy() {
    for (sau, present) in states().flat_map(|s| sets().map(move |p| (s, p))) {
        match read_place(sau, present) {
            ReadPlace::Tier(t) => {
                assert!(sau.valid.contains(t) && present.contains(t));
                assert!(sau.valid.intersect(present).iter().all(|other| t <= other));
            }
            ReadPlace::Zeros => assert!(sau.is_hole()),
            ReadPlace::Lost => assert!(sau.lost),
            ReadPlace::Absent => assert!(!sau.valid.is_empty() && sau.valid.intersect(present).is_empty()),
        }
    }
}

#[test]
fn writes_never_mix_with_bytes_that_are_not_current() {
    for (sau, wish) in situations() {
        let place = write_place(sau, wish);
        let fits = |t: TierId| wish.room.contains(t) && wish.present.contains(t);
        let holds = |t: TierId| sau.valid.contains(t) && wish.present.contains(t);
        match place {
            WritePlace::Over(t) => assert!(holds(t), "{sau:?} {wish:?}"),
            WritePlace::Fresh(t) => {
                assert!(fits(t) && (sau.is_hole() || wish.whole), "{sau:?} {wish:?}");
            }
            WritePlace::Move { from, to } => {
                assert!(holds(from) && fits(to) && !holds(to) && wish.sync, "{sau:?} {wish:?}");
            }
            WritePlace::Lost => assert!(sau.lost && !wish.whole),
            WritePlace::Absent => assert!(sau.valid.intersect(wish.present).is_empty() && !sau.is_hole()),
            WritePlace::Full => {
                assert!(wish.room.intersect(wish.present).is_empty(), "{sau:?} {wish:?}");
                assert!(sau.valid.intersect(wish.present).is_empty());
            }
        }
    }
}

#[test]
fn sync_mode_ends_in_a_persistent_tier_if_any_can_take_it() {
    for (sau, wish) in situations().filter(|(_, w)| w.sync) {
        let able = wish.present.intersect(TierSet::PERSISTENT);
        let possible = !able.intersect(wish.room).is_empty() || !able.intersect(sau.valid).is_empty();
        let to = match write_place(sau, wish) {
            WritePlace::Over(t) | WritePlace::Fresh(t) | WritePlace::Move { to: t, .. } => t,
            WritePlace::Lost | WritePlace::Absent | WritePlace::Full => continue,
        };
        assert_eq!(to.is_persistent(), possible, "{sau:?} {wish:?}");
    }
}

#[test]
fn new_bytes_go_to_the_first_tier_with_room() {
    let wish = |room| WriteWish {
        room,
        present: TierSet::PERSISTENT.with(TierId::Memory),
        sync: false,
        whole: false,
    };
    assert_eq!(write_place(Sau::HOLE, wish(TierSet::MEMORY)), WritePlace::Fresh(TierId::Memory));
    assert_eq!(write_place(Sau::HOLE, wish(TierSet::PERSISTENT)), WritePlace::Fresh(TierId::Ssd));
    assert_eq!(write_place(Sau::HOLE, wish(TierSet::EMPTY)), WritePlace::Full);
    let cold = Sau::in_tiers(TierSet::of(TierId::Nearline));
    assert_eq!(write_place(cold, wish(TierSet::MEMORY)), WritePlace::Over(TierId::Nearline));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stripe_is_a_bijection(unit in 1u64..1 << 24, count in 1u16..64, offset in 0u64..1 << 50) {
        let stripe = Stripe::new(unit, count).unwrap();
        let spot = stripe.spot(offset);
        prop_assert!(spot.member < count);
        prop_assert_eq!(stripe.offset(spot), Some(offset));
        // The byte is the last of a file of offset + 1 bytes, so also of its member's object.
        prop_assert_eq!(stripe.object_size(spot.member, offset + 1), spot.offset + 1);
        let total: u64 = (0..count).map(|m| stripe.object_size(m, offset)).sum();
        prop_assert_eq!(total, offset);
    }

    #[test]
    fn stripes_refuse_what_does_not_fit(unit: u64, count: u16, member: u16, offset: u64) {
        if let Some(stripe) = Stripe::new(unit, count)
            && let Some(at) = stripe.offset(StripeSpot { member, offset })
        {
            prop_assert_eq!(stripe.spot(at), StripeSpot { member, offset });
        }
    }
}
