//! Goal: who has nothing to move sleeps until there is something. Method: how often the movers' threads gave up the processor, by the
//! kernel's count; alone in its process, since other servers would have movers, too.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod harness;

use std::{collections::BTreeMap, time::Duration};

use harness::Site;

/// Of each mover.
fn sleeps() -> BTreeMap<String, u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let movers = tasks.filter_map(|task| {
        let path = task.unwrap().path();
        let name =
            std::fs::read_to_string(path.join("comm")).ok().filter(|name| name.starts_with("mover-"))?;
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        Some((name, line.split_whitespace().last()?.parse().ok()?))
    });
    movers.collect()
}

#[test]
fn movers_sleep_while_there_is_nothing_to_move() {
    let mut site = Site::new(64 << 20);
    site.start();
    // Until they have begun to wait.
    let mut before = sleeps();
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(50));
        let now = sleeps();
        if !now.is_empty() && now == before {
            std::thread::sleep(Duration::from_secs(1));
            assert_eq!(sleeps(), before, "they woke for nothing");
            // And they end when they are to.
            return site.stop();
        }
        before = now;
    }
    panic!("they never sleep: {before:?}");
}
