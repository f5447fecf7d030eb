//! Goal: bytes on the wire stay as they are, bounds are kept, and nothing that comes makes a decoder panic. Method: golden bytes
//! of every message; one message beyond each bound; fuzzing of all methods.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use namespace::SetTime as Time1;
use prost::Message;
use proto::{
    BATCH_MAX, Bad, Head, Layout, Method, Nothing, Request, SessionId,
    attr::{Attr, Caller, Changes, SetTime, Time},
    circles::*,
    closing::{CLOSINGS_MAX, CloseMany, Closing},
    control::*,
    copies::*,
    data::{self, AllocateMode, Object, ObjectAttr, Whence},
    decode,
    leases::*,
    lending::{Lend, Lent, StoreTo},
    locks::*,
    metadata::{self as m, *},
    moving::*,
    owners::*,
    spread::{FindSpread, GetAlone, Over, ReadDots, SpreadOver},
    tail::*,
    taking_out::*,
    untouched::GetUntouched,
    watch::*,
    writes::{KeepWrites, WritesKept},
};
use types::{Errno, FileKind, Ino, ProjectId, Slot, Timestamp};

const SESSION: SessionId = SessionId(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);

fn head() -> Option<Head> {
    Some(Head::operation(SESSION, 7, 5))
}

fn joined() -> Option<Head> {
    Some(Head { joined: 9, ..Head::operation(SESSION, 7, 5) })
}

fn time(sec: i64) -> Option<Time> {
    Some(Time { sec, nsec: 999 })
}

fn attr() -> Option<Attr> {
    let at = |sec| Timestamp { sec, nsec: 1 };
    Some(Attr::from(types::Attr {
        ino: Ino::from_raw(1 << 40 | 2).unwrap(),
        kind: FileKind::Regular,
        mode: 0o4755,
        nlink: 3,
        uid: 4,
        gid: 5,
        rdev: 6,
        size: 7,
        blocks: 8,
        atime: at(-9),
        mtime: at(10),
        ctime: at(11),
        btime: at(12),
        project: ProjectId(13),
    }))
}

fn layout() -> Option<Layout> {
    Some(Layout { generation: 1, unit: 4 << 20, stripes: vec![3, 1], moved: vec![], views: vec![] })
}

fn caller() -> Option<Caller> {
    Some(Caller { uid: 1000, gid: 100, umask: 0o22 })
}

fn object() -> Object {
    Object { ino: 9, generation: 1, view: None }
}

fn name() -> Vec<u8> {
    b"name".to_vec()
}

fn changes() -> Changes {
    Changes {
        mode: Some(0o640),
        uid: Some(1),
        gid: Some(2),
        size: Some(3),
        atime: Some(SetTime { at: None }),
        mtime: Some(SetTime { at: time(4) }),
        ctime: time(5),
        kill_suidgid: true,
    }
}

fn report() -> NodeReport {
    NodeReport {
        node: 2,
        name: "n2".into(),
        rack: "r1".into(),
        addresses: vec!["h:7401".into()],
        incarnation: 3,
        total: 4,
        free: 5,
        busy: 6,
        tiers: vec![TierNow {
            tier: 1,
            limit: 2,
            used: 3,
            available: 4,
            stop_write: 5,
            writers_wait: true,
            slow: false,
        }],
        only_in_memory: 7,
        waiting: 8,
        version: "v".into(),
        copies: 9,
        refuses: true,
        roster: 10,
        pressure: None,
        state: Vec::new(),
        life: 0,
        copy_words: Vec::new(),
        peers_epoch: 0,
        copied: 0,
    }
}

fn pressure() -> Pressure {
    Pressure { lacking: 1, forced: true, spare: 2, most: 3, safe: true, waiting: 4, aged: 5 }
}

fn node_reported() -> NodeReported {
    let roster = Roster {
        version: 10,
        first: 1,
        last: 5,
        there: vec![2, 4],
        earlier: true,
        given_up: vec![7],
        ..Roster::default()
    };
    NodeReported {
        map_epoch: 1,
        again_ms: 2000,
        lease_ms: 24_000,
        roster: Some(roster),
        ..NodeReported::default()
    }
}

fn node_reported_among() -> NodeReported {
    let roster = Roster { version: 1, slots: runs([2, 3]), epochs: vec![5, 6], ..Roster::default() };
    NodeReported { server: 7, roster: Some(roster), ..NodeReported::default() }
}

fn load() -> Load {
    Load { requests: 1, errors: 2, received: 3, sent: 4, micros: 5 }
}

fn watch() -> Vec<Golden> {
    let clients = vec![ClientLoad { client: 1 << 63, load: load() }];
    let (metadata, data) = (Some(load()), Some(Load::default()));
    let client = ClientNow {
        client: 1 << 63,
        host: "h".into(),
        since_ms: 1,
        silent_ms: 2,
        openings: 3,
        writing: 4,
        references: 5,
    };
    let node = NodeNow { report: report(), heard_ms: 1, away: true, draining: true };
    let cluster = ClusterNow {
        epoch: 1,
        node: 2,
        name: "n".into(),
        up_ms: 3,
        grace_ms: 4,
        files: 5,
        inodes: 6,
        report_ms: 7,
        clients: vec![client],
        nodes: vec![node],
        trouble: "t".into(),
        ..ClusterNow::default()
    };
    let of_copies = ClusterNow {
        copies_lacking: 1,
        views_changed: 2,
        copies_lost: 3,
        lost: vec![LostFile { ino: 9, path: "/a".into(), bytes: 1, parts: 2 }],
        lost_files: 4,
        ..ClusterNow::default()
    };
    let counted = Counted { node: 1, incarnation: 2, at_us: 3, metadata, data, waiting: 4, clients };
    vec![
        ("counters", Counters {}.encode_to_vec()),
        ("counted", counted.encode_to_vec()),
        ("cluster-status", ClusterStatus {}.encode_to_vec()),
        ("cluster-now", cluster.encode_to_vec()),
        ("cluster-now-of-copies", of_copies.encode_to_vec()),
    ]
}

/// Name, bytes.
type Golden = (&'static str, Vec<u8>);

fn control() -> Vec<Golden> {
    vec![
        ("hello", Hello {}.encode_to_vec()),
        (
            "facts",
            Facts {
                epoch: 1,
                node: 2,
                renew_ms: 3,
                silence_ms: 4,
                incarnation: 5,
                life: 6,
                began_empty: true,
            }
            .encode_to_vec(),
        ),
        (
            "mount",
            Mount {
                head: head(),
                host: "h".into(),
                node: 2,
                before: 3,
                life: 4,
                stamp: 5,
                job: "j".into(),
                resumes: false,
            }
            .encode_to_vec(),
        ),
        (
            "mounted",
            Mounted {
                root: attr(),
                incarnation: 1,
                uuid: vec![2; 16],
                renew_ms: 3,
                silence_ms: 4,
                openings_max: 5,
                references_max: 6,
                operations_max: 7,
                joined: 8,
                was_here: false,
            }
            .encode_to_vec(),
        ),
        ("mount-resumes", Mount { head: head(), resumes: true, ..Mount::default() }.encode_to_vec()),
        ("mounted-resumed", Mounted { joined: 8, was_here: true, ..Mounted::default() }.encode_to_vec()),
        ("unmount", Unmount { head: head() }.encode_to_vec()),
        ("renew", Renew { head: head(), node: None, writes: false }.encode_to_vec()),
        ("renew-node", Renew { head: head(), node: Some(0), writes: false }.encode_to_vec()),
        ("renew-writes", Renew { head: head(), node: None, writes: true }.encode_to_vec()),
        ("renewed-writes", Renewed { writes: true, ..Renewed::default() }.encode_to_vec()),
        ("renewed", Renewed { map_epoch: 9, bare: 300, ..Renewed::default() }.encode_to_vec()),
        ("renewed-nameless", Renewed { nameless: vec![300, 2], ..Renewed::default() }.encode_to_vec()),
        ("map-since", MapSince { epoch: 9 }.encode_to_vec()),
        ("map-now", MapNow { epoch: 9 }.encode_to_vec()),
        ("node-report", report().encode_to_vec()),
        ("node-reported", node_reported().encode_to_vec()),
        ("node-reported-among", node_reported_among().encode_to_vec()),
    ]
}

fn owners() -> Vec<Golden> {
    let slots = vec![Run { first: 7, count: 2 }, Run { first: 300, count: 1 }];
    let session = SessionState {
        head: head(),
        host: "h".into(),
        node: 2,
        references: vec![Reference { ino: 2, count: 3 }],
        openings: vec![OpeningState { number: 4, ino: 5, write: true }],
        answers: vec![AnswerState { number: 6, meta: vec![7], refused: true }],
        client: 8,
        locks: vec![held()],
        silent_ms: 9,
    };
    let only = JoinMetadata { node: 2, name: "n2".into(), standby_only: true, ..JoinMetadata::default() };
    let joining = JoinMetadata {
        node: 2,
        name: "n2".into(),
        rack: "r1".into(),
        addresses: vec!["h:7401".into()],
        incarnation: 3,
        slots: slots.clone(),
        epochs: vec![4, 5, 600],
        fresh: true,
        epoch: 8,
        standby_only: false,
    };
    vec![
        ("join-metadata", joining.encode_to_vec()),
        ("join-metadata-standby", only.encode_to_vec()),
        (
            "joined-metadata",
            JoinedMetadata { superblock: vec![1], incarnation: 2, standings: None }.encode_to_vec(),
        ),
        ("let-go", LetGo { slots: slots.clone() }.encode_to_vec()),
        ("gone", Gone { ticket: 1, length: 2 }.encode_to_vec()),
        ("state-part", StatePart { ticket: 1, offset: 2 }.encode_to_vec()),
        ("put-state", PutState { ticket: 1, offset: 2 }.encode_to_vec()),
        (
            "take-on",
            TakeOn { slots: slots.clone(), ticket: 1, length: 2, next_ugsd: 3, standings: None }
                .encode_to_vec(),
        ),
        ("taken-on", TakenOn { epochs: vec![1, 2, 300] }.encode_to_vec()),
        ("bring", Bring { node: 1, slots, stay: true }.encode_to_vec()),
        ("slot-loads", SlotLoads {}.encode_to_vec()),
        ("loads", Loads { slots: vec![7], requests: vec![300] }.encode_to_vec()),
        (
            "slot-state",
            SlotState {
                sessions: vec![session],
                files: vec![FileState { ino: 2, append_end: 3 }],
                given_up: vec![Head::of(SessionId(5))],
                stamp: 6,
            }
            .encode_to_vec(),
        ),
        ("leaving", Leaving { node: 300 }.encode_to_vec()),
        ("left", Left { slots: 300 }.encode_to_vec()),
        ("take-duty", TakeDuty { ticket: 1, length: 2, next_ugsd: 300 }.encode_to_vec()),
        ("bare", Bare { head: head(), brought: 300, stamp: 6 }.encode_to_vec()),
        ("bare-slots", BareSlots { number: 1, slots: vec![Run { first: 7, count: 2 }] }.encode_to_vec()),
        ("find", Find { head: head(), ino: 2 }.encode_to_vec()),
    ]
}

fn tails() -> Vec<Golden> {
    let operation = TailOperation { session_high: 1, session_low: 2, number: 3 };
    let answer = Some(AnswerState { number: 3, meta: vec![4], refused: false });
    let record = TailRecord {
        number: 5,
        commits: vec![TailCommit { lsn: 6, body: vec![7, 8] }],
        answers: vec![TailAnswer { operation, acknowledged: 9, answer }],
        begun: vec![TailOperation { number: 10, ..operation }],
        given_up: Vec::new(),
    };
    let given_up = TailRecord { number: 6, given_up: vec![Head::of(SessionId(5))], ..TailRecord::default() };
    let writer = "0123abcd".to_owned();
    let begin = TailBegin { node: 1, writer: writer.clone(), copy: 2, beat: 3, base: 400 };
    let more = TailMore { node: 1, writer, copy: 2, beat: 3, from: 401, up_to: 402, applied: 5 };
    let status = TailStatus { standby: 2, complete: true, waiting: 3, since_ms: 400, off: true };
    vec![
        ("tail-who", TailWho {}.encode_to_vec()),
        ("tail-is", TailIs { writer: "0123abcd".into() }.encode_to_vec()),
        ("tail-begin", begin.encode_to_vec()),
        ("tail-more", more.encode_to_vec()),
        ("tail-has", TailHas { copy: 2, beat: 3, up_to: 400, refused: true }.encode_to_vec()),
        ("tail-now", TailNow {}.encode_to_vec()),
        ("tail-status", status.encode_to_vec()),
        // Also in files.
        ("tail-records", TailStored { records: vec![record.encode_to_vec().into()] }.encode_to_vec()),
        ("tail-given-up", TailStored { records: vec![given_up.encode_to_vec().into()] }.encode_to_vec()),
    ]
}

fn names() -> Vec<Golden> {
    let (head, name, caller) = (head(), name(), caller());
    vec![
        ("lookup", Lookup { head, dir: 1, name: name.clone() }.encode_to_vec()),
        ("entry", Entry { attr: attr(), ino: 3 }.encode_to_vec()),
        ("get-attr", GetAttr { head, ino: 2 }.encode_to_vec()),
        ("set-attr", m::SetAttr { head, ino: 2, changes: Some(changes()), grow_only: true }.encode_to_vec()),
        ("read-link", ReadLink { head, ino: 2 }.encode_to_vec()),
        ("target", Target { target: name.clone() }.encode_to_vec()),
        (
            "read-dir",
            ReadDir {
                head,
                dir: 1,
                cookie: 2,
                entries_max: 3,
                attributes: true,
                referring: true,
                keeping: false,
            }
            .encode_to_vec(),
        ),
        ("listed", Listed { end: true, term_ms: 0 }.encode_to_vec()),
        (
            "entries",
            Entries {
                entries: vec![DirEntry {
                    name: name.clone(),
                    ino: 2,
                    kind: 1,
                    cookie: 4,
                    attr: attr(),
                    keeps: 0,
                }],
            }
            .encode_to_vec(),
        ),
        (
            "create",
            Create { head, caller, dir: 1, name: name.clone(), mode: 0o600, opening: 3, write: true }
                .encode_to_vec(),
        ),
        ("opened", Opened { attr: attr(), layout: layout(), keeps: 4, term_ms: 6000 }.encode_to_vec()),
        ("mkdir", Mkdir { head, caller, dir: 1, name: name.clone(), mode: 0o700 }.encode_to_vec()),
        (
            "mknod",
            Mknod { head, caller, dir: 1, name: name.clone(), kind: 4, mode: 0o600, rdev: 5 }.encode_to_vec(),
        ),
        (
            "symlink",
            Symlink { head, caller, dir: 1, name: name.clone(), target: name.clone() }.encode_to_vec(),
        ),
        ("link", Link { head, ino: 2, dir: 1, name: name.clone() }.encode_to_vec()),
        ("unlink", Unlink { head, dir: 1, name: name.clone() }.encode_to_vec()),
        ("rmdir", Rmdir { head, dir: 1, name: name.clone() }.encode_to_vec()),
        (
            "rename",
            Rename {
                head,
                from_dir: 1,
                from_name: name.clone(),
                to_dir: 2,
                to_name: b"other".to_vec(),
                mode: m::RenameMode::Exchange.into(),
            }
            .encode_to_vec(),
        ),
        ("tmp-file", TmpFile { head, caller, dir: 1, mode: 0o600, opening: 2 }.encode_to_vec()),
    ]
}

fn files() -> Vec<Golden> {
    let (head, name) = (head(), name());
    let references = vec![Reference { ino: 2, count: 3 }];
    vec![
        ("get-xattr", GetXattr { head, ino: 2, name: name.clone() }.encode_to_vec()),
        ("length", Length { bytes: 9 }.encode_to_vec()),
        (
            "set-xattr",
            m::SetXattr {
                head,
                ino: 2,
                name: name.clone(),
                mode: m::XattrMode::Replace.into(),
                kill_sgid: true,
            }
            .encode_to_vec(),
        ),
        ("list-xattr", ListXattr { head, ino: 2 }.encode_to_vec()),
        ("remove-xattr", RemoveXattr { head, ino: 2, name }.encode_to_vec()),
        (
            "open-again",
            Open { head, ino: 2, opening: 3, write: false, keep: false, again: true }.encode_to_vec(),
        ),
        ("open", Open { head, ino: 2, opening: 3, write: true, keep: true, again: false }.encode_to_vec()),
        ("close", Close { head, opening: 3, atime: time(4), ino: 2 }.encode_to_vec()),
        ("begin-write", BeginWrite { head, ino: 2, opening: 3 }.encode_to_vec()),
        ("begun", Begun { layout: layout(), size: 4 }.encode_to_vec()),
        ("append", Append { head, ino: 2, opening: 3, length: 4 }.encode_to_vec()),
        ("appended", Appended { offset: 4, layout: layout() }.encode_to_vec()),
        ("reserve", Reserve { head, ino: 2, size: 3 }.encode_to_vec()),
        ("fsync", Fsync { head, ino: 2 }.encode_to_vec()),
        ("find-spread", FindSpread { head, dir: 2 }.encode_to_vec()),
        ("spread-over", SpreadOver { first: 300, bits: 3, key: vec![7; 16] }.encode_to_vec()),
        ("get-alone", GetAlone { head, ino: 2 }.encode_to_vec()),
        ("read-dots", ReadDots { head, dir: 2, cookie: 1 }.encode_to_vec()),
        ("get-untouched", GetUntouched { head, ino: 2, opening: 3 }.encode_to_vec()),
        (
            "close-many",
            CloseMany {
                head,
                closings: vec![
                    Closing { opening: 3, ino: 2, atime: time(4) },
                    Closing { opening: 5, ino: 6, atime: None },
                ],
            }
            .encode_to_vec(),
        ),
        ("forget", Forget { head, references: references.clone() }.encode_to_vec()),
        ("hold", Hold { head, references }.encode_to_vec()),
        ("held", Held { gone: vec![2, 300] }.encode_to_vec()),
        ("stat-fs", StatFs { head }.encode_to_vec()),
        ("space", Space { total: 1, free: 2, inodes: 3 }.encode_to_vec()),
        ("find-layout", FindLayout { head, ino: 2 }.encode_to_vec()),
        ("placed", Placed { layout: layout(), size: 3 }.encode_to_vec()),
    ]
}

fn held() -> HeldLock {
    let (class, kind) = (LockClass::Flock.into(), LockKind::Write.into());
    HeldLock { ino: 9, class, owner: 1 << 63, start: 3, end: 1 << 62, kind, pid: 7 }
}

fn locks() -> Vec<Golden> {
    let lock = Some(held());
    let locked = Locked { outcome: LockOutcome::Waits.into(), stamp: 6 };
    let telling = Telling { number: 3, operation: 7, locked: Some(locked) };
    vec![
        ("lock", Lock { head: joined(), lock, wait: true }.encode_to_vec()),
        ("locked", locked.encode_to_vec()),
        ("unlock", Unlock { head: joined(), lock }.encode_to_vec()),
        ("find-lock", FindLock { head: joined(), lock }.encode_to_vec()),
        ("found-lock", FoundLock { lock, own: true }.encode_to_vec()),
        ("cancel-lock", CancelLock { head: joined(), number: 4 }.encode_to_vec()),
        ("listen", Listen { head: joined(), heard: 2 }.encode_to_vec()),
        ("told", Told { tellings: vec![telling], recalls: vec![], slots: None }.encode_to_vec()),
        ("had-locks", HadLocks { locks: vec![held()] }.encode_to_vec()),
    ]
}

fn some_slots(numbers: impl IntoIterator<Item = u16>) -> BTreeSet<Slot> {
    numbers.into_iter().filter_map(Slot::new).collect()
}

fn recalled(name: Vec<u8>) -> Recalled {
    Recalled { number: 3, ino: 2, name, keeps: 2, grant: 1 << 40 }
}

fn returned(name: Vec<u8>) -> Returned {
    Returned { ino: 2, name, keeps: 2, number: 1 << 40 }
}

fn leases() -> Vec<Golden> {
    let told = Told { tellings: vec![], recalls: vec![recalled(name()), recalled(vec![])], slots: None };
    let slots = RecalledSlots { number: 4, slots: slot_bits(&some_slots([1, 2, 9])), grant: 1 << 40 };
    let told_slots = Told { slots: Some(slots.clone()), ..Told::default() };
    let back = Return { head: joined(), slots: slots.slots, grant: slots.grant, ..Return::default() };
    let elsewhere = Looked { keeps: 1, term_ms: 6000, ino: 5, ..Looked::default() };
    let referring = Look { head: joined(), ino: 2, name: vec![], referring: true };
    let mut list = ReadDir { head: joined(), dir: 1, keeping: true, ..ReadDir::default() };
    list.attributes = true;
    let head = Some(Head { dropped: 5, dropped_too: 6, ..head().unwrap() });
    let kept = DirEntry { name: name(), ino: 2, kind: 1, cookie: 4, attr: None, keeps: 7 };
    vec![
        ("look", Look { head: joined(), ino: 2, name: name(), referring: false }.encode_to_vec()),
        ("keep", Keep { head: joined(), ino: 2 }.encode_to_vec()),
        ("keep-writes", KeepWrites { head: joined(), ino: 2, opening: 3 }.encode_to_vec()),
        ("writes-kept", WritesKept { granted: true, term_ms: 6000 }.encode_to_vec()),
        ("kept", Kept { keeps: 4, term_ms: 6000 }.encode_to_vec()),
        ("looked", Looked { attr: attr(), keeps: 7, term_ms: 6000, ino: 0 }.encode_to_vec()),
        (
            "return",
            Return { head: joined(), returned: vec![returned(name())], ..Return::default() }.encode_to_vec(),
        ),
        ("told-recalls", told.encode_to_vec()),
        ("told-slots", told_slots.encode_to_vec()),
        ("return-slots", back.encode_to_vec()),
        ("looked-elsewhere", elsewhere.encode_to_vec()),
        ("look-referring", referring.encode_to_vec()),
        ("read-dir-keeping", list.encode_to_vec()),
        ("listed-term", Listed { end: true, term_ms: 6000 }.encode_to_vec()),
        ("entries-kept", Entries { entries: vec![kept] }.encode_to_vec()),
        ("unlink-dropped", Unlink { head, dir: 1, name: name() }.encode_to_vec()),
    ]
}

fn bytes() -> Vec<Golden> {
    let one = Some(object());
    let objects = vec![object()];
    let attr = ObjectAttr { errno: 5, known: true, size: 2, blocks: 3, mtime: time(4), still_us: 0 };
    vec![
        ("read", data::Read { object: one, offset: 2, length: 3 }.encode_to_vec()),
        ("read-done", data::ReadDone { size: 2 }.encode_to_vec()),
        ("write", data::Write { object: one, offset: 2, sync: true, joined: 9, server: 0 }.encode_to_vec()),
        (
            "write-among",
            data::Write { object: one, offset: 2, sync: true, joined: 9, server: 7 }.encode_to_vec(),
        ),
        ("written", data::Written { bytes: 2, life: 0 }.encode_to_vec()),
        ("written-in-a-life", data::Written { bytes: 2, life: 1 << 40 }.encode_to_vec()),
        ("alive", data::Alive { life: 3 }.encode_to_vec()),
        ("alive-of-before", data::Alive { life: 0 }.encode_to_vec()),
        ("sync", data::Sync { object: one }.encode_to_vec()),
        ("truncate", data::Truncate { object: one, size: 2, grow_only: true }.encode_to_vec()),
        (
            "allocate",
            data::Allocate {
                object: one,
                mode: AllocateMode::Zero.into(),
                offset: 2,
                length: 3,
                joined: 9,
                server: 0,
            }
            .encode_to_vec(),
        ),
        ("seek", data::Seek { object: one, offset: 2, whence: Whence::Hole.into() }.encode_to_vec()),
        ("sought", data::Sought { offset: Some(0), size: 3 }.encode_to_vec()),
        ("attrs", data::Attrs { objects: objects.clone() }.encode_to_vec()),
        ("object-attrs", data::ObjectAttrs { attrs: vec![attr] }.encode_to_vec()),
        (
            "object-attrs-still",
            data::ObjectAttrs { attrs: vec![ObjectAttr { still_us: 6, ..attr }] }.encode_to_vec(),
        ),
        ("remove", data::Remove { objects }.encode_to_vec()),
        ("removed", data::Removed { errnos: vec![0, 5] }.encode_to_vec()),
        ("stat", data::Stat {}.encode_to_vec()),
        ("data-space", data::DataSpace { total: 1, free: 2 }.encode_to_vec()),
        (
            "settle",
            data::Settle { objects: vec![data::Recorded { object: one, mtime: time(4) }] }.encode_to_vec(),
        ),
        ("set-time", data::SetTime { object: one, mtime: time(4) }.encode_to_vec()),
        ("nothing", Nothing {}.encode_to_vec()),
        ("session-gone", proto::fault::session_gone().encode_to_vec()),
    ]
}

fn moving() -> Vec<Golden> {
    let (object, attempt) = (Some(object()), 3 << 32 | 4);
    let standing = Standing {
        node: 2,
        name: "n2".into(),
        kind: StandingKind::Draining.into(),
        known: true,
        files_left: 3,
        bytes_left: 4,
        files_moved: 5,
        bytes_moved: 6,
        files_failed: 7,
        why: "w".into(),
        ..Standing::default()
    };
    let full =
        Standing { full: true, files_sent: 1, bytes_sent: 2, stuck: "s".into(), ..Standing::default() };
    let cool = Cool { object: 9, bytes: 300, open: true, cool: 4, why: CoolWhy::Aged.into() };
    let list = CoolList { pressure: Some(pressure()), objects: vec![cool] };
    let pull = Pull {
        attempt,
        from: object,
        to: Some(Object { ino: 1 << 33 | 9, generation: 2, view: None }),
        source: 5,
        addresses: vec!["h:7401".into()],
        freeze_ms: 3000,
        room: 0,
    };
    let if_room = Pull { room: 300, ..pull.clone() };
    let said = NodeReported { safe_room: 1, any_room: 300, ..NodeReported::default() };
    let pressed = NodeReport { node: 2, pressure: Some(pressure()), ..NodeReport::default() };
    let leaving = proto::fault::fault(Errno::EAGAIN, wire::schema::Retry::After, proto::Reason::Leaving, "");
    let pulled = Pulled { state: PullState::Failed.into(), copied: 1, errno: 5, why: "w".into() };
    let ranges = vec![Range { from: 1, to: 2 }, Range { from: 300, to: u64::MAX }];
    let copies = vec![Judged { object, attempt, counts: true }];
    let moved = Layout { stripes: vec![3, 3], ..layout().unwrap() }.with_moved(1, 3);
    vec![
        ("drain-node", DrainNode { node: 2, undo: true }.encode_to_vec()),
        ("remove-node", RemoveNode { node: 2 }.encode_to_vec()),
        (
            "know-standings",
            KnowStandings { version: 1, standings: vec![Standing { node: 2, ..Standing::default() }] }
                .encode_to_vec(),
        ),
        ("look-at-drains", LookAtDrains {}.encode_to_vec()),
        (
            "drain-looks",
            DrainLooks {
                looks: vec![DrainLook {
                    standing: Some(Standing { node: 2, ..Standing::default() }),
                    slots: runs([3, 4]),
                }],
            }
            .encode_to_vec(),
        ),
        ("standings", Standings {}.encode_to_vec()),
        ("standing-list", StandingList { standings: vec![standing] }.encode_to_vec()),
        ("pull", pull.encode_to_vec()),
        ("pulled", pulled.encode_to_vec()),
        ("follow", Follow { object, attempt }.encode_to_vec()),
        ("followed", Followed { size: 3 }.encode_to_vec()),
        ("changed", Changed { object, attempt, freeze_ms: 5 }.encode_to_vec()),
        ("changed-ranges", ChangedRanges { ranges, size: 3, mtime: time(4) }.encode_to_vec()),
        ("hand-over", HandOver { object, attempt }.encode_to_vec()),
        ("handed-over", HandedOver { done: true }.encode_to_vec()),
        ("copies", Copies { after: 0 }.encode_to_vec()),
        ("copy-list", CopyList { copies: copies.clone() }.encode_to_vec()),
        ("judge", Judge { copies }.encode_to_vec()),
        ("moved-layout", moved.encode_to_vec()),
        ("moved", proto::fault::moved().encode_to_vec()),
        ("coolest", Coolest { slots: vec![] }.encode_to_vec()),
        ("cool-list", list.encode_to_vec()),
        ("pull-if-room", if_room.encode_to_vec()),
        ("node-report-of-a-full-one", pressed.encode_to_vec()),
        ("node-reported-with-room", said.encode_to_vec()),
        ("standing-of-a-full-one", full.encode_to_vec()),
        ("leaving", leaving.encode_to_vec()),
    ]
}

fn view() -> View {
    let second = Second { member: Member { node: 3, life: 8 }, since: 2, counts: true, kept: true };
    View { number: 2, primary: Member { node: 2, life: 7 }, since: 1, second: Some(second) }
}

fn two_copies() -> Vec<Golden> {
    let member = view().primary;
    let object = Some(Object { view: Some(view()), ..object() });
    let several: Vec<Object> = object.into_iter().collect();
    let layout = Layout::twofold(4 << 20, &[(member, Some(Member { node: 3, life: 8 })), (member, None)]);
    assert_eq!(layout.check(), Ok(()));
    let word = CopyWord { object, silent: Some(member) };
    let report =
        NodeReport { node: 2, life: 9, copy_words: vec![word], peers_epoch: 3, ..NodeReport::default() };
    let peers = vec![Peer { node: 3, addresses: vec!["h:1".into()] }];
    let store = StoreCopy {
        object,
        serial: 1,
        from: 2,
        to: 3,
        done: 4,
        length: 5,
        change: Change::Cut.into(),
        size: 6,
        mtime: time(4),
    };
    vec![
        (
            "find-view",
            FindView { head: head(), ino: 9, stripe: 1, view: 2, silent: Some(member) }.encode_to_vec(),
        ),
        ("view-found", ViewFound { layout: Some(layout) }.encode_to_vec()),
        ("store-copy", store.encode_to_vec()),
        (
            "copy-stored",
            CopyStored { stored: true, unable: true, newer: Some(view()), differs: true, nothing: true }
                .encode_to_vec(),
        ),
        ("copy-done", CopyDone { object, done: 4 }.encode_to_vec()),
        (
            "ask-leave",
            AskLeave { by: Some(member), of: Some(member), knows: several.clone() }.encode_to_vec(),
        ),
        ("leave", Leave { granted: true, left_out: several.clone() }.encode_to_vec()),
        ("know-view", KnowView { object, asks: true }.encode_to_vec()),
        ("view-known", ViewKnown { number: 2, goes_on: true, kept: true, life: 8, lost: 4 }.encode_to_vec()),
        ("drop-copies", DropCopies { objects: several }.encode_to_vec()),
        ("node-report-of-two-copies", report.encode_to_vec()),
        ("node-reported-with-peers", NodeReported { peers, ..NodeReported::default() }.encode_to_vec()),
        ("read-by-a-view", data::Read { object, offset: 1, length: 2 }.encode_to_vec()),
        ("other-view", proto::fault::other_view().encode_to_vec()),
        ("ask-primary", proto::fault::ask_primary().encode_to_vec()),
    ]
}

fn lending() -> Vec<Golden> {
    let object = Some(Object { ino: 9, generation: 4, view: None });
    vec![
        ("lend", Lend { object }.encode_to_vec()),
        ("lent", Lent { ticket: vec![7; 16] }.encode_to_vec()),
        ("store-to", StoreTo { object }.encode_to_vec()),
    ]
}

fn circles() -> Vec<Golden> {
    let process = Process::new(SESSION, 4);
    let behind = vec![WaitsFor { process: Some(Process::new(SessionId(5), 6)), since: 300 }];
    let wait = LockWait { ino: 2, process: Some(process), number: 7, behind };
    let Process { session_high, session_low, .. } = process;
    let refused = RefuseLock { session_high, session_low, number: 7, incarnation: 8 };
    assert_eq!((process.session(), refused.session()), (SESSION, SESSION));
    let waits = Waits { waits: vec![wait.clone()] };
    assert_eq!(Waits::read(&waits.encode_to_vec()).as_ref(), Ok(&waits));
    let many = Waits { waits: vec![wait; PAIRS_MAX + 1] };
    let too_long = Err(Bad::TooLong { what: "pairs", len: PAIRS_MAX + 1, max: PAIRS_MAX });
    assert_eq!(Waits::read(&many.encode_to_vec()), too_long);
    vec![
        ("lock-waits", LockWaits {}.encode_to_vec()),
        ("waits-told", WaitsTold { incarnation: 8 }.encode_to_vec()),
        ("waits", waits.encode_to_vec()),
        ("refuse-lock", refused.encode_to_vec()),
    ]
}

fn all() -> Vec<Golden> {
    let first = [control(), owners(), tails(), watch(), names(), files(), locks(), bytes()].concat();
    [first, moving(), leases(), lending(), circles(), two_copies()].concat()
}

/// A change of any of these bytes is a change of the wire.
#[test]
fn golden_messages() {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let now: String = all().iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    assert_eq!(now, include_str!("golden.txt"), "the messages as they are now:\n{now}");
}

/// What a data server of before the tiers says is taken, and says nothing of them.
#[test]
fn a_report_without_tiers_is_taken() {
    let NodeReport { node, name, rack, addresses, incarnation, total, free, busy, .. } = report();
    let before =
        NodeReport { node, name, rack, addresses, incarnation, total, free, busy, ..NodeReport::default() };
    let bytes = [
        0x08, 2, 0x12, 2, b'n', b'2', 0x1a, 2, b'r', b'1', 0x22, 6, b'h', b':', b'7', b'4', b'0', b'1', 0x28,
        3, 0x30, 4, 0x38, 5, 0x40, 6,
    ];
    assert_eq!(decode::<NodeReport>(&bytes), Ok(before));
}

fn check<R: Request + PartialEq + std::fmt::Debug>(meta: &[u8]) -> Result<(), Bad> {
    let request = decode::<R>(meta)?;
    let again = request.encode_to_vec();
    assert_eq!(decode::<R>(&again), Ok(request), "what is taken is sent again as the same");
    Ok(())
}

/// As a server does it, by the number.
fn take(method: Method, meta: &[u8]) -> Result<(), Bad> {
    match method {
        Method::Hello => check::<Hello>(meta),
        Method::Mount => check::<Mount>(meta),
        Method::Unmount => check::<Unmount>(meta),
        Method::Renew => check::<Renew>(meta),
        Method::MapSince => check::<MapSince>(meta),
        Method::NodeReport => check::<NodeReport>(meta),
        Method::Counters => check::<Counters>(meta),
        Method::ClusterStatus => check::<ClusterStatus>(meta),
        Method::KnowStandings => check::<KnowStandings>(meta),
        Method::LookAtDrains => check::<LookAtDrains>(meta),
        Method::JoinMetadata => check::<JoinMetadata>(meta),
        Method::LetGo => check::<LetGo>(meta),
        Method::StatePart => check::<StatePart>(meta),
        Method::PutState => check::<PutState>(meta),
        Method::TakeOn => check::<TakeOn>(meta),
        Method::Bring => check::<Bring>(meta),
        Method::SlotLoads => check::<SlotLoads>(meta),
        Method::LockWaits => check::<LockWaits>(meta),
        Method::RefuseLock => check::<RefuseLock>(meta),
        Method::TailWho => check::<TailWho>(meta),
        Method::TailBegin => check::<TailBegin>(meta),
        Method::TailMore => check::<TailMore>(meta),
        Method::TailNow => check::<TailNow>(meta),
        Method::Leaving => check::<Leaving>(meta),
        Method::TakeDuty => check::<TakeDuty>(meta),
        Method::Bare => check::<Bare>(meta),
        Method::Find => check::<Find>(meta),
        Method::CloseMany => check::<CloseMany>(meta),
        Method::Keep => check::<Keep>(meta),
        Method::KeepWrites => check::<KeepWrites>(meta),
        Method::GetUntouched => check::<GetUntouched>(meta),
        Method::FindSpread => check::<FindSpread>(meta),
        Method::GetAlone => check::<GetAlone>(meta),
        Method::ReadDots => check::<ReadDots>(meta),
        Method::Lookup => check::<Lookup>(meta),
        Method::GetAttr => check::<GetAttr>(meta),
        Method::SetAttr => check::<m::SetAttr>(meta),
        Method::ReadLink => check::<ReadLink>(meta),
        Method::ReadDir => check::<ReadDir>(meta),
        Method::Create => check::<Create>(meta),
        Method::Mkdir => check::<Mkdir>(meta),
        Method::Mknod => check::<Mknod>(meta),
        Method::Symlink => check::<Symlink>(meta),
        Method::Link => check::<Link>(meta),
        Method::Unlink => check::<Unlink>(meta),
        Method::Rmdir => check::<Rmdir>(meta),
        Method::Rename => check::<Rename>(meta),
        Method::TmpFile => check::<TmpFile>(meta),
        Method::GetXattr => check::<GetXattr>(meta),
        Method::SetXattr => check::<m::SetXattr>(meta),
        Method::ListXattr => check::<ListXattr>(meta),
        Method::RemoveXattr => check::<RemoveXattr>(meta),
        Method::Open => check::<Open>(meta),
        Method::Close => check::<Close>(meta),
        Method::BeginWrite => check::<BeginWrite>(meta),
        Method::Append => check::<Append>(meta),
        Method::Reserve => check::<Reserve>(meta),
        Method::Fsync => check::<Fsync>(meta),
        Method::Forget => check::<Forget>(meta),
        Method::Hold => check::<Hold>(meta),
        Method::StatFs => check::<StatFs>(meta),
        Method::FindLayout => check::<FindLayout>(meta),
        Method::Look => check::<Look>(meta),
        Method::Return => check::<Return>(meta),
        Method::Listen => check::<Listen>(meta),
        Method::Lock => check::<Lock>(meta),
        Method::Unlock => check::<Unlock>(meta),
        Method::FindLock => check::<FindLock>(meta),
        Method::CancelLock => check::<CancelLock>(meta),
        Method::Read => check::<data::Read>(meta),
        Method::Write => check::<data::Write>(meta),
        Method::Sync => check::<data::Sync>(meta),
        Method::Truncate => check::<data::Truncate>(meta),
        Method::Allocate => check::<data::Allocate>(meta),
        Method::Seek => check::<data::Seek>(meta),
        Method::Attrs => check::<data::Attrs>(meta),
        Method::Remove => check::<data::Remove>(meta),
        Method::Stat => check::<data::Stat>(meta),
        Method::Settle => check::<data::Settle>(meta),
        Method::SetTime => check::<data::SetTime>(meta),
        Method::DrainNode => check::<DrainNode>(meta),
        Method::RemoveNode => check::<RemoveNode>(meta),
        Method::Standings => check::<Standings>(meta),
        Method::Pull => check::<Pull>(meta),
        Method::Follow => check::<Follow>(meta),
        Method::Changed => check::<Changed>(meta),
        Method::HandOver => check::<HandOver>(meta),
        Method::Copies => check::<Copies>(meta),
        Method::Judge => check::<Judge>(meta),
        Method::Lend => check::<Lend>(meta),
        Method::StoreTo => check::<StoreTo>(meta),
        Method::Coolest => check::<Coolest>(meta),
        Method::FindView => check::<FindView>(meta),
        Method::StoreCopy => check::<StoreCopy>(meta),
        Method::CopyDone => check::<CopyDone>(meta),
        Method::AskLeave => check::<AskLeave>(meta),
        Method::KnowView => check::<KnowView>(meta),
        Method::DropCopies => check::<DropCopies>(meta),
    }
}

#[test]
fn every_method_has_a_golden_request_that_is_taken() {
    let golden = all();
    for method in Method::ALL {
        let mut name = String::new();
        for c in method.name().chars() {
            if c.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.extend(c.to_lowercase());
        }
        let (_, bytes) = golden.iter().find(|(of, _)| *of == name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(take(*method, bytes), Ok(()), "{name}");
    }
}

#[test]
fn no_bytes_make_a_decoder_panic() {
    let good: Vec<Vec<u8>> = all().into_iter().map(|(_, bytes)| bytes).collect();
    fuzzing::fuzz(
        "proto",
        &good,
        |_| (),
        |bytes| {
            for method in Method::ALL {
                let _ = take(*method, bytes);
            }
            let _ = HadLocks::read(bytes);
            let _ = Waits::read(bytes);
            let _ = Told::decode(bytes);
            let _ = TailStored::decode(bytes);
            let _ = TailRecord::decode(bytes);
            let _ = Looked::decode(bytes);
            let _ = Kept::decode(bytes);
            let _ = Entries::decode(bytes);
            let _ = Opened::decode(bytes).map(|opened| opened.layout.map(|layout| layout.check()));
            let _ = CopyStored::decode(bytes);
            let _ = proto::copies::Leave::decode(bytes);
            let _ = ViewFound::decode(bytes).map(|found| found.layout.map(|layout| layout.check()));
            let _ = Attr::decode(bytes).map(types::Attr::try_from);
            let _ = Changes::decode(bytes).map(namespace::SetAttr::try_from);
            let _ = proto::Reason::of(&proto::fault::read(bytes));
        },
    );
}

#[test]
fn what_is_beyond_a_bound_is_refused() {
    let head = head();
    let too_long = |what: &'static str, len, max| Err(Bad::TooLong { what, len, max });
    let long = Lookup { head, dir: 1, name: vec![b'x'; 256] };
    assert_eq!(long.check(), too_long("name", 256, 255));
    assert_eq!(long.check().unwrap_err().errno(), Errno::ENAMETOOLONG);
    assert!(GetUntouched { head, ino: 0, opening: 1 }.check().is_err());
    assert!(Keep { head, ino: 0 }.check().is_err());
    assert!(KeepWrites { head, ino: 0, opening: 1 }.check().is_err());
    assert!(FindSpread { head, dir: 0 }.check().is_err());
    assert!(GetAlone { head, ino: 0 }.check().is_err());
    assert!(ReadDots { head, dir: 0, cookie: 1 }.check().is_err());
    let over = SpreadOver { first: 300, bits: 3, key: vec![7; 16] };
    assert!(Over::new(&over).unwrap().is_some());
    assert!(Over::new(&SpreadOver { bits: 0, ..over.clone() }).unwrap().is_none());
    for bad in [SpreadOver { bits: 7, ..over.clone() }, SpreadOver { key: vec![7; 15], ..over }] {
        assert!(Over::new(&bad).is_err());
    }
    let closing = Closing { opening: 1, ino: 2, atime: None };
    let many = CloseMany { head, closings: vec![closing; CLOSINGS_MAX + 1] };
    assert!(matches!(many.check(), Err(Bad::TooLong { .. })));
    assert!(CloseMany { head, closings: vec![Closing { ino: 0, ..closing }] }.check().is_err());
    let many = Forget { head, references: vec![Reference { ino: 2, count: 1 }; BATCH_MAX + 1] };
    assert_eq!(many.check(), too_long("references", BATCH_MAX + 1, BATCH_MAX));
    assert_eq!(Lookup { head, dir: 0, name: vec![] }.check(), Err(Bad::Range("inode number")));
    assert_eq!(GetAttr { head: None, ino: 2 }.check(), Err(Bad::Missing("head")));
    let nobody = Mount { head: Some(Head::of(SessionId(0))), ..Mount::default() };
    assert_eq!(nobody.check(), Err(Bad::Missing("session")));
    let read = data::Read { object: Some(object()), offset: 0, length: data::BYTES_MAX + 1 };
    assert_eq!(read.check(), Err(Bad::Range("length")));
    let many = data::Attrs { objects: vec![object(); BATCH_MAX + 1] };
    assert_eq!(many.check(), too_long("objects", BATCH_MAX + 1, BATCH_MAX));
    let control = NodeReport { name: "a\nb".into(), ..report() };
    assert_eq!(control.check(), Err(Bad::Range("node's name")));
    for (start, end, kind, class) in [(2, 1, 0, 0), (0, 1 << 63, 0, 0), (0, 0, 2, 0), (0, 0, 0, 3)] {
        let lock = Some(HeldLock { start, end, kind, class, ..held() });
        assert!(Lock { head, lock, wait: false }.check().is_err());
        assert!(HadLocks::read(&HadLocks { locks: lock.into_iter().collect() }.encode_to_vec()).is_err());
    }
    assert!(Lock { head: Some(Head::of(SESSION)), lock: Some(held()), wait: true }.check().is_err());
    let many = HadLocks { locks: vec![held(); LOCKS_MAX + 1] };
    assert_eq!(HadLocks::read(&many.encode_to_vec()).map(drop), too_long("locks", LOCKS_MAX + 1, LOCKS_MAX));
    let many = Return { head, returned: vec![returned(vec![]); LEASES_MAX + 1], ..Return::default() };
    assert_eq!(many.check(), too_long("leases", LEASES_MAX + 1, LEASES_MAX));
    assert_eq!(
        Return { head, returned: vec![returned(vec![b'x'; 256])], ..Return::default() }.check(),
        too_long("name", 256, 255)
    );
    assert_eq!(
        Look { head, ino: 2, name: vec![b'x'; 256], referring: false }.check(),
        too_long("name", 256, 255)
    );
    assert_eq!(
        Look { head, ino: 0, name: vec![], referring: false }.check(),
        Err(Bad::Range("inode number"))
    );
    for stripes in [vec![], vec![0], vec![1, 2, 1], vec![1; 65]] {
        assert!(
            Layout { generation: 1, unit: 4 << 20, stripes, moved: vec![], views: vec![] }.check().is_err()
        );
    }
    let many = Judge { copies: vec![Judged::default(); BATCH_MAX] };
    assert_eq!(many.check(), too_long("copies", BATCH_MAX, BATCH_MAX / 2));
    let of = |freeze_ms| Changed { object: Some(object()), attempt: 1, freeze_ms };
    assert_eq!(of(FREEZE_MS_MAX).check(), Ok(()));
    assert_eq!(of(FREEZE_MS_MAX + 1).check(), Err(Bad::Range("freeze")));
    assert_eq!(Changed { attempt: 0, ..of(1) }.check(), Err(Bad::Missing("attempt")));
    assert!(Pull { attempt: 1, from: of(1).object, to: of(1).object, ..Pull::default() }.check().is_err());
    assert!(Layout { unit: 5, ..layout().unwrap() }.check().is_err());
    assert_eq!(layout().unwrap().check(), Ok(()));
    assert_eq!(Timestamp::try_from(Time { sec: 0, nsec: 1_000_000_000 }), Err(Bad::Range("nanoseconds")));
}

/// A batch fits into a meta, a listing into a body.
#[test]
fn lists_fit_into_frames() {
    let reference = Reference { ino: u64::MAX, count: u64::MAX };
    let batch = Hold { head: head(), references: vec![reference; BATCH_MAX] };
    assert!(batch.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
    let closing = Closing { opening: u64::MAX, ino: u64::MAX, atime: time(i64::MIN) };
    let batch = CloseMany { head: head(), closings: vec![closing; CLOSINGS_MAX] };
    assert!(batch.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
    let object = Some(Object { ino: u64::MAX, generation: u32::MAX, view: None });
    let recorded = data::Recorded { object, mtime: time(i64::MIN) };
    let batch = data::Settle { objects: vec![recorded; BATCH_MAX / 2] };
    assert!(batch.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
    let most = u64::MAX;
    let attr = ObjectAttr {
        errno: -1,
        known: true,
        size: most,
        blocks: most,
        mtime: time(i64::MIN),
        still_us: most,
    };
    let most =
        HeldLock { ino: u64::MAX, start: i64::MAX as u64, end: i64::MAX as u64, pid: u32::MAX, ..held() };
    let had = HadLocks { locks: vec![most; LOCKS_MAX] };
    assert!(had.encoded_len() <= wire::frame::Limits::DEFAULT.body as usize);
    let locked = Some(Locked { outcome: 5, stamp: u64::MAX });
    let longest = vec![b'n'; 255];
    let recall =
        Recalled { number: u64::MAX, ino: u64::MAX, name: longest.clone(), keeps: 7, grant: u64::MAX };
    let told = Told {
        tellings: vec![Telling { number: u64::MAX, operation: u64::MAX, locked }; BATCH_MAX],
        recalls: vec![recall; LEASES_MAX],
        slots: Some(RecalledSlots {
            number: u64::MAX,
            slots: slot_bits(&some_slots(0..4096)),
            grant: u64::MAX,
        }),
    };
    let back = Returned { ino: u64::MAX, name: longest, keeps: 7, number: u64::MAX };
    let back = Return {
        head: head(),
        returned: vec![back; LEASES_MAX],
        slots: slot_bits(&some_slots(0..4096)),
        grant: u64::MAX,
    };
    assert!(back.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
    assert!(told.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
    let range = Range { from: u64::MAX, to: u64::MAX };
    let changes = ChangedRanges { ranges: vec![range; RANGES_MAX], size: u64::MAX, mtime: time(i64::MIN) };
    assert!(changes.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
    let most = Member { node: u64::MAX, life: u64::MAX };
    let second = Second { member: most, since: u64::MAX, counts: true, kept: true };
    let view = View { number: u64::MAX, primary: most, since: u64::MAX, second: Some(second) };
    let twofold = Object { ino: u64::MAX, generation: u32::MAX, view: Some(view) };
    let leave = Leave { granted: true, left_out: vec![twofold; LEFT_OUT_MAX] };
    assert!(leave.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
    let word = CopyWord { object: Some(twofold), silent: Some(most) };
    let words = NodeReport { copy_words: vec![word; BATCH_MAX / 4], ..report() };
    assert!(words.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
    let copy = Judged { object, attempt: u64::MAX, counts: true };
    let copies = Judge { copies: vec![copy; BATCH_MAX / 2] };
    assert!(copies.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
    let answer = data::ObjectAttrs { attrs: vec![attr; BATCH_MAX] };
    assert!(answer.encoded_len() <= wire::frame::Limits::DEFAULT.meta as usize);
}

#[test]
fn values_come_back_as_they_were() {
    let there = types::Attr::try_from(attr().unwrap()).unwrap();
    assert_eq!(Some(Attr::from(there)), attr());
    let set = namespace::SetAttr::try_from(changes()).unwrap();
    assert_eq!(set.atime, Some(Time1::Now));
    assert_eq!(set.mtime, Some(Time1::At(Timestamp { sec: 4, nsec: 999 })));
    assert_eq!(Changes::from(&set), changes());
}
