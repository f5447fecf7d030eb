//! `nullfs [--transport auto|io_uring|dev] [--timeout SECONDS] [--keep] [--direct]
//! [--like-onfs] [--depth N] [--threads N] DIR`
//!
//! Mounts a file system that does as little as it can, and serves it until it is unmounted.

use std::{process::ExitCode, sync::Arc, time::Duration};

use fuse::{MountOptions, Session, TransportChoice};

mod fs;

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("nullfs: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    let mut options = MountOptions::new("");
    let mut null = fs::NullOptions {
        timeout: Duration::from_secs(1),
        keep: false,
        direct_io: false,
        direct_writes: false,
    };
    let mut mountpoint = None;
    options.fsname = "nullfs".to_owned();
    options.subtype = "nullfs".to_owned();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number"));
        match arg.as_str() {
            "--transport" => options.transport = transport(&value()?)?,
            "--timeout" => null.timeout = Duration::from_secs(number(value()?)?),
            "--depth" => options.queue_depth = u16::try_from(number(value()?)?).map_err(|e| e.to_string())?,
            "--threads" => options.threads = usize::try_from(number(value()?)?).map_err(|e| e.to_string())?,
            "--keep" => null.keep = true,
            "--direct" => null.direct_io = true,
            // The kernel checks permissions, and writes go past the page cache: the same work for the kernel.
            "--like-onfs" => {
                null.direct_writes = true;
                options.default_permissions = true;
            }
            "--allow-other" => options.allow_other = true,
            _ if arg.starts_with('-') => return Err(format!("unknown option {arg}")),
            _ => mountpoint = Some(arg),
        }
    }
    options.mountpoint = mountpoint.ok_or("say where to mount")?.into();
    let session =
        Session::mount(&options, Arc::new(fs::NullFs::new(null))).map_err(|error| error.to_string())?;
    let report = session.transport();
    let reason = report.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
    println!("mounted, served over {}{reason}", report.kind);
    session.run();
    Ok(())
}

fn transport(name: &str) -> Result<TransportChoice, String> {
    match name {
        "auto" => Ok(TransportChoice::Auto),
        "io_uring" | "uring" => Ok(TransportChoice::IoUring),
        "dev" => Ok(TransportChoice::Device),
        _ => Err(format!("unknown transport {name:?}: auto, io_uring or dev")),
    }
}
