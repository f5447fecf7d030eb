//! Goal: what the simulation of `replica` found by chance stays found. Method: the histories, by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::time::Duration;

use cluster::{
    NodeId,
    replica::{
        Member, View,
        copy::{Copy, Effect, Input, Leave, PIECE, Patience, Source},
        keeper::Known,
    },
    tenure::Time,
};

const PATIENCE: Patience = Patience {
    again: Duration::from_millis(40),
    complain: Duration::from_millis(200),
    done: Duration::from_millis(10),
};
const LENGTH: u64 = 3 * PIECE;

fn member(node: u64) -> Member {
    Member { node: NodeId(node), life: 1 }
}

fn next(view: View, known: Known) -> View {
    view.next(known, |_| true).unwrap()
}

fn told(copy: &mut Copy, view: View) -> Vec<Effect> {
    copy.handle(Input::View { view, length: LENGTH });
    copy.go_on(Time::ZERO, Leave { view: view.number, act: true, settled: true });
    std::iter::from_fn(|| copy.poll_effect()).collect()
}

fn pieces(effects: &[Effect]) -> usize {
    let is_piece = |effect: &&Effect| matches!(effect, Effect::Send { source: Source::Here, .. });
    effects.iter().filter(is_piece).count()
}

#[test]
fn regression_who_is_the_second_again_gets_all_that_it_lacks() {
    let (primary, second) = (member(1), member(2));
    let mut copy = Copy::new(primary, PATIENCE);
    let both = View::first(primary, Some(second));
    told(&mut copy, both);
    let alone = next(both, Known::GoesOn { by: primary, view: both.number });
    told(&mut copy, alone);
    let joining = next(alone, Known::Room { member: second, kept: true });
    assert_eq!(pieces(&told(&mut copy, joining)), 1, "nothing differs; the end alone");
    // It has made room. The view in between is not heard of.
    let out = next(joining, Known::Silent(second));
    let again = next(out, Known::Room { member: second, kept: false });
    assert!(pieces(&told(&mut copy, again)) >= 3, "all of it");
}

#[test]
fn regression_who_was_left_out_and_joins_unheard_of_is_settled() {
    let (old, new) = (member(1), member(2));
    let mut copy = Copy::new(new, PATIENCE);
    let both = View::first(old, Some(new));
    told(&mut copy, both);
    let promoted = next(both, Known::GoesOn { by: new, view: both.number });
    let joining = next(promoted, Known::Room { member: old, kept: true });
    let effects = told(&mut copy, joining);
    let left_out = Effect::LeaveOut { member: old, view: joining.number };
    assert!(effects.contains(&left_out), "it may still answer as the primary: {effects:?}");
}

#[test]
fn regression_what_is_allowed_in_another_view_counts_nothing() {
    let (primary, second, third) = (member(1), member(2), member(3));
    let mut copy = Copy::new(primary, PATIENCE);
    let both = View::first(primary, Some(second));
    told(&mut copy, both);
    let view =
        View { second: both.second.map(|of| cluster::replica::Second { member: third, ..of }), ..both };
    copy.handle(Input::View { view: View { number: 2, ..view }, length: LENGTH });
    copy.handle(Input::Read { call: 7, range: (0, PIECE) });
    copy.go_on(Time::ZERO, Leave { view: 1, act: true, settled: true });
    let effects: Vec<Effect> = std::iter::from_fn(|| copy.poll_effect()).collect();
    assert!(!effects.contains(&Effect::Show(7)), "the second one's leave is not the third one's");
    copy.go_on(Time::ZERO, Leave { view: 2, act: true, settled: true });
    assert_eq!(copy.poll_effect(), Some(Effect::Show(7)));
}

/// The primary complained and died, the second was left out, and nobody counted who lived.
#[test]
fn regression_who_goes_on_alone_is_heard_once_more() {
    let (primary, second) = (member(1), member(2));
    let both = View::first(primary, Some(second));
    for (silent, other) in [(second, primary), (primary, second)] {
        assert_eq!(both.next(Known::Silent(silent), |_| true), None, "heard of before is not enough");
        assert_eq!(both.asks(Known::Silent(silent)), Some(other));
        let mut copy = Copy::new(other, PATIENCE);
        told(&mut copy, both);
        for (view, says) in [(both.number, Some(Effect::GoesOn { view: both.number })), (7, None)] {
            copy.handle(Input::Asked { view });
            assert_eq!(copy.poll_effect(), says);
        }
        let goes_on = Known::GoesOn { by: other, view: both.number };
        assert_eq!(both.next(goes_on, |_| false), None, "it was silent since");
        let alone = next(both, goes_on);
        assert_eq!((alone.primary, alone.second), (other, None));
        assert_eq!(alone.next(goes_on, |_| true), None, "of another view");
        assert_eq!(alone.asks(Known::Silent(other)), None, "it is the last one");
    }
}

/// Two data servers could not reach each other, and all who asked waited for reads or a sync: nobody told the metadata server.
#[test]
fn regression_leave_that_does_not_come_is_complained_about() {
    let (primary, second) = (member(1), member(2));
    let both = View::first(primary, Some(second));
    for (me, other) in [(primary, second), (second, primary)] {
        let mut copy = Copy::new(me, PATIENCE);
        told(&mut copy, both);
        let mut complaints = |from: u64, to: u64, act: bool| {
            let mut complaints = 0;
            for (call, millis) in (from..to).step_by(10).enumerate() {
                let call = call as u64;
                copy.handle(Input::Read { call, range: (0, PIECE) });
                let leave = Leave { view: both.number, act, settled: true };
                copy.go_on(Duration::from_millis(millis), leave);
                copy.handle(Input::Cancel(call));
                let effects: Vec<Effect> = std::iter::from_fn(|| copy.poll_effect()).collect();
                complaints += effects.iter().filter(|effect| **effect == Effect::Complain(other)).count();
            }
            complaints
        };
        assert_eq!(complaints(0, 190, false), 0);
        assert_eq!(complaints(190, 230, false), 1);
        assert_eq!(complaints(230, 1010, false), 4, "after so long each time");
        assert_eq!(complaints(1010, 1020, true), 0);
        assert_eq!(complaints(1020, 1200, false), 0, "it begins anew");
        assert_eq!(complaints(2000, 2190, false), 0, "so it does when nobody wanted it for a while");
    }
}
