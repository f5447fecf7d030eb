//! Mount options: the comma-separated words of `-o`, as mount(8) and fstab write them.
//!
//! Three sorts: flags that the kernel knows (`ro`, `noatime`, ...), words of fstab that mean nothing to a file
//! system (`noauto`, `x-...`), and settings of ours, by their short name (`memory=2GiB`) or in full
//! (`policy.write_behind=5s`). Anything else is an error.

use super::nearest::nearest;

/// Flags for the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MountFlags {
    pub read_only: bool,
    pub no_suid: bool,
    pub no_dev: bool,
    pub no_exec: bool,
    pub no_atime: bool,
    pub no_dir_atime: bool,
    pub sync: bool,
}

/// What `-o` said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OptionWords {
    pub flags: MountFlags,
    /// The flag words themselves, for the `mount.options` setting.
    pub flag_words: Vec<String>,
    /// `section.key` and its value, in the order given.
    pub settings: Vec<(String, String)>,
    /// A configuration file (`config=`).
    pub config: Option<String>,
}

/// Short names for settings in `-o`.
const SHORT: &[(&str, &str)] = &[
    ("memory", "memory.size"),
    ("ssd", "ssd.dir"),
    ("nearline", "nearline.dir"),
    ("state", "mount.state"),
    ("memory_budget", "mount.memory_budget"),
    ("transport", "mount.transport"),
    ("log", "log.level"),
    ("cluster_key", "cluster.key_file"),
    ("tls_ca", "cluster.tls_ca_file"),
    ("tls_certificate", "cluster.tls_certificate_file"),
    ("tls_key", "cluster.tls_key_file"),
];

type Set = fn(&mut MountFlags);

const FLAGS: &[(&str, Set)] = &[
    ("ro", |f| f.read_only = true),
    ("rw", |f| f.read_only = false),
    ("nosuid", |f| f.no_suid = true),
    ("suid", |f| f.no_suid = false),
    ("nodev", |f| f.no_dev = true),
    ("dev", |f| f.no_dev = false),
    ("noexec", |f| f.no_exec = true),
    ("exec", |f| f.no_exec = false),
    ("noatime", |f| f.no_atime = true),
    ("atime", |f| f.no_atime = false),
    ("relatime", |f| f.no_atime = false),
    ("nodiratime", |f| f.no_dir_atime = true),
    ("diratime", |f| f.no_dir_atime = false),
    ("sync", |f| f.sync = true),
    ("async", |f| f.sync = false),
    // Always so on ONFS; taken so that lines written for other FUSE systems work.
    ("default_permissions", |_| {}),
];

/// Words for mount(8), fstab and systemd, not for us.
const IGNORED: &[&str] =
    &["defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev"];

/// Parses `text`; the error names the word and the nearest known one. `ssd=DIR:SIZE` becomes two settings.
pub fn parse_options(text: &str) -> Result<OptionWords, String> {
    let mut words = OptionWords::default();
    for word in text.split(',').filter(|w| !w.is_empty()) {
        match word.split_once('=') {
            None => flag(&mut words, word)?,
            Some((key, value)) => assignment(&mut words, key, value)?,
        }
    }
    Ok(words)
}

fn flag(words: &mut OptionWords, word: &str) -> Result<(), String> {
    if let Some((_, set)) = FLAGS.iter().find(|(name, _)| *name == word) {
        set(&mut words.flags);
        words.flag_words.push(word.to_owned());
        return Ok(());
    }
    match word {
        "allow_other" => words.settings.push(("mount.allow_other".into(), "yes".into())),
        _ if IGNORED.contains(&word) || word.starts_with("x-") || word.starts_with("X-") => {}
        _ => return Err(unknown(word)),
    }
    Ok(())
}

fn assignment(words: &mut OptionWords, key: &str, value: &str) -> Result<(), String> {
    if key.starts_with("x-") || key.starts_with("X-") || key == "comment" {
        return Ok(());
    }
    if key == "config" {
        words.config = Some(value.to_owned());
        return Ok(());
    }
    if let "ssd" | "nearline" = key {
        if let Some(linked) = value.strip_prefix(LINK).filter(|_| key == "nearline") {
            words.settings.push(("nearline.link".to_owned(), linked.to_owned()));
            return Ok(());
        }
        let (dir, size) = split_dir_size(value);
        words.settings.push((format!("{key}.dir"), dir.to_owned()));
        words.settings.extend(size.map(|size| (format!("{key}.size"), size.to_owned())));
        return Ok(());
    }
    let setting = match SHORT.iter().find(|(short, _)| *short == key) {
        Some((_, setting)) => *setting,
        None if key.contains('.') => key,
        None => return Err(unknown(key)),
    };
    words.settings.push((setting.to_owned(), value.to_owned()));
    Ok(())
}

/// Before a directory that is to be linked.
pub const LINK: &str = "link:";

/// `DIR[:SIZE]`: the part after the last colon counts as a size only when it reads as one.
pub fn split_dir_size(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((dir, size)) if size.parse::<types::ByteSize>().is_ok() || size == "all" => (dir, Some(size)),
        _ => (text, None),
    }
}

fn unknown(word: &str) -> String {
    let known = FLAGS.iter().map(|(name, _)| *name).chain(IGNORED.iter().copied());
    let known = known.chain(SHORT.iter().map(|(short, _)| *short)).chain(["allow_other", "config"]);
    match nearest(word, known) {
        Some(meant) => format!("unknown mount option {word:?}: did you mean {meant:?}?"),
        None => format!("unknown mount option {word:?}: see onfs mount --help"),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: option strings as fstab has them are understood, and nothing unknown passes. Method: tables.
    use super::*;

    #[test]
    fn words_are_sorted() {
        let words =
            parse_options("rw,noauto,noatime,nosuid,memory=2GiB,ssd=/x:1GiB,x-systemd.idle=5").unwrap();
        assert!(words.flags.no_atime && words.flags.no_suid && !words.flags.read_only);
        assert_eq!(words.flag_words, ["rw", "noatime", "nosuid"]);
        let expected = [("memory.size", "2GiB"), ("ssd.dir", "/x"), ("ssd.size", "1GiB")];
        assert_eq!(words.settings, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(parse_options("config=/etc/o.toml").unwrap().config.as_deref(), Some("/etc/o.toml"));
        assert_eq!(parse_options("policy.write_behind=5s").unwrap().settings.len(), 1);
        assert_eq!(parse_options("").unwrap(), OptionWords::default());
    }

    #[test]
    fn unknown_words_are_errors() {
        assert!(parse_options("noatme").unwrap_err().contains("noatime"));
        assert!(parse_options("memry=1GiB").unwrap_err().contains("memory"));
        assert!(parse_options("frobnicate").is_err());
        assert!(parse_options("big_writes=1").is_err());
    }

    #[test]
    fn a_colon_in_a_directory_is_not_a_size() {
        assert_eq!(split_dir_size("/a:b"), ("/a:b", None));
        assert_eq!(split_dir_size("/a:b:1GiB"), ("/a:b", Some("1GiB")));
        assert_eq!(split_dir_size("/a"), ("/a", None));
    }
}
