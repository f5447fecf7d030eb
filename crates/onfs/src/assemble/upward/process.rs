//! What is read of processes: the name of a job, and whether any of its processes is left.

use std::{fs, io::Read, os::unix::fs::MetadataExt, path::PathBuf};

use plan::{History, job_name};
use rustix::process::{Pid, test_kill_process_group};

use super::listen::GroupId;

/// Of a command line or an environment no more is read.
const BYTES_MAX: u64 = 256 << 10;

/// The name of the job that the group's first process belongs to: a scheduler's, if one of the variables has it, or one
/// made of its command line. `None`: it has gone, is no job, or belongs to another user than the one who opened the file.
pub fn name_of(group: GroupId, uid: u32, variables: &[String]) -> Option<String> {
    if fs::metadata(path(group)).ok()?.uid() != uid {
        return None;
    }
    let environment = read(group, "environ").unwrap_or_default();
    let scheduled = variables.iter().find_map(|variable| {
        environment.split(|byte| *byte == 0).find_map(|entry| {
            let value = entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")?;
            let text: String = String::from_utf8_lossy(value).chars().filter(|c| !c.is_control()).collect();
            (!text.is_empty()).then(|| text.chars().take(History::NAME_CHARS_MAX).collect())
        })
    });
    scheduled.or_else(|| {
        let line = read(group, "cmdline")?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let words = words.strip_suffix(&[&b""[..]]).unwrap_or(&words);
        job_name(words)
    })
}

/// Has it processes?
pub fn lives(group: GroupId) -> bool {
    let Some(pid) = Pid::from_raw(group.0) else { return false };
    // Not allowed to ask is there all the same.
    !matches!(test_kill_process_group(pid), Err(rustix::io::Errno::SRCH))
}

fn read(group: GroupId, what: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path(group).join(what)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn path(group: GroupId) -> PathBuf {
    PathBuf::from(format!("/proc/{}", group.0))
}

#[cfg(test)]
mod tests {
    //! Goal: a job is named by its scheduler or its command line, and its end is seen. Method: processes of the test.
    use std::{
        os::unix::process::CommandExt,
        process::{Command, Stdio},
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn groups_have_names_and_an_end() {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "read line", "x"])
            .env("JOBNAME_OF_TEST", "night\x1b run")
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let group = GroupId(child.id() as i32);
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(name_of(group, uid + 1, &[]), None, "another user's");
        // A program that just begins has no command line for a moment.
        let end = Instant::now() + Duration::from_secs(30);
        while name_of(group, uid, &[]).is_none() {
            assert!(Instant::now() < end, "it has no name");
        }
        assert_eq!(name_of(group, uid, &[]).as_deref(), Some("sh -c read"));
        let variables = ["OTHER".to_owned(), "JOBNAME_OF_TEST".to_owned()];
        assert_eq!(name_of(group, uid, &variables).as_deref(), Some("night run"));
        assert!(lives(group));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!lives(group));
        assert_eq!(name_of(group, uid, &variables), None);
        assert!(!lives(GroupId(0)));
    }
}
