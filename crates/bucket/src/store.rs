//! One bucket, as requests: each with a deadline, some tried again, and errors as ours.

use std::{
    collections::{BTreeSet, HashMap},
    future::Future,
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use link::Way;
use opendal::{
    Metadata, Operator,
    layers::{RetryLayer, TimeoutLayer},
    options::ListOptions,
    services::S3,
};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use types::{Errno, Timestamp};

use crate::{
    error::{errno, told},
    key::{IDENTITY, Keys},
    known::Known,
    object::{self, Owner},
    options::{Addressing, Location, Options, check_credential_files},
    signed::Signed,
};

/// Tries after the first.
const RETRIES: usize = 3;
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MOST: Duration = Duration::from_secs(3);
/// Requests wait in these; callers have threads of their own.
const THREADS: usize = 2;
/// Keys that are named in the log because they are left out, at the most.
const NAMED_MAX: usize = 1000;

pub(crate) struct Store {
    pub operator: Operator,
    pub signed: Signed,
    pub keys: Keys,
    pub known: Known,
    pub location: Location,
    pub owner: Owner,
    pub spool: PathBuf,
    runtime: Runtime,
    deadline: Duration,
    left_out: Mutex<BTreeSet<String>>,
}

impl Store {
    /// Asks nothing yet. Says what is missing or not allowed.
    pub fn new(options: &Options) -> Result<Store, String> {
        let env = |name: &str| std::env::var(name).ok();
        let resolved = options.resolve(env)?;
        check_credential_files(env)?;
        let location = &options.location;
        let mut service = S3::default()
            .bucket(&location.bucket)
            .root(&format!("/{}", location.prefix))
            .endpoint(&resolved.endpoint)
            .region(&resolved.region)
            .checksum_algorithm("crc32c");
        if options.addressing == Addressing::VirtualHost {
            service = service.enable_virtual_host_style();
        }
        // A call has time for two tries at least.
        let each = options.deadline / 3;
        let retry = RetryLayer::new()
            .with_max_times(RETRIES)
            .with_min_delay(RETRY_FIRST)
            .with_max_delay(RETRY_MOST)
            .with_jitter();
        let operator = Operator::new(service)
            .map_err(|error| error.to_string())?
            .layer(TimeoutLayer::new().with_timeout(each).with_io_timeout(options.deadline))
            .layer(retry)
            .finish();
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("bucket")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Store {
            operator,
            signed: Signed::new(location, &resolved, options.addressing, each),
            keys: Keys::below(&location.prefix),
            known: Known::default(),
            location: location.clone(),
            owner: options.owner,
            spool: options.spool.clone(),
            runtime,
            deadline: options.deadline,
            left_out: Mutex::default(),
        })
    }

    /// One call, to its end or its deadline. Then `ETIMEDOUT`: it may have been done, or may be done yet.
    pub fn run<T>(&self, work: impl Future<Output = Result<T, Errno>>) -> Result<T, Errno> {
        let limited =
            async { tokio::time::timeout(self.deadline, work).await.unwrap_or(Err(Errno::ETIMEDOUT)) };
        self.runtime.block_on(limited)
    }

    /// One call whose requests have deadlines by their length.
    pub fn run_long<T>(&self, work: impl Future<Output = Result<T, Errno>>) -> Result<T, Errno> {
        self.runtime.block_on(work)
    }

    /// An object with this very key.
    pub async fn stat(&self, key: &str) -> Result<Option<Metadata>, Errno> {
        match self.operator.stat(key).await.map_err(|error| told(&error, "stat", key)) {
            Ok(metadata) => Ok(Some(metadata)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The marker of a directory, if it has one.
    pub async fn marker(&self, key: &str) -> Result<Option<Metadata>, Errno> {
        // The root of the bucket can have none.
        if key.is_empty() && self.location.prefix.is_empty() {
            return Ok(None);
        }
        match self.signed.head(key).await? {
            Some(head) => head.metadata(key).map(Some),
            None => Ok(None),
        }
    }

    /// A directory is there if its marker is, or anything below it. The root always is. A bucket that is gone is an error here:
    /// an answer to a listing says so, one to a look does not.
    pub async fn is_dir(&self, key: &str) -> Result<bool, Errno> {
        Ok(key.is_empty() || !self.some_below(key, 1).await?.is_empty())
    }

    /// Some keys that begin with that of a directory, its marker's among them, but without the identity.
    pub async fn some_below(&self, key: &str, most: usize) -> Result<Vec<String>, Errno> {
        use futures_util::TryStreamExt;
        let path = if key.is_empty() { "/" } else { key };
        // One more, for the identity in the root.
        let options = ListOptions { limit: Some(most + 1), recursive: true, ..ListOptions::default() };
        let mut entries =
            self.operator.lister_options(path, options).await.map_err(|error| told(&error, "list", key))?;
        let mut found = Vec::new();
        while let Some(entry) = entries.try_next().await.map_err(|error| told(&error, "list", key))? {
            if entry.path() != IDENTITY {
                found.push(entry.path().to_owned());
            }
            if found.len() == most {
                break;
            }
        }
        Ok(found)
    }

    /// The directory stays when the last of what makes it one goes: it gets a marker.
    pub async fn keep_dir(&self, way: &Way) -> Result<(), Errno> {
        let Some((_, dir)) = way.split_last() else { return Ok(()) };
        let key = self.keys.dir(dir)?;
        if key.is_empty() || self.marker(&key).await?.is_some() {
            return Ok(());
        }
        let mut metadata = HashMap::new();
        object::unmarked(self.owner).put(&mut metadata);
        match self.signed.put_empty(&key, &metadata, true).await {
            // Somebody else was faster.
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    pub async fn delete(&self, key: &str) -> Result<(), Errno> {
        self.known.forget(key);
        self.operator.delete(key).await.map_err(|error| told(&error, "delete", key))
    }

    /// Said once of each key.
    pub fn leave_out(&self, key: &str, why: &str) {
        let mut named = self.left_out.lock();
        if named.len() < NAMED_MAX && named.insert(key.to_owned()) {
            tracing::warn!(bucket = %self.location, key = %key.escape_debug(), "an object is not shown: {why}");
        }
    }

    /// By which a file is known through its copies.
    pub fn fresh_id(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        RandomState::new().hash_one((since, std::process::id()))
    }
}

pub(crate) fn now() -> Timestamp {
    Timestamp::EPOCH.plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// For `map_err` where nothing is to be said.
pub(crate) fn quietly(error: opendal::Error) -> Errno {
    errno(&error)
}
