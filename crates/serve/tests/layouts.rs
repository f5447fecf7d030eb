//! Goal: the data of a file go where its directory says, or to its writer's own node, and it can be seen where they are. Method: sessions on
//! nodes with and without a data server, at a metadata server with three.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use proto::{Head, Layout, SessionId, attr::Caller, control::Mount, metadata::*};
use site::{
    ask,
    cluster::{Session, Site},
    until,
};
use types::Errno;

const NAME: &[u8] = b"user.onfs.layout";
const UNIT: u64 = 4 << 20;

/// A mount on a node.
fn on(site: &Site, node: u64, id: u128) -> Session {
    of_job(site, node, id, "")
}

fn of_job(site: &Site, node: u64, id: u128, job: &str) -> Session {
    let session = Session::over(site, SessionId(1 << 100 | id));
    let (head, host) = (Some(Head::of(session.id)), "test".into());
    let mount = Mount { head, host, node, job: job.into(), ..Mount::default() };
    ask(&session.control, &mount, &[], 0).unwrap();
    session
}

fn mkdir(session: &Session, dir: u64, name: &str) -> u64 {
    let caller = Some(Caller { uid: 0, gid: 0, umask: 0 });
    let mkdir = Mkdir { head: session.op(), caller, dir, name: name.into(), mode: 0o755 };
    session.try_ask(&mkdir).unwrap().attr.unwrap().ino
}

/// The inode, and the layout if writing has begun.
fn make(session: &Session, dir: u64, name: &str, opening: u64) -> (u64, Option<Layout>) {
    let (head, caller) = (session.op(), Session::caller());
    let create = Create { head, caller, dir, name: name.into(), mode: 0o644, opening, write: true };
    let opened = session.try_ask(&create).unwrap();
    (opened.attr.unwrap().ino, opened.layout)
}

/// The same, with its writing begun.
fn begun(session: &Session, dir: u64, name: &str, opening: u64) -> (u64, Layout) {
    let (ino, layout) = make(session, dir, name, opening);
    let begun = session.begin(ino, opening).unwrap();
    assert!(layout.is_none_or(|layout| layout == begun), "it stays");
    (ino, begun)
}

fn said(session: &Session, ino: u64) -> Result<String, Errno> {
    let get = GetXattr { head: session.head(), ino, name: NAME.to_vec() };
    let got = ask(&session.meta, &get, &[], 4096).map_err(|fault| Errno::from_raw(fault.errno))?;
    Ok(String::from_utf8(got.1).unwrap())
}

fn say(session: &Session, ino: u64, text: &str) -> Result<(), Errno> {
    let set = SetXattr {
        head: session.op(),
        ino,
        name: NAME.to_vec(),
        mode: XattrMode::Set.into(),
        kill_sgid: false,
    };
    ask(&session.meta, &set, text.as_bytes(), 0).map(drop).map_err(|fault| Errno::from_raw(fault.errno))
}

/// Goal: a job that breaks its nodes does not take both copies (S-365). Method: two of three nodes have mounts of one job, and of another one, or none.
#[test]
fn second_copies_are_on_nodes_without_the_job() {
    let site = Site::new(3);
    let (one, two) = (of_job(&site, 1, 1, "7"), of_job(&site, 2, 2, "7"));
    let (alone, none) = (of_job(&site, 1, 3, "8"), of_job(&site, 3, 4, ""));
    say(&one, 1, "copies=2 local=yes").unwrap();
    let copies = |session: &Session, from: u64| -> Vec<(u64, u64)> {
        let mut copies = Vec::new();
        for n in from..from + 12 {
            let layout = begun(session, 1, &format!("f{n}"), n).1;
            let nodes: Vec<u64> = layout.views[0].counting().map(|member| member.node).collect();
            copies.push((nodes[0], nodes[1]));
        }
        copies
    };
    assert_eq!(copies(&one, 100), [(1, 3); 12]);
    assert_eq!(copies(&two, 200), [(2, 3); 12]);
    // Whichever mount of the node it is, the other job's nodes are left out, too.
    assert_eq!(copies(&alone, 300), [(1, 3); 12]);
    let of_none = copies(&none, 400);
    assert!([1, 2].iter().all(|second| of_none.contains(&(3, *second))), "{of_none:?}");
}

#[test]
fn what_one_node_writes_is_on_it() {
    let mut site = Site::new(3);
    let (two, none) = (on(&site, 2, 1), on(&site, 0, 2));
    let (ino, early) = make(&two, 1, "f", 1);
    assert_eq!(early, None, "who else opens it first is to be seen");
    assert_eq!(said(&two, ino), Err(Errno::ENODATA), "it has no place yet");
    let layout = two.begin(ino, 1).unwrap();
    assert_eq!((layout.unit, &layout.stripes[..]), (UNIT, &[2][..]));
    two.write(ino, &layout, 0, b"here");
    assert_eq!(said(&none, ino).unwrap(), "stripes=1 unit=4194304 nodes=2:data-2");
    // Somebody else has it open for writing, too.
    let (ino, _) = make(&two, 1, "shared", 2);
    none.open(ino, 1, true).unwrap();
    assert_eq!(two.begin(ino, 2).unwrap().stripes.len(), 3);
    // No node, or none with a data server.
    assert_eq!(begun(&none, 1, "n", 2).1.stripes.len(), 3);
    assert_eq!(begun(&on(&site, 77, 3), 1, "m", 1).1.stripes.len(), 3);
    // Its server is away.
    site.kill_data(1);
    until("it counts as away", || site.service().nodes().measures().len() == 2);
    let (_, layout) = begun(&two, 1, "g", 3);
    assert_eq!(layout.stripes.len(), 2);
    assert!(!layout.stripes.contains(&2));
}

#[test]
fn a_directory_says_where_its_new_files_go() {
    let site = Site::new(3);
    let (two, none) = (on(&site, 2, 1), on(&site, 0, 2));
    let dir = mkdir(&none, 1, "d");
    let older = mkdir(&none, dir, "older");
    assert_eq!(said(&none, dir).unwrap(), "stripes=auto unit=auto local=auto");
    let (before, old) = begun(&none, dir, "before", 1);
    say(&none, dir, "stripes=2 unit=8MiB").unwrap();
    assert_eq!(said(&none, dir).unwrap(), "stripes=2 unit=8388608 local=auto");
    let (_, layout) = begun(&none, dir, "f", 2);
    assert_eq!((layout.unit, layout.stripes.len()), (2 * UNIT, 2));
    // What was placed stays there.
    assert_eq!(none.begin(before, 1).unwrap(), old);
    // New directories get it, others keep what they say.
    let below = mkdir(&none, dir, "below");
    let deep = mkdir(&none, below, "deep");
    assert_eq!(said(&none, deep).unwrap(), "stripes=2 unit=8388608 local=auto");
    assert_eq!(said(&none, older).unwrap(), "stripes=auto unit=auto local=auto");
    say(&none, dir, "stripes=auto unit=auto").unwrap();
    assert_eq!(said(&none, deep).unwrap(), "stripes=2 unit=8388608 local=auto");
    assert_eq!(begun(&none, dir, "g", 3).1.stripes.len(), 3);
    // Never on the writer's node: then nobody has to be waited for.
    say(&none, deep, "local=no").unwrap();
    let (_, early) = make(&two, deep, "h", 1);
    assert_eq!(early.unwrap().stripes.len(), 2);
    // Always: whoever else has it open.
    say(&none, deep, "local=yes stripes=auto unit=auto").unwrap();
    let (_, early) = make(&two, deep, "i", 2);
    assert_eq!(early.unwrap().stripes, [2]);
    // More than there are: as many as there are. And beginning with the writer's own.
    say(&none, deep, "stripes=64").unwrap();
    let (_, layout) = begun(&two, deep, "j", 3);
    assert_eq!((layout.stripes.len(), layout.stripes[0]), (3, 2));
    say(&none, deep, "unit=12MiB stripes=auto").unwrap();
    let (ino, layout) = begun(&two, deep, "k", 4);
    assert_eq!((layout.unit, &layout.stripes[..]), (3 * UNIT, &[2][..]));
    two.write(ino, &layout, 0, &[1; 100]);
    assert!(none.read(ino, &layout, 100) == [1; 100]);
}

#[test]
fn what_makes_no_sense_is_refused_and_what_is_said_is_durable() {
    let mut site = Site::new(2);
    let one = on(&site, 0, 1);
    let dir = mkdir(&one, 1, "d");
    let (file, _) = begun(&one, dir, "f", 1);
    for wrong in ["", "stripes=0", "unit=5", "what=1", "local=maybe", "\u{0}"] {
        assert_eq!(say(&one, dir, wrong), Err(Errno::EINVAL), "{wrong:?}");
    }
    assert_eq!(say(&one, file, "stripes=1"), Err(Errno::EPERM));
    say(&one, dir, "stripes=1 local=no").unwrap();
    say(&one, 1, "unit=16MiB").unwrap();
    let list = ListXattr { head: one.head(), ino: dir };
    assert!(ask(&one.meta, &list, &[], 4096).unwrap().1.is_empty(), "programs do not copy it");
    // What answered is durable as other metadata are: with the next sync.
    one.try_ask(&Fsync { head: one.head(), ino: dir }).unwrap();
    site.power_cut();
    let one = on(&site, 0, 2);
    assert_eq!(said(&one, dir).unwrap(), "stripes=1 unit=auto local=no");
    assert_eq!(begun(&one, 1, "g", 1).1.unit, 4 * UNIT);
    let remove = |ino| RemoveXattr { head: one.op(), ino, name: NAME.to_vec() };
    one.try_ask(&remove(dir)).unwrap();
    assert_eq!(said(&one, dir).unwrap(), "stripes=auto unit=auto local=auto");
    assert_eq!(one.try_ask(&remove(file)), Err(Errno::EPERM));
}
