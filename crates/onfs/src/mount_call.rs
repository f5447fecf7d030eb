//! `mount.onfs`: what mount(8) runs for `mount -t onfs SOURCE MOUNTPOINT -o ...` and for fstab.
//!
//! It is called as `mount.onfs SOURCE MOUNTPOINT [-sfnv] [-N ns] [-t type] [-o options]`. SOURCE is the configuration
//! file when it is an absolute path, a cluster when it ends with ":/", else only a name in the mount table.

use std::path::PathBuf;

use crate::{
    args::{ConfigArgs, MountArgs},
    config::is_source,
    exit::{Failure, Outcome},
};

/// The name under which the program is this helper.
pub const NAME: &str = "mount.onfs";

/// What the helper was asked.
#[derive(Debug)]
pub struct HelperCall {
    pub mount: MountArgs,
    /// `-f`: check everything, mount nothing.
    pub fake: bool,
}

/// Parses the words after the program's name.
pub fn parse(words: impl IntoIterator<Item = String>) -> Outcome<HelperCall> {
    let mut call = HelperCall { mount: MountArgs::default(), fake: false };
    let mut places = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value =
            |flag: &str| words.next().ok_or_else(|| Failure::usage(format!("{NAME}: {flag} needs a value")));
        match word.as_str() {
            "-o" => {
                let options = value("-o")?;
                call.mount.config.options.push(options);
            }
            "-t" | "-N" => drop(value(&word)?),
            "-f" => call.fake = true,
            "-s" => {
                return Err(Failure::usage(format!(
                    "{NAME}: -s (sloppy) is refused: unknown options are errors"
                )));
            }
            "-n" | "-v" => {}
            _ if word.starts_with('-') => {
                return Err(Failure::usage(format!("{NAME}: unknown flag {word}"))
                    .hint("usage: mount.onfs SOURCE MOUNTPOINT [-fnv] [-o options]"));
            }
            _ => places.push(word),
        }
    }
    let [source, mountpoint] = places.as_slice() else {
        return Err(Failure::usage(format!("{NAME}: give a source and a mount point"))
            .hint("usage: mount.onfs SOURCE MOUNTPOINT [-fnv] [-o options]"));
    };
    call.mount.places = vec![PathBuf::from(mountpoint)];
    if is_source(source) {
        call.mount.places.insert(0, PathBuf::from(source));
    } else {
        call.mount.config = with_source(call.mount.config, source);
    }
    Ok(call)
}

fn with_source(mut config: ConfigArgs, source: &str) -> ConfigArgs {
    if source.starts_with('/') {
        config.config = Some(PathBuf::from(source));
    }
    config
}

#[cfg(test)]
mod tests {
    //! Goal: the calls that mount(8) makes are understood. Method: such calls, and wrong ones.
    use super::*;

    fn call(line: &str) -> Outcome<HelperCall> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn calls_of_mount_are_understood() {
        let got = call("onfs /mnt/data -o rw,memory=2GiB,ssd=/x").unwrap();
        assert_eq!(got.mount.places, [PathBuf::from("/mnt/data")]);
        assert_eq!(got.mount.config.options, ["rw,memory=2GiB,ssd=/x"]);
        assert_eq!(got.mount.config.config, None);
        let got = call("/etc/onfs/a.toml /mnt/data -n -v -t onfs -o rw").unwrap();
        assert_eq!(got.mount.config.config, Some(PathBuf::from("/etc/onfs/a.toml")));
        assert!(call("-f onfs /mnt/data").unwrap().fake);
        let got = call("a:7400,b:/ /mnt/data -o rw,cluster_key=/k").unwrap().mount;
        assert_eq!(got.source_and_place().unwrap(), (Some("a:7400,b:/"), std::path::Path::new("/mnt/data")));
    }

    #[test]
    fn wrong_calls_are_usage_errors() {
        for line in ["", "onfs", "onfs /a /b", "onfs /a -o", "onfs /a --what", "onfs /a -s"] {
            assert_eq!(call(line).unwrap_err().exit, crate::exit::Exit::Usage, "{line}");
        }
    }
}
