//! One process that writes or reads its part of a file, request by request. Each request begins with its own offset, which is checked when
//! it is read.

use std::{fs::OpenOptions, os::unix::fs::FileExt, path::PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{
    aligned::Aligned,
    worker::{Done, when_told},
};

const MARK: usize = 8;

#[derive(Clone, Debug, clap::Args)]
pub struct Requests {
    path: PathBuf,
    #[arg(long)]
    read: bool,
    /// Bytes of a request
    #[arg(long)]
    request: usize,
    /// Of the first one
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// From one to the next
    #[arg(long)]
    stride: u64,
    /// How many
    #[arg(long)]
    count: u64,
}

impl Requests {
    pub fn run(&self) -> Result<()> {
        ensure!(self.request >= MARK, "a request has at least {MARK} bytes");
        let mut buffer = Aligned::new(self.request, 0x5a);
        let mut how = OpenOptions::new();
        let how = if self.read { how.read(true) } else { how.write(true).create(true).truncate(false) };
        let mut file = Some(how.open(&self.path).with_context(|| self.path.display().to_string())?);
        when_told(|| {
            let file = file.take().context("once")?;
            for n in 0..self.count {
                let at = self.offset + n * self.stride;
                if self.read {
                    file.read_exact_at(&mut buffer, at)?;
                    ensure!(buffer[..MARK] == at.to_le_bytes(), "at {at} is not what was written");
                } else {
                    buffer[..MARK].copy_from_slice(&at.to_le_bytes());
                    file.write_all_at(&buffer, at)?;
                }
            }
            drop(file);
            Ok(Done { operations: self.count, bytes: self.count * self.request as u64 })
        })
    }
}
