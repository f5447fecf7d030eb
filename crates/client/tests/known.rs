//! Goal: the daemon does not keep something of every file that was ever looked at, and what the kernel is asked to forget
//! stays usable. Method: a real mount with a small bound, many more files, some of them in use.
#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    time::{Duration, Instant},
};

use harness::Site;

const MAX: usize = 100;
const FILES: usize = 2000;

#[test]
fn the_kernel_is_asked_to_forget_what_is_too_many() {
    let Some(mut site) = Site::new() else { return };
    site.known_max = MAX;
    site.mount();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 18) {
        println!("skipped: Linux {release} cannot be asked");
        return;
    }
    fs::create_dir(site.path("d")).unwrap();
    let path = |n: usize| site.path(&format!("d/{n}"));
    (0..FILES).for_each(|n| fs::write(path(n), format!("file {n}")).unwrap());
    let open: Vec<File> = (0..50).map(|n| File::open(path(n)).unwrap()).collect();
    let inode = fs::metadata(path(777)).unwrap().ino();
    let end = Instant::now() + Duration::from_secs(60);
    while site.mds().known() > MAX + 60 {
        assert!(Instant::now() < end, "{} inodes are still known", site.mds().known());
        std::thread::sleep(Duration::from_millis(20));
    }
    for (n, file) in open.iter().enumerate() {
        let mut text = vec![0; 16];
        let len = file.read_at(&mut text, 0).unwrap();
        assert_eq!(String::from_utf8_lossy(&text[..len]), format!("file {n}"));
    }
    assert_eq!(fs::metadata(path(777)).unwrap().ino(), inode);
    for n in 0..FILES {
        assert_eq!(fs::read_to_string(path(n)).unwrap(), format!("file {n}"));
    }
    assert_eq!(fs::read_dir(site.path("d")).unwrap().count(), FILES);
}
