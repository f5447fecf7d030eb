//! Goal: pages without a lease go in time, those with one stay, and what is asked back is given back when none are left. Method: reads, recalls and
//! droppings in the orders that threads can bring them in.
use super::*;

fn ino(n: u64) -> Ino {
    Ino::from_raw(n).unwrap()
}

fn giving(number: u64) -> Giving {
    (Source { node: 0, joined: 1 }, Returned { number, ..Returned::default() })
}

fn file(job: Option<Job>) -> Option<Ino> {
    job.map(|job| match job {
        Job::File(ino) => ino,
        Job::Range(..) => panic!("no write"),
    })
}

#[test]
fn pages_stay_as_long_as_their_lease() {
    let (mut mapped, now) = (Mapped::default(), Instant::now());
    for n in 2..5 {
        // Of one without a lease, of one with one, and of one that has another meanwhile.
        mapped.read(now, ino(n), (n > 2).then_some(n));
    }
    let leases = |ino: Ino| (ino.get() == 3).then_some(3);
    assert!(mapped.look(now, leases).is_empty());
    assert_eq!(file(mapped.next()), Some(ino(4)), "at once");
    assert_eq!(file(mapped.next()), None);
    mapped.look(now + STALE_MAX, leases);
    assert_eq!(file(mapped.next()), Some(ino(2)), "in time");
    assert_eq!((mapped.dropped(ino(2)), mapped.dropped(ino(4)), mapped.len()), (None, None, 1));
    // What was read under none stays doubtful when there is one.
    mapped.read(now, ino(3), None);
    mapped.read(now, ino(3), Some(3));
    mapped.look(now + STALE_MAX, leases);
    assert_eq!(file(mapped.next()), Some(ino(3)));
    // Read while it is dropped: that is not covered.
    mapped.read(now, ino(3), Some(3));
    mapped.dropped(ino(3));
    assert!(mapped.has(ino(3)));
    mapped.look(now + 2 * STALE_MAX, leases);
    assert_eq!(file(mapped.next()), None);
}

#[test]
fn what_is_asked_back_goes_back_when_no_pages_are_left() {
    let (mut mapped, now) = (Mapped::default(), Instant::now());
    assert_eq!(mapped.recalled(now, ino(2), giving(1)), Some(giving(1)), "none");
    mapped.read(now, ino(2), Some(1));
    mapped.look(now, |_| None);
    assert_eq!(file(mapped.next()), Some(ino(2)));
    // Asked back while it is dropped for another reason: what was read since is not dropped yet.
    mapped.read(now, ino(2), None);
    assert_eq!(mapped.recalled(now, ino(2), giving(2)), None);
    assert_eq!(file(mapped.next()), None, "one thread at a time");
    assert_eq!(mapped.dropped(ino(2)), None);
    assert_eq!(file(mapped.next()), Some(ino(2)));
    assert_eq!(mapped.recalled(now, ino(2), giving(3)), None, "said again");
    assert_eq!(mapped.dropped(ino(2)), None);
    assert_eq!(file(mapped.next()), Some(ino(2)));
    assert_eq!(mapped.dropped(ino(2)), Some(giving(3)));
    assert!(!mapped.has(ino(2)) && mapped.jobs.is_empty());
}

#[test]
fn who_cannot_drop_holds_nobody_up_for_ever() {
    let (mut mapped, now) = (Mapped::default(), Instant::now());
    mapped.read(now, ino(2), Some(1));
    mapped.recalled(now, ino(2), giving(1));
    assert_eq!(file(mapped.next()), Some(ino(2)));
    mapped.recalled(now + RETURN_MAX / 2, ino(2), giving(2));
    assert!(mapped.look(now + RETURN_MAX / 2, |_| None).is_empty());
    assert_eq!(mapped.look(now + RETURN_MAX, |_| None), [giving(2)], "counted from the first");
    assert!(mapped.look(now + RETURN_MAX, |_| None).is_empty());
    assert_eq!(mapped.dropped(ino(2)), None);
}

#[test]
fn a_write_is_answered_first() {
    let mut mapped = Mapped::default();
    mapped.read(Instant::now(), ino(2), None);
    mapped.look(Instant::now() + STALE_MAX, |_| None);
    mapped.drop_range(ino(2), 5..7, Box::new(|| ()));
    assert!(matches!(mapped.next(), Some(Job::Range(of, range, _)) if of == ino(2) && range == (5..7)));
    assert_eq!(file(mapped.next()), Some(ino(2)));
}
