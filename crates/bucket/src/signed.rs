//! The requests that OpenDAL does not make, or not so: to look at the marker of a directory, to write one with metadata, and to copy an object
//! as it was looked at, or onto itself with other metadata. They are signed by the library that signs OpenDAL's, with credentials from the same places, and
//! go through its client.

use std::{collections::HashMap, time::Duration};

use http::{HeaderMap, Method, Request, StatusCode};
use opendal::{
    Buffer, Metadata,
    raw::{HttpClient, parse_into_metadata, percent_encode_path},
};
use reqsign_aws_v4::{Credential, DefaultCredentialProvider, RequestSigner};
use reqsign_core::{Context, OsEnv, Signer};
use reqsign_file_read_tokio::TokioFileRead;
use types::Errno;

use crate::{
    error::{is_passing, of_status},
    options::{Addressing, Location, Resolved},
};

const METADATA: &str = "x-amz-meta-";
/// With growing pauses, as OpenDAL does.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(200);
/// A store that copies more slowly than this is not waited for.
const COPIED_PER_SECOND: u64 = 16 << 20;
/// What an object has besides its bytes and its user metadata, and would lose.
const KEPT: [&str; 5] =
    ["content-type", "cache-control", "content-disposition", "content-encoding", "content-language"];

pub(crate) struct Signed {
    signer: Signer<Credential>,
    http: HttpClient,
    /// Of the bucket, without "/" at the end.
    url: String,
    location: Location,
    deadline: Duration,
}

/// What an answer to a look has.
pub(crate) struct Head {
    headers: HeaderMap,
}

impl Head {
    fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// As OpenDAL's own look gives it.
    pub fn metadata(&self, key: &str) -> Result<Metadata, Errno> {
        let pairs = self.headers.iter().filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix(METADATA)?;
            Some((name.to_owned(), value.to_str().ok()?.to_owned()))
        });
        let metadata = parse_into_metadata(key, &self.headers).map_err(|_| Errno::EIO)?;
        Ok(metadata.with_user_metadata(pairs.collect()))
    }
}

impl Signed {
    pub fn new(location: &Location, to: &Resolved, addressing: Addressing, deadline: Duration) -> Signed {
        let http = HttpClient::default();
        let context =
            Context::new().with_file_read(TokioFileRead).with_http_send(http.clone()).with_env(OsEnv);
        let bucket = &location.bucket;
        let url = match addressing {
            Addressing::Path => format!("{}/{bucket}", to.endpoint),
            Addressing::VirtualHost => to.endpoint.replacen("://", &format!("://{bucket}."), 1),
        };
        let signer =
            Signer::new(context, DefaultCredentialProvider::new(), RequestSigner::new("s3", &to.region));
        Signed { signer, http, url, location: location.clone(), deadline }
    }

    /// `None`: there is no such object.
    pub async fn head(&self, key: &str) -> Result<Option<Head>, Errno> {
        match self.send(Method::HEAD, key, &[], &HashMap::new()).await {
            Ok(headers) => Ok(Some(Head { headers })),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// An empty object with this key.
    pub async fn put_empty(
        &self,
        key: &str,
        metadata: &HashMap<String, String>,
        only_if_free: bool,
    ) -> Result<(), Errno> {
        let free: &[(&str, String)] = &[("if-none-match", "*".to_owned())];
        let headers = if only_if_free { free } else { &[] };
        match self.send(Method::PUT, key, headers, metadata).await {
            // Nothing has to be there for it.
            Err(Errno::ENOENT) => Err(Errno::EIO),
            other => other.map(|_| ()),
        }
    }

    /// Other user metadata for an object that is still what `head` found; its bytes stay.
    pub async fn set_metadata(
        &self,
        key: &str,
        head: &Head,
        metadata: &HashMap<String, String>,
    ) -> Result<(), Errno> {
        let mut headers = self.copied(key, head.text("etag"));
        headers.push(("x-amz-metadata-directive", "REPLACE".to_owned()));
        headers.extend(KEPT.iter().filter_map(|name| Some((*name, head.text(name)?.to_owned()))));
        let size = head.metadata(key)?.content_length();
        self.send_within(self.of_copy(size), Method::PUT, key, (&headers, metadata)).await.map(|_| ())
    }

    /// The object that was looked at, with all that it has, under another key as well.
    pub async fn copy(
        &self,
        old: &str,
        there: &Metadata,
        new: &str,
        only_if_free: bool,
    ) -> Result<(), Errno> {
        let mut headers = self.copied(old, there.etag());
        if only_if_free {
            headers.push(("if-none-match", "*".to_owned()));
        }
        let limit = self.of_copy(there.content_length());
        self.send_within(limit, Method::PUT, new, (&headers, &HashMap::new())).await.map(|_| ())
    }

    fn copied(&self, key: &str, etag: Option<&str>) -> Vec<(&'static str, String)> {
        let from = format!("{}/{}{key}", self.location.bucket, self.location.prefix);
        let mut headers = vec![("x-amz-copy-source", percent_encode_path(&from))];
        headers.extend(etag.map(|etag| ("x-amz-copy-source-if-match", etag.to_owned())));
        headers
    }

    /// The store answers when it has copied all.
    fn of_copy(&self, bytes: u64) -> Duration {
        self.deadline + Duration::from_secs(bytes / COPIED_PER_SECOND)
    }

    async fn send(
        &self,
        method: Method,
        key: &str,
        headers: &[(&str, String)],
        metadata: &HashMap<String, String>,
    ) -> Result<HeaderMap, Errno> {
        self.send_within(self.deadline, method, key, (headers, metadata)).await
    }

    /// `limit`: of each try.
    async fn send_within(
        &self,
        limit: Duration,
        method: Method,
        key: &str,
        (headers, metadata): (&[(&str, String)], &HashMap<String, String>),
    ) -> Result<HeaderMap, Errno> {
        let mut pause = PAUSE;
        for left in (0..TRIES).rev() {
            let one = self.send_once(method.clone(), key, headers, metadata);
            let answer = tokio::time::timeout(limit, one).await.unwrap_or(Err((Errno::ETIMEDOUT, true)));
            match answer {
                Ok(headers) => return Ok(headers),
                Err((errno, passing)) if !passing || left == 0 => return Err(errno),
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        }
        Err(Errno::EIO)
    }

    /// With an error comes whether it may pass by itself.
    async fn send_once(
        &self,
        method: Method,
        key: &str,
        headers: &[(&str, String)],
        metadata: &HashMap<String, String>,
    ) -> Result<HeaderMap, (Errno, bool)> {
        let path = percent_encode_path(&format!("{}{key}", self.location.prefix));
        let mut request = Request::builder().method(method.clone()).uri(format!("{}/{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        for (name, value) in metadata {
            request = request.header(format!("{METADATA}{name}"), value);
        }
        if method == Method::PUT {
            request = request.header("content-length", "0");
        }
        // A value that a header cannot have: that of others, which we read and would write back.
        let request = request.body(Buffer::new()).map_err(|_| (Errno::EINVAL, false))?;
        let (mut parts, body) = request.into_parts();
        self.signer.sign(&mut parts, None).await.map_err(|error| {
            tracing::debug!(%error, "a request to the object store cannot be signed");
            (Errno::EACCES, false)
        })?;
        parts.headers.remove(http::header::HOST);
        let answer = self.http.send(Request::from_parts(parts, body)).await.map_err(|error| {
            tracing::debug!(%error, key, "no answer from the object store");
            (Errno::EIO, true)
        })?;
        let (parts, body) = answer.into_parts();
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        let code = tagged(&text, "Code").unwrap_or_default();
        // A copy that fails late is told with status 200, and the error in the body.
        if parts.status == StatusCode::OK && !text.contains("<Error>") {
            return Ok(parts.headers);
        }
        let passing = is_passing(parts.status) || parts.status == StatusCode::OK;
        if parts.status != StatusCode::NOT_FOUND {
            tracing::debug!(status = %parts.status, code, key, %method, "the object store refuses");
        }
        Err((of_status(parts.status, code), passing))
    }
}

/// The text of an element without others in it.
fn tagged<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    Some(rest.split_once('<')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_in_answers() {
        let text = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>x</Message></Error>";
        assert_eq!(tagged(text, "Code"), Some("SlowDown"));
        for bad in ["", "<Code>", "Code", "</Code>"] {
            assert_eq!(tagged(bad, "Code"), None);
        }
    }
}
