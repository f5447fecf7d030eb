//! What is generated from the flags and the settings: completions, manual pages, reference documents.

use std::{fs, io, path::Path};

use crate::{
    args::command,
    docs,
    exit::{Failure, Outcome, system_text},
    render,
};

pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut command(), "onfs", &mut out);
    render::print(&String::from_utf8_lossy(&out))
}

/// One page with everything, or a page for each command into a directory.
pub fn man(dir: Option<&Path>) -> Outcome {
    let Some(dir) = dir else {
        let page = docs::man_page().map_err(|e| Failure::failed(e.to_string()))?;
        return render::print(&String::from_utf8_lossy(&page));
    };
    let write = || -> io::Result<()> {
        fs::create_dir_all(dir)?;
        clap_mangen::generate_to(command(), dir)?;
        fs::write(dir.join("onfs.1"), docs::man_page()?)
    };
    write().map_err(|e| Failure::failed(format!("{}: {}", dir.display(), system_text(&e))))
}

pub fn docs(dir: &Path) -> Outcome {
    let write = || -> io::Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("cli.md"), docs::cli())?;
        fs::write(dir.join("config.md"), docs::config())?;
        fs::write(dir.join("metrics.md"), docs::metrics())
    };
    write().map_err(|e| Failure::failed(format!("{}: {}", dir.display(), system_text(&e))))
}
