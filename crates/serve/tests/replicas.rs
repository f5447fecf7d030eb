//! Goal: what was written to a file with two copies is read by whoever is left, whichever data server dies; a lost copy is made anew; nobody who was
//! left out answers; what was synced outlives both. Method: a metadata server and data servers behind real sockets, asked as a client does: by views,
//! at either member, and by the newest view when one does not answer; data servers are killed and started again.
#![allow(clippy::unwrap_used, reason = "a test")]

mod site;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use net::{Call, Client};
use prost::Message;
use proto::{
    Head, Layout, Reason, Request,
    control::NodeReport,
    copies::{Change, FindView, Member, StoreCopy, View},
    data::{Allocate, AllocateMode, Attrs, Object, Read, Sync, Write},
    metadata::{GetXattr, SetXattr, XattrMode},
};
use site::{
    ask, client_to,
    cluster::{META, Session, Site, options},
    until,
};
use types::{Errno, Ino};
use wire::{
    frame::{Body, Verdict},
    schema::Lane,
};

const MIB: u64 = 1 << 20;

fn say(session: &Session, words: &str) {
    let name = b"user.onfs.layout".to_vec();
    let set = SetXattr { head: session.op(), ino: 1, name, mode: XattrMode::Set.into(), kill_sgid: false };
    ask(&session.meta, &set, words.as_bytes(), 0).unwrap();
}

/// A client of one file of one stripe.
struct File {
    meta: Client,
    head: Option<Head>,
    data: HashMap<u64, Client>,
    ino: u64,
    layout: Layout,
}

impl File {
    fn of(site: &Site, session: &Session, ino: u64, layout: Layout) -> File {
        File {
            meta: client_to(&site.address(), META, Lane::Metadata),
            head: session.head(),
            data: site.data.iter().map(|data| (data.node, data.client())).collect(),
            ino,
            layout,
        }
    }

    fn view(&self) -> View {
        self.layout.views[0]
    }

    fn object(&self) -> Object {
        self.layout.object(self.ino, 0)
    }

    fn find(&mut self, silent: Option<Member>) -> View {
        let find = FindView { head: self.head, ino: self.ino, stripe: 0, view: self.view().number, silent };
        self.layout = ask(&self.meta, &find, &[], 0).unwrap().0.layout.unwrap();
        assert_eq!(self.layout.check(), Ok(()));
        self.view()
    }

    /// Asks one of them once. `None`: no answer.
    fn once<R: Request>(
        &self,
        node: u64,
        request: &R,
        body: &[u8],
        most: u32,
    ) -> Option<site::Asked<R::Answer>> {
        let call = Call {
            body: Body::new(body.to_vec()),
            answer_bytes_max: most,
            ..Call::new(R::METHOD.number(), request.encode_to_vec(), Instant::now() + Duration::from_secs(5))
        };
        let answered = self.data[&node].call(call).ok()?;
        match answered.header.verdict {
            Verdict::Done => {
                Some(Ok((R::Answer::decode(&answered.meta[..]).unwrap(), answered.body.into_vec())))
            }
            Verdict::Fault => Some(Err(proto::fault::read(&answered.meta))),
            Verdict::Refused => None,
        }
    }

    /// Until it is answered. `second`: rather by that one.
    fn ask<R: Request>(
        &mut self,
        second: bool,
        request: impl Fn(Option<Object>) -> R,
        body: &[u8],
        most: u32,
    ) -> (R::Answer, Vec<u8>) {
        let end = site::deadline();
        let mut second = second;
        loop {
            assert!(Instant::now() < end, "nobody answers by {:?}", self.view());
            let members: Vec<Member> = self.view().counting().collect();
            let member = if second { *members.last().unwrap() } else { members[0] };
            match self.once(member.node, &request(Some(self.object())), body, most) {
                Some(Ok(answer)) => return answer,
                Some(Err(fault)) if Reason::of(&fault) == Reason::AskPrimary => second = false,
                Some(Err(fault)) if Reason::of(&fault) == Reason::OtherView => {
                    self.find(None);
                    std::thread::sleep(Duration::from_millis(20));
                }
                Some(Err(fault)) if fault.errno == Errno::EAGAIN.raw() => {
                    std::thread::sleep(Duration::from_millis(fault.after_ms.into()));
                    self.find(None);
                }
                Some(Err(fault)) => panic!("{fault:?}"),
                None => drop(self.find(Some(member))),
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let write = |object| Write { object, offset, sync: false, joined: 0, server: 0 };
        assert_eq!(self.ask(false, write, bytes, 0).0.bytes as usize, bytes.len());
    }

    fn read(&mut self, second: bool, offset: u64, length: u32) -> Vec<u8> {
        self.ask(second, |object| Read { object, offset, length }, &[], length).1
    }

    fn sync(&mut self) {
        self.ask(false, |object| Sync { object }, &[], 0);
    }

    /// Two count, both of them up.
    fn wait_until_whole(&mut self, gone: u64) {
        until("there are two copies again", || {
            let view = self.find(None);
            std::thread::sleep(Duration::from_millis(50));
            view.counting().count() == 2 && view.all().all(|member| member.node != gone)
        });
    }
}

fn begin(site: &Site, session: &Session, name: &str, opening: u64) -> File {
    let ino = session.create(name, opening).unwrap().ino;
    let layout = session.begin(ino, opening).unwrap();
    assert!(layout.is_twofold(), "{layout:?}");
    File::of(site, session, ino, layout)
}

fn pattern(n: u8, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ n).collect()
}

#[test]
fn both_have_what_is_written_and_either_answers() {
    let site = Site::with(3, options());
    let session = site.session();
    say(&session, "copies=2 stripes=1");
    let mut file = begin(&site, &session, "f", 1);
    assert_eq!(file.view().counting().count(), 2);
    file.write(0, &pattern(1, MIB));
    file.write(MIB / 2, &pattern(2, MIB));
    let mut there = pattern(1, MIB / 2);
    there.extend(pattern(2, MIB));
    for second in [false, true] {
        assert_eq!(file.read(second, 0, 4 << 20), there);
    }
    file.sync();
    // Who is asked without a view, or is none of the two, does not answer.
    let read = Read { object: Some(Object { view: None, ..file.object() }), offset: 0, length: 1 };
    let [primary, second] = [0, 1].map(|n| file.view().counting().nth(n).unwrap().node);
    assert_eq!(file.once(primary, &read, &[], 1).unwrap().unwrap_err().errno, Errno::EINVAL.raw());
    let third = 6 - primary - second;
    let read = Read { object: Some(file.object()), offset: 0, length: 1 };
    let fault = file.once(third, &read, &[], 1).unwrap().unwrap_err();
    assert_eq!(Reason::of(&fault), Reason::OtherView);
    let write = Write { object: Some(file.object()), offset: 0, sync: false, joined: 0, server: 0 };
    let fault = file.once(second, &write, b"x", 1).unwrap().unwrap_err();
    assert_eq!(Reason::of(&fault), Reason::AskPrimary);
    // A hole, a cut, and what the metadata server sees.
    let zero = |object| Allocate {
        object,
        mode: AllocateMode::Zero.into(),
        offset: 4096,
        length: 8192,
        joined: 0,
        server: 0,
    };
    file.ask(false, zero, &[], 0);
    there[4096..12288].fill(0);
    session.set_size(file.ino, MIB, false).unwrap();
    there.truncate(MIB as usize);
    for second in [false, true] {
        assert_eq!(file.read(second, 0, 4 << 20), there);
    }
    session.set_size(file.ino, MIB + 10, false).unwrap();
    there.extend([0; 10]);
    for second in [false, true] {
        assert_eq!(file.read(second, 0, 4 << 20), there);
    }
    assert_eq!(session.attr(file.ino).unwrap().size, MIB + 10);
    let name = b"user.onfs.layout".to_vec();
    let shown =
        ask(&session.meta, &GetXattr { head: session.head(), ino: file.ino, name }, &[], 4096).unwrap().1;
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains(&format!("seconds={second}:")), "{shown}");
    // It is removed at both.
    let object = Ino::from_raw(file.object().ino).unwrap();
    let held = |n: usize| site.data[n].store().get(&namespace::key::held(object)).unwrap().is_some();
    assert_eq!((0..3).filter(|n| held(*n)).count(), 2);
    session.close(1);
    session.unlink("f").unwrap();
    until("it is removed at both", || (0..3).all(|n| !held(n)));
}

#[test]
fn whoever_dies_nothing_is_lost_and_a_copy_is_made_anew() {
    let mut site = Site::with(3, options());
    let session = site.session();
    say(&session, "copies=2 stripes=1");
    let mut file = begin(&site, &session, "f", 1);
    let mut there = pattern(0, 3 * MIB);
    file.write(0, &there[..MIB as usize]);
    file.write(MIB, &there[MIB as usize..]);
    for round in 0..4_u8 {
        // The primary and the second in turn.
        let nodes: Vec<u64> = file.view().counting().map(|member| member.node).collect();
        let dies = nodes[usize::from(round) % nodes.len()];
        site.kill_data(dies as usize - 1);
        let part = pattern(round + 1, MIB);
        let at = u64::from(round) * MIB / 2;
        file.write(at, &part);
        there[at as usize..(at + MIB) as usize].copy_from_slice(&part);
        assert_eq!(file.read(false, 0, 4 << 20), there);
        file.wait_until_whole(dies);
        for second in [false, true] {
            assert_eq!(file.read(second, 0, 4 << 20), there, "round {round}");
        }
        assert_eq!(session.attr(file.ino).unwrap().size, 3 * MIB);
        site.start_data(dies as usize - 1);
    }
}

/// A second that counted from the beginning and had nothing of the first primary goes on alone; what that one sent reaches it then.
#[test]
fn regression_what_a_former_primary_sent_takes_nothing_away() {
    let mut site = Site::with(3, options());
    let session = site.session();
    say(&session, "copies=2 stripes=1");
    let mut file = begin(&site, &session, "f", 1);
    let late = StoreCopy {
        object: Some(file.object()),
        serial: 1,
        from: 0,
        to: 4096,
        done: 0,
        length: 0,
        change: Change::Bytes.into(),
        size: 0,
        mtime: None,
    };
    let [dies, remains] = [0, 1].map(|n| file.view().counting().nth(n).unwrap().node);
    site.kill_data(dies as usize - 1);
    file.write(0, &pattern(1, MIB));
    assert_eq!(file.view().primary.node, remains);
    let said = file.once(remains, &late, &[9; 4096], 0).unwrap().unwrap().0;
    assert!(!said.stored && said.newer.is_some(), "{said:?}");
    file.wait_until_whole(dies);
    for second in [false, true] {
        assert!(file.read(second, 0, 4 << 20) == pattern(1, MIB), "what was answered is there: {second}");
    }
}

#[test]
fn a_file_on_the_only_data_server_gets_its_second_copy_when_there_is_another_one() {
    let mut site = Site::with(1, options());
    let session = site.session();
    say(&session, "copies=2");
    let mut file = begin(&site, &session, "f", 1);
    file.write(0, &pattern(1, MIB));
    assert_eq!(file.view().counting().count(), 1);
    site.add_data(site::DataSite::started(2));
    file = File::of(&site, &session, file.ino, file.layout.clone());
    file.wait_until_whole(0);
    for second in [false, true] {
        assert_eq!(file.read(second, 0, 4 << 20), pattern(1, MIB));
    }
    let attrs = file.ask(false, |object| Attrs { objects: object.into_iter().collect() }, &[], 0).0;
    assert_eq!(attrs.attrs[0].size, MIB);
}

/// Goal: what is to be copied is more than can be sent while a second is waited for, and none is taken for one that does not answer: each is made once.
/// Method: files of 24 MiB in all, at 4 MiB a second.
#[test]
fn regression_more_than_can_be_sent_soon_is_sent_in_time() {
    let mut data = site::DataSite::new(1);
    data.options.copy_rate = 4 * MIB;
    data.start();
    let mut site = Site::of(vec![data], options());
    let session = site.session();
    say(&session, "copies=2 stripes=1");
    let mut files: Vec<File> = (0..8_u8)
        .map(|n| {
            let mut file = begin(&site, &session, &format!("f{n}"), u64::from(n) + 1);
            (0..3_u8).for_each(|part| file.write(u64::from(part) * MIB, &pattern(n * 3 + part, MIB)));
            file
        })
        .collect();
    site.add_data(site::DataSite::started(2));
    let of = |file: &File| (file.ino, file.layout.clone());
    let known: Vec<_> = files.iter().map(of).collect();
    files = known.into_iter().map(|(ino, layout)| File::of(&site, &session, ino, layout)).collect();
    for (n, file) in files.iter_mut().enumerate() {
        file.wait_until_whole(0);
        // One alone, one with a second that is made, and one with two.
        assert_eq!(file.view().number, 3, "file {n}");
        for part in 0..3_u8 {
            assert!(file.read(true, u64::from(part) * MIB, MIB as u32) == pattern(n as u8 * 3 + part, MIB));
        }
    }
}

/// Goal: a second copy is made though the primary was not told of it when that was decided, and nobody asks for the file meanwhile. Method: what the
/// metadata server says to the primary does not arrive, and is lost; then it can be reached again.
#[test]
fn regression_a_primary_that_was_not_told_of_its_second_is_told_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("before");
    let mut data = site::DataSite::started(1);
    let net::Address::Unix(to) = data.address().clone() else { panic!("{}", data.address()) };
    let cuts = site::cuts::Cuts::before(&to, &at);
    data.shown = Some(cuts.address());
    let mut site = Site::of(vec![data], options());
    let session = site.session();
    say(&session, "copies=2");
    let mut file = begin(&site, &session, "f", 1);
    file.write(0, &pattern(1, MIB));
    cuts.cut(META);
    site.add_data(site::DataSite::started(2));
    until("a second one is to be made", || {
        std::thread::sleep(Duration::from_millis(20));
        file.find(None).second.is_some()
    });
    // Longer than the metadata server waits.
    std::thread::sleep(Duration::from_secs(3));
    drop(cuts);
    let _cuts = site::cuts::Cuts::before(&to, &at);
    file = File::of(&site, &session, file.ino, file.layout.clone());
    file.wait_until_whole(0);
    assert_eq!(file.read(true, 0, 4 << 20), pattern(1, MIB));
}

#[test]
fn what_was_synced_outlives_both() {
    let mut site = Site::with(2, options());
    let session = site.session();
    say(&session, "copies=2");
    let mut file = begin(&site, &session, "f", 1);
    file.write(0, &pattern(1, MIB));
    file.sync();
    let before = file.view();
    for n in 0..2 {
        site.kill_data(n);
    }
    for n in 0..2 {
        site.data[n].start();
        site.report(n);
    }
    assert_eq!(file.read(false, 0, 4 << 20), pattern(1, MIB));
    assert_eq!(
        (before.number >> 32, file.view().number >> 32),
        (0, 1),
        "it is said that something may be lost"
    );
    file.wait_until_whole(0);
    assert_eq!(file.read(true, 0, 4 << 20), pattern(1, MIB));
}

/// Bytes of pieces that data servers have sent to seconds, since each was started.
fn sent(site: &Site) -> u64 {
    let of = |data: &site::DataSite| {
        let mut about = NodeReport::default();
        data.service().report(&mut about, 0);
        about.copied
    };
    site.data.iter().map(of).sum()
}

/// Goal: who comes back is sent what differs alone (S-418), though it does not know what it has. Method: it is killed, or loses its memory and has what was
/// synced; a part is written meanwhile, and what is sent is counted.
#[test]
fn who_comes_back_is_sent_what_differs() {
    let mut site = Site::with(2, options());
    let session = site.session();
    say(&session, "copies=2 stripes=1");
    let mut file = begin(&site, &session, "f", 1);
    let mut there = Vec::new();
    for n in 0..24 {
        let part = pattern(n, MIB);
        file.write(u64::from(n) * MIB, &part);
        there.extend(part);
    }
    file.sync();
    for round in 0..3_u8 {
        file.wait_until_whole(0);
        // The primary, which has sent nothing as the second, among them.
        let members: Vec<u64> = file.view().counting().map(|member| member.node).collect();
        let n = members[usize::from(round != 1)] as usize - 1;
        until("it is in a tier that outlives it", || {
            site.service().cluster_now().nodes.iter().all(|node| node.report.only_in_memory == 0)
        });
        let before = sent(&site);
        let own = {
            let mut about = NodeReport::default();
            site.data[n].service().report(&mut about, 0);
            about.copied
        };
        if round == 2 {
            site.lose_memory_of_data(n);
        } else {
            site.kill_data(n);
        }
        let at = u64::from(round) * 5 * MIB + 77;
        let part = pattern(100 + round, MIB);
        file.write(at, &part);
        there[at as usize..at as usize + part.len()].copy_from_slice(&part);
        if round != 2 {
            site.start_data(n);
        }
        file.wait_until_whole(0);
        let sent = sent(&site) + own - before;
        // What comes while it is made the second goes there as it comes.
        let least = if round == 2 { 1 } else { MIB };
        assert!((least..4 * MIB).contains(&sent), "{sent} in round {round}");
        for second in [false, true] {
            for (n, part) in there.chunks(4 << 20).enumerate() {
                assert_eq!(file.read(second, n as u64 * (4 << 20), 4 << 20), part, "round {round}");
            }
        }
    }
}

/// Goal: who counts and is there is not taken for one that has lost everything, whatever old reports say; or what it has answered would be gone. Method:
/// of both there are only reports of earlier lives for a while, as who takes over may have heard, or as come late.
#[test]
fn regression_old_reports_revive_nobody() {
    let mut site = Site::with(2, options());
    let session = site.session();
    say(&session, "copies=2");
    let mut file = begin(&site, &session, "f", 1);
    file.write(0, &pattern(1, MIB));
    let before = file.view();
    let said = site.service().cluster_now().nodes;
    (0..2).for_each(|n| site.cut_off_data(n));
    let client = client_to(&site.address(), META, Lane::Control);
    for _ in 0..15 {
        for node in &said {
            let late = NodeReport { life: 7, copy_words: Vec::new(), ..node.report.clone() };
            ask(&client, &late, &[], 1 << 20).unwrap();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    (0..2).for_each(|n| site.report(n));
    file.wait_until_whole(0);
    assert_eq!(file.view().number >> 32, before.number >> 32, "nobody has lost anything");
    for second in [false, true] {
        assert_eq!(file.read(second, 0, 4 << 20), pattern(1, MIB));
    }
}

/// Goal: of what both have lost a part gets a second copy all the same, which has lost it, too, and is written over at both. Method: one part is
/// synced, one is not, when both data servers lose their memory at once; what is asked of each member then.
#[test]
fn regression_what_has_lost_a_part_has_two_copies_of_the_rest() {
    const SAU: u64 = 4 << 20;
    site::say::begin();
    let mut site = Site::with(2, options());
    let session = site.session();
    say(&session, "copies=2 stripes=1");
    let mut file = begin(&site, &session, "f", 1);
    file.write(0, &pattern(1, SAU));
    // Not by a sync, after which all would go to the SSD at once.
    std::thread::sleep(Duration::from_secs(1));
    until("it is copied to the SSD", || {
        site.service().cluster_now().nodes.iter().all(|node| node.report.only_in_memory == 0)
    });
    // What comes in order behind it is lost, and has an end that is known; so has what nobody knows the end of.
    file.write(SAU, &pattern(2, SAU));
    file.write(2 * SAU, &pattern(3, MIB));
    (0..2).for_each(|n| site.cut_off_data(n));
    (0..2).for_each(|n| site.data[n].reboot());
    (0..2).for_each(|n| site.report(n));
    let mut file = File::of(&site, &session, file.ino, file.layout.clone());
    assert_eq!(file.read(false, 0, SAU as u32), pattern(1, SAU));
    file.wait_until_whole(0);
    assert_eq!(file.view().number >> 32, 1);
    let nodes: Vec<u64> = file.view().counting().map(|member| member.node).collect();
    let read = |file: &File, n: usize, offset: u64, length: u32| {
        let read = Read { object: Some(file.object()), offset, length };
        file.once(nodes[n], &read, &[], length).unwrap()
    };
    for n in 0..2 {
        assert_eq!(read(&file, n, 0, SAU as u32).unwrap().1, pattern(1, SAU), "{n}");
        for offset in [SAU, SAU + MIB, 2 * SAU - 4096, 2 * SAU] {
            let fault = read(&file, n, offset, 4096).unwrap_err();
            let is_lost =
                fault.errno == Errno::EIO.raw() || n == 1 && Reason::of(&fault) == Reason::AskPrimary;
            assert!(is_lost, "{n} at {offset}: {fault:?}");
        }
    }
    assert_eq!(lost_of(&site), [("/f".to_owned(), true)]);
    // A part of what is lost cannot be written, and nobody is thrown out for it.
    let write = Write { object: Some(file.object()), offset: SAU + MIB, sync: false, joined: 0, server: 0 };
    assert_eq!(file.once(nodes[0], &write, b"x", 0).unwrap().unwrap_err().errno, Errno::EIO.raw());
    let before = file.view();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(file.find(None), before);
    // All of it can.
    file.write(SAU, &pattern(4, SAU));
    file.write(2 * SAU, &pattern(5, SAU));
    for second in [false, true] {
        assert_eq!(file.read(second, SAU, SAU as u32), pattern(4, SAU));
        assert_eq!(file.read(second, 2 * SAU, SAU as u32), pattern(5, SAU));
        assert_eq!(file.read(second, 3 * SAU, 4096), []);
    }
    assert_eq!(session.attr(file.ino).unwrap().size, 3 * SAU);
    // Whoever is left has it all.
    site.kill_data(nodes[0] as usize - 1);
    assert_eq!(file.read(false, 0, SAU as u32), pattern(1, SAU));
    assert_eq!(file.read(false, SAU, SAU as u32), pattern(4, SAU));
}

/// Paths of the files that are listed, and whether something of them is lost.
fn lost_of(site: &Site) -> Vec<(String, bool)> {
    site.service().cluster_now().lost.into_iter().map(|file| (file.path, file.bytes > 0)).collect()
}

/// One writes numbers that rise to two blocks, two read at either member: nobody sees a number that is smaller than one that was answered before.
#[test]
fn readers_at_either_member_see_one_order_while_data_servers_die() {
    const BLOCK: u64 = 4096;
    let mut site = Site::with(3, options());
    let session = site.session();
    say(&session, "copies=2 stripes=1");
    let mut file = begin(&site, &session, "f", 1);
    for block in 0..2 {
        file.write(block * BLOCK, &[0; BLOCK as usize]);
    }
    let written: Arc<[AtomicU64; 2]> = Arc::default();
    let ends = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for n in 0..3 {
        let mut file = File::of(&site, &session, file.ino, file.layout.clone());
        let (written, ends) = (written.clone(), ends.clone());
        threads.push(std::thread::spawn(move || {
            let mut count = 0_u64;
            while !ends.load(Ordering::Acquire) {
                count += 1;
                let block = count as usize % 2;
                if n == 0 {
                    let bytes: Vec<u8> = count.to_le_bytes().repeat(BLOCK as usize / 8);
                    file.write(block as u64 * BLOCK, &bytes);
                    written[block].store(count, Ordering::Release);
                } else {
                    let least = written[block].load(Ordering::Acquire);
                    let bytes = file.read(n == 2, block as u64 * BLOCK, BLOCK as u32);
                    let seen = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    assert!(seen >= least, "{seen} after {least} by {:?}", file.view());
                    written[block].fetch_max(seen.min(least), Ordering::AcqRel);
                }
            }
            count
        }));
    }
    for round in 0..3 {
        let dies = file.find(None).counting().nth(round % 2).unwrap().node;
        site.kill_data(dies as usize - 1);
        file.wait_until_whole(dies);
        site.start_data(dies as usize - 1);
    }
    ends.store(true, Ordering::Release);
    for thread in threads {
        assert!(thread.join().unwrap() > 0);
    }
}
