//! Goal: PostgreSQL keeps the contract of `Engine`, and what is special to it: long keys, large values, pages, restarts of the server,
//! refusals at the opening. Method: the conformance suite and cases of its own, on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod support;

use std::{ops::ControlFlow, time::Duration};

use kv::{
    ApplyError, Engine, Lsn, MetaStore, MetaStoreOptions, OpenError, SystemDisk, WriteSet, conformance,
};
use namespace::txn::KvError;
use pg::{Options, PgEngine, Sharing};
use support::{quick, server};

fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(next).collect()
}

#[test]
fn postgresql_conforms() {
    let Some(server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), |dir| {
        let name = format!("row_{}", dir.file_name().unwrap().to_str().unwrap());
        Box::new(server.engine(dir, &name))
    })
    .unwrap();
}

#[test]
fn long_keys_and_large_values() {
    // Goal: keys that no index takes, in order among the others; the largest value. Method: bytes that cannot be compressed.
    let Some(server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let engine = server.engine(dir.path(), "large");
    let mut keys: Vec<Vec<u8>> =
        [1, 1999, 2000, 2001, 2700, 4096].iter().map(|len| random_bytes(*len, *len as u64)).collect();
    // Equal in the first 2000 bytes.
    keys.extend((0..3).map(|n| [random_bytes(2000, 2000), vec![n; 1 + usize::from(n)]].concat()));
    keys.sort();
    let batch: Vec<(&[u8], Option<&[u8]>)> = keys.iter().map(|k| (&k[..], Some(&k[..]))).collect();
    engine.apply(&batch, Lsn(1)).unwrap();
    for key in &keys {
        assert_eq!(engine.get(key).unwrap().as_deref(), Some(&key[..]));
    }
    let all = |engine: &PgEngine| {
        let mut seen = Vec::new();
        engine
            .scan(b"", &[0xff; 20], &mut |key, _| {
                seen.push(key.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
        seen
    };
    assert_eq!(all(&engine), keys);
    let gone: Vec<(&[u8], Option<&[u8]>)> = keys.iter().step_by(2).map(|k| (&k[..], None)).collect();
    engine.apply(&gone, Lsn(2)).unwrap();
    let left: Vec<Vec<u8>> = keys.iter().skip(1).step_by(2).cloned().collect();
    assert_eq!(all(&engine), left);
    let value = random_bytes(16 << 20, 3);
    engine.apply(&[(b"big", Some(&value)), (b"small", Some(b"x"))], Lsn(3)).unwrap();
    assert!(engine.get(b"big").unwrap().unwrap() == value);
    let mut sizes = Vec::new();
    engine
        .scan(b"b", b"t", &mut |key, value| {
            if key.len() < 6 {
                sizes.push(value.len());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(sizes, [16 << 20, 1]);
}

#[test]
fn a_long_scan_sees_one_state() {
    // Goal: pages of one scan are of one state of the database, and visitors may read more than there are connections. Method: every
    // value is changed, in one batch, while the scan is at its first key; then scans in scans.
    let Some(server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let engine = server.engine(dir.path(), "scans");
    let keys: Vec<[u8; 4]> = (0..10_000u32).map(u32::to_be_bytes).collect();
    let put = |value: &'static [u8], lsn| {
        let batch: Vec<(&[u8], Option<&[u8]>)> = keys.iter().map(|k| (&k[..], Some(value))).collect();
        engine.apply(&batch, Lsn(lsn)).unwrap();
    };
    put(b"old", 1);
    let (mut seen, mut changed) = (0, false);
    engine
        .scan(b"", &[0xff; 9], &mut |_, value| {
            if !changed {
                put(b"new", 2);
                changed = true;
            }
            assert_eq!(value, b"old");
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, keys.len());
    fn nested(engine: &PgEngine, depth: usize) {
        let mut n = 0;
        engine
            .scan(b"", &[0xff; 9], &mut |key, _| {
                n += 1;
                if n == 3000 {
                    assert!(engine.get(key).unwrap().is_some());
                    if depth > 0 {
                        nested(engine, depth - 1);
                    }
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(n, 3000);
    }
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| nested(&engine, 3));
        }
    });
}

#[test]
fn a_server_that_went_away_and_came_back() {
    let Some(mut server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let engine = PgEngine::open(dir.path(), server.options("away").tuned(quick())).unwrap();
    engine.apply(&[(b"key", Some(b"1"))], Lsn(1)).unwrap();
    assert_eq!(engine.trouble(), None);
    server.crash();
    let refused = engine.apply(&[(b"key", Some(b"2"))], Lsn(2)).unwrap_err();
    assert!(matches!(&refused, ApplyError::Nothing(KvError::Io(_))), "{refused:?}");
    assert!(matches!(engine.get(b"key"), Err(KvError::Io(_))));
    assert!(engine.trouble().is_some());
    let began = std::time::Instant::now();
    assert!(pg::without_waiting(|| engine.get(b"key")).is_err());
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    // Late in an outage nobody waits long.
    let began = std::time::Instant::now();
    assert!(engine.get(b"key").is_err());
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    server.start();
    engine.apply(&[(b"key", Some(b"2"))], Lsn(2)).unwrap();
    assert_eq!(engine.get(b"key").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(engine.applied_lsn().unwrap(), Lsn(2));
    assert_eq!(engine.trouble(), None);
    // Connections that the server ended one by one.
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onfs'");
    assert_eq!(engine.get(b"key").unwrap().as_deref(), Some(&b"2"[..]));
    engine.apply(&[(b"key", Some(b"3"))], Lsn(3)).unwrap();
    server.crash();
    let began = std::time::Instant::now();
    assert!(PgEngine::open(dir.path(), server.options("away").tuned(quick())).is_err());
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_cannot_be_opened() {
    let Some(mut server) = server() else { return };
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |dir: &std::path::Path| PgEngine::open(dir, server.options("mine").tuned(quick()));
    open(dir.path()).unwrap().apply(&[(b"key", Some(b"1"))], Lsn(5)).unwrap();
    let text = |result: Result<PgEngine, OpenError>| result.err().unwrap().to_string();
    assert!(text(open(other.path())).contains("belongs to another state directory"));
    // The database was put back to an earlier state: it would be believed, and the data of later files be lost.
    server.sql("UPDATE mine.writer SET applied = 4");
    assert!(text(open(dir.path())).contains("put back to an earlier state"));
    server.sql("UPDATE mine.writer SET applied = 5");
    open(dir.path()).unwrap();
    server.sql("INSERT INTO mine.version VALUES (3)");
    let newer = open(dir.path()).err().unwrap();
    assert!(matches!(newer, OpenError::Newer { found: 3, known: 2, .. }), "{newer:?}");
    server.sql("DROP SCHEMA mine CASCADE");
    assert!(text(open(dir.path())).contains("does not know this state directory"));
    let elsewhere = PgEngine::open(dir.path(), server.options("theirs").tuned(quick()));
    assert!(text(elsewhere).contains("namespace is mine"));
    let nobody = Options::new(&server.url().replace("user=onfs", "user=nobody"), "x", None, Sharing::Alone);
    assert!(text(PgEngine::open(other.path(), nobody.unwrap().tuned(quick()))).contains("refused"));
    server.crash();
    server.start_with(&["fsync=off"]);
    assert!(text(PgEngine::open(other.path(), server.options("unsafe_one"))).contains("fsync"));
}

#[test]
fn many_open_at_once_and_one_makes_the_tables() {
    let Some(server) = server() else { return };
    let dirs: Vec<_> = (0..6).map(|_| tempfile::tempdir().unwrap()).collect();
    std::thread::scope(|scope| {
        for dir in &dirs {
            scope.spawn(|| {
                let options = Options::new(&server.url(), "crowd", None, Sharing::Shared).unwrap();
                PgEngine::open(dir.path(), options).unwrap()
            });
        }
    });
    assert_eq!(server.sql("SELECT count(*) FROM crowd.version"), "2");
    assert_eq!(server.sql("SELECT count(*), max(epoch) FROM crowd.slot"), "4096|0");
    assert_eq!(server.sql("SELECT count(*) FROM crowd.writer"), "6");
}

#[test]
fn of_many_that_want_a_fresh_namespace_alone_one_gets_it() {
    let Some(server) = server() else { return };
    let dirs: Vec<_> = (0..6).map(|_| tempfile::tempdir().unwrap()).collect();
    let results: Vec<Result<PgEngine, OpenError>> = std::thread::scope(|scope| {
        let open = |dir: &tempfile::TempDir| {
            let (path, options) = (dir.path().to_owned(), server.options("alone").tuned(quick()));
            scope.spawn(move || PgEngine::open(&path, options))
        };
        let opening: Vec<_> = dirs.iter().map(open).collect();
        opening.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let won = results.iter().position(Result::is_ok).unwrap();
    for (n, result) in results.iter().enumerate().filter(|(n, _)| *n != won) {
        let why = result.as_ref().err().unwrap();
        assert!(matches!(why, OpenError::Refused(_)), "{n}: {why:?}");
        assert!(why.to_string().contains("another state directory"), "{n}: {why}");
    }
    assert_eq!(server.sql("SELECT count(*) FROM alone.writer"), "1");
    drop(results);
    server.engine(dirs[won].path(), "alone").apply(&[(b"key", Some(b"1"))], Lsn(1)).unwrap();
}

#[test]
fn a_copy_of_a_state_directory_waits_for_the_lease() {
    let Some(server) = server() else { return };
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |dir: &std::path::Path| PgEngine::open(dir, server.options("copied").tuned(quick()));
    let engine = open(dir.path()).unwrap();
    engine.apply(&[(b"key", Some(b"1"))], Lsn(1)).unwrap();
    std::fs::copy(dir.path().join("WRITER"), copy.path().join("WRITER")).unwrap();
    let in_use = open(copy.path()).err().unwrap();
    assert!(matches!(&in_use, OpenError::Locked { .. }), "{in_use:?}");
    engine.apply(&[(b"key", Some(b"2"))], Lsn(2)).unwrap();
    // As by a kill: the lease is there still. The same directory does not wait for it, another one does.
    drop(engine);
    drop(open(dir.path()).unwrap());
    let engine = open(copy.path()).unwrap();
    assert_eq!(engine.get(b"key").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn an_opening_that_was_cut_short_is_gone_on_with() {
    // Goal: the namespace is not lost to a name that nobody knows. Method: the file that says who we are is missing, as before its
    // rename.
    let Some(server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    drop(server.engine(dir.path(), "cut"));
    std::fs::remove_file(dir.path().join("WRITER")).unwrap();
    drop(server.engine(dir.path(), "cut"));
    assert_eq!(server.sql("SELECT count(*) FROM cut.writer"), "1");
    // An empty database is not made ours by a directory that has another one.
    let away = Options::new(
        &server.url().replace("dbname=postgres", "dbname=template1"),
        "cut",
        None,
        Sharing::Alone,
    );
    let refused = PgEngine::open(dir.path(), away.unwrap().tuned(quick())).err().unwrap();
    assert!(refused.to_string().contains("does not know this state directory"), "{refused}");
}

#[test]
fn passwords_are_refused_at_once() {
    // Goal: what cannot become right by waiting is not waited for. Method: a server that asks for passwords; none, a wrong one.
    let Some(mut server) = server() else { return };
    server.sql("ALTER ROLE onfs PASSWORD 'right-s3cret'");
    server.crash();
    std::fs::write(server.data().join("pg_hba.conf"), "local all all scram-sha-256\n").unwrap();
    let pass = server.dir.path().join("pass");
    let dir = tempfile::tempdir().unwrap();
    server.start();
    let open = |text: Option<&str>| {
        let file = text.map(|text| {
            std::fs::write(&pass, text).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&pass, mode).unwrap();
            pass.clone()
        });
        PgEngine::open(dir.path(), Options::new(&server.url(), "asked", file, Sharing::Alone).unwrap())
    };
    let began = std::time::Instant::now();
    for text in [None, Some("*:*:*:*:wrong-s3cret\n")] {
        let refused = open(text).err().unwrap();
        assert!(matches!(refused, OpenError::Refused(_)), "{refused:?}");
        assert!(
            refused.to_string().contains("password") && !refused.to_string().contains("s3cret"),
            "{refused}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    open(Some("*:*:*:*:right-s3cret\n")).unwrap();
}

#[test]
fn a_store_over_it_goes_on_after_an_outage() {
    // Goal: commits are taken while the database is away, and nothing needs a new opening when it is back. Method: a store, its
    // server crashed between commits and checkpoints; then another opening, after it was only dropped.
    let Some(mut server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let open = |server: &support::Server| {
        let options =
            MetaStoreOptions { background: false, cache_bytes: 4096, ..MetaStoreOptions::default() };
        let pg = server.options("store").tuned(quick());
        let engine =
            move |dir: &std::path::Path, _| Ok(Box::new(PgEngine::open(dir, pg)?) as Box<dyn Engine>);
        MetaStore::open(dir.path(), engine, options, std::sync::Arc::new(SystemDisk)).unwrap()
    };
    let put = |store: &MetaStore, n: u64| {
        let mut writes = WriteSet::new();
        writes.put(&n.to_be_bytes(), n.to_le_bytes().to_vec().into());
        writes.put(b"last", n.to_le_bytes().to_vec().into());
        store.commit(writes).unwrap();
    };
    let store = open(&server);
    (0..10).for_each(|n| put(&store, n));
    store.checkpoint().unwrap();
    server.crash();
    (10..20).for_each(|n| put(&store, n));
    assert!(store.checkpoint().is_err());
    (20..30).for_each(|n| put(&store, n));
    assert_eq!(store.get(b"last").unwrap().as_deref(), Some(&29u64.to_le_bytes()[..]));
    assert!(store.stats().read_only.is_none());
    server.start();
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    assert_eq!(store.stats().applied_lsn, Lsn(30));
    put(&store, 30);
    drop(store);
    let store = open(&server);
    for n in 0..=30u64 {
        assert_eq!(store.get(&n.to_be_bytes()).unwrap().as_deref(), Some(&n.to_le_bytes()[..]));
    }
}

#[test]
fn tables_of_the_release_before_are_brought_up_to_date() {
    // Goal: a namespace that an earlier release made is used on, with all that is in it. Method: what the second migration made is taken away.
    let Some(server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let engine = server.engine(dir.path(), "earlier");
    engine.apply(&[(b"key", Some(b"value"))], Lsn(1)).unwrap();
    engine.close().unwrap();
    drop(engine);
    server.sql("DROP TABLE earlier.tail, earlier.take_over; DELETE FROM earlier.version WHERE version = 2");
    let engine = server.engine(dir.path(), "earlier");
    assert_eq!(engine.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!((engine.applied_lsn(), engine.taken_over()), (Ok(Lsn(1)), Ok(false)));
    assert_eq!(server.sql("SELECT max(version) FROM earlier.version"), "2");
    assert_eq!(server.sql("SELECT count(*) FROM earlier.tail"), "0");
}
