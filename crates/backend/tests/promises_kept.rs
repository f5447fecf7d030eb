//! Goal: a directory keeps the promises that every back end does. Method: `promises`, on tmpfs and the disk, by itself and
//! behind a deadline.
#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;
mod promises;

use backend::{Deadlined, Limits};
use fixture::directory;
use tempfile::TempDir;

#[test]
fn a_directory_keeps_them() {
    // Devices, and owners.
    if !fixture::is_root() {
        return;
    }
    for place in ["/dev/shm", "/var/tmp"] {
        let scratch = TempDir::with_prefix_in("onfs-backend-", place).unwrap();
        let fresh = |name: &str| {
            let path = scratch.path().join(name);
            std::fs::create_dir(&path).unwrap();
            directory(&path)
        };
        promises::all(&|name| Box::new(fresh(name)));
        promises::all(&|name| Box::new(Deadlined::new(fresh(&format!("{name}-2")), Limits::default())));
    }
}
