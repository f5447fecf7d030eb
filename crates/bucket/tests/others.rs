//! Goal: what other programs put into a bucket is seen for what it is, whatever replaces it is seen, and what cannot be a file is left
//! out. Method: a plain client beside ours, on a real server.
#![allow(clippy::unwrap_used, reason = "a test")]

mod server;

use std::{collections::BTreeMap, ops::ControlFlow};

use bucket::Bucket;
use link::{Attributes, Attrs, BackEnd, Change, Found, Making, Over, Reachable, Trust, compare, trust};
use server::Server;
use types::{Errno, FileKind, Timestamp};

fn way(path: &str) -> Vec<Vec<u8>> {
    path.split('/').filter(|name| !name.is_empty()).map(|name| name.as_bytes().to_vec()).collect()
}

fn listed(back: &dyn BackEnd, path: &str) -> BTreeMap<String, Found> {
    let mut all = BTreeMap::new();
    back.list(&way(path), &mut |name, found| {
        all.insert(String::from_utf8(name.to_vec()).unwrap(), found);
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

fn seen(back: &dyn BackEnd, path: &str) -> link::Seen {
    back.look(&way(path)).unwrap().unwrap().seen
}

#[test]
fn objects_of_others_are_files() {
    let Some(server) = Server::find() else { return };
    let (back, others) = (server.bucket("files"), server.others("files"));
    others.put("plain", b"12345", &[]);
    others.put("deep/er/file", b"x", &[("mode", "33216"), ("uid", "7"), ("mtime", "1700000000.25")]);
    others.put("link", b"deep/er", &[("mode", "41471")]);
    others.make_dir("marked/");
    let root = listed(&back, "");
    assert_eq!(root.keys().collect::<Vec<_>>(), ["deep", "link", "marked", "plain"]);
    let plain = root["plain"].seen;
    assert_eq!((plain.kind, plain.size, plain.mode), (FileKind::Regular, 5, 0o644));
    assert_eq!(
        (root["deep"].seen.kind, root["marked"].seen.kind),
        (FileKind::Directory, FileKind::Directory)
    );
    assert_eq!(root["link"].seen.kind, FileKind::Symlink);
    assert_eq!(back.readlink(&way("link")).unwrap(), b"deep/er");
    let file = listed(&back, "deep/er")["file"];
    assert_eq!((file.seen.mode, file.seen.uid), (0o700, 7));
    assert_eq!(file.seen.mtime, Timestamp { sec: 1_700_000_000, nsec: 250_000_000 });
    assert_eq!(seen(&back, "deep/er/file"), file.seen);
    assert!(listed(&back, "marked").is_empty());
}

#[test]
fn ours_are_files_of_others() {
    let Some(server) = Server::find() else { return };
    let (back, others) = (server.bucket("ours"), server.others("ours"));
    let with = Attributes {
        mode: 0o640,
        uid: 5,
        gid: 6,
        atime: Timestamp { sec: 1, nsec: 2 },
        mtime: Timestamp { sec: 3, nsec: 4 },
        xattrs: &[],
    };
    let mut version = back.begin_version(&way(".onfs-way-1")).unwrap();
    version.write_at(b"hello", 0).unwrap();
    version.finish(&with).unwrap();
    back.rename(&way(".onfs-way-1"), &way("f"), Over::Nothing).unwrap();
    assert_eq!(others.get("f"), b"hello");
    let metadata = others.metadata("f");
    let told = |name: &str| metadata.get(name).map(String::as_str);
    assert_eq!((told("mode"), told("uid"), told("gid")), (Some("33184"), Some("5"), Some("6")));
    assert_eq!(told("mtime"), Some("3.000000004"));
    let what = Making { kind: FileKind::Symlink, rdev: 0, target: b"f", with: &with };
    back.make(&way("l"), &what).unwrap();
    assert_eq!(others.get("l"), b"f");
    // What others wrote beside ours stays.
    others.put("theirs", b"1", &[("colour", "blue")]);
    back.set_attributes(&way("theirs"), Attrs::MODE, &with).unwrap();
    let metadata = others.metadata("theirs");
    assert_eq!((metadata["colour"].as_str(), metadata["mode"].as_str()), ("blue", "33184"));
    assert_eq!(others.get("theirs"), b"1");
}

#[test]
fn every_replacement_is_seen() {
    let Some(server) = Server::find() else { return };
    let (back, others) = (server.bucket("replaced"), server.others("replaced"));
    others.put("f", b"one", &[]);
    let (source, first) = back.open(&way("f")).unwrap();
    assert_eq!(compare(&first.seen, Some(&seen(&back, "f"))), Change::Nothing);
    // In the same second, of the same length.
    others.put("f", b"two", &[]);
    let second = seen(&back, "f");
    assert!(compare(&first.seen, Some(&second)) >= Change::Data);
    let mut buf = [0; 3];
    assert_eq!(source.read_at(&mut buf, 0), Err(Errno::ESTALE));
    assert_eq!(source.look().err(), Some(Errno::ESTALE));
    assert!(compare(&first.seen, Some(&listed(&back, "")["f"].seen)) >= Change::Data);
    others.delete("f");
    assert_eq!(back.look(&way("f")), Ok(None));
    others.put("f/g", b"", &[]);
    assert_eq!(compare(&second, Some(&seen(&back, "f"))), Change::OtherKind);
}

#[test]
fn a_directory_of_others_outlives_its_files() {
    let Some(server) = Server::find() else { return };
    let (back, others) = (server.bucket("implied"), server.others("implied"));
    others.put("d/e/f", b"1", &[]);
    let before = seen(&back, "d/e");
    back.unlink(&way("d/e/f")).unwrap();
    let after = seen(&back, "d/e");
    assert!(compare(&before, Some(&after)) <= Change::Attributes, "{before:?} {after:?}");
    assert!(listed(&back, "d/e").is_empty());
    back.rmdir(&way("d/e")).unwrap();
    assert_eq!(back.look(&way("d/e")), Ok(None));
}

#[test]
fn names_that_no_key_can_have_are_refused() {
    let Some(server) = Server::find() else { return };
    let back = server.bucket("names");
    let long = "n".repeat(256);
    for (name, errno) in [
        (&b" leading"[..], Errno::EINVAL),
        (b"trailing ", Errno::EINVAL),
        (b"\xff", Errno::EINVAL),
        (b"a\nb", Errno::EINVAL),
        (b".onfs-root", Errno::EINVAL),
        (long.as_bytes(), Errno::ENAMETOOLONG),
    ] {
        assert_eq!(back.look(&[name.to_vec()]).err(), Some(errno), "{}", name.escape_ascii());
    }
    let odd = "+ %2F&=?#é~*'()";
    let others = server.others("names");
    others.put(odd, b"odd", &[]);
    assert_eq!(listed(&back, "").keys().collect::<Vec<_>>(), [odd]);
    back.rename(&way(odd), &way("x +%20y"), Over::Nothing).unwrap();
    assert_eq!(others.get("x +%20y"), b"odd");
    let with = Attributes {
        mode: 0o600,
        uid: 0,
        gid: 0,
        atime: Timestamp::EPOCH,
        mtime: Timestamp::EPOCH,
        xattrs: &[],
    };
    back.set_attributes(&way("x +%20y"), Attrs::MODE, &with).unwrap();
    assert_eq!(seen(&back, "x +%20y").mode, 0o600);
}

#[test]
fn another_bucket_and_an_emptied_one_are_not_believed() {
    let Some(server) = Server::find() else { return };
    let (back, others) = (server.bucket("root"), server.others("root"));
    others.put("f", b"1", &[]);
    let Reachable::Yes { id, empty } = back.root() else { panic!("{:?}", back.root()) };
    let known = Some(link::KnownRoot { id, empty });
    // The same from elsewhere.
    let again = Bucket::open(&link_again(&server, "root")).unwrap();
    assert_eq!(trust(known, again.root()), Trust::Known);
    others.delete("f");
    assert_eq!(trust(known, back.root()), Trust::Known, "emptied, and still the same");
    others.delete(".onfs-root");
    assert_eq!(trust(known, back.root()), Trust::Unmounted);
    others.put("f", b"1", &[]);
    assert_eq!(trust(known, back.root()), Trust::Stranger);
    others.put(".onfs-root", b"not ours", &[]);
    assert_eq!(trust(known, back.root()), Trust::Unreachable, "damaged");
    let mut options = server.options("root");
    options.location = bucket::Location::parse("s3://no-such-bucket-here/x").unwrap();
    assert!(Bucket::open(&options).is_err());
    let away = Bucket::open(&bucket::Options { first: false, ..options }).unwrap();
    assert_eq!(away.root(), Reachable::No);
    for answer in [away.look(&way("f")).err(), away.list(&[], &mut |_, _| ControlFlow::Continue(())).err()] {
        assert!(!matches!(answer, None | Some(Errno::ENOENT)), "{answer:?}");
    }
}

fn link_again(server: &Server, name: &str) -> bucket::Options {
    bucket::Options { first: false, ..server.options(name) }
}

#[test]
fn a_server_that_is_away_says_nothing_of_its_files() {
    let Some(server) = Server::find() else { return };
    let mut options = server.options("away");
    // Nobody listens there.
    options.endpoint = Some("http://127.0.0.1:9".to_owned());
    options.deadline = std::time::Duration::from_millis(1500);
    assert!(Bucket::open(&options).is_err());
    let back = Bucket::open(&bucket::Options { first: false, ..options }).unwrap();
    let began = std::time::Instant::now();
    assert_eq!(back.root(), Reachable::No);
    for answer in [
        back.look(&way("f")).err(),
        back.look(&[]).err(),
        back.open(&way("f")).err(),
        back.unlink(&way("f")).err(),
        back.rename(&way("f"), &way("g"), Over::Replace).err(),
    ] {
        assert!(matches!(answer, Some(Errno::EIO | Errno::ETIMEDOUT)), "{answer:?}");
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(15), "{:?}", began.elapsed());
}
