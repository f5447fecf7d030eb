//! The daemon's log: a file that SIGHUP opens anew (for log rotation), or standard error in the foreground.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use tracing_subscriber::{EnvFilter, fmt::writer::BoxMakeWriter};

use crate::{
    config::{LogConfig, LogFormat},
    exit::{Failure, Outcome},
};

/// Where the log goes.
#[derive(Clone, Debug)]
pub struct Log {
    file: Option<(PathBuf, Arc<Mutex<File>>)>,
}

impl Log {
    /// Starts logging for the whole process. `default_file` is used when the configuration names none; `None` is
    /// standard error.
    pub fn start(config: &LogConfig, default_file: Option<PathBuf>) -> Outcome<Log> {
        let file = match config.file.clone().or(default_file) {
            Some(path) => {
                let file =
                    open(&path).map_err(|e| Failure::failed(format!("log {}: {e}", path.display())))?;
                Some((path, Arc::new(Mutex::new(file))))
            }
            None => None,
        };
        // The metadata engine tells of each of its files.
        let filter = EnvFilter::try_new(format!("lsm_tree=warn,{}", config.level))
            .map_err(|e| Failure::usage(format!("log.level {:?}: {e}", config.level)))?;
        let writer = match &file {
            Some((_, file)) => {
                let file = file.clone();
                BoxMakeWriter::new(move || Writer(file.clone()))
            }
            None => BoxMakeWriter::new(io::stderr),
        };
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(writer);
        let started = match config.format {
            LogFormat::Text => builder.try_init(),
            LogFormat::Json => builder.json().try_init(),
        };
        started.map_err(|e| Failure::failed(format!("the log cannot be started: {e}")))?;
        Ok(Log { file })
    }

    /// Opens the file again under its name.
    pub fn reopen(&self) {
        let Some((path, file)) = &self.file else { return };
        match open(path) {
            Ok(fresh) => {
                *file.lock() = fresh;
                self.take_standard_error();
                tracing::info!("the log was opened anew");
            }
            Err(error) => tracing::error!(%error, path = %path.display(), "the log could not be opened anew"),
        }
    }

    /// Sends standard error to the file too, so that a panic's last words are kept.
    pub fn take_standard_error(&self) {
        let Some((_, file)) = &self.file else { return };
        let file = file.lock();
        if let Err(error) = rustix::stdio::dup2_stderr(&*file) {
            tracing::warn!(%error, "standard error stays where it was");
        }
    }
}

/// One event's way into the current file.
struct Writer(Arc<Mutex<File>>);

impl io::Write for Writer {
    /// Never fails: a line that the disk has no room for is lost. The error would be printed to standard error, which
    /// is this very file, and a print that fails ends the process.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.lock().write_all(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}
