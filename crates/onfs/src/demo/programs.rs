//! Running programs, with an end to the wait and their words when they fail.

use std::{
    ffi::OsStr,
    process::{Command, Output, Stdio},
};

use crate::exit::{Failure, Outcome};

/// Runs a program to its end. `onfs` has its own deadlines, and so has what is called otherwise.
pub fn done(command: &mut Command) -> Outcome<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            let hint = "Debian: apt install iproute2 util-linux";
            Failure::failed(format!("{name} is not installed, and the demo needs it")).hint(hint)
        } else {
            Failure::failed(format!("{name}: {error}"))
        }
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::failed(format!("{name} {}: {}", words.join(" "), said.trim())))
}
