//! What a standby costs: directories made over sockets, by one client at a time and by eight, with a standby and without, in turns.
//!
//! Two metadata servers and the clients are in this process, so processor time is that of all of them. `cargo bench -p serve --bench standby`;
//! an argument is the number of rounds.
#![allow(clippy::unwrap_used, reason = "ends with what went wrong")]

#[path = "../tests/site/mod.rs"]
mod site;

use std::{
    thread,
    time::{Duration, Instant},
};

use proto::{Head, attr::Caller, metadata::Mkdir};
use rustix::time::{ClockId, clock_gettime};
use site::{
    several::{Routed, Several},
    until,
};

const EACH: Duration = Duration::from_millis(1500);
const CLIENTS: [usize; 2] = [1, 8];

/// Of one measurement.
#[derive(Clone, Copy)]
struct Took {
    per_second: f64,
    cpu_micros: f64,
}

fn cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap())
}

/// Makes directories until the time is over; how many.
fn make(session: &Routed<'_>, dir: u64, until: Instant) -> u64 {
    let (owner, caller) = (session.site.owner(dir), Some(Caller { uid: 0, gid: 0, umask: 0 }));
    let mut number = 0;
    while Instant::now() < until {
        number += 1;
        let head = Some(Head::operation(session.id, number, number));
        let name = format!("{:032x}-{number}", session.id.0).into_bytes();
        session.once(owner, &Mkdir { head, caller, dir, name, mode: 0o755 }).unwrap();
    }
    number
}

fn measure(site: &Several, dir: u64, clients: usize) -> Took {
    let sessions: Vec<_> = (0..clients).map(|_| site.session()).collect();
    let (began, spent) = (Instant::now(), cpu());
    let made: u64 = thread::scope(|scope| {
        let run = |session| scope.spawn(move || make(session, dir, began + EACH));
        let running: Vec<_> = sessions.iter().map(run).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let (cpu, took) = (cpu() - spent, began.elapsed());
    Took { per_second: made as f64 / took.as_secs_f64(), cpu_micros: cpu.as_secs_f64() * 1e6 / made as f64 }
}

/// With each number of clients.
fn round(standby: bool) -> Vec<Took> {
    let mut site = Several::new(2, 0);
    if !standby {
        site.standby = false;
        for n in 0..2 {
            site.stop(n);
            site.start(n);
        }
        site.settled();
    }
    let session = site.session();
    let dir = session.mkdir(1, "dir").unwrap();
    // It goes to who is to have it.
    thread::sleep(Duration::from_secs(2));
    until("there are standbys, or none", || (0..2).all(|n| site.is_copied(n) == standby));
    CLIENTS.map(|clients| measure(&site, dir, clients)).to_vec()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(3);
    let took: Vec<[Vec<Took>; 2]> = (0..rounds).map(|_| [round(false), round(true)]).collect();
    println!("clients  without/s     with/s   ratio  CPU us without   with   ratio");
    for (at, clients) in CLIENTS.iter().enumerate() {
        let of = |pick: fn(&Took) -> f64, standby: usize| -> Vec<f64> {
            took.iter().map(|round| pick(&round[standby][at])).collect()
        };
        let row = |pick: fn(&Took) -> f64| {
            let (without, with) = (of(pick, 0), of(pick, 1));
            let ratios = without.iter().zip(&with).map(|(without, with)| with / without).collect();
            (median(without), median(with), median(ratios))
        };
        let (rate, cpu) = (row(|took| took.per_second), row(|took| took.cpu_micros));
        println!(
            "{clients:>7} {:>10.0} {:>10.0} {:>7.2} {:>15.1} {:>6.1} {:>7.2}",
            rate.0, rate.1, rate.2, cpu.0, cpu.1, cpu.2
        );
    }
}
