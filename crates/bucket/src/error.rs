//! From the store's errors to ours.
//!
//! `ENOENT` is said only of what the store itself says that it has not. A bucket that is gone, an answer that cannot be understood, and
//! no answer at all are errors of the store, of which nothing follows for what is in it.

use http::StatusCode;
use opendal::{Error, ErrorKind};
use types::Errno;

pub(crate) fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::PermissionDenied => Errno::EACCES,
        ErrorKind::RateLimited => Errno::EAGAIN,
        // Something else is there than was to be.
        ErrorKind::ConditionNotMatch | ErrorKind::AlreadyExists => Errno::EEXIST,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        // No such bucket, or the like.
        ErrorKind::ConfigInvalid => Errno::ESTALE,
        ErrorKind::Unexpected
        | ErrorKind::IsADirectory
        | ErrorKind::NotADirectory
        | ErrorKind::IsSameFile
        | ErrorKind::RangeNotSatisfied
        // They may become more.
        | _ => Errno::EIO,
    }
}

/// Said in the log: which call, of what, and the store's words.
pub(crate) fn told(error: &Error, call: &str, key: &str) -> Errno {
    let errno = errno(error);
    // What is asked for may be missing, or be there already.
    if !matches!(errno, Errno::ENOENT | Errno::EEXIST) {
        tracing::debug!(%error, call, key, %errno, "the object store refuses");
    }
    errno
}

/// Of an answer to a request of our own. `code`: of the error in its body.
pub(crate) fn of_status(status: StatusCode, code: &str) -> Errno {
    match (status.as_u16(), code) {
        (_, "NoSuchBucket") => Errno::ESTALE,
        (_, "SlowDown" | "TooManyRequests") | (429, _) => Errno::EAGAIN,
        (404, _) => Errno::ENOENT,
        (401 | 403, _) => Errno::EACCES,
        (409 | 412, _) => Errno::EEXIST,
        (501, _) => Errno::EOPNOTSUPP,
        (400, "EntityTooLarge") => Errno::EFBIG,
        (400, "KeyTooLongError") => Errno::ENAMETOOLONG,
        _ => Errno::EIO,
    }
}

/// May the same be asked again at once?
pub(crate) fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504)
}

#[cfg(test)]
mod tests {
    //! Goal: nothing but its absence looks like the absence of an object. Method: the answers that stores give.
    use super::*;

    #[test]
    fn only_absence_is_absence() {
        let of = |status: u16, code: &str| of_status(StatusCode::from_u16(status).unwrap(), code);
        assert_eq!(of(404, "NoSuchKey"), Errno::ENOENT);
        assert_eq!(of(404, "NoSuchBucket"), Errno::ESTALE);
        for status in [200, 301, 400, 401, 403, 405, 408, 409, 412, 429, 500, 501, 503, 504] {
            assert_ne!(of(status, ""), Errno::ENOENT, "{status}");
        }
        for kind in [
            ErrorKind::Unexpected,
            ErrorKind::ConfigInvalid,
            ErrorKind::PermissionDenied,
            ErrorKind::RateLimited,
            ErrorKind::RangeNotSatisfied,
        ] {
            assert_ne!(errno(&Error::new(kind, "")), Errno::ENOENT, "{kind}");
        }
    }
}
