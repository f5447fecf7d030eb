//! Measures connections beside bare loopback sockets: two processes each, the same work in turn, medians of the rounds. `bench/wire` runs it.
//!
//! Rates and the processor time of both processes together; what is compared is a ratio within one round's run. A bare row does the
//! least that a program can: it writes and reads the same bytes on a TCP socket, with no frame, sum, thread or lock.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use net::{
    Bounds, Call, Channel, Credentials, Handler, Incoming, Reply, Server, Tuning, connect,
    tls::{self, Purpose, Tls, TlsFiles, Wanted},
};
use wire::{
    PageBuffer,
    connection::{Answer, Window},
    frame::{Body, Verdict},
    handshake::{Identity, Roles, Versions, Wish},
    key::ClusterKey,
    schema::Lane,
};

const WRITE: u16 = 1;
const READ: u16 = 2;
const MIB: usize = 1 << 20;
const SMALL: usize = 4096;
const BATCH: usize = 16;

/// How a row moves its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// One way, nothing comes back; so many buffers in turn, on both sides.
    BareStream {
        buffers: usize,
    },
    /// Each message is answered with 80 bytes before the next.
    BareTurns,
    Write {
        callers: usize,
        batch: usize,
    },
    Read {
        callers: usize,
    },
}

struct Row {
    name: &'static str,
    how: How,
    message: usize,
    /// The row that it is compared with.
    to: &'static str,
}

const ROWS: [Row; 13] = [
    row("bare stream, 1 MiB", How::BareStream { buffers: 1 }, MIB, ""),
    row("bare stream, 1 MiB, 4 buffers", How::BareStream { buffers: 4 }, MIB, ""),
    row("write 1 MiB, 1 caller", How::Write { callers: 1, batch: 1 }, MIB, "bare stream, 1 MiB"),
    row("write 1 MiB, 4 callers", How::Write { callers: 4, batch: 1 }, MIB, "bare stream, 1 MiB, 4 buffers"),
    row("read 1 MiB, 1 caller", How::Read { callers: 1 }, MIB, "bare stream, 1 MiB"),
    row("read 1 MiB, 4 callers", How::Read { callers: 4 }, MIB, "bare stream, 1 MiB, 4 buffers"),
    row("bare stream, 4 KiB", How::BareStream { buffers: 1 }, SMALL, ""),
    row("bare turns, 4 KiB", How::BareTurns, SMALL, ""),
    row("call 4 KiB, 1 caller", How::Write { callers: 1, batch: 1 }, SMALL, "bare turns, 4 KiB"),
    row("call 4 KiB, 8 callers", How::Write { callers: 8, batch: 1 }, SMALL, "bare turns, 4 KiB"),
    row("16 in a batch, 1 caller", How::Write { callers: 1, batch: BATCH }, SMALL, "bare stream, 4 KiB"),
    row("16 in a batch, 8 callers", How::Write { callers: 8, batch: BATCH }, SMALL, "bare stream, 4 KiB"),
    row("read 4 KiB, 8 callers", How::Read { callers: 8 }, SMALL, "bare turns, 4 KiB"),
];

const fn row(name: &'static str, how: How, message: usize, to: &'static str) -> Row {
    Row { name, how, message, to }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve-bare", message, answer, buffers] => {
            serve_bare(message.parse()?, answer.parse()?, buffers.parse()?)
        }
        ["serve-wire", listen] => serve_wire(listen, None),
        ["serve-wire", listen, certificates] => serve_wire(listen, Some(Path::new(certificates))),
        [rounds, seconds, ref more @ ..] => {
            let (only, beside) = match *more {
                [] => ("", None),
                [only] => (only, None),
                [only, "--tls"] => (only, Some(Way::Tls)),
                [only, "--unix"] => (only, Some(Way::Unix)),
                _ => bail!(USAGE),
            };
            compare(rounds.parse()?, Duration::from_secs_f64(seconds.parse()?), only, beside)
        }
        _ => bail!(USAGE),
    }
}

const USAGE: &str = "wirebench ROUNDS SECONDS [PART OF A ROW'S NAME [--tls|--unix]]";

/// What calls go over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Tcp,
    Tls,
    Unix,
}

/// Of one row: seconds of wall and of processor time for a message.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

/// `beside`: each row of calls is measured over TCP in clear and over this, in turn.
fn compare(rounds: u32, time: Duration, only: &str, beside: Option<Way>) -> Result<()> {
    let mut costs: BTreeMap<&str, Vec<Cost>> = BTreeMap::new();
    let mut others: BTreeMap<&str, Vec<Cost>> = BTreeMap::new();
    let dir = tempfile::tempdir()?;
    tls::create_authority(dir.path(), "wirebench")?;
    let wanted = Wanted {
        names: vec!["127.0.0.1".to_owned()],
        purpose: Purpose::Server,
        holds: Duration::from_secs(24 * 3600),
        renew: false,
    };
    tls::sign(dir.path(), &wanted)?;
    for _ in 0..rounds {
        // The bare rows are what the others are compared with.
        for row in ROWS.iter().filter(|r| r.to.is_empty() || r.name.contains(only)) {
            costs
                .entry(row.name)
                .or_default()
                .push(measure(row, time, (Way::Tcp, dir.path())).context(row.name)?);
            if let Some(way) = beside.filter(|_| !row.to.is_empty()) {
                let cost = measure(row, time, (way, dir.path())).context(row.name)?;
                others.entry(row.name).or_default().push(cost);
            }
        }
    }
    match beside {
        None | Some(Way::Tcp) => show(&costs),
        Some(Way::Tls) => show_both("TLS", &costs, &others),
        Some(Way::Unix) => show_both("Unix", &costs, &others),
    }
}

fn median(costs: &BTreeMap<&str, Vec<Cost>>, name: &str, of: fn(&Cost) -> f64) -> f64 {
    let mut values: Vec<f64> = costs.get(name).into_iter().flatten().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn show_both(name: &str, clear: &BTreeMap<&str, Vec<Cost>>, other: &BTreeMap<&str, Vec<Cost>>) -> Result<()> {
    println!("| | TCP: MB/s | CPU µs each | {name}: MB/s | CPU µs each | rate of TCP | CPU of TCP |");
    println!("|---|---|---|---|---|---|---|");
    for row in ROWS.iter().filter(|r| other.contains_key(r.name)) {
        let both = [clear, other]
            .map(|costs| (median(costs, row.name, |c| c.wall), median(costs, row.name, |c| c.cpu)));
        let shown =
            both.map(|(wall, cpu)| format!("{:.0} | {:.1}", row.message as f64 / wall / 1e6, cpu * 1e6));
        let [(clear_wall, clear_cpu), (other_wall, other_cpu)] = both;
        let (rate, cpu) = (clear_wall / other_wall, other_cpu / clear_cpu);
        println!("| {} | {} | {rate:.2} | {cpu:.2} |", row.name, shown.join(" | "));
    }
    Ok(())
}

fn show(costs: &BTreeMap<&str, Vec<Cost>>) -> Result<()> {
    let median = |name: &str, of: fn(&Cost) -> f64| median(costs, name, of);
    println!("| | MB/s | µs each | CPU µs each | CPU s/GiB | rate of bare | CPU of bare |");
    println!("|---|---|---|---|---|---|---|");
    for row in ROWS.iter().filter(|r| costs.contains_key(r.name)) {
        let (wall, cpu) = (median(row.name, |c: &Cost| c.wall), median(row.name, |c: &Cost| c.cpu));
        let rate = row.message as f64 / wall / 1e6;
        let per_gib = cpu * (1u64 << 30) as f64 / row.message as f64;
        let ratios = if row.to.is_empty() {
            "| ".to_owned()
        } else {
            format!("{:.2} | {:.2}", median(row.to, |c| c.wall) / wall, cpu / median(row.to, |c| c.cpu))
        };
        println!(
            "| {} | {rate:.0} | {:.1} | {:.1} | {per_gib:.2} | {ratios} |",
            row.name,
            wall * 1e6,
            cpu * 1e6
        );
    }
    Ok(())
}

fn measure(row: &Row, time: Duration, (way, dir): (Way, &Path)) -> Result<Cost> {
    let tls = (way == Way::Tls).then_some(dir);
    let answer = if row.how == How::BareTurns { "80" } else { "0" };
    let buffers = match row.how {
        How::BareStream { buffers } => buffers,
        How::BareTurns | How::Write { .. } | How::Read { .. } => 1,
    };
    let (mut child, address) = match row.how {
        How::BareStream { .. } | How::BareTurns => {
            child(&["serve-bare", &row.message.to_string(), answer, &buffers.to_string()])?
        }
        How::Write { .. } | How::Read { .. } => {
            let certificates = tls.map(|dir| dir.display().to_string());
            let listen = match way {
                Way::Tcp | Way::Tls => "127.0.0.1:0".to_owned(),
                Way::Unix => format!("unix:{}", dir.join("socket").display()),
            };
            child(&["serve-wire", &listen].into_iter().chain(certificates.as_deref()).collect::<Vec<_>>())?
        }
    };
    // What goes before is no part of it; the child's own start is, some milliseconds.
    let before = cpu()?;
    let (messages, wall) = match row.how {
        How::BareStream { .. } | How::BareTurns => bare(&address, row, buffers, time)?,
        How::Write { callers, batch } => {
            ask(&connected(&address, tls)?, row.message, (callers, batch), time)?
        }
        How::Read { callers } => read(&connected(&address, tls)?, row.message, callers, time)?,
    };
    drop(child.stdin.take());
    ensure!(child.wait()?.success(), "the other process failed");
    let cpu = cpu()? - before;
    Ok(Cost { wall: wall / messages as f64, cpu: cpu / messages as f64 })
}

/// Seconds of this process and of its children that have ended.
fn cpu() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = fields.get(11..15).context("stat")?.iter().map(|f| f.parse::<u64>().unwrap_or(0)).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn child(words: &[&str]) -> Result<(Child, String)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    let stdout = child.stdout.take().context("stdout")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut address)?;
    Ok((child, address.trim().to_owned()))
}

fn bare(address: &str, row: &Row, buffers: usize, time: Duration) -> Result<(u64, f64)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let messages = vec![vec![7; row.message]; buffers];
    let (begun, mut count) = (Instant::now(), 0);
    for message in messages.iter().cycle() {
        if begun.elapsed() >= time {
            break;
        }
        stream.write_all(message)?;
        if row.how == How::BareTurns {
            stream.read_exact(&mut [0; 80])?;
        }
        count += 1;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new())?;
    Ok((count, begun.elapsed().as_secs_f64()))
}

fn serve_bare(message: usize, answer: usize, buffers: usize) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (mut messages, answer) = (vec![vec![0; message]; buffers], vec![0; answer]);
    for turn in (0..buffers).cycle() {
        if stream.read_exact(&mut messages[turn]).is_err() {
            break;
        }
        stream.write_all(&answer)?;
    }
    Ok(())
}

struct Methods {
    body: Body,
}

impl Handler for Methods {
    fn asked(&self, incoming: Incoming, reply: Reply) {
        let body = match incoming.header.method {
            // The sum is made for each answer, as it is for bytes that were read somewhere.
            READ => Body::new(self.body.bytes().slice(..incoming.header.answer_bytes_max as usize)),
            _ => Body::default(),
        };
        let meta = incoming.meta.clone().into();
        // It fits: the body is as long as was asked for.
        let _ = reply.answer(Answer { verdict: Verdict::Done, meta, body, epoch: 1 });
    }
}

fn credentials(node: u64, tls: Option<&Path>) -> Result<Credentials> {
    let me = Identity {
        cluster: [1; 16],
        node,
        roles: Roles::DS,
        build: "wirebench".into(),
        versions: Versions::OURS,
        takes: Window::default(),
    };
    let files = |dir: &Path| TlsFiles {
        ca: dir.join("ca.crt"),
        certificate: dir.join("127.0.0.1.crt"),
        key: dir.join("127.0.0.1.key"),
    };
    let tls = tls.map(|dir| Tls::open(files(dir))).transpose()?;
    Ok(Credentials { me, key: ClusterKey::new([5; 32]), tls })
}

fn serve_wire(listen: &str, tls: Option<&Path>) -> Result<()> {
    let methods = Arc::new(Methods { body: Body::new(vec![7; MIB]) });
    let (tuning, bounds) = (Tuning::default(), Bounds::default());
    let server = Server::start(&listen.parse()?, credentials(1, tls)?, methods, tuning, bounds)?;
    println!("{}", server.address());
    // Until the other one lets go.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn connected(address: &str, tls: Option<&Path>) -> Result<Channel> {
    let wish = Wish { lane: Lane::Data, node: Some(1) };
    let methods = Arc::new(Methods { body: Body::default() });
    Ok(connect(&address.parse()?, &credentials(2, tls)?, wish, methods, &Tuning::default())?)
}

fn call(method: u16) -> Call {
    // About as long as a real one: an inode, an offset, a lease.
    Call::new(method, vec![1; 24], Instant::now() + Duration::from_secs(30))
}

fn together(callers: usize, work: impl Fn() -> Result<u64> + Sync) -> Result<(u64, f64)> {
    let begun = Instant::now();
    let counts: Vec<Result<u64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a caller failed"))).collect()
    });
    let count = counts.into_iter().sum::<Result<u64>>()?;
    Ok((count, begun.elapsed().as_secs_f64()))
}

fn ask(
    channel: &Channel,
    len: usize,
    (callers, batch): (usize, usize),
    time: Duration,
) -> Result<(u64, f64)> {
    let begun = Instant::now();
    together(callers, || {
        let bytes = bytes::Bytes::from(vec![7; len]);
        let one = || Call { body: Body::new(bytes.clone()), ..call(WRITE) };
        let mut count = 0;
        while begun.elapsed() < time {
            if batch == 1 {
                channel.call(one())?;
            } else {
                for pending in channel.begin_all((0..batch).map(|_| one()).collect()) {
                    pending?.wait()?;
                }
            }
            count += batch as u64;
        }
        Ok(count)
    })
}

fn read(channel: &Channel, len: usize, callers: usize, time: Duration) -> Result<(u64, f64)> {
    let begun = Instant::now();
    together(callers, || {
        let (mut into, mut count) = (PageBuffer::default(), 0);
        while begun.elapsed() < time {
            let call = Call { answer_bytes_max: len as u32, into: std::mem::take(&mut into), ..call(READ) };
            into = channel.call(call)?.body;
            ensure!(into.len() == len, "{} bytes came", into.len());
            count += 1;
        }
        Ok(count)
    })
}
