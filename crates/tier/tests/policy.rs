//! Goal: each rule of the policy, by itself.
//! Method: short histories with known times; values compared with the paper's formulas worked out by hand.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::time::Duration;

use tier::*;
use types::{Ino, TierId, TierSet};

const MIB: u64 = 1 << 20;
const ALL: [u64; 3] = [1024 * MIB, 10_240 * MIB, 1_024_000 * MIB];

fn ino(n: u64) -> Ino {
    Ino::from_raw(n).unwrap()
}

fn secs(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

/// A machine with these limits (0: no such tier), nothing in it.
fn machine(limits: [u64; 3]) -> Tiering {
    machine_with(Settings::default(), limits)
}

fn machine_with(settings: Settings, limits: [u64; 3]) -> Tiering {
    let mut machine = Tiering::new(settings);
    for tier in TierId::ALL {
        if limits[tier.index()] > 0 {
            machine.handle(secs(0.0), Input::Space { tier, limit: limits[tier.index()], used: 0 });
        }
    }
    machine
}

fn effects(machine: &mut Tiering) -> Vec<Effect> {
    std::iter::from_fn(|| machine.poll_effect()).collect()
}

fn need(n: u64, bytes: u64) -> Need {
    Need { ino: ino(n), bytes, sync: false, waited: Duration::ZERO }
}

/// Creates, writes (all of it, at once) and closes.
fn file(machine: &mut Tiering, at: f64, n: u64, bytes: u64) -> Placement {
    let placement = open_file(machine, at, n, bytes);
    machine.handle(secs(at), Input::Closed { ino: ino(n), dirty_bytes: bytes });
    placement
}

fn open_file(machine: &mut Tiering, at: f64, n: u64, bytes: u64) -> Placement {
    let attached = Input::Attached { ino: ino(n), bytes: [0; 3], dirty: TierSet::EMPTY };
    machine.handle(secs(at), attached);
    machine.handle(secs(at), Input::Opened { ino: ino(n) });
    machine.place(secs(at), need(n, bytes))
}

/// Says that a movement copied everything that it was to copy, as a shell would.
fn finish(machine: &mut Tiering, at: f64, effect: Effect) {
    let Effect::StartMove { id, ino, from, to, keep_source, most, .. } = effect else {
        let Effect::DropCopy { id, ino, tier, .. } = effect else { panic!("{effect:?}") };
        let bytes = machine.moves().find(|m| m.id == id).unwrap().bytes as i64;
        machine.handle(secs(at), Input::Stored { ino, tier, delta: -bytes });
        return machine.handle(secs(at), Input::MoveDone { id, bytes: 0, elapsed: Duration::ZERO });
    };
    let bytes = machine.moves().find(|m| m.id == id).unwrap().bytes;
    machine.handle(secs(at), Input::Stored { ino, tier: to, delta: bytes as i64 });
    if !keep_source {
        machine.handle(secs(at), Input::Stored { ino, tier: from, delta: -(bytes as i64) });
    }
    if bytes < most {
        machine.handle(secs(at), Input::Clean { ino, tier: from });
    }
    machine.handle(secs(at), Input::MoveDone { id, bytes, elapsed: secs(0.1) });
}

fn close_to(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-3 * b.abs().max(1e-6)
}

#[test]
fn coolness_is_the_paper_s() {
    // Opened at 10, closed at 12, opened at 20, closed at 24, opened at 26, closed at 32.
    // T_oc = (2 + 4 + 6) / 3 = 4, T_co = (8 + 2) / 2 = 5. At 42: T_closed = 10, coolness = 10 * 5 / 4 = 12.5.
    let mut m = machine(ALL);
    open_file(&mut m, 10.0, 5, 4 * MIB);
    for (open, close) in [(10.0, 12.0), (20.0, 24.0), (26.0, 32.0)] {
        if open > 10.0 {
            m.handle(secs(open), Input::Opened { ino: ino(5) });
        }
        m.handle(secs(close), Input::Closed { ino: ino(5), dirty_bytes: 0 });
    }
    let report = m.coolness(ino(5), secs(42.0)).unwrap();
    assert!(!report.open && close_to(report.t_closed, 10.0), "{report:?}");
    assert!(close_to(report.t_co, 5.0) && close_to(report.t_oc, 4.0), "{report:?}");
    assert!(close_to(report.value, 12.5), "{report:?}");
}

#[test]
fn forced_coolness_ranks_by_last_access() {
    // Three open files, opened in the order 1 2 3, then 1 is read. LRU-open from the tail: 1 is first, 3 second, 2 third.
    // None was closed before, so the factor T_co/T_oc is 1 and the rank is the coolness.
    let mut m = machine(ALL);
    for n in 1..=3 {
        open_file(&mut m, n as f64, n, 4 * MIB);
    }
    m.handle(secs(4.0), Input::Touched { ino: ino(1), offset: 4 * MIB });
    let rank = |m: &Tiering, n| m.coolness(ino(n), secs(9.0)).unwrap();
    assert_eq!([1, 2, 3].map(|n| rank(&m, n).lru_rank.unwrap()), [1, 3, 2]);
    assert_eq!([1, 2, 3].map(|n| rank(&m, n).value), [1.0, 3.0, 2.0]);
    // The same SAU again, and an address beyond its first MiB, move nothing.
    m.handle(secs(5.0), Input::Touched { ino: ino(2), offset: 9 * MIB + 1 });
    m.handle(secs(5.0), Input::Touched { ino: ino(3), offset: 0 });
    m.handle(secs(5.0), Input::Touched { ino: ino(1), offset: 4 * MIB + 9 });
    assert_eq!([1, 2, 3].map(|n| rank(&m, n).lru_rank.unwrap()), [2, 3, 1]);
}

#[test]
fn missing_history_and_zero_times_are_defined() {
    // Never reopened: T_co is T_closed; open for no time at all: T_oc is 1 ms. 3 s * 3 s / 1 ms = 9000.
    let mut m = machine(ALL);
    file(&mut m, 1.0, 1, 4 * MIB);
    assert!(close_to(m.coolness(ino(1), secs(4.0)).unwrap().value, 9000.0));
    // Found closed at start-up: nothing is known, the factor is 1.
    m.handle(secs(1.0), Input::Attached { ino: ino(2), bytes: [MIB, 0, 0], dirty: TierSet::MEMORY });
    assert!(close_to(m.coolness(ino(2), secs(4.0)).unwrap().value, 3.0));
    // Time that stands still, or goes back, is no error.
    assert!(m.coolness(ino(2), secs(0.5)).unwrap().value >= 0.0);
    assert_eq!(m.coolness(ino(99), secs(4.0)), None);
}

#[test]
fn write_behind_comes_two_seconds_after_the_close() {
    let mut m = machine(ALL);
    file(&mut m, 1.0, 1, 4 * MIB);
    assert_eq!(effects(&mut m), []);
    assert_eq!(m.next_deadline(), Some((secs(3.0), Why::WriteBehindDue)));
    m.handle_deadline(secs(3.0));
    let started = effects(&mut m);
    let [
        copy @ Effect::StartMove {
            from: TierId::Memory,
            to: TierId::Ssd,
            kind: MoveKind::WriteBehind,
            keep_source: true,
            ..
        },
    ] = started[..]
    else {
        panic!("{started:?}")
    };
    assert_eq!(m.dirty().0, 1);
    finish(&mut m, 3.1, copy);
    assert_eq!(m.dirty().0, 0);
    assert_eq!(m.next_deadline(), None);
}

#[test]
fn regression_a_look_at_a_file_does_not_put_its_copy_off() {
    // Goal: whoever asks where a file is does not keep it in danger. Method: it is detached and attached again each half
    // second, until its copy is due and while the copy runs.
    let mut m = machine(ALL);
    file(&mut m, 1.0, 1, 8 * MIB);
    let look = |m: &mut Tiering, at: f64| {
        m.handle(secs(at), Input::Detached { ino: ino(1) });
        m.handle(secs(at), Input::Attached { ino: ino(1), bytes: [8 * MIB, 0, 0], dirty: TierSet::MEMORY });
    };
    for at in [1.5, 2.0, 2.5] {
        look(&mut m, at);
    }
    assert_eq!(m.next_deadline().map(|(at, _)| at), Some(secs(3.0)));
    m.handle_deadline(secs(3.0));
    let started = effects(&mut m);
    assert!(
        matches!(started[..], [Effect::StartMove { to: TierId::Ssd, keep_source: true, .. }]),
        "{started:?}"
    );
    look(&mut m, 3.1);
    assert_eq!(effects(&mut m), [], "the copy goes on");
}

#[test]
fn an_open_file_is_copied_when_idle_and_at_the_latest_after_thirty_seconds() {
    let mut m = machine(ALL);
    open_file(&mut m, 0.0, 1, 4 * MIB);
    m.handle(secs(8.0), Input::Dirty { ino: ino(1), tier: TierId::Memory });
    m.handle_deadline(secs(10.0));
    assert_eq!(m.next_deadline(), Some((secs(18.0), Why::WriteBehindDue)));
    m.handle_deadline(secs(18.0));
    let Effect::StartMove { id, .. } = effects(&mut m)[0] else { panic!() };
    // A write cancels the copy, and the idle time starts again.
    m.handle(secs(19.0), Input::Dirty { ino: ino(1), tier: TierId::Memory });
    assert_eq!(effects(&mut m), [Effect::CancelMove { id }]);
    m.handle(secs(19.1), Input::MoveFailed { id, reason: MoveFailure::Cancelled });
    assert_eq!(m.next_deadline(), Some((secs(29.0), Why::WriteBehindDue)));
    m.handle(secs(28.0), Input::Dirty { ino: ino(1), tier: TierId::Memory });
    m.handle_deadline(secs(29.0));
    assert_eq!(m.next_deadline(), Some((secs(30.0), Why::WriteBehindDue)));
    m.handle_deadline(secs(30.0));
    assert!(matches!(effects(&mut m)[..], [Effect::StartMove { .. }]));
    m.handle(secs(30.5), Input::Dirty { ino: ino(1), tier: TierId::Memory });
    assert_eq!(effects(&mut m), [], "a late copy goes on through writes");
}

#[test]
fn a_transient_file_is_copied_only_when_asked() {
    let mut m = machine(ALL);
    file(&mut m, 1.0, 1, 4 * MIB);
    let policy = ObjectPolicy { transient: true, ..ObjectPolicy::default() };
    m.handle(secs(1.0), Input::Policy { ino: ino(1), policy });
    assert_eq!(m.next_deadline(), None);
    m.handle(secs(9.0), Input::Request { id: RequestId(1), request: Request::Flush { ino: ino(1) } });
    let copy = effects(&mut m)[0];
    finish(&mut m, 9.5, copy);
    let report = RequestReport { files_moved: 1, bytes_moved: 4 * MIB, files_skipped: 0 };
    assert_eq!(effects(&mut m), [Effect::RequestDone { id: RequestId(1), result: Ok(report) }]);
}

/// What was said of a file after its copy had become due came too late: a start that took longer than that wrote transient files down.
#[test]
fn regression_a_copy_of_what_becomes_transient_stops() {
    let mut m = machine(ALL);
    file(&mut m, 1.0, 1, 4 * MIB);
    m.handle_deadline(secs(3.0));
    let [Effect::StartMove { id, kind: MoveKind::WriteBehind, .. }] = effects(&mut m)[..] else { panic!() };
    let policy = ObjectPolicy { transient: true, ..ObjectPolicy::default() };
    m.handle(secs(3.0), Input::Policy { ino: ino(1), policy });
    assert_eq!(effects(&mut m), [Effect::CancelMove { id }]);
    m.handle(secs(3.1), Input::MoveFailed { id, reason: MoveFailure::Cancelled });
    assert_eq!(effects(&mut m), []);
    m.handle_deadline(secs(600.0));
    assert_eq!(effects(&mut m), []);
}

#[test]
fn a_closed_file_leaves_for_nearline_and_opening_it_stops_that() {
    // Memory of 1 GiB: C_n-m is a quarter at most; files of 100 MiB go in until it is reached.
    let mut m = machine(ALL);
    let mut n = 0;
    let out = loop {
        n += 1;
        assert_eq!(file(&mut m, n as f64 * 0.01, n, 100 * MIB), Placement::Tier(TierId::Memory));
        let effects = effects(&mut m);
        if !effects.is_empty() {
            break effects;
        }
    };
    let Effect::StartMove { id, ino: first, to, kind, keep_source, .. } = out[0] else { panic!("{out:?}") };
    assert_eq!((to, kind, keep_source), (TierId::Nearline, MoveKind::NormalOut, false));
    // All were open for no time and never reopened: the coolest is the one closed longest ago.
    assert_eq!(first, ino(1));
    m.handle(secs(1.0), Input::Opened { ino: first });
    assert!(effects(&mut m).contains(&Effect::CancelMove { id }));
}

#[test]
fn a_large_file_leaves_no_further_than_is_lacking() {
    // 128 MiB: C_n-m is 32 MiB, C_f-m 16 MiB. A closed file of 96 MiB leaves as much as takes the tier one step above C_n-m,
    // and the rest of it stays; so does the rest of a clean one, which would be dropped.
    for clean in [false, true] {
        let mut m = machine([128 * MIB, 1024 * MIB, 10_240 * MIB]);
        file(&mut m, 1.0, 1, 80 * MIB);
        if clean {
            m.handle(secs(1.0), Input::Clean { ino: ino(1), tier: TierId::Memory });
        }
        assert_eq!(effects(&mut m), []);
        file(&mut m, 2.0, 2, 16 * MIB);
        let started = effects(&mut m);
        assert_eq!(started.len(), 1, "{started:?}");
        let (Effect::StartMove { ino: first, most, .. } | Effect::DropCopy { ino: first, most, .. }) =
            started[0]
        else {
            panic!("{started:?}")
        };
        assert_eq!((first, most), (ino(1), 16 * MIB));
        assert_eq!(m.tier(TierId::Memory).unwrap().draining, 16 * MIB);
        finish(&mut m, 2.1, started[0]);
        assert_eq!(effects(&mut m), [], "nothing more has to leave");
        assert_eq!(m.tier(TierId::Memory).unwrap().available, 48 * MIB as i64);
        let dirty = if clean { 16 } else { 16 + 64 };
        assert_eq!(m.dirty().1, dirty * MIB, "what has moved out is not only in memory");
        // When more has to leave, the same file goes on.
        file(&mut m, 2.2, 3, 17 * MIB);
        let (Effect::StartMove { ino: next, .. } | Effect::DropCopy { ino: next, .. }) = effects(&mut m)[0]
        else {
            panic!()
        };
        assert_eq!(next, ino(1));
    }
}

#[test]
fn open_files_leave_for_ssd_only_when_forced() {
    let mut m = machine([64 * MIB, 1024 * MIB, 1024 * MIB]);
    assert_eq!(
        m.tier(TierId::Memory).unwrap().thresholds,
        Thresholds { s_w: 0, f_m: 8 * MIB, n_m: 16 * MIB }
    );
    open_file(&mut m, 1.0, 1, 30 * MIB);
    open_file(&mut m, 2.0, 2, 25 * MIB);
    assert_eq!(effects(&mut m), [], "9 MiB left: normal out, and nothing is closed");
    open_file(&mut m, 3.0, 3, MIB);
    let started = effects(&mut m);
    let [Effect::StartMove { ino: first, to: TierId::Ssd, kind: MoveKind::ForcedOut, .. }] = started[..]
    else {
        panic!("{started:?}")
    };
    assert_eq!(first, ino(1), "the least recently used");
}

#[test]
fn a_clean_file_is_dropped_first_when_forced() {
    let mut m = machine([64 * MIB, 1024 * MIB, 1024 * MIB]);
    file(&mut m, 1.0, 1, 10 * MIB);
    file(&mut m, 2.0, 2, 10 * MIB);
    m.handle(secs(2.5), Input::Clean { ino: ino(2), tier: TierId::Memory });
    open_file(&mut m, 2.6, 3, 36 * MIB);
    let started = effects(&mut m);
    assert!(
        matches!(started[0], Effect::DropCopy { ino: i, tier: TierId::Memory, .. } if i == ino(2)),
        "{started:?}"
    );
}

#[test]
fn pinned_and_passthrough_files_stay() {
    let mut m = machine([64 * MIB, 1024 * MIB, 0]);
    for n in 1..=3 {
        open_file(&mut m, n as f64, n, 15 * MIB);
    }
    m.handle(secs(4.0), Input::Pinned { ino: ino(1), tier: TierId::Memory });
    m.handle(secs(4.0), Input::PassthroughBegan { ino: ino(2) });
    m.handle(secs(4.0), Input::Pinned { ino: ino(3), tier: TierId::Memory });
    open_file(&mut m, 5.0, 4, 12 * MIB);
    let left: Vec<Ino> = m.moves().map(|m| m.ino).collect();
    assert_eq!(left, [ino(4)]);
    let count = |m: &Tiering, tier| m.tier(tier).unwrap().objects;
    assert_eq!(count(&m, TierId::Memory), Some(4), "those that stay or move are there too");
    assert_eq!(count(&m, TierId::Ssd), None, "nothing leaves the last tier");
    let request = Request::Migrate { ino: ino(1), to: TierId::Ssd };
    m.handle(secs(5.0), Input::Request { id: RequestId(7), request });
    let pinned = Effect::RequestDone { id: RequestId(7), result: Err(RequestError::Pinned) };
    assert!(effects(&mut m).contains(&pinned));
    // A migration of the file that passthrough holds waits, and gives up in the end.
    let request = Request::Migrate { ino: ino(2), to: TierId::Ssd };
    m.handle(secs(5.0), Input::Request { id: RequestId(8), request });
    m.handle_deadline(secs(66.0));
    let busy = Effect::RequestDone { id: RequestId(8), result: Err(RequestError::Busy) };
    assert!(effects(&mut m).contains(&busy));
}

#[test]
fn a_full_tier_lets_small_writers_wait_and_streams_flow_on() {
    let mut m = machine([64 * MIB, 1024 * MIB, 0]);
    open_file(&mut m, 1.0, 1, 32 * MIB);
    open_file(&mut m, 1.0, 2, 32 * MIB);
    assert!(!effects(&mut m).is_empty());
    // A new file waits: 1 MiB is expected at 1 GiB/s or so. It is woken once it fits.
    m.handle(secs(1.0), Input::Attached { ino: ino(3), bytes: [0; 3], dirty: TierSet::EMPTY });
    let Placement::Wait { tier: TierId::Memory, for_at_most } = m.place(secs(1.0), need(3, MIB)) else {
        panic!()
    };
    assert_eq!(for_at_most, Duration::from_millis(50));
    // One that has half of the memory does not, nor one that has waited.
    assert_eq!(m.place(secs(1.0), need(2, 4 * MIB)), Placement::Tier(TierId::Ssd));
    let waited = Need { waited: for_at_most, ..need(3, MIB) };
    assert_eq!(m.place(secs(1.1), waited), Placement::Tier(TierId::Ssd));
    let moving = m.moves().next().unwrap().ino;
    m.handle(secs(1.2), Input::Stored { ino: moving, tier: TierId::Memory, delta: -(4 * MIB as i64) });
    assert_eq!(effects(&mut m), [Effect::WakeWriters { tier: TierId::Memory }]);
    // A synchronous write goes to what persists.
    assert_eq!(m.place(secs(1.3), Need { sync: true, ..need(3, MIB) }), Placement::Tier(TierId::Ssd));
}

#[test]
fn a_stream_is_written_once_and_starts_no_movement() {
    // A file of 8 times the memory: what lands there stays above C_n-m (a quarter of it at most), so nothing is moved out
    // to make room for more of it. A transient file goes on in memory to the end, and so does one that is pinned there.
    let limits = [64 * MIB, 1024 * MIB, 0];
    let written = |m: &mut Tiering| -> u64 {
        (0..128).filter(|_| m.place(secs(1.0), need(1, 4 * MIB)) == Placement::Tier(TierId::Memory)).count()
            as u64
    };
    let mut m = machine(limits);
    open_file(&mut m, 1.0, 1, 4 * MIB);
    let n_m = m.tier(TierId::Memory).unwrap().thresholds.n_m;
    let in_memory = (1 + written(&mut m)) * 4 * MIB;
    assert!(in_memory >= limits[0] / 2 && in_memory < limits[0] - n_m, "{in_memory} with C_n-m {n_m}");
    assert_eq!(effects(&mut m), []);
    for held in [
        Input::Policy { ino: ino(1), policy: ObjectPolicy { transient: true, ..ObjectPolicy::default() } },
        Input::Pinned { ino: ino(1), tier: TierId::Memory },
    ] {
        let mut m = machine(limits);
        open_file(&mut m, 1.0, 1, 4 * MIB);
        m.handle(secs(1.0), held);
        assert!((1 + written(&mut m)) * 4 * MIB >= limits[0]);
    }
    // With the SSD full it takes what memory has.
    let mut m = machine([64 * MIB, 8 * MIB, 1024 * MIB]);
    open_file(&mut m, 1.0, 1, 4 * MIB);
    assert!((1 + written(&mut m)) * 4 * MIB >= limits[0]);
}

#[test]
fn regression_what_is_being_removed_is_not_tried_again_at_once() {
    // The shell says that the object is gone before it says that it is removed: deleting a large file takes a while.
    let mut m = machine([64 * MIB, 1024 * MIB, 0]);
    open_file(&mut m, 1.0, 1, 60 * MIB);
    let started = effects(&mut m);
    let [Effect::StartMove { id, .. }] = started[..] else { panic!("{started:?}") };
    m.handle(secs(1.1), Input::MoveFailed { id, reason: MoveFailure::Gone });
    assert_eq!(effects(&mut m), []);
    m.handle(secs(1.2), Input::Removed { ino: ino(1) });
    assert_eq!(m.next_deadline(), None);
    assert_eq!(m.tier(TierId::Memory).unwrap().used, 0);
}

#[test]
fn no_space_comes_only_when_all_is_full_and_still() {
    let mut m = machine([8 * MIB, 8 * MIB, 0]);
    assert_eq!(open_file(&mut m, 1.0, 1, 8 * MIB), Placement::Tier(TierId::Memory));
    let moving: Vec<Effect> = effects(&mut m);
    assert_eq!(moving.len(), 1);
    // All of SSD is promised to the movement: another write waits for it rather than fail.
    let late = Need { waited: secs(1.0), ..need(1, MIB) };
    assert!(matches!(m.place(secs(1.0), late), Placement::Wait { tier: TierId::Memory, .. }));
    finish(&mut m, 1.1, moving[0]);
    assert_eq!(effects(&mut m), [Effect::WakeWriters { tier: TierId::Memory }]);
    assert_eq!(m.place(secs(1.2), need(1, 8 * MIB)), Placement::Tier(TierId::Memory));
    assert_eq!(m.place(secs(1.2), late), Placement::NoSpace);
    assert_eq!(m.admit(secs(1.2), TierId::Ssd, late), Admit::Full);
}

#[test]
fn migration_up_keeps_the_copy_below_and_down_frees_above() {
    let mut m = machine(ALL);
    m.handle(secs(1.0), Input::Attached { ino: ino(1), bytes: [0, 0, 9 * MIB], dirty: TierSet::EMPTY });
    let up = Request::Migrate { ino: ino(1), to: TierId::Memory };
    m.handle(secs(1.0), Input::Request { id: RequestId(1), request: up });
    let started = effects(&mut m);
    assert!(matches!(started[..], [Effect::StartMove { from: TierId::Nearline, keep_source: true, .. }]));
    finish(&mut m, 2.0, started[0]);
    assert_eq!(m.dirty().0, 0, "what was brought up is clean");
    assert!(matches!(effects(&mut m)[..], [Effect::RequestDone { result: Ok(_), .. }]));
    let down = Request::Migrate { ino: ino(1), to: TierId::Nearline };
    m.handle(secs(3.0), Input::Request { id: RequestId(2), request: down });
    assert!(matches!(
        effects(&mut m)[..],
        [Effect::StartMove { from: TierId::Memory, keep_source: false, .. }]
    ));
}

#[test]
fn prefetch_keeps_order_and_stops_above_the_threshold() {
    // 64 MiB of memory, C_n-m = 16 MiB: of five files of 12 MiB, three fit; the fourth would end below C_n-m.
    let mut m = machine([64 * MIB, 0, 1024 * MIB]);
    for n in 1..=5 {
        m.handle(secs(1.0), Input::Attached { ino: ino(n), bytes: [0, 0, 12 * MIB], dirty: TierSet::EMPTY });
    }
    let list = [3, 1, 2, 5, 4, 77].map(ino).to_vec();
    m.handle(secs(1.0), Input::Request { id: RequestId(1), request: Request::Prefetch { list } });
    let started = effects(&mut m);
    let order: Vec<Ino> =
        started.iter().map(|e| if let Effect::StartMove { ino, .. } = e { *ino } else { panic!() }).collect();
    assert_eq!(order, [3, 1, 2].map(ino));
    for effect in started {
        finish(&mut m, 2.0, effect);
    }
    let report = RequestReport { files_moved: 3, bytes_moved: 36 * MIB, files_skipped: 3 };
    assert_eq!(effects(&mut m), [Effect::RequestDone { id: RequestId(1), result: Ok(report) }]);
}

#[test]
fn opening_promotes_by_policy() {
    let mut m = machine(ALL);
    m.handle(secs(1.0), Input::Attached { ino: ino(1), bytes: [0, MIB, 9 * MIB], dirty: TierSet::EMPTY });
    let policy = ObjectPolicy { promote: Some(true), ..ObjectPolicy::default() };
    m.handle(secs(1.0), Input::Policy { ino: ino(1), policy });
    m.handle(secs(1.0), Input::Opened { ino: ino(1) });
    let first = effects(&mut m)[0];
    assert!(matches!(
        first,
        Effect::StartMove { from: TierId::Ssd, to: TierId::Memory, kind: MoveKind::Promote, .. }
    ));
    finish(&mut m, 2.0, first);
    assert!(matches!(
        effects(&mut m)[..],
        [Effect::StartMove { from: TierId::Nearline, to: TierId::Memory, .. }]
    ));
}

#[test]
fn opening_promotes_by_default_from_the_tiers_of_the_settings() {
    // Near-line only: to memory, or to the SSD where memory has no room; not what the SSD has too; never against a policy.
    let settings = Settings { promote_on_open: TierSet::of(TierId::Nearline), ..Settings::default() };
    let opened = |bytes: [u64; 3], promote: Option<bool>| {
        let mut m = machine_with(settings.clone(), ALL);
        m.handle(secs(1.0), Input::Attached { ino: ino(1), bytes, dirty: TierSet::EMPTY });
        if promote.is_some() {
            let policy = ObjectPolicy { promote, ..ObjectPolicy::default() };
            m.handle(secs(1.0), Input::Policy { ino: ino(1), policy });
        }
        m.handle(secs(1.0), Input::Opened { ino: ino(1) });
        effects(&mut m).into_iter().find_map(|effect| {
            let Effect::StartMove { from, to, kind: MoveKind::Promote, .. } = effect else { return None };
            Some((from, to))
        })
    };
    assert_eq!(opened([0, 0, 9 * MIB], None), Some((TierId::Nearline, TierId::Memory)));
    assert_eq!(opened([0, 0, 9 * MIB], Some(false)), None);
    assert_eq!(opened([0, 0, 1 << 30], None), Some((TierId::Nearline, TierId::Ssd)));
    assert_eq!(opened([0, 9 * MIB, 0], None), None);
    assert_eq!(opened([0, 9 * MIB, 9 * MIB], None), None);
    assert_eq!(opened([9 * MIB, 0, 9 * MIB], None), None);
    assert_eq!(opened([0, 9 * MIB, 0], Some(true)), Some((TierId::Ssd, TierId::Memory)));
}

#[test]
fn regression_who_opens_what_is_pinned_below_does_not_bring_it_up() {
    let settings = Settings { promote_on_open: TierSet::of(TierId::Nearline), ..Settings::default() };
    for promote in [None, Some(true)] {
        let mut m = machine_with(settings.clone(), ALL);
        let has = Input::Attached { ino: ino(1), bytes: [0, 0, 9 * MIB], dirty: TierSet::EMPTY };
        m.handle(secs(1.0), has);
        m.handle(
            secs(1.0),
            Input::Policy { ino: ino(1), policy: ObjectPolicy { promote, ..ObjectPolicy::default() } },
        );
        m.handle(secs(1.0), Input::Pinned { ino: ino(1), tier: TierId::Nearline });
        m.handle(secs(1.0), Input::Opened { ino: ino(1) });
        assert_eq!(effects(&mut m), [], "{promote:?}");
        m.handle(
            secs(2.0),
            Input::Request { id: RequestId(1), request: Request::Prefetch { list: vec![ino(1)] } },
        );
        assert!(matches!(effects(&mut m)[..], [Effect::StartMove { to: TierId::Memory, .. }]), "{promote:?}");
    }
}

#[test]
fn a_smaller_limit_moves_files_out() {
    let mut m = machine(ALL);
    for n in 1..=8 {
        file(&mut m, n as f64, n, 64 * MIB);
        m.handle(secs(n as f64), Input::Clean { ino: ino(n), tier: TierId::Memory });
    }
    m.handle(secs(20.0), Input::LimitChanged { tier: TierId::Memory, limit: 256 * MIB });
    // 512 MiB in 256: until 64 MiB (C_n-m, a quarter) and a step of 32 MiB are free. That is half of the sixth.
    let drops = effects(&mut m);
    assert_eq!(drops.len(), 6, "{drops:?}");
    for drop in drops {
        finish(&mut m, 21.0, drop);
    }
    assert_eq!(m.tier(TierId::Memory).unwrap().available, 96 * MIB as i64);
}

#[test]
fn a_failing_device_is_tried_again_with_growing_pauses() {
    let mut m = machine(ALL);
    file(&mut m, 0.0, 1, 4 * MIB);
    let mut at = 2.0;
    for pause in [1.0, 2.0, 4.0] {
        m.handle_deadline(secs(at));
        let Effect::StartMove { id, .. } = effects(&mut m)[0] else { panic!() };
        m.handle(secs(at), Input::MoveFailed { id, reason: MoveFailure::Io });
        assert_eq!(m.next_deadline(), Some((secs(at + pause), Why::RetryMove)));
        at += pause;
    }
}

#[test]
fn any_set_of_tiers_works() {
    // Goal: no tier is assumed. A file in the only tier is never moved and needs no copy.
    let mut m = machine([8 * MIB, 0, 0]);
    file(&mut m, 1.0, 1, 8 * MIB);
    assert_eq!((effects(&mut m), m.next_deadline()), (vec![], None));
    assert_eq!(m.place(secs(2.0), need(1, 1)), Placement::NoSpace);
    m.handle(secs(2.0), Input::Request { id: RequestId(1), request: Request::Flush { ino: ino(1) } });
    let result = Err(RequestError::NoSuchTier);
    assert_eq!(effects(&mut m), [Effect::RequestDone { id: RequestId(1), result }]);
    let mut m = machine([0, 0, 64 * MIB]);
    assert_eq!(file(&mut m, 1.0, 1, MIB), Placement::Tier(TierId::Nearline));
    assert_eq!(machine([0; 3]).place(secs(1.0), need(1, 1)), Placement::NoSpace);
}

#[test]
fn touches_count_once_per_sau_in_its_first_mebibyte() {
    assert_eq!(touch_counts(0, None), Some(0));
    assert_eq!(touch_counts(MIB - 1, Some(0)), None);
    assert_eq!(touch_counts(MIB, None), None);
    assert_eq!(touch_counts(4 * MIB, Some(0)), Some(1));
    assert_eq!(touch_counts(u64::MAX, None), None);
}

#[test]
fn a_tier_of_movements_only_gets_no_new_bytes_and_makes_room_for_them() {
    // Goal: nothing is placed in a linked near-line, but what moves there is waited for. Method: memory and near-line, full.
    let settings = Settings { movements_only: TierSet::of(TierId::Nearline), ..Settings::default() };
    let mut m = machine_with(settings, [64 * MIB, 0, 1_024_000 * MIB]);
    assert_eq!(file(&mut m, 1.0, 1, 60 * MIB), Placement::Tier(TierId::Memory));
    assert_eq!(m.admit(secs(1.0), TierId::Nearline, need(2, MIB)), Admit::Full);
    let waited = Need { waited: secs(1.0), ..need(2, 8 * MIB) };
    assert!(matches!(m.place(secs(1.0), waited), Placement::Wait { tier: TierId::Memory, .. }));
    let started = effects(&mut m);
    let [effect @ Effect::StartMove { id, from: TierId::Memory, to: TierId::Nearline, .. }] = started[..]
    else {
        panic!("{started:?}")
    };
    // One that was in use is tried again in a moment: that is waited for, too.
    m.handle(secs(2.0), Input::MoveFailed { id, reason: MoveFailure::Busy });
    assert!(matches!(m.place(secs(2.0), waited), Placement::Wait { tier: TierId::Memory, .. }));
    assert_eq!(effects(&mut m), []);
    m.handle_deadline(secs(3.0));
    let again = effects(&mut m);
    let [Effect::StartMove { id, to: TierId::Nearline, .. }] = again[..] else { panic!("{again:?}") };
    m.handle(secs(3.0), Input::MoveFailed { id, reason: MoveFailure::Io });
    let woken = effects(&mut m);
    assert_eq!(woken, [Effect::WakeWriters { tier: TierId::Memory }]);
    assert_eq!(m.place(secs(3.0), waited), Placement::NoSpace, "nothing is under way");
    let _ = effects(&mut m);
    m.handle_deadline(secs(5.0));
    let again = effects(&mut m);
    assert!(
        matches!(again[..], [Effect::StartMove { to: TierId::Nearline, .. }]),
        "{again:?} after {effect:?}"
    );
    finish(&mut m, 6.0, again[0]);
    assert_eq!(m.place(secs(6.0), waited), Placement::Tier(TierId::Memory));
}

/// A file that near-line has, open, of which this much is read and kept; what makes way goes at once. Returns what was kept.
fn read_up(m: &mut Tiering, at: f64, n: u64, saus: u64) -> u64 {
    let whole = saus * 4 * MIB;
    let bytes = [held(m, n), 0, whole];
    m.handle(secs(at), Input::Attached { ino: ino(n), bytes, dirty: TierSet::EMPTY });
    m.handle(secs(at), Input::Opened { ino: ino(n) });
    let mut kept = 0;
    for _ in 0..saus {
        for _ in 0..3 {
            let room = m.place_copy(secs(at), ino(n), (4 * MIB, whole));
            for effect in effects(m) {
                finish(m, at, effect);
            }
            match room {
                Room::Here(TierId::Memory) => {
                    kept += 4 * MIB;
                    break;
                }
                Room::Soon(TierId::Memory) => {}
                Room::None => break,
                Room::Here(tier) | Room::Soon(tier) => panic!("{tier}"),
            }
        }
    }
    m.handle(secs(at + 1.0), Input::Closed { ino: ino(n), dirty_bytes: 0 });
    kept
}

fn held(m: &Tiering, n: u64) -> u64 {
    m.object_bytes(ino(n)).map_or(0, |bytes| bytes[0])
}

#[test]
fn what_is_read_once_leaves_before_what_was_read_again() {
    // Memory of 1 GiB, near-line below. A hot file of 400 MiB, read twice and then not for an hour; 100 files of 40 MiB, read once.
    let mut m = machine([1024 * MIB, 0, 1_024_000 * MIB]);
    assert_eq!(read_up(&mut m, 1.0, 1, 100), 400 * MIB);
    m.handle(secs(10.0), Input::Opened { ino: ino(1) });
    m.handle(secs(11.0), Input::Closed { ino: ino(1), dirty_bytes: 0 });
    for n in 2..102 {
        assert_eq!(read_up(&mut m, 3600.0 + 2.0 * n as f64, n, 10), 40 * MIB, "file {n}");
    }
    assert_eq!(held(&m, 1), 400 * MIB);
    assert_eq!(held(&m, 2), 0, "the oldest left");
    assert_eq!(held(&m, 101), 40 * MIB, "the newest is there");
    let report = m.tier(TierId::Memory).unwrap();
    assert!(report.available > 0 && m.dirty() == (0, 0), "{report:?}");
    // A writer who needs the room has it from them too.
    file(&mut m, 5000.0, 500, 300 * MIB);
    let effects = effects(&mut m);
    assert!(
        effects.iter().all(|e| matches!(e, Effect::DropCopy { ino: i, .. } if *i != ino(1))),
        "{effects:?}"
    );
}

#[test]
fn a_file_larger_than_the_tier_runs_through_it_and_leaves_the_others() {
    let mut m = machine([1024 * MIB, 0, 1_024_000 * MIB]);
    read_up(&mut m, 1.0, 1, 50);
    m.handle(secs(10.0), Input::Opened { ino: ino(1) });
    m.handle(secs(11.0), Input::Closed { ino: ino(1), dirty_bytes: 0 });
    assert_eq!(read_up(&mut m, 20.0, 2, 1000), 4000 * MIB, "each SAU had its place for a while");
    assert_eq!(held(&m, 1), 200 * MIB);
    assert!(held(&m, 2) > 256 * MIB);
}

#[test]
fn a_tier_full_of_what_is_used_gives_an_eighth_and_what_comes_again_soon_takes_more() {
    // Files of 40 MiB, each read again, fill memory to its threshold.
    let mut m = machine([1024 * MIB, 0, 1_024_000 * MIB]);
    for n in 1..=30 {
        read_up(&mut m, 10.0 * n as f64, n, 10);
        m.handle(secs(10.0 * n as f64 + 2.0), Input::Opened { ino: ino(n) });
        m.handle(secs(10.0 * n as f64 + 3.0), Input::Closed { ino: ino(n), dirty_bytes: 0 });
    }
    let old = |m: &Tiering| (1..=30).map(|n| held(m, n)).sum::<u64>();
    let before = old(&m);
    for n in 101..=120 {
        read_up(&mut m, 10.0 * n as f64, n, 10);
    }
    let after = old(&m);
    assert!(after < before && before - after <= 128 * MIB + 40 * MIB, "{before} {after}");
    assert!(held(&m, 120) == 40 * MIB && held(&m, 101) == 0);
    // It left a moment ago: this time it comes to stay.
    assert_eq!(read_up(&mut m, 1205.0, 112, 10), 40 * MIB);
    for n in 201..=240 {
        read_up(&mut m, 1186.0 + n as f64 / 10.0, n, 10);
    }
    assert_eq!((held(&m, 112), held(&m, 201)), (40 * MIB, 0));
}

#[test]
fn a_second_reading_or_a_write_ends_probation() {
    let mut m = machine([1024 * MIB, 0, 1_024_000 * MIB]);
    (1..=3).for_each(|n| assert_eq!(read_up(&mut m, n as f64, n, 10), 40 * MIB));
    m.handle(secs(5.0), Input::ReadAgain { ino: ino(1) });
    m.handle(secs(5.0), Input::Dirty { ino: ino(2), tier: TierId::Memory });
    m.handle(secs(5.0), Input::Clean { ino: ino(2), tier: TierId::Memory });
    for n in 10..60 {
        read_up(&mut m, 10.0 * n as f64, n, 10);
    }
    assert_eq!([1, 2, 3].map(|n| held(&m, n) / MIB), [40, 40, 0]);
}
