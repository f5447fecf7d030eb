//! `onfs bench`.

use std::io::{IsTerminal, Write};

use crate::{
    args::BenchArgs,
    bench::{BenchOptions, run},
    exit::{Failure, Outcome, system_text},
    render,
};

pub fn bench(args: &BenchArgs) -> Outcome {
    let terminal = std::io::stderr().is_terminal();
    let mut step = |name: &str, n: u64, total: u64| {
        if terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K[{}/{total}] {name}", n + 1);
        }
    };
    let options = BenchOptions { size: args.size.0, files: args.files };
    let report = run(&args.dir, options, &mut step);
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let report =
        report.map_err(|e| Failure::failed(format!("{}: {}", args.dir.display(), system_text(&e))))?;
    if args.output.json { render::json(&report) } else { render::print(&render::bench(&report)) }
}
