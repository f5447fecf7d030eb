//! Goal: whatever two sessions do to a file over three data servers, and whoever dies in between, both see the bytes, the size and nothing
//! else. Method: random steps against a vector; kills of the metadata server and of data servers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use proto::{
    Layout, SessionId,
    metadata::{Append, Hold, Reference},
};
use site::{
    cluster::{Session, Site, options},
    until,
};

const UNIT: u64 = 4 << 20;
/// Bytes of the file at most: several rounds over three stripes.
const MOST: u64 = 5 * UNIT;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % n
    }

    /// Often near a border of two stripes.
    fn offset(&mut self) -> u64 {
        match self.below(3) {
            0 => self.below(MOST),
            _ => (self.below(5) * UNIT + self.below(3000)).saturating_sub(1500),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let (len, first) = (1 + self.below(5000), self.below(250) as u8 + 1);
        vec![first; len as usize]
    }
}

struct Play {
    site: Site,
    sessions: Vec<Session>,
    /// What each session has open: one opening that may write, or none.
    openings: [Option<u64>; 2],
    last: u64,
    ino: u64,
    bytes: Vec<u8>,
}

impl Play {
    fn new() -> Play {
        let sessions = serve::metadata::SessionLimits {
            silence: std::time::Duration::from_secs(20),
            ..serve::metadata::SessionLimits::default()
        };
        let site = Site::with(3, serve::metadata::MetadataOptions { sessions, ..options() });
        let sessions = vec![site.session(), site.session()];
        let ino = sessions[0].create("f", 1).unwrap().ino;
        sessions[1].lookup("f").unwrap();
        Play { site, sessions, openings: [Some(1), None], last: 1, ino, bytes: Vec::new() }
    }

    /// The layout, with writing begun by an opening of the session.
    fn begun(&mut self, n: usize) -> (u64, Layout) {
        let opening = self.openings[n].unwrap_or_else(|| {
            self.last += 1;
            self.sessions[n].open(self.ino, self.last, true).unwrap();
            self.last
        });
        self.openings[n] = Some(opening);
        (opening, self.sessions[n].begin(self.ino, opening).unwrap())
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[offset as usize..end].copy_from_slice(bytes);
    }

    fn step(&mut self, random: &mut Random) -> String {
        let n = random.below(2) as usize;
        match random.below(10) {
            0..=3 => {
                let (offset, bytes) = (random.offset(), random.bytes());
                let (_, layout) = self.begun(n);
                self.sessions[n].write(self.ino, &layout, offset, &bytes);
                self.put(offset, &bytes);
                format!("{n} writes {} at {offset}", bytes.len())
            }
            4 => {
                let bytes = random.bytes();
                let (opening, layout) = self.begun(n);
                let (head, length) = (self.sessions[n].op(), bytes.len() as u64);
                let append = Append { head, ino: self.ino, opening, length };
                let offset = self.sessions[n].try_ask(&append).unwrap().offset;
                assert_eq!(offset, self.bytes.len() as u64);
                self.sessions[n].write(self.ino, &layout, offset, &bytes);
                self.put(offset, &bytes);
                format!("{n} appends {length}")
            }
            5 | 6 => {
                let (size, grow_only) = (random.offset(), random.below(3) == 0);
                self.sessions[n].set_size(self.ino, size, grow_only).unwrap();
                if !grow_only || size > self.bytes.len() as u64 {
                    self.bytes.resize(size as usize, 0);
                }
                format!("{n} sets the size {size}, {grow_only}")
            }
            7 => {
                let opening = self.openings[n].take();
                opening.into_iter().for_each(|opening| self.sessions[n].close(opening));
                format!("{n} closes {opening:?}")
            }
            8 => {
                let dead = random.below(3) as usize;
                self.site.kill_data(dead);
                self.site.start_data(dead);
                format!("data server {dead} dies")
            }
            _ => {
                self.restart();
                "the metadata server dies".to_owned()
            }
        }
    }

    /// Both come back with what they had.
    fn restart(&mut self) {
        self.site.kill();
        self.site.start();
        self.site.wait_for(3);
        for n in 0..2 {
            let id = SessionId(self.sessions[n].id.0 + 1000);
            let session = Session::over(&self.site, id);
            session.mount();
            let references = vec![Reference { ino: self.ino, count: 1 }];
            let held = session.try_ask(&Hold { head: session.op(), references }).unwrap();
            assert!(held.gone.is_empty());
            if let Some(opening) = self.openings[n] {
                session.open(self.ino, opening, true).unwrap();
            }
            self.sessions[n] = session;
        }
    }

    fn compare(&self, step: &str) {
        for session in &self.sessions {
            let size = session.attr(self.ino).unwrap().size;
            assert_eq!(size, self.bytes.len() as u64, "{step}");
        }
        let session = &self.sessions[0];
        let find = proto::metadata::FindLayout { head: session.head(), ino: self.ino };
        let placed = session.try_ask(&find).unwrap();
        assert_eq!(placed.size, self.bytes.len() as u64, "{step}");
        let Some(layout) = placed.layout else {
            assert!(self.bytes.iter().all(|byte| *byte == 0), "{step}");
            return;
        };
        let there = session.read(self.ino, &layout, placed.size);
        let differs = there.iter().zip(&self.bytes).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{step}");
    }
}

#[test]
fn two_sessions_and_deaths_against_a_vector() {
    for seed in 1..=2 {
        let mut random = Random(0x9E37_79B9_7F4A * seed);
        let mut play = Play::new();
        for at in 0..40 {
            let step = play.step(&mut random);
            play.compare(&format!("seed {seed}, step {at}: {step}"));
        }
        for n in 0..2 {
            play.openings[n].into_iter().for_each(|opening| play.sessions[n].close(opening));
        }
        play.compare(&format!("seed {seed}: all closed"));
        play.sessions[0].unlink("f").unwrap();
        let references = vec![Reference { ino: play.ino, count: 9 }];
        for session in &play.sessions {
            let references = references.clone();
            session.try_ask(&proto::metadata::Forget { head: session.op(), references }).unwrap();
        }
        // Not before who might come back had time to.
        until("nobody has it open", || play.site.service().in_use().1 == 0);
    }
}
