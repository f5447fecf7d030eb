//! From flags to the configuration: finds the file, reads the layers in order.

use std::path::{Path, PathBuf};

use crate::{
    args::ConfigArgs,
    config::{Config, ConfigError, Host, LINK, Settings, is_bucket, parse_options, split_dir_size},
    exit::{Failure, Outcome, system_text},
};

/// The value of `--config` for no file at all.
const NO_FILE: &str = "none";

/// A flag's value as a setting: (`section.key`, value, the flag for messages).
type Assignment = (String, String, String);

/// All layers, in order.
pub fn settings(args: &ConfigArgs, host: &Host) -> Outcome<Settings> {
    let (settings, errors) = read(args, host)?;
    if errors.is_empty() { Ok(settings) } else { Err(wrong(&errors)) }
}

/// The same, with all that is wrong in them.
pub fn read(args: &ConfigArgs, host: &Host) -> Outcome<(Settings, Vec<ConfigError>)> {
    let flags = assignments(args)?;
    let mut settings = Settings::defaults();
    let mut errors = Vec::new();
    if let Some(path) = file(args, host)? {
        let text = std::fs::read_to_string(&path).map_err(|e| {
            Failure::usage(format!("configuration file {}: {}", path.display(), system_text(&e)))
        })?;
        errors.extend(settings.apply_file(&path, &text).err().unwrap_or_default());
    }
    // A variable that is not text cannot be ours.
    let variables =
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    errors.extend(settings.apply_environment(variables).err().unwrap_or_default());
    for (name, value, flag) in flags {
        errors.extend(settings.apply_flag(&name, &value, &flag).err());
    }
    Ok((settings, errors))
}

/// The typed configuration for a mount point, which is absolute.
pub fn resolve(settings: &Settings, host: &Host, mountpoint: &Path) -> Outcome<Config> {
    Config::resolve(settings, host, mountpoint).map_err(|error| wrong(&[error]))
}

pub fn wrong(errors: &[ConfigError]) -> Failure {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Failure::usage(format!("the configuration is wrong\n  {}", lines.join("\n  ")))
}

/// `--config`, or `config=` in `-o`, or `ONFS_CONFIG`, or the default file if it is there.
fn file(args: &ConfigArgs, host: &Host) -> Outcome<Option<PathBuf>> {
    let mut named = args.config.clone();
    for options in &args.options {
        let words = parse_options(options).map_err(Failure::usage)?;
        named = words.config.map(PathBuf::from).or(named);
    }
    let named = named.or_else(|| std::env::var_os("ONFS_CONFIG").map(PathBuf::from));
    Ok(match named {
        Some(path) if path == Path::new(NO_FILE) => None,
        Some(path) => Some(path),
        None => host.default_config().filter(|path| path.exists()),
    })
}

/// The flags as settings, `-o` and `--set` first so that the flag of a setting's own wins.
fn assignments(args: &ConfigArgs) -> Outcome<Vec<Assignment>> {
    let mut all = Vec::new();
    let mut flag_words = Vec::new();
    for options in &args.options {
        let words = parse_options(options).map_err(Failure::usage)?;
        flag_words.extend(words.flag_words);
        all.extend(words.settings.into_iter().map(|(name, value)| (name, value, format!("-o {options}"))));
    }
    if !flag_words.is_empty() {
        all.push(("mount.options".into(), flag_words.join(","), "-o".into()));
    }
    for set in &args.set {
        let (name, value) = set
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--set {set}: write --set SECTION.KEY=VALUE")))?;
        all.push((name.into(), value.into(), format!("--set {name}")));
    }
    let mut own = |name: &str, value: Option<String>, flag: &str| {
        all.extend(value.map(|value| (name.to_owned(), value, flag.to_owned())));
    };
    own("memory.size", args.memory.clone(), "--memory");
    own("mount.memory_budget", args.memory_budget.clone(), "--memory-budget");
    own("mount.guard", args.guard.then(|| "on".to_owned()), "--guard");
    own("mount.transport", args.transport.clone(), "--transport");
    own("metadata.engine", args.metadata_engine.clone(), "--metadata-engine");
    own("metadata.url", args.metadata_url.clone(), "--metadata-url");
    let password_file = args.metadata_password_file.as_deref().map(absolute).transpose()?;
    own("metadata.password_file", password_file, "--metadata-password-file");
    for (name, file, flag) in [
        ("cluster.key_file", &args.cluster_key, "--cluster-key"),
        ("cluster.tls_ca_file", &args.tls.tls_ca, "--tls-ca"),
        ("cluster.tls_certificate_file", &args.tls.tls_certificate, "--tls-certificate"),
        ("cluster.tls_key_file", &args.tls.tls_key, "--tls-key"),
    ] {
        own(name, file.as_deref().map(absolute).transpose()?, flag);
    }
    own("mount.state", args.state.as_deref().map(absolute).transpose()?, "--state");
    for (tier, value) in [("ssd", &args.ssd), ("nearline", &args.nearline)] {
        let Some(value) = value else { continue };
        if let Some(linked) = value.strip_prefix(LINK).filter(|_| tier == "nearline") {
            let linked = if is_bucket(linked) { linked.to_owned() } else { absolute(Path::new(linked))? };
            own("nearline.link", Some(linked), "--nearline");
            continue;
        }
        let (dir, size) = split_dir_size(value);
        let flag = format!("--{tier}");
        let dir = if dir == "none" { dir.to_owned() } else { absolute(Path::new(dir))? };
        own(&format!("{tier}.dir"), Some(dir), &flag);
        own(&format!("{tier}.size"), size.map(str::to_owned), &flag);
    }
    Ok(all)
}

/// A path of the command line, from the current directory.
fn absolute(path: &Path) -> Outcome<String> {
    let absolute =
        std::path::absolute(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
    let text = absolute.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::usage(format!("{}: the name is not valid text (UTF-8)", path.display())))
}
