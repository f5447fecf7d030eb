//! The judgement of calls about names. Goal: what one directory tree could answer is right, and each kind of what it could not is
//! told. Method: short histories written down by hand, with and without a kill.

use suites::{
    coherence::{
        Workload,
        entries::Names,
        entry::{At, EntryAnswer, EntryOp, Refusal},
        history::{Call, Failure, Header},
    },
    op::RenameKind,
};

type NameCall = Call<EntryOp, EntryAnswer>;

const A: At = At { dir: 0, name: 0 };
const B: At = At { dir: 0, name: 1 };
const C: At = At { dir: 1, name: 0 };

fn call(called: u64, returned: u64, op: EntryOp, answer: EntryAnswer) -> NameCall {
    Call { thread: 0, mount: 0, called, returned, op, answer: Ok(answer) }
}
fn done(called: u64, op: EntryOp) -> NameCall {
    call(called, called + 5, op, EntryAnswer::Done)
}
fn refused(called: u64, op: EntryOp, why: Refusal) -> NameCall {
    call(called, called + 5, op, EntryAnswer::Refused(why))
}
fn create(at: At, mode: u16) -> EntryOp {
    EntryOp::Create { at, mode }
}
fn rename(from: At, to: At) -> EntryOp {
    EntryOp::Rename { from, to, kind: RenameKind::Replace }
}
fn file(mode: u16, links: u32) -> EntryAnswer {
    EntryAnswer::File { mode, links, size: 0 }
}
fn stat(called: u64, at: At, answer: EntryAnswer) -> NameCall {
    call(called, called + 5, EntryOp::Stat { at }, answer)
}
fn not_there() -> EntryAnswer {
    EntryAnswer::Refused(Refusal::NotThere)
}

fn header(faults: &[(u64, u64)]) -> Header {
    Header { kind: "names".into(), seed: 0, round: 0, faults: faults.to_vec(), client_killed: false }
}
fn wrong(calls: &[NameCall]) -> usize {
    Names::judge(&header(&[]), calls).wrong.len()
}

#[test]
fn one_name_is_made_once() {
    assert_eq!(wrong(&[done(0, create(A, 1)), refused(3, create(A, 2), Refusal::There)]), 0);
    assert_eq!(wrong(&[done(0, create(A, 1)), done(3, create(A, 2))]), 1);
    assert_eq!(wrong(&[refused(0, create(A, 2), Refusal::There)]), 1);
    // In turn, the second finds what the first made.
    assert_eq!(wrong(&[done(0, create(A, 1)), stat(10, A, not_there())]), 1);
    assert_eq!(wrong(&[done(0, create(A, 1)), stat(10, A, file(1, 1))]), 0);
    assert_eq!(wrong(&[done(0, create(A, 1)), stat(10, A, file(2, 1))]), 1);
}

#[test]
fn a_rename_has_one_name_at_each_moment() {
    let begun = [done(0, create(A, 1)), call(10, 50, rename(A, C), EntryAnswer::Done)];
    let with = |looks: &[NameCall]| wrong(&[&begun[..], looks].concat());
    assert_eq!(with(&[stat(20, A, not_there()), stat(30, C, file(1, 1))]), 0);
    assert_eq!(with(&[stat(20, A, not_there()), stat(30, C, not_there())]), 1, "nowhere");
    assert_eq!(with(&[stat(20, C, file(1, 1)), stat(30, A, file(1, 1))]), 1, "back again");
    assert_eq!(with(&[stat(20, C, file(1, 2))]), 1, "twice");
}

#[test]
fn a_file_replaced_by_a_rename_is_gone_and_an_exchange_loses_none() {
    let two = [done(0, create(A, 1)), done(10, create(B, 2))];
    let after = |op, looks: &[NameCall]| wrong(&[&two[..], &[done(20, op)], looks].concat());
    assert_eq!(after(rename(A, B), &[stat(30, B, file(1, 1)), stat(40, A, not_there())]), 0);
    assert_eq!(after(rename(A, B), &[stat(30, B, file(2, 1))]), 1);
    let exchange = EntryOp::Rename { from: A, to: B, kind: RenameKind::Exchange };
    assert_eq!(after(exchange, &[stat(30, A, file(2, 1)), stat(40, B, file(1, 1))]), 0);
    assert_eq!(after(exchange, &[stat(30, A, not_there())]), 1);
    let keep = EntryOp::Rename { from: A, to: B, kind: RenameKind::NoReplace };
    assert_eq!(after(keep, &[]), 1);
}

#[test]
fn what_a_call_found_may_lose_its_name_meanwhile() {
    // The mode is set on the file that was found, under its new name.
    let chmod =
        |called, returned| call(called, returned, EntryOp::Chmod { at: A, mode: 7 }, EntryAnswer::Done);
    let history = |chmod| [done(0, create(A, 1)), chmod, done(20, rename(A, B)), stat(30, B, file(7, 1))];
    assert_eq!(wrong(&history(chmod(10, 50))), 0);
    assert_eq!(wrong(&history(chmod(26, 50))), 1, "the name was gone before the call");
    // A link of a file that nobody has a name of any more.
    let link = |called, returned| call(called, returned, EntryOp::Link { from: A, to: B }, EntryAnswer::Done);
    let history =
        |link| [done(0, create(A, 1)), link, done(20, EntryOp::Unlink { at: A }), stat(30, B, file(1, 1))];
    assert_eq!(wrong(&history(link(10, 50))), 0);
    assert_eq!(wrong(&history(link(26, 50))), 1);
}

#[test]
fn a_directory_that_has_a_name_in_it_stays() {
    let (dir, below) = (EntryOp::Mkdir { at: A, mode: 1 }, EntryOp::CreateBelow { at: A, mode: 2 });
    let rmdir = EntryOp::Rmdir { at: A };
    assert_eq!(wrong(&[done(0, dir), done(10, below), refused(20, rmdir, Refusal::NotEmpty)]), 0);
    assert_eq!(wrong(&[done(0, dir), done(10, below), done(20, rmdir)]), 1);
    assert_eq!(wrong(&[done(0, dir), done(10, rmdir), done(20, below)]), 1);
    assert_eq!(wrong(&[done(0, dir), done(10, rmdir), refused(12, below, Refusal::NotThere)]), 0);
}

#[test]
fn a_listing_has_what_was_there_all_the_time_once() {
    let made = [done(0, create(A, 1)), call(10, 50, create(B, 2), EntryAnswer::Done)];
    let listed = |names: &[u8]| {
        let list = call(20, 30, EntryOp::List { dir: 0 }, EntryAnswer::Names(names.to_vec()));
        wrong(&[&made[..], &[list]].concat())
    };
    assert_eq!([listed(&[0]), listed(&[0, 1])], [0, 0]);
    assert_eq!([listed(&[1]), listed(&[0, 0]), listed(&[0, 2])], [1, 1, 1]);
}

#[test]
fn a_call_that_nobody_answered_happened_or_not_and_one_at_a_kill_perhaps_twice() {
    let failure = Failure { errno: Some(5), said: "input/output error".to_owned() };
    let unanswered = |op| Call { answer: Err(failure.clone()), ..done(0, op) };
    let judged = |faults: &[(u64, u64)], calls: &[NameCall]| Names::judge(&header(faults), calls).wrong.len();
    let kill = [(2, 3)];
    assert_eq!(judged(&[], &[unanswered(create(A, 1))]), 1, "nothing was killed");
    assert_eq!(
        judged(&kill, &[unanswered(create(A, 1)), stat(10, A, not_there()), stat(20, A, file(1, 1))]),
        0
    );
    assert_eq!(
        judged(&kill, &[unanswered(create(A, 1)), stat(10, A, file(1, 1)), stat(20, A, not_there())]),
        1
    );
    // The first answer was lost, the second says that the name is there: by the call itself.
    let own = [refused(0, create(A, 1), Refusal::There), stat(10, A, file(1, 1))];
    assert_eq!(judged(&kill, &own), 0);
    assert_eq!(judged(&[(7, 8)], &own), 1, "answered before the kill");
}
