//! The server to test against, as `tests/bucket` has it started: `BUCKET_TEST_ENDPOINT` with the bucket `BUCKET_TEST_BUCKET`, and
//! credentials in the variables that S3 programs know. Without it there is nothing to test, and a line says so.
#![allow(dead_code, reason = "each test uses a part")]

use std::time::Duration;

use bucket::{Addressing, Bucket, Location, Options};
use opendal::{Operator, options::WriteOptions, services::S3};

pub struct Server {
    endpoint: String,
    bucket: String,
    run: String,
    runtime: tokio::runtime::Runtime,
}

impl Server {
    pub fn find() -> Option<Server> {
        let told = |name: &str| std::env::var(name).ok();
        let Some((endpoint, bucket)) = told("BUCKET_TEST_ENDPOINT").zip(told("BUCKET_TEST_BUCKET")) else {
            eprintln!("no BUCKET_TEST_ENDPOINT: skipped (tests/bucket starts a server)");
            return None;
        };
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let run = format!("run-{}-{}", std::process::id(), since.as_nanos());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Some(Server { endpoint, bucket, run, runtime: runtime.unwrap() })
    }

    pub fn options(&self, name: &str) -> Options {
        Options {
            location: Location::parse(&format!("s3://{}/{}/{name}", self.bucket, self.run)).unwrap(),
            endpoint: Some(self.endpoint.clone()),
            region: None,
            addressing: Addressing::Path,
            allow_http: true,
            deadline: Duration::from_secs(30),
            spool: std::env::temp_dir(),
            owner: (0, 0),
            first: true,
        }
    }

    pub fn bucket(&self, name: &str) -> Bucket {
        Bucket::open(&self.options(name)).unwrap()
    }

    /// What others see and do below the prefix.
    pub fn others(&self, name: &str) -> Others<'_> {
        let service = S3::default()
            .bucket(&self.bucket)
            .root(&format!("/{}/{name}/", self.run))
            .endpoint(&self.endpoint)
            .region("us-east-1");
        Others { operator: Operator::new(service).unwrap().finish(), server: self }
    }
}

pub struct Others<'a> {
    operator: Operator,
    server: &'a Server,
}

impl Others<'_> {
    pub fn put(&self, key: &str, bytes: &[u8], metadata: &[(&str, &str)]) {
        let user = metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let options = WriteOptions { user_metadata: Some(user), ..WriteOptions::default() };
        let write = self.operator.write_options(key, bytes.to_vec(), options);
        self.server.runtime.block_on(write).unwrap();
    }

    pub fn get(&self, key: &str) -> Vec<u8> {
        self.server.runtime.block_on(self.operator.read(key)).unwrap().to_vec()
    }

    pub fn metadata(&self, key: &str) -> std::collections::BTreeMap<String, String> {
        let there = self.server.runtime.block_on(self.operator.stat(key)).unwrap();
        there.user_metadata().into_iter().flatten().map(|(n, v)| (n.clone(), v.clone())).collect()
    }

    pub fn delete(&self, key: &str) {
        self.server.runtime.block_on(self.operator.delete(key)).unwrap();
    }

    pub fn make_dir(&self, key: &str) {
        self.server.runtime.block_on(self.operator.create_dir(key)).unwrap();
    }
}
