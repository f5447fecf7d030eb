//! A program that daemons are run from. It is kept by a descriptor: what lies at its path may be another by now.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a program may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub struct Program(Arc<File>);

impl Program {
    /// The one that runs now.
    pub fn own() -> io::Result<Program> {
        File::open("/proc/self/exe").and_then(Program::of)
    }

    /// Says which version it is.
    pub fn other(path: &str) -> Result<(Program, String), String> {
        let failed = |error: io::Error| format!("{path}: {error}");
        let program = File::open(path).and_then(Program::of).map_err(failed)?;
        if !program.0.metadata().map_err(failed)?.is_file() {
            return Err(format!("{path}: not a file"));
        }
        let version = program.version().map_err(|why| format!("{path}: {why}"))?;
        Ok((program, version))
    }

    /// Its children have the descriptor too: what is a script is opened by its interpreter.
    fn of(file: File) -> io::Result<Program> {
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;
        Ok(Program(Arc::new(file)))
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        command.arg0("onfs");
        command
    }

    fn version(&self) -> Result<String, String> {
        let mut command = self.command();
        command.args(["version", "--json"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("it cannot be run ({error})"))?;
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err("it does not say which version it is".to_owned());
                }
            }
        };
        let said = child.stdout.take().map(io::read_to_string).transpose().ok().flatten();
        let said: Option<serde_json::Value> = said.and_then(|text| serde_json::from_str(&text).ok());
        match said.as_ref().and_then(|said| said["onfs"].as_str()) {
            Some(version) if status.success() => Ok(version.to_owned()),
            _ => Err(format!("it is no onfs ({status})")),
        }
    }
}
