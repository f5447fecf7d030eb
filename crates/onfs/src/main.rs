//! The program `onfs`, which is also the mount helper `mount.onfs` when it is called by that name.

use std::{ffi::OsStr, io::Write, path::Path, process::ExitCode};

use clap::Parser;
use onfs::{args::Cli, commands, exit::Outcome, mount_call};

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    let outcome = if Path::new(&called).file_name() == Some(OsStr::new(mount_call::NAME)) {
        as_helper()
    } else {
        // clap itself ends wrong usage with code 2.
        commands::run(Cli::parse())
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_told() {
                let _ = writeln!(std::io::stderr(), "onfs: {failure}");
            }
            ExitCode::from(failure.exit.code())
        }
    }
}

fn as_helper() -> Outcome {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    commands::mount_helper(&mount_call::parse(words)?)
}
