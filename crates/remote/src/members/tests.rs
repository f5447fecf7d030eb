//! Goal: I-MEMBERS-1 to 3. Method: all ways in which two members can answer, by chance, with a clock of the test's own.
use proptest::prelude::*;

use super::*;

const PRIMARY: u64 = 7;
const SECOND: u64 = 9;
const TWO: Members = Members { primary: PRIMARY, second: Some(SECOND) };
const READ: Kind = Kind::Read { offset: 0, own: 0 };

fn ends(now: Instant) -> Ends {
    Ends { give_up: now + Duration::from_secs(30), end: now + Duration::from_secs(60) }
}

fn begin(kind: Kind, now: Instant, doubts: &mut Doubts) -> Trial {
    Trial::new((TWO, kind), (now, ends(now)), doubts)
}

fn turned(then: Then) -> Option<u64> {
    match then {
        Then::Ask { node, pause: Duration::ZERO } => Some(node),
        Then::Ask { .. } | Then::Wait | Then::Say(_) => None,
    }
}

#[test]
fn both_are_read_and_the_own_one_first() {
    let (now, mut doubts) = (Instant::now(), Doubts::default());
    let mut at = |offset, own| begin(Kind::Read { offset, own }, now, &mut doubts).at();
    assert_eq!([at(0, 0), at(1 << 20, 0), at(2 << 20, 0)], [PRIMARY, SECOND, PRIMARY]);
    assert_eq!(
        [at(0, SECOND), at(1 << 20, SECOND), at(0, PRIMARY), at(1 << 20, 5)],
        [SECOND, SECOND, PRIMARY, SECOND]
    );
    assert_eq!(begin(Kind::Change, now, &mut doubts).at(), PRIMARY);
    assert_eq!(begin(Kind::Slow, now, &mut doubts).at(), PRIMARY);
}

#[test]
fn who_does_not_answer_is_left_aside_and_tried_by_one_alone() {
    let (now, mut doubts) = (Instant::now(), Doubts::default());
    let mut trial = begin(READ, now, &mut doubts);
    let (look, then) = trial.came(now, Came::Lost, &mut doubts);
    assert_eq!((look, turned(then)), (Some(Look::Silent(PRIMARY)), Some(SECOND)));
    assert_eq!(begin(READ, now, &mut doubts).at(), SECOND);
    let later = now + DOUBTED;
    assert_eq!(begin(READ, later, &mut doubts).at(), PRIMARY, "it may be there again");
    assert_eq!(begin(READ, later, &mut doubts).at(), SECOND, "others wait for that");
    doubts.answered(PRIMARY);
    assert_eq!(begin(READ, later, &mut doubts).at(), PRIMARY);
}

#[test]
fn a_change_waits_for_its_primary_and_says_that_it_is_silent() {
    let (now, mut doubts) = (Instant::now(), Doubts::default());
    let mut trial = begin(Kind::Change, now, &mut doubts);
    let at = trial.until(now);
    assert_eq!(at, now + SILENT);
    assert_eq!(trial.came(at, Came::Nothing, &mut doubts), (Some(Look::Silent(PRIMARY)), Then::Wait));
    assert_eq!(trial.until(at), at + LOOK);
    let next = begin(Kind::Change, at, &mut doubts);
    assert_eq!(next.until(at), at + SILENT_AS_OTHERS, "the next one need not find that out");
    assert_eq!(trial.came(at, Came::OtherView, &mut doubts), (None, Then::Say(Errno::ESTALE)));
}

#[test]
fn a_sync_that_takes_long_accuses_nobody() {
    let (now, mut doubts) = (Instant::now(), Doubts::default());
    let mut trial = begin(Kind::Slow, now, &mut doubts);
    let at = trial.until(now);
    assert_eq!(trial.came(at, Came::Nothing, &mut doubts), (Some(Look::Layout), Then::Wait));
    assert_eq!(begin(READ, at, &mut doubts).at(), PRIMARY);
    assert_eq!(
        trial.came(now + Duration::from_secs(60), Came::Nothing, &mut doubts).1,
        Then::Say(Errno::EIO)
    );
}

#[test]
fn an_error_of_one_is_not_the_answer_of_two() {
    let (now, mut doubts) = (Instant::now(), Doubts::default());
    let mut trial = begin(READ, now, &mut doubts);
    assert_eq!(turned(trial.came(now, Came::Error(Errno::EIO), &mut doubts).1), Some(SECOND));
    assert_eq!(trial.came(now, Came::Error(Errno::EIO), &mut doubts).1, Then::Say(Errno::EIO));
    let mut trial = begin(READ, now, &mut doubts);
    assert_eq!(trial.came(now, Came::Error(Errno::EACCES), &mut doubts).1, Then::Say(Errno::EACCES));
}

#[test]
fn what_the_second_does_not_know_to_be_done_the_primary_says() {
    let (now, mut doubts) = (Instant::now(), Doubts::default());
    let mut trial = begin(Kind::Read { offset: 1 << 20, own: 0 }, now, &mut doubts);
    assert_eq!(trial.at(), SECOND);
    assert_eq!(turned(trial.came(now, Came::PrimaryOnly, &mut doubts).1), Some(PRIMARY));
    let (look, then) = trial.came(now + SILENT, Came::Nothing, &mut doubts);
    assert_eq!((look, then), (Some(Look::Silent(PRIMARY)), Then::Wait), "and nobody else");
}

/// A read went back and forth between one that was off and one that took longer than two seconds, and had no answer ever.
#[test]
fn regression_who_is_slow_and_alone_gets_the_time_that_he_needs() {
    let (mut now, mut doubts) = (Instant::now(), Doubts::default());
    let mut trial = begin(READ, now, &mut doubts);
    let mut asked = now;
    while now < asked + Duration::from_secs(15) {
        let came = if trial.at() == SECOND { Came::Lost } else { Came::Nothing };
        if came == Came::Nothing {
            now = trial.until(now);
        }
        match trial.came(now, came, &mut doubts).1 {
            Then::Ask { node, pause } => {
                now += pause;
                if node == PRIMARY {
                    asked = now;
                }
            }
            Then::Wait => {}
            Then::Say(error) => panic!("{error} after {:?}", now - asked),
        }
    }
}

proptest! {
    #[test]
    fn every_request_ends_and_asks_members_only(
        kind in 0_usize..3,
        second in proptest::bool::ANY,
        answers in proptest::collection::vec((0..5, 0_u64..3000), 1..400),
    ) {
        let (begun, mut doubts) = (Instant::now(), Doubts::default());
        let members = Members { second: second.then_some(SECOND), ..TWO };
        let kind = [READ, Kind::Change, Kind::Slow][kind];
        let mut now = begun;
        let mut trial = Trial::new((members, kind), (now, ends(now)), &mut doubts);
        for (answer, millis) in answers.iter().cycle() {
            let at = trial.at();
            let may_read = second && matches!(kind, Kind::Read { .. });
            prop_assert!(at == PRIMARY || may_read && at == SECOND);
            let came = match answer {
                0 => Came::Lost,
                1 => Came::Nothing,
                2 => Came::Later(Duration::from_millis(*millis)),
                3 => Came::PrimaryOnly,
                _ => Came::Lost,
            };
            now = if came == Came::Nothing { trial.until(now) } else { now };
            prop_assert!(now <= trial.end() + PAUSE_LONGEST);
            match trial.came(now, came, &mut doubts).1 {
                Then::Wait => prop_assert_eq!(came, Came::Nothing),
                Then::Ask { pause, .. } => now += pause,
                Then::Say(error) => {
                    prop_assert_eq!(error, Errno::EIO);
                    prop_assert!(now + PAUSE_LONGEST >= ends(begun).give_up);
                    return Ok(());
                }
            }
        }
    }
}
