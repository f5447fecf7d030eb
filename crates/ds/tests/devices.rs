//! Goal: a device that hangs or fails is seen, other tiers are taken before it, and it is seen when it is well again. Method: an SSD of which one
//! operation hangs until the test lets it go, and one whose syncs fail.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::OpenKind;
use harness::{Site, hint, ino, read};
use std::time::{Duration, Instant};
use store::{Fault, FaultSpan, Faults, IoKind};
use tier::health::Health;
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: true, write: true };

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn site(slow_after: Duration) -> (Site, Faults) {
    let mut site = Site::new(64 << 20);
    let faults = Faults::armed();
    (site.ssd_faults, site.slow_after) = (Some(faults.clone()), slow_after);
    site.start();
    (site, faults)
}

/// Writes object `n` and makes it durable; the tier that has it then.
fn durable(site: &Site, n: u64) -> TierId {
    let server = site.server();
    let object = server.attach(ino(n), &hint(site, 0)).unwrap();
    server.open(&object, WRITER);
    server.write(&object, 0, &vec![n as u8; 5 << 20]).unwrap();
    server.sync(&object).unwrap();
    server.close(&object, WRITER);
    assert_eq!(read(site, &object, 0, 5 << 20), Ok(vec![n as u8; 5 << 20]));
    let bytes = server.report(&object).bytes;
    TierId::ALL.into_iter().find(|tier| tier.is_persistent() && bytes[tier.index()] > 0).unwrap()
}

#[test]
fn a_device_that_hangs_is_passed_by() {
    let (site, faults) = site(Duration::from_millis(20));
    assert_eq!(durable(&site, 2), TierId::Ssd);
    let server = site.server().clone();
    let hangs = faults.hold(IoKind::Sync);
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| durable(&site, 3));
        assert!(hangs.has_come(Instant::now() + Duration::from_secs(60)));
        until("it is seen", || matches!(server.health(TierId::Ssd), Health::Slow { .. }));
        assert!(server.is_ill());
        // Others go on meanwhile, on the slower device.
        assert_eq!(durable(&site, 4), TierId::Nearline);
        assert!(server.tiers().iter().any(|tier| tier.tier == TierId::Ssd && !tier.health.is_well()));
        drop(hangs);
        stuck.join().unwrap();
    });
}

#[test]
fn a_device_that_fails_is_passed_by() {
    let (site, faults) = site(Duration::from_secs(3600));
    assert_eq!(durable(&site, 2), TierId::Ssd);
    faults.plan(Fault {
        kind: Some(IoKind::Sync),
        nth: 1,
        errno: Errno::EIO,
        span: FaultSpan::Onwards,
        torn: false,
    });
    // What it is asked for fails, or goes elsewhere; either way it is seen.
    let server = site.server();
    let object = server.attach(ino(3), &hint(&site, 0)).unwrap();
    server.open(&object, WRITER);
    until("it is seen", || {
        let _ = server.write(&object, 0, &[1; 4096]).and_then(|_| server.sync(&object));
        matches!(server.health(TierId::Ssd), Health::Failing { .. })
    });
    server.close(&object, WRITER);
    assert_eq!(durable(&site, 4), TierId::Nearline);
}
