//! Goal: what lies on a device has a checksum, however it came there, and no checksum is of bytes that were not. Method:
//! writes that go straight to a device, then bytes changed there behind the server's back.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{Object, ObjectHint, OpenKind};
use harness::{Site, hint, ino};
use std::{
    os::unix::fs::FileExt,
    sync::Arc,
    time::{Duration, Instant},
};
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const MIB: usize = 1 << 20;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn attach(site: &Site, size: usize) -> Arc<Object> {
    site.server().attach(ino(2), &hint(site, size)).unwrap()
}

/// Nothing is waited for.
fn hurry(site: &mut Site) {
    site.seal_after = Duration::ZERO;
    site.safe_within = Duration::ZERO;
}

/// Object 2, 6 MiB, its bytes written over on the SSD: open in sync mode.
fn overwritten(site: &Site) -> Arc<Object> {
    let object = site.server().attach(ino(2), &ObjectHint { written: false, ..hint(site, 0) }).unwrap();
    site.server().open(&object, WRITER);
    site.server().write(&object, 0, &[7; 6 * MIB]).unwrap();
    site.server().sync(&object).unwrap();
    site.server().write(&object, 0, &[8; 6 * MIB]).unwrap();
    object
}

fn read(site: &Site, object: &Object) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; object.size() as usize];
    site.server().read(object, 0, &mut buf).map(|n| buf[..n].to_vec())
}

fn wait_until_sealed(site: &Site, size: usize) {
    let begun = Instant::now();
    while site.server().report(&attach(site, size)).sealed_saus < 2 {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", site.server().report(&attach(site, size)));
        std::thread::yield_now();
    }
}

fn damage(site: &Site) {
    let file = std::fs::OpenOptions::new().write(true).open(site.tier_path(TierId::Ssd, 2)).unwrap();
    file.write_all_at(b"x", 5 << 20).unwrap();
}

#[test]
fn regression_bytes_that_went_straight_to_a_device_get_a_checksum() {
    for closed in [true, false] {
        let mut site = Site::new(64 << 20);
        hurry(&mut site);
        site.start();
        let object = overwritten(&site);
        if closed {
            site.server().close(&object, WRITER);
        }
        drop(object);
        wait_until_sealed(&site, 6 * MIB);
        site.restart();
        let object = attach(&site, 6 * MIB);
        assert_eq!(site.server().report(&object).sealed_saus, 2, "on record");
        damage(&site);
        assert_eq!(read(&site, &object), Err(Errno::EIO));
    }
}

#[test]
fn regression_a_device_file_that_was_cut_is_no_zeros() {
    // With and without a checksum that was compared already.
    for sealed in [true, false] {
        let mut site = Site::new(64 << 20);
        if sealed {
            hurry(&mut site);
        }
        site.start();
        let object = overwritten(&site);
        if sealed {
            wait_until_sealed(&site, 6 * MIB);
        }
        assert_eq!(read(&site, &object).unwrap(), [8; 6 * MIB]);
        let file = std::fs::OpenOptions::new().write(true).open(site.tier_path(TierId::Ssd, 2)).unwrap();
        file.set_len(3 << 20).unwrap();
        assert_eq!(read(&site, &object), Err(Errno::EIO), "sealed: {sealed}");
    }
}

#[test]
fn regression_what_an_earlier_mount_left_without_a_checksum_gets_one() {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = overwritten(&site);
    site.server().close(&object, WRITER);
    assert_eq!(site.server().report(&object).sealed_saus, 0);
    drop(object);
    site.stop();
    hurry(&mut site);
    site.start();
    wait_until_sealed(&site, 6 * MIB);
    assert_eq!(read(&site, &attach(&site, 6 * MIB)).unwrap(), [8; 6 * MIB]);
}

#[test]
fn checksums_made_while_a_file_is_written_are_of_its_bytes() {
    // Writes and cuts to all of it without a pause for the sealer, which is never told to wait; then all is compared.
    let mut site = Site::new(64 << 20);
    hurry(&mut site);
    site.start();
    let object = overwritten(&site);
    let mut bytes = vec![8; 6 * MIB];
    let mut random = 12345_usize;
    for n in 0..3000 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let at = (random >> 16) % (6 * MIB - 5000);
        let value = n as u8;
        if n % 500 == 250 {
            site.server().truncate(&object, at as u64).unwrap();
            site.server().truncate(&object, 6 << 20).unwrap();
            bytes[at..].fill(0);
        }
        site.server().write(&object, at as u64, &[value; 5000]).unwrap();
        bytes[at..at + 5000].fill(value);
        if n % 100 == 0 {
            site.server().sync(&object).unwrap();
        }
    }
    site.server().sync(&object).unwrap();
    site.server().close(&object, WRITER);
    drop(object);
    wait_until_sealed(&site, 6 * MIB);
    assert!(read(&site, &attach(&site, 6 * MIB)).unwrap() == bytes);
    site.restart();
    assert!(read(&site, &attach(&site, 6 * MIB)).unwrap() == bytes);
    assert_eq!(site.server().counters().damaged_saus, 0);
    site.server().migrate(ino(2), TierId::Nearline, PATIENCE).unwrap();
    assert!(read(&site, &attach(&site, 6 * MIB)).unwrap() == bytes);
}
