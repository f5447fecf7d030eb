//! Which bucket, and how it is spoken to.

use std::{
    fmt,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Where one is told which endpoint; the first that is set counts.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
/// What servers of one's own call their region, as a rule.
const REGION_ELSEWHERE: &str = "us-east-1";

/// A bucket and a prefix in it, which is "" or ends in "/".
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Location {
    pub bucket: String,
    pub prefix: String,
}

/// `s3://`, before a bucket's name.
pub const SCHEME: &str = "s3://";

impl Location {
    /// `s3://BUCKET` or `s3://BUCKET/PREFIX`. Says what is wrong.
    pub fn parse(text: &str) -> Result<Location, String> {
        let rest =
            text.strip_prefix(SCHEME).ok_or_else(|| format!("{text}: does not begin with {SCHEME}"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return Err(format!("{text}: write s3://BUCKET/PREFIX with the name of a bucket"));
        }
        let prefix = prefix.trim_end_matches('/');
        if !prefix.is_empty() && !prefix.split('/').all(crate::key::is_name) {
            return Err(format!("{text}: the prefix has a part that cannot be a directory's name"));
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Location { bucket: bucket.to_owned(), prefix })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.prefix.trim_end_matches('/');
        let slash = if path.is_empty() { "" } else { "/" };
        write!(f, "{SCHEME}{}{slash}{path}", self.bucket)
    }
}

/// How the bucket's name is part of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressing {
    /// `ENDPOINT/BUCKET/KEY`.
    Path,
    /// `BUCKET.ENDPOINT/KEY`.
    VirtualHost,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    pub location: Location,
    /// `None`: as the environment says, or Amazon's.
    pub endpoint: Option<String>,
    /// `None`: as the environment says.
    pub region: Option<String>,
    pub addressing: Addressing,
    /// Without TLS, everybody on the way can read and change what is sent.
    pub allow_http: bool,
    /// Of one call. Versions are uploaded in parts, of which each has it.
    pub deadline: Duration,
    /// Where versions lie until they are whole.
    pub spool: PathBuf,
    /// Of what carries no owner: user and group.
    pub owner: (u32, u32),
    /// This file system sees the bucket for the first time: it may be marked.
    pub first: bool,
}

/// Endpoint and region, as they were found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Resolved {
    /// With the scheme, without "/" at the end.
    pub endpoint: String,
    pub region: String,
}

impl Options {
    /// Says what is missing or not allowed. `env` tells variables.
    pub(crate) fn resolve(&self, env: impl Fn(&str) -> Option<String>) -> Result<Resolved, String> {
        let of_env = |names: &[&str]| names.iter().find_map(|name| env(name).filter(|v| !v.is_empty()));
        let endpoint = self.endpoint.clone().or_else(|| of_env(&ENDPOINTS));
        let region = self.region.clone().or_else(|| of_env(&REGIONS));
        let region = match (region, &endpoint) {
            (Some(region), _) => region,
            (None, Some(_)) => REGION_ELSEWHERE.to_owned(),
            (None, None) => {
                return Err("which region? Set nearline.region or AWS_REGION".to_owned());
            }
        };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let endpoint = if endpoint.contains("://") { endpoint } else { format!("https://{endpoint}") };
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        match endpoint.split_once("://") {
            Some(("https", host)) if is_host(host) => {}
            Some(("http", host)) if is_host(host) && self.allow_http => {}
            Some(("http", _)) if !self.allow_http => {
                return Err(format!("{endpoint} is not encrypted: nearline.allow_http = yes allows that"));
            }
            Some(_) | None => {
                return Err(format!("{endpoint} is no address of a server: write https://HOST[:PORT]"));
            }
        }
        if self.addressing == Addressing::VirtualHost && self.location.bucket.contains('.') {
            return Err("a bucket with a dot in its name needs nearline.addressing = path".to_owned());
        }
        Ok(Resolved { endpoint, region })
    }
}

/// Credentials in an address would come to be in logs.
fn is_host(host: &str) -> bool {
    !host.is_empty() && !host.contains(['/', '@', '?', '#', ' '])
}

/// Files with credentials that others may read are refused: they are not secret any more.
pub(crate) fn check_credential_files(env: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let home = env("HOME").map(PathBuf::from);
    let own = home.map(|home| home.join(".aws/credentials"));
    let Some(file) = env("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from).or(own) else { return Ok(()) };
    check_secret(&file)
}

fn check_secret(file: &Path) -> Result<(), String> {
    match std::fs::metadata(file) {
        Ok(there) if there.permissions().mode() & 0o077 != 0 => {
            Err(format!("{}: others may read these credentials (chmod 600 it)", file.display()))
        }
        // Where it is not, credentials come from elsewhere.
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what is meant is found, and what is unsafe is refused. Method: examples.
    use super::*;

    fn options() -> Options {
        Options {
            location: Location::parse("s3://b/p").unwrap(),
            endpoint: None,
            region: None,
            addressing: Addressing::Path,
            allow_http: false,
            deadline: Duration::from_secs(1),
            spool: "/tmp".into(),
            owner: (0, 0),
            first: true,
        }
    }

    #[test]
    fn locations() {
        for (text, bucket, prefix) in
            [("s3://b", "b", ""), ("s3://b/", "b", ""), ("s3://my-b.1/p/q r/", "my-b.1", "p/q r/")]
        {
            let location = Location::parse(text).unwrap();
            assert_eq!((&*location.bucket, &*location.prefix), (bucket, prefix));
            assert_eq!(Location::parse(&location.to_string()), Ok(location));
        }
        for bad in [
            "/b/p",
            "s3://",
            "s3:///p",
            "s3://b?x",
            "s3://b//p",
            "s3://b/../p",
            "s3://b/p/ q",
            "s3://k:s@b/p",
        ] {
            assert!(Location::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn endpoints() {
        let resolve = |change: &dyn Fn(&mut Options), env: &[(&str, &str)]| {
            let mut options = options();
            change(&mut options);
            let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            options.resolve(env).map(|found| (found.endpoint, found.region))
        };
        let found = |endpoint: &str, region: &str| Ok((endpoint.to_owned(), region.to_owned()));
        assert!(resolve(&|_| {}, &[]).unwrap_err().contains("AWS_REGION"));
        assert_eq!(
            resolve(&|_| {}, &[("AWS_DEFAULT_REGION", "eu-x")]),
            found("https://s3.eu-x.amazonaws.com", "eu-x")
        );
        assert_eq!(
            resolve(&|_| {}, &[("AWS_ENDPOINT_URL", "https://h:1/")]),
            found("https://h:1", "us-east-1")
        );
        let http = |o: &mut Options| o.endpoint = Some("http://h".into());
        assert!(resolve(&http, &[]).unwrap_err().contains("allow_http"));
        let allowed = |o: &mut Options| (o.allow_http, o.endpoint) = (true, Some("http://h".into()));
        assert_eq!(resolve(&allowed, &[]), found("http://h", "us-east-1"));
        for bad in ["ftp://h", "https://", "https://key:secret@h", "https://h/path"] {
            let set = |o: &mut Options| (o.allow_http, o.endpoint) = (true, Some(bad.into()));
            assert!(resolve(&set, &[]).is_err(), "{bad}");
        }
        let dotted = |o: &mut Options| {
            o.endpoint = Some("h".into());
            o.addressing = Addressing::VirtualHost;
            o.location = Location::parse("s3://a.b").unwrap();
        };
        assert!(resolve(&dotted, &[]).is_err());
    }

    #[test]
    fn secrets_that_others_read_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let set =
            |mode| std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let env = |name: &str| (name == "AWS_SHARED_CREDENTIALS_FILE").then(|| path.clone());
        set(0o644);
        assert!(check_credential_files(env).unwrap_err().contains("chmod 600"));
        set(0o600);
        assert_eq!(check_credential_files(env), Ok(()));
        assert_eq!(check_credential_files(|_| None), Ok(()));
        assert_eq!(check_credential_files(|_| Some("/nowhere".into())), Ok(()));
    }
}
