//! Goal: what is on two data servers is read and written without an error or a lost byte while either of them is killed, cut off or comes back, and
//! the metadata server with them (S-371 to S-376). Method: the real services behind real sockets, clients without a kernel, and a file whose blocks say
//! which write they are of: each read is checked at once against all that was answered before.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "replicas/blocks.rs"]
mod blocks;
#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{sync::Arc, time::Duration};

use blocks::{BLOCK, Blocks};
use fuse::{SetattrArgs, SetxattrArgs};
use proto::{Layout, attr::Caller, copies::FindView};
use remote::{Access, AllocateArgs, OpenFile, Place, Remote, RemoteOptions, WriteHow};
use site::{
    DataSite,
    cluster::{Session, Site, options},
    credentials,
    cuts::{Cuts, node_in},
    until,
};
use types::{Errno, Ino, SAU_BYTES};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const A: u64 = 900;
const B: u64 = 901;

/// It gives nothing up that a machine under load may yet do.
fn client(site: &Site, node: u64, cache: u64) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], credentials(node));
    options.patience = Duration::from_secs(100);
    options.longest = Duration::from_secs(110);
    options.cache = cache;
    Remote::start(options).unwrap()
}

/// Two clients of a file with two copies.
struct Run {
    site: Site,
    cuts: Vec<Cuts>,
    dir: tempfile::TempDir,
    session: Session,
    a: Arc<Remote>,
    b: Arc<Remote>,
    of_a: Arc<OpenFile>,
    of_b: Arc<OpenFile>,
}

impl Run {
    fn new(servers: u64, stripes: u32) -> Run {
        site::say::begin();
        let dir = tempfile::tempdir().unwrap();
        let (mut data, mut cuts) = (Vec::new(), Vec::new());
        for node in 1..=servers {
            let mut one = DataSite::started(node);
            let to = one.address().to_string();
            let at = dir.path().join(format!("cuts-{node}"));
            cuts.push(Cuts::before(to.strip_prefix("unix:").unwrap().as_ref(), &at));
            one.shown = cuts.last().map(Cuts::address);
            data.push(one);
        }
        let site = Site::of(data, options());
        let (a, b) = (client(&site, A, 64 << 20), client(&site, B, 0));
        let two = a.mkdir(CALLER, Place { dir: Ino::ROOT, name: b"two" }, 0o755).unwrap().ino;
        let word = format!("copies=2 stripes={stripes}");
        let name = b"user.onfs.layout";
        let args = SetxattrArgs { name, value: word.as_bytes(), flags: 0, acl_kill_sgid: false };
        a.setxattr(two, &args).unwrap();
        let (attr, of_a) = a.create(CALLER, Place { dir: two, name: b"f" }, 0o644, BOTH).unwrap();
        assert_eq!(a.write(&of_a, 0, &[0; BLOCK], WriteHow::default()), Ok(BLOCK));
        let of_b = b.open(attr.ino, BOTH).unwrap();
        let session = site.session();
        Run { site, cuts, dir, session, a, b, of_a, of_b }
    }

    fn layout(&self) -> Layout {
        let ino = self.of_a.ino.get();
        let asked = FindView { head: self.session.head(), ino, stripe: 0, view: 0, silent: None };
        self.session.try_ask(&asked).unwrap().layout.unwrap()
    }

    /// (primary, second) of the first stripe, as places of `site.data`; each stripe has two that count.
    fn two(&self) -> (usize, usize) {
        let mut two = (0, 0);
        until("each stripe has two copies", || {
            let views = self.layout().views;
            let first: Vec<u64> = views[0].counting().map(|member| member.node).collect();
            two = (first[0] as usize - 1, first.last().map_or(0, |node| *node as usize - 1));
            views.iter().all(|view| view.counting().count() == 2)
        });
        two
    }

    /// They are written and read by both while something is done.
    fn while_in_use(&mut self, blocks: &Blocks, something: impl FnOnce(&mut Run)) {
        let users = [(self.a.clone(), self.of_a.clone()), (self.b.clone(), self.of_b.clone())];
        blocks.while_used([&users[0], &users[1]], || something(self));
    }

    fn end(self) {
        self.a.shutdown();
        self.b.shutdown();
        drop((self.site, self.cuts, self.dir));
    }
}

/// The primary, then the second, then the next primary: each is killed as soon as there are two again, so each that was made anew has
/// to do alone for a while.
#[test]
fn either_may_be_killed_while_it_is_written_and_read() {
    let mut run = Run::new(3, 1);
    let blocks = Blocks::new(24, SAU_BYTES / 4);
    run.while_in_use(&blocks, |run| {
        for turn in 0..4 {
            let (primary, second) = run.two();
            blocks.go_on();
            let n = if turn % 2 == 0 { primary } else { second };
            run.site.kill_data(n);
            blocks.go_on();
            run.two();
            run.site.start_data(n);
        }
        run.two();
        blocks.go_on();
    });
    run.end();
}

#[test]
fn a_striped_file_goes_on_without_any_of_its_servers() {
    let mut run = Run::new(4, 2);
    let blocks = Blocks::new(24, SAU_BYTES / 2);
    run.while_in_use(&blocks, |run| {
        for n in 0..4 {
            run.two();
            blocks.go_on();
            run.site.kill_data(n);
            blocks.go_on();
            run.two();
            run.site.start_data(n);
        }
    });
    run.end();
}

/// There is nobody else who could have the second copy: whoever was killed comes back and gets it.
#[test]
fn who_was_killed_comes_back_and_is_made_the_second() {
    let mut run = Run::new(2, 1);
    let blocks = Blocks::new(12, SAU_BYTES / 4);
    run.while_in_use(&blocks, |run| {
        for _ in 0..2 {
            let (primary, _) = run.two();
            run.site.kill_data(primary);
            blocks.go_on();
            run.site.start_data(primary);
            let (_, second) = run.two();
            assert_eq!(second, primary);
        }
    });
    run.end();
}

/// With a power cut what was in its memory is gone.
#[test]
fn who_lost_its_memory_gets_all_of_it_again() {
    let mut run = Run::new(2, 1);
    let blocks = Blocks::new(12, SAU_BYTES / 4);
    run.while_in_use(&blocks, |run| {
        for turn in 0..2 {
            let (primary, second) = run.two();
            blocks.go_on();
            run.site.power_cut_data(if turn == 0 { second } else { primary });
            blocks.go_on();
        }
        run.two();
    });
    run.end();
}

#[test]
fn the_metadata_server_is_killed_with_a_member() {
    let mut run = Run::new(3, 1);
    let blocks = Blocks::new(12, SAU_BYTES / 4);
    run.while_in_use(&blocks, |run| {
        for turn in 0..2 {
            let (primary, second) = run.two();
            blocks.go_on();
            let n = if turn == 0 { primary } else { second };
            run.site.kill_data(n);
            run.site.vanish();
            run.site.start();
            blocks.go_on();
            run.session.mount();
            run.two();
            run.site.start_data(n);
        }
    });
    run.end();
}

#[test]
fn two_that_do_not_hear_each_other_are_not_both_right() {
    let mut run = Run::new(3, 1);
    let blocks = Blocks::new(12, SAU_BYTES / 4);
    run.while_in_use(&blocks, |run| {
        for _ in 0..2 {
            let (primary, second) = run.two();
            blocks.go_on();
            let (first, other) = (run.site.data[primary].node, run.site.data[second].node);
            run.cuts[primary].cut(other);
            run.cuts[second].cut(first);
            blocks.go_on();
            run.two();
            run.cuts.iter().for_each(Cuts::heal);
        }
    });
    run.end();
}

/// One client reaches one member only, and the other client both.
#[test]
fn a_client_that_is_cut_off_from_one_goes_on() {
    let mut run = Run::new(3, 1);
    let blocks = Blocks::new(12, SAU_BYTES / 4);
    run.while_in_use(&blocks, |run| {
        for turn in 0..2 {
            let (primary, second) = run.two();
            blocks.go_on();
            run.cuts[if turn == 0 { second } else { primary }].cut(B);
            blocks.go_on();
            run.cuts.iter().for_each(Cuts::heal);
        }
    });
    run.end();
}

/// A server that everybody but its reports is cut off from, as one that hangs.
#[test]
fn a_primary_that_nobody_reaches_answers_nobody_when_it_is_reached_again() {
    let mut run = Run::new(3, 1);
    let blocks = Blocks::new(12, SAU_BYTES / 4);
    run.while_in_use(&blocks, |run| {
        let (primary, _) = run.two();
        blocks.go_on();
        for node in [1, 2, 3, site::cluster::META, A, B] {
            run.cuts[primary].cut(node);
        }
        blocks.go_on();
        run.cuts.iter().for_each(Cuts::heal);
        run.two();
        blocks.go_on();
    });
    run.end();
}

/// Nobody writes or reads: that the two cannot reach each other is seen by who syncs alone.
#[test]
fn regression_a_sync_without_the_second_ends() {
    let run = Run::new(3, 1);
    let (primary, second) = run.two();
    let (first, other) = (run.site.data[primary].node, run.site.data[second].node);
    run.cuts[primary].cut(other);
    run.cuts[second].cut(first);
    assert_eq!(run.a.fsync(&run.of_a), Ok(()));
    run.session.mount();
    assert_ne!(run.two(), (primary, second));
    run.cuts.iter().for_each(Cuts::heal);
    run.end();
}

/// Sizes, cuts, holes and appends, with either one alive.
#[test]
fn sizes_cuts_and_holes_are_those_of_both() {
    let mut run = Run::new(3, 1);
    let append = WriteHow { append: true, ..WriteHow::default() };
    let mut want = vec![0_u8; BLOCK];
    for turn in 0..4_u8 {
        let (primary, second) = run.two();
        let n = if turn % 2 == 0 { primary } else { second };
        let piece: Vec<u8> = (0..200_000_usize).map(|i| (i / 300) as u8 ^ turn).collect();
        let write = |client: &Remote, file: &OpenFile, want: &mut Vec<u8>| {
            assert_eq!(client.write(file, 0, &piece, append), Ok(piece.len()));
            want.extend(&piece);
        };
        write(&run.a, &run.of_a, &mut want);
        run.site.kill_data(n);
        write(&run.b, &run.of_b, &mut want);
        assert_eq!(run.a.getattr(run.of_a.ino).unwrap().size, want.len() as u64);
        let hole = AllocateArgs { offset: 10_000, length: 50_000, mode: 3 };
        run.a.allocate(&run.of_a, hole).unwrap();
        want[10_000..60_000].fill(0);
        want.truncate(want.len() - 70_001);
        let size = Some(want.len() as u64);
        run.b.setattr(run.of_a.ino, &SetattrArgs { size, ..SetattrArgs::default() }).unwrap();
        for (client, file) in [(&run.a, &run.of_a), (&run.b, &run.of_b)] {
            let mut bytes = vec![0xee; want.len() + 10];
            assert_eq!(client.read(file, 0, &mut bytes), Ok(want.len()));
            assert!(bytes[..want.len()] == want, "turn {turn}");
            assert_eq!(client.seek(file, want.len() as u64 - 1, 4), Ok(want.len() as u64));
            assert_eq!(client.fsync(file), Ok(()));
        }
        run.two();
        run.site.start_data(n);
    }
    run.end();
}

/// A handshake whose checksum or length has a bracket was waited for without an end, and its server looked as if it could not be reached.
#[test]
fn regression_who_asks_is_found_behind_any_bytes() {
    assert_eq!(node_in(b"\x5b\0\xff[ab]\x5d[[17]\x5b\x0a"), Some(17));
    assert_eq!(node_in(b"[1"), None);
}

/// Without a device everything is in memory, and both lose it.
#[test]
fn what_both_have_lost_is_an_error() {
    let mut run = Run::new(2, 1);
    let bytes = vec![7; 300_000];
    run.a.write(&run.of_a, 0, &bytes, WriteHow::default()).unwrap();
    run.two();
    run.a.shutdown();
    run.b.shutdown();
    for n in 0..2 {
        run.site.kill_data(n);
    }
    for n in 0..2 {
        run.site.data[n].start();
        run.site.data[n].reboot();
        run.site.report(n);
    }
    let a = client(&run.site, A + 10, 0);
    let file = a.open(run.of_a.ino, BOTH).unwrap();
    let mut buf = vec![0; 4096];
    until("it is an error", || a.read(&file, 100_000, &mut buf) == Err(Errno::EIO));
    assert_eq!(a.read(&file, 0, &mut buf), Err(Errno::EIO), "and no zeros");
    a.shutdown();
    drop((run.site, run.cuts, run.dir));
}
