//! What was called and answered through the mounts, in the order of one monotonic clock, and how it is kept.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::Path,
    time::Instant,
};

use anyhow::{Context, Result};
use rustix::io::Errno;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Nanoseconds since the start of a round.
#[derive(Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }
    pub fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
    /// Runs one call between its two times.
    pub fn time<T>(&self, call: impl FnOnce() -> T) -> (u64, u64, T) {
        let called = self.now();
        let answer = call();
        (called, self.now(), answer)
    }
}

/// One call of a thread. An `answer` that is an error says why it is not known whether it was carried out; an error that
/// the model knows (a name that is not there) is an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call<O, A> {
    pub thread: u32,
    pub mount: usize,
    pub called: u64,
    pub returned: u64,
    pub op: O,
    pub answer: Result<A, Failure>,
}

/// An error that says nothing of the model's objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// None: fewer bytes than asked for.
    pub errno: Option<i32>,
    pub said: String,
}

impl Failure {
    /// The mount that was called through has no daemon any more.
    pub fn mount_is_gone(&self) -> bool {
        let gone = [Errno::NOTCONN, Errno::CONNABORTED, Errno::NODEV];
        gone.iter().any(|errno| Some(errno.raw_os_error()) == self.errno)
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        Failure { errno: e.raw_os_error(), said: e.to_string() }
    }
}

/// What a file of a history begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub kind: String,
    pub seed: u64,
    pub round: u64,
    /// Between these moments a server was killed.
    pub faults: Vec<(u64, u64)>,
    /// The last mount's daemon was killed.
    pub client_killed: bool,
}

impl Header {
    /// Was this call under way when a server was killed? Its first answer may be lost, and it made a second time (S-163).
    pub fn twice<O, A>(&self, call: &Call<O, A>) -> bool {
        self.faults.iter().any(|(from, to)| call.called <= *to && call.returned >= *from)
    }
}

/// As JSON lines.
pub fn save<T: Serialize>(path: &Path, header: &Header, calls: &[T]) -> Result<()> {
    let mut file = std::io::BufWriter::new(File::create(path)?);
    writeln!(file, "{}", serde_json::to_string(header)?)?;
    for call in calls {
        writeln!(file, "{}", serde_json::to_string(call)?)?;
    }
    file.flush().context("write the history")
}

/// Its header alone says how the rest is to be read.
pub fn load_header(path: &Path) -> Result<Header> {
    let mut line = String::new();
    BufReader::new(File::open(path)?).read_line(&mut line)?;
    serde_json::from_str(&line).context("the first line is no header of a history")
}

pub fn load_calls<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let lines = BufReader::new(File::open(path)?).lines().skip(1);
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
