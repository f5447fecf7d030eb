//! A program beside a round, that moves and spreads what the round uses while its threads call.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// It runs until its input ends, which a round that fails sees to, too.
pub struct Beside(Child);

impl Beside {
    /// `PROGRAM begin DIR`, with the round's directory, which is empty yet; then `PROGRAM while DIR`.
    pub fn prepare(program: &Path, dir: &Path) -> Result<()> {
        let status = Command::new(program).arg("begin").arg(dir).stdin(Stdio::null()).status();
        let status = status.with_context(|| format!("run {}", program.display()))?;
        ensure!(status.success(), "{} begin ended with {status}", program.display());
        Ok(())
    }

    pub fn start(program: &Path, dir: &Path) -> Result<Beside> {
        let child = Command::new(program).arg("while").arg(dir).stdin(Stdio::piped()).spawn();
        Ok(Beside(child.with_context(|| format!("run {}", program.display()))?))
    }

    pub fn end(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait().context("wait for the program beside the round")?;
        ensure!(status.success(), "the program beside the round ended with {status}");
        Ok(())
    }
}
