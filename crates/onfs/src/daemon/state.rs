//! The state directory and its lock.
//!
//! The directory holds nothing that others may read; when other users share the mount they may pass through it to
//! the control socket, no more. The lock is an flock on the PID file, so it ends with the process, however it ends.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::exit::{Exit, Failure, Outcome, system_text};

const PID_FILE: &str = "onfs.pid";
/// A number and a path fit; it is only for a message.
const HOLDER_BYTES_MAX: u64 = 8192;

/// Creates the state directory, or corrects the permissions of an existing one.
pub fn prepare(state: &Path, shared: bool) -> Outcome {
    let mode = if shared { 0o711 } else { 0o700 };
    let failed = |error| Failure::failed(format!("state directory {}: {error}", state.display()));
    DirBuilder::new().recursive(true).mode(0o755).create(state).map_err(failed)?;
    fs::set_permissions(state, Permissions::from_mode(mode)).map_err(failed)
}

/// The state belongs to this process while this value lives.
#[derive(Debug)]
pub struct StateLock {
    file: File,
    path: PathBuf,
}

impl StateLock {
    /// Did anybody ever take it? Then taking it again makes nothing new.
    pub fn was_taken(state: &Path) -> bool {
        state.join(PID_FILE).exists()
    }

    /// Takes the lock, or says which process has it. `purpose` is for that message, such as the mount point.
    pub fn acquire(state: &Path, purpose: &str) -> Outcome<StateLock> {
        let path = state.join(PID_FILE);
        let failed = |error| Failure::failed(format!("{}: {}", path.display(), system_text(&error)));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(held(state, &mut file)),
            Err(error) => return Err(failed(error.into())),
        }
        // Never empty in between: its block is what a full disk would not give again.
        let text = format!("{}\n{purpose}\n", std::process::id());
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(text.as_bytes()))
            .and_then(|()| file.set_len(text.len() as u64))
            .map_err(failed)?;
        Ok(StateLock { file, path })
    }
}

impl Drop for StateLock {
    fn drop(&mut self) {
        // Emptied but for one byte, which keeps its block, and not removed: another process may already have opened it
        // and wait for nothing.
        let _ = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(b"\n"));
        let _ = self.file.set_len(1);
        tracing::debug!(path = %self.path.display(), "the state is unlocked");
    }
}

fn held(state: &Path, file: &mut File) -> Failure {
    let mut bytes = Vec::new();
    let _ = file.take(HOLDER_BYTES_MAX).read_to_end(&mut bytes);
    let holder = holder(&bytes);
    Failure::new(Exit::Busy, format!("the state {} is in use by process {holder}", state.display()))
        .hint("one process at a time has a state: end that one (onfs umount; of a server: kill), or give this one its own --state")
}

/// What the PID file says of who has the state, for a message: its number and what it is for.
fn holder(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines().map(|line| line.chars().filter(|c| !c.is_control()).collect::<String>());
    let pid = lines.next().filter(|pid| !pid.is_empty()).unwrap_or_else(|| "unknown".to_owned());
    let purpose = lines.next().filter(|purpose| !purpose.is_empty());
    let at = purpose.map_or(String::new(), |purpose| format!(", {purpose}"));
    format!("{pid}{at}")
}

#[cfg(test)]
mod tests {
    //! Goal: a state has one owner, who is named to others. Method: take the lock twice in one process (each open
    //! file has its own flock). Whatever stands in the file makes a message. Method: [`fuzzing`].
    use super::*;
    use fuzzing::{as_it_is, fuzz};

    #[test]
    fn the_second_owner_is_told_who_the_first_is() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/b");
        prepare(&state, false).unwrap();
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o700);
        let first = StateLock::acquire(&state, "mounted at /mnt/x").unwrap();
        let failure = StateLock::acquire(&state, "fsck").unwrap_err();
        assert_eq!(failure.exit, Exit::Busy);
        assert!(failure.message.contains(&std::process::id().to_string()), "{failure}");
        assert!(failure.message.contains("mounted at /mnt/x"), "{failure}");
        drop(first);
        StateLock::acquire(&state, "fsck").unwrap();
        prepare(&state, true).unwrap();
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o711);
    }

    #[test]
    fn fuzz_pid_file() {
        let good = [b"4711\nmounted at /mnt/x\n".to_vec(), b"\n".to_vec()];
        fuzz("pid-file", &good, as_it_is, |bytes| {
            let holder = holder(bytes);
            assert!(!holder.is_empty() && !holder.contains(char::is_control), "{holder:?}");
        });
    }

    #[test]
    fn a_state_that_is_a_file_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(prepare(file.path(), false).is_err());
    }
}
