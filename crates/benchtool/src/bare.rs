//! The least that programs of several hosts can do with bytes: TCP between them, and a copy to or from a file in memory at one end. What a
//! cluster is held against.
//!
//! A client sends, or gets, the requests of its file one after the other; each goes to the server that a striped file would have
//! it on. Nobody waits for single answers, nothing is summed or framed.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
    path::Path,
    thread,
};

use anyhow::{Context, Result, ensure};

use crate::{
    aligned::Aligned,
    worker::{Done, when_told},
};

const WRITE: u64 = 1;
const READ: u64 = 2;
const HEAD: usize = 32;

#[derive(Clone, Debug, clap::Args)]
pub struct Copying {
    /// The servers' addresses, HOST:PORT
    #[arg(long, value_delimiter = ',', required = true)]
    server: Vec<String>,
    /// From the servers, not to them
    #[arg(long)]
    read: bool,
    /// Of the files there
    #[arg(long)]
    number: u64,
    /// Bytes of a request
    #[arg(long)]
    request: usize,
    /// How many
    #[arg(long)]
    count: u64,
    /// Bytes on one server before the next
    #[arg(long, default_value_t = 4 << 20)]
    unit: u64,
}

/// Until it is killed. `dir` is in memory.
pub fn serve(listen: &str, dir: &Path) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| listen.to_owned())?;
    println!("ready");
    for stream in listener.incoming() {
        let (stream, dir) = (stream?, dir.to_owned());
        thread::spawn(move || {
            if let Err(error) = answer(stream, &dir) {
                eprintln!("benchtool: {error:#}");
            }
        });
    }
    Ok(())
}

fn answer(mut stream: TcpStream, dir: &Path) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    let mut numbers =
        head.chunks_exact(8).map(|part| part.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)));
    let mut next = || numbers.next().unwrap_or_default();
    let (what, number, request, len) = (next(), next(), next() as usize, next());
    let path = dir.join(number.to_string());
    let file = if what == WRITE {
        OpenOptions::new().write(true).create(true).truncate(true).open(&path)
    } else {
        File::open(&path)
    };
    let file = file.with_context(|| path.display().to_string())?;
    let (mut buffer, mut at) = (Aligned::new(request, 0), 0);
    while at < len {
        let part = &mut buffer[..request.min((len - at) as usize)];
        if what == WRITE {
            stream.read_exact(part)?;
            file.write_all_at(part, at)?;
        } else {
            file.read_exact_at(part, at)?;
            stream.write_all(part)?;
        }
        at += part.len() as u64;
    }
    if what == WRITE {
        stream.write_all(&[1])?;
    }
    Ok(())
}

impl Copying {
    pub fn run(&self) -> Result<()> {
        ensure!(self.request > 0 && self.unit > 0, "no bytes");
        let mut streams = Vec::new();
        for server in &self.server {
            let stream = TcpStream::connect(server).with_context(|| server.clone())?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        when_told(|| self.copy(&mut streams))
    }

    fn copy(&self, streams: &mut [TcpStream]) -> Result<Done> {
        let mut lengths = vec![0; streams.len()];
        let request = self.request as u64;
        let at = |n: u64| (n * request / self.unit) as usize % lengths.len();
        let places: Vec<usize> = (0..self.count).map(at).collect();
        places.iter().for_each(|place| lengths[*place] += request);
        for (stream, len) in streams.iter_mut().zip(&lengths) {
            let what = if self.read { READ } else { WRITE };
            let head: Vec<u8> =
                [what, self.number, request, *len].iter().flat_map(|number| number.to_le_bytes()).collect();
            stream.write_all(&head)?;
        }
        let mut buffer = Aligned::new(self.request, 0x5a);
        for place in places {
            if self.read {
                streams[place].read_exact(&mut buffer)?;
            } else {
                streams[place].write_all(&buffer)?;
            }
        }
        if !self.read {
            streams.iter_mut().try_for_each(|stream| stream.read_exact(&mut [0]))?;
        }
        Ok(Done { operations: self.count, bytes: self.count * request })
    }
}
