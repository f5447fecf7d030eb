//! The program `onfs`, which is also the mount helper `mount.onfs` when it is called by that name.

use std::{
    ffi::OsStr,
    io::{IsTerminal, Write},
    path::Path,
    process::ExitCode,
};

use clap::Parser;
use onfs::{args::Cli, commands, exit::Outcome, mount_call, render};

fn main() -> ExitCode {
    abort_on_panic();
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
                let text = format!("onfs: {failure}");
                let mut out = std::io::stderr().lock();
                let text = if out.is_terminal() { render::out::plain(&text) } else { text };
                let _ = writeln!(out, "{text}");
            }
            ExitCode::from(failure.exit.code())
        }
    }
}

/// A panic may have left anything half done in memory. Ended here, the daemon loses nothing: the journal has all that was
/// answered. Only the metadata engine's panics over its own files are caught, where they become errors.
fn abort_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !kv::inside_engine() {
            usual(info);
            tracing::error!(%info, "a panic: the process ends");
            std::process::abort();
        }
    }));
}

fn as_helper() -> Outcome {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    commands::mount_helper(&mount_call::parse(words)?)
}
