//! What is linked: a directory or a bucket.

use std::{fmt, path::PathBuf};

use bucket::{Addressing, Location, SCHEME};

/// The near-line that others have, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkTarget {
    Directory(PathBuf),
    Bucket(BucketConfig),
}

/// Where a bucket is. Its credentials come from where those of other programs do, and are in no setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketConfig {
    pub location: Location,
    pub endpoint: Option<String>,
    pub region: Option<String>,
    pub addressing: Addressing,
    pub allow_http: bool,
}

/// Is it the name of a bucket, and no path?
pub fn is_bucket(text: &str) -> bool {
    text.starts_with(SCHEME)
}

impl LinkTarget {
    pub fn directory(&self) -> Option<&PathBuf> {
        match self {
            LinkTarget::Directory(dir) => Some(dir),
            LinkTarget::Bucket(_) => None,
        }
    }
}

impl fmt::Display for LinkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkTarget::Directory(dir) => dir.display().fmt(f),
            LinkTarget::Bucket(bucket) => bucket.location.fmt(f),
        }
    }
}
