//! Which root it is: a small object with a number that is made at the first mount.
//!
//! A bucket that was deleted, made anew or mistaken for another has none, or another one, and an empty listing of it is not taken for
//! "all files deleted". Content, version 1: `onfs root 1 ` and 32 hexadecimal digits, and a newline.
//!
//! A bucket that cannot be written is known by its name while there is something in it.

use link::{Reachable, RootId};
use opendal::options::WriteOptions;
use types::Errno;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    error::told,
    key::IDENTITY,
    store::{Store, quietly},
};

const BEGINS: &str = "onfs root 1 ";

fn shown(id: RootId) -> String {
    format!("{BEGINS}{:016x}{:016x}\n", id.device, id.fileid)
}

fn parse(text: &[u8]) -> Option<RootId> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.strip_prefix(BEGINS)?.strip_suffix('\n')?;
    if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let (device, fileid) = digits.split_at(16);
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    Some(RootId { device: number(device)?, fileid: number(fileid)? })
}

impl Store {
    /// `None`: it has none. `EIO`: it is damaged.
    async fn identity(&self) -> Result<Option<RootId>, Errno> {
        let read = self.operator.read(IDENTITY).await.map_err(|error| told(&error, "read", IDENTITY));
        match read.map(|text| parse(&text.to_vec())) {
            Ok(Some(id)) => Ok(Some(id)),
            Ok(None) => {
                tracing::error!(bucket = %self.location, "{IDENTITY} is not what it should be");
                Err(Errno::EIO)
            }
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) async fn root(&self) -> Result<Reachable, Errno> {
        // Whether it is empty says nothing more once it is known which it is.
        if let Some(id) = self.identity().await? {
            return Ok(Reachable::Yes { id, empty: false });
        }
        let empty = self.some_below("", 1).await?.is_empty();
        Ok(Reachable::Yes { id: self.by_name(empty), empty })
    }

    /// An empty bucket is another one than the same with something in it: it may have been made anew.
    fn by_name(&self, empty: bool) -> RootId {
        let name = self.location.to_string();
        RootId {
            device: xxh3_64_with_seed(name.as_bytes(), u64::from(empty)),
            fileid: xxh3_64_with_seed(name.as_bytes(), 2),
        }
    }

    /// At the first mount: an identity is made if there is none. Says why it cannot be linked.
    pub(crate) async fn make_known(&self) -> Result<(), String> {
        let cannot = |what: &str, errno: Errno| format!("{}: {what}: {errno}", self.location);
        if self.identity().await.map_err(|errno| cannot("cannot be read", errno))?.is_some() {
            return Ok(());
        }
        let id = RootId { device: self.fresh_id(), fileid: self.fresh_id() };
        let options = WriteOptions { if_not_exists: true, ..WriteOptions::default() };
        let made = self.operator.write_options(IDENTITY, shown(id), options).await.map_err(quietly);
        match made {
            Ok(_) | Err(Errno::EEXIST) => Ok(()),
            Err(Errno::EACCES | Errno::EROFS) => {
                let below =
                    self.some_below("", 1).await.map_err(|errno| cannot("cannot be listed", errno))?;
                if below.is_empty() {
                    return Err(format!("{}: nothing is there, and nothing can be written", self.location));
                }
                tracing::warn!(bucket = %self.location, "cannot be written: it is known by its name only");
                Ok(())
            }
            Err(errno) => Err(cannot("cannot be written", errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_identity() {
        let id = RootId { device: 0xab, fileid: u64::MAX };
        let text = shown(id);
        assert_eq!(text, "onfs root 1 00000000000000abffffffffffffffff\n");
        assert_eq!(parse(text.as_bytes()), Some(id));
        for n in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..n]), None);
        }
        for bad in [
            "onfs root 2 00000000000000abffffffffffffffff\n",
            "onfs root 1 +0000000000000abffffffffffffffff\n",
        ] {
            assert_eq!(parse(bad.as_bytes()), None);
        }
    }
}
