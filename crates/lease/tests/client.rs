//! Goal: a client uses nothing that was asked back, nothing after its term, and says what it lost. Method: the histories that the rules are
//! for, said to one client by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm)]

use std::time::Duration;

use cluster::tenure::{Terms, Time};
use lease::coherence::{
    client::{Client, ClientLimits, Effect, Input},
    message::{Joined, Life, Saying, Telling},
    rights::{Key, Rights},
};
use types::Ino;

const LIMITS: ClientLimits = ClientLimits {
    terms: Terms {
        lease: Duration::from_millis(1000),
        beat_every: Duration::from_millis(200),
        suspect_after: Duration::from_millis(500),
        drift_one_in: 20,
    },
    stop_before: Duration::from_millis(100),
    leases: 2,
    wants: 2,
};
const KEEP: Rights = Rights::ATTRIBUTES.with(Rights::PAGES);
const JOINED: Joined = Joined(Life(1).first_number() + 1);

fn at(ms: u64) -> Time {
    Duration::from_millis(ms)
}

fn key(n: u64) -> Key {
    Key::Inode(Ino::from_raw(n).unwrap())
}

fn effects(client: &mut Client) -> Vec<Effect> {
    std::iter::from_fn(|| client.poll_effect()).collect()
}

fn tell(client: &mut Client, ms: u64, telling: Telling) -> Vec<Effect> {
    client.handle(at(ms), Input::Told(telling));
    effects(client)
}

fn said(effects: &[Effect]) -> Vec<&Saying> {
    let sayings = effects.iter().filter_map(|effect| match effect {
        Effect::Say { saying, .. } => Some(saying),
        _ => None,
    });
    sayings.collect()
}

fn returned(number: u64, n: u64, keeps: Rights) -> Saying {
    Saying::Returned { key: key(n), number, keeps }
}

fn granted(request: u64, n: u64, rights: Rights, number: u64) -> Telling {
    Telling::Granted { joined: JOINED, request, key: key(n), rights, number }
}

fn recall(n: u64, keeps: Rights, number: u64) -> Telling {
    Telling::Recall { joined: JOINED, key: key(n), keeps, number }
}

/// It came to a server's first life at 0, with a term until 1000.
fn joined() -> Client {
    let mut client = Client::new(LIMITS, at(0));
    client.handle_deadline(at(0));
    assert_eq!(said(&effects(&mut client)), [&Saying::Renew { number: 1 }]);
    assert!(tell(&mut client, 0, Telling::Rejoin { joined: Joined(0), life: Life(1) }).is_empty());
    client.handle_deadline(at(0));
    let join = Effect::Join { before: Joined(0), number: 2, life: Life(1), leases: Vec::new() };
    assert_eq!(effects(&mut client), [join]);
    let telling = Telling::Joined { before: Joined(0), joined: JOINED, number: 2, leases: Vec::new() };
    assert_eq!(tell(&mut client, 50, telling), [Effect::Resume]);
    client
}

fn with_lease(rights: Rights) -> Client {
    let mut client = joined();
    client.handle(at(60), Input::Want { key: key(1), rights });
    let want = Saying::Want { request: 1, key: key(1), rights };
    assert_eq!(said(&effects(&mut client)), [&want]);
    assert_eq!(tell(&mut client, 70, granted(1, 1, rights, 5)), [Effect::Answered { key: key(1), rights }]);
    assert_eq!(client.may(at(70), &key(1)), rights);
    client
}

#[test]
fn a_term_is_counted_from_the_asking() {
    let mut client = with_lease(KEEP);
    assert_eq!(client.may_until(), Some(at(1000)));
    assert_eq!(client.may(at(999), &key(1)), KEEP);
    assert_eq!(client.may(at(1000), &key(1)), Rights::NONE);
    // Renewals are asked for and lost; the shell is told in time.
    let mut stopped = None;
    while let Some(next) = client.next_deadline().filter(|next| *next <= at(1200)) {
        client.handle_deadline(next);
        if effects(&mut client).contains(&Effect::Stop) {
            stopped = Some(next);
        }
    }
    assert_eq!(stopped, Some(at(900)));
    assert_eq!(client.may_until(), None);
    // One that was sent at 850 is answered late, and goes on from there: nothing was lost.
    assert_eq!(tell(&mut client, 1300, Telling::Renewed { joined: JOINED, number: 7 }), [Effect::Resume]);
    assert_eq!(client.may(at(1300), &key(1)), KEEP);
    assert!(client.may_until() < Some(at(2300)));
    assert!(tell(&mut client, 1300, Telling::Renewed { joined: JOINED, number: 7 }).is_empty());
}

#[test]
fn a_recall_is_answered_when_it_is_carried_out() {
    let mut client = with_lease(Rights::ALL);
    let release = Effect::Release { key: key(1), keeps: KEEP, number: 6 };
    assert_eq!(tell(&mut client, 100, recall(1, KEEP, 6)), [release]);
    assert_eq!(client.may(at(100), &key(1)), KEEP, "nothing more is written under it");
    assert!(tell(&mut client, 110, recall(1, KEEP, 6)).is_empty(), "it is at it");
    // More is asked back before it is done.
    let more = Effect::Release { key: key(1), keeps: Rights::NONE, number: 7 };
    assert_eq!(tell(&mut client, 120, recall(1, Rights::NONE, 7)), [more]);
    client.handle(at(130), Input::Released { key: key(1), number: 6 });
    assert!(effects(&mut client).is_empty(), "that is not all of it");
    client.handle(at(140), Input::Released { key: key(1), number: 7 });
    assert_eq!(said(&effects(&mut client)), [&returned(7, 1, Rights::NONE)]);
    assert_eq!(client.kept().count(), 0);
    // The answer was lost, so it is asked again; and a grant of before comes late.
    assert_eq!(said(&tell(&mut client, 150, recall(1, Rights::NONE, 7))), [&returned(7, 1, Rights::NONE)]);
    assert_eq!(said(&tell(&mut client, 160, granted(1, 1, Rights::ALL, 5))), [&returned(5, 1, Rights::NONE)]);
    assert_eq!(client.may(at(160), &key(1)), Rights::NONE);
}

/// I-CLEASE-7.
#[test]
fn a_grant_that_a_recall_overtook_is_not_used() {
    let mut client = joined();
    client.handle(at(60), Input::Want { key: key(1), rights: KEEP });
    effects(&mut client);
    assert_eq!(said(&tell(&mut client, 70, recall(1, Rights::NONE, 6))), [&returned(6, 1, Rights::NONE)]);
    let late = tell(&mut client, 80, granted(1, 1, KEEP, 5));
    assert!(late.contains(&Effect::Answered { key: key(1), rights: Rights::NONE }));
    assert_eq!(client.may(at(80), &key(1)), Rights::NONE);
    client.handle(at(90), Input::Want { key: key(1), rights: KEEP });
    effects(&mut client);
    assert_eq!(
        tell(&mut client, 95, granted(2, 1, KEEP, 7)),
        [Effect::Answered { key: key(1), rights: KEEP }]
    );
}

/// Goal: what is returned by a number stays returned. Found by the simulation: a wish that was said again had two grants; the later one came
/// first and was given back, the earlier one was taken.
#[test]
fn regression_an_earlier_grant_is_not_used_after_a_later_one_was_returned() {
    let mut client = joined();
    client.handle(at(60), Input::Want { key: key(1), rights: KEEP });
    effects(&mut client);
    assert_eq!(said(&tell(&mut client, 70, granted(99, 1, KEEP, 8))), [&returned(8, 1, Rights::NONE)]);
    let told = tell(&mut client, 80, granted(1, 1, KEEP, 7));
    assert!(told.contains(&Effect::Answered { key: key(1), rights: Rights::NONE }));
    assert_eq!(client.may(at(80), &key(1)), Rights::NONE);
}

#[test]
fn a_full_table_gives_back_the_oldest() {
    let mut client = with_lease(KEEP);
    for (request, n) in [(2, 2), (3, 3)] {
        client.handle(at(80), Input::Want { key: key(n), rights: KEEP });
        effects(&mut client);
        let told = tell(&mut client, 90, granted(request, n, KEEP, 5 + n));
        let release = Effect::Release { key: key(1), keeps: Rights::NONE, number: 5 };
        assert_eq!(told.contains(&release), n == 3);
    }
    assert_eq!(client.may(at(90), &key(1)), Rights::NONE);
    client.handle(at(95), Input::Released { key: key(1), number: 5 });
    assert_eq!(said(&effects(&mut client)), [&returned(5, 1, Rights::NONE)]);
    // Wishes are few; one too many is answered with what is there.
    for n in 4..7 {
        client.handle(at(96), Input::Want { key: key(n), rights: KEEP });
    }
    let told = effects(&mut client);
    assert_eq!(said(&told).len(), 2);
    assert_eq!(told.last(), Some(&Effect::Answered { key: key(6), rights: Rights::NONE }));
}

#[test]
fn another_life_is_told_what_is_kept_and_numbers_it_anew() {
    let mut client = with_lease(KEEP);
    client.handle(at(80), Input::Want { key: key(2), rights: KEEP });
    effects(&mut client);
    assert!(tell(&mut client, 200, Telling::Rejoin { joined: JOINED, life: Life(2) }).is_empty());
    assert!(client.is_joining());
    client.handle_deadline(at(200));
    let join = Effect::Join { before: JOINED, number: 3, life: Life(2), leases: vec![(key(1), KEEP)] };
    assert_eq!(effects(&mut client), [join]);
    assert!(tell(&mut client, 210, granted(2, 2, KEEP, 6)).is_empty(), "the life that granted it has ended");
    // Given back meanwhile; the other life cannot know.
    client.handle(at(220), Input::GiveBack { key: key(1), keeps: Rights::NONE });
    effects(&mut client);
    let next = Joined(Life(2).first_number() + 1);
    let number = next.0;
    let telling =
        Telling::Joined { before: JOINED, joined: next, number: 3, leases: vec![(key(1), KEEP, number)] };
    assert_eq!(said(&tell(&mut client, 230, telling)), [&returned(number, 1, Rights::NONE)]);
    assert_eq!((client.joined(), client.may_until()), (next, Some(at(1200))));
    // The wish is still there, and said to the other life.
    client.handle_deadline(at(230));
    let want = Saying::Want { request: 2, key: key(2), rights: KEEP };
    assert!(said(&effects(&mut client)).contains(&&want));
    assert!(tell(&mut client, 240, Telling::Gone { joined: JOINED }).is_empty(), "about another");
}

#[test]
fn the_end_says_what_is_lost() {
    let mut client = with_lease(Rights::ALL);
    client.handle(at(80), Input::Want { key: key(2), rights: KEEP });
    effects(&mut client);
    let told = tell(&mut client, 90, Telling::Gone { joined: JOINED });
    let answered = Effect::Answered { key: key(2), rights: Rights::NONE };
    assert_eq!(told, [answered, Effect::Over { had: vec![(key(1), Rights::ALL)] }]);
    assert!(client.is_over());
    assert_eq!(
        (client.next_deadline(), client.may_until(), client.may(at(90), &key(1))),
        (None, None, Rights::NONE)
    );
    assert!(tell(&mut client, 95, Telling::Renewed { joined: JOINED, number: 2 }).is_empty());
}
