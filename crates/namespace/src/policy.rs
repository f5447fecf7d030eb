//! Policies of directories: what a directory says about where data below it is kept, and how soon it is made safe.
//!
//! Invariants: a directory has the flag [`InodeFlags::POLICY`] exactly while it has a record. Policies are few and
//! wanted all together at a mount, so the records are not beside the inodes.
//!
//! Record, version 1, 12 bytes: version u8 | promote u8 (0 inherited, 1 on open, 2 on request) | transient u8 (0 inherited,
//! 1 yes, 2 no) | write-behind u8 (0 inherited, 1 after a time, 2 never) | that time in nanoseconds u64, else 0.
//!
//! Refuses to know what follows from a policy, and how it is inherited.

use std::{ops::ControlFlow, time::Duration};

use types::{Errno, Ino};

use crate::{
    codec::{Fields, Writer},
    error::{Result, refuse},
    inode::{self, InodeFlags, corrupt},
    key,
    txn::{Bytes, Reader, Txn},
};

const VERSION: u8 = 1;

/// When data comes up from a slower tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promote {
    OnOpen,
    OnRequest,
}

/// How soon a file gets a copy in a persistent tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteBehind {
    After(Duration),
    Never,
}

/// What one directory sets; `None` is inherited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirPolicy {
    pub promote: Option<Promote>,
    /// Its data need not outlive the memory.
    pub transient: Option<bool>,
    pub write_behind: Option<WriteBehind>,
}

impl DirPolicy {
    pub fn is_empty(&self) -> bool {
        *self == DirPolicy::default()
    }

    /// What this one leaves open, as `above` has it.
    pub fn or(self, above: DirPolicy) -> DirPolicy {
        DirPolicy {
            promote: self.promote.or(above.promote),
            transient: self.transient.or(above.transient),
            write_behind: self.write_behind.or(above.write_behind),
        }
    }

    pub fn encode(&self) -> Bytes {
        let promote = match self.promote {
            None => 0,
            Some(Promote::OnOpen) => 1,
            Some(Promote::OnRequest) => 2,
        };
        let transient = match self.transient {
            None => 0,
            Some(true) => 1,
            Some(false) => 2,
        };
        let (kind, nanos) = match self.write_behind {
            None => (0, 0),
            Some(WriteBehind::After(delay)) => (1, u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)),
            Some(WriteBehind::Never) => (2, 0),
        };
        let record = Writer::<12>::new().u8(VERSION).u8(promote).u8(transient).u8(kind).u64(nanos);
        Bytes::copy_from_slice(&record.finish())
    }

    /// `None` when the bytes are not a policy's record.
    pub fn decode(bytes: &[u8]) -> Option<DirPolicy> {
        let mut f = Fields::new(bytes);
        if f.u8()? != VERSION {
            return None;
        }
        let promote = match f.u8()? {
            0 => None,
            1 => Some(Promote::OnOpen),
            2 => Some(Promote::OnRequest),
            _ => return None,
        };
        let transient = match f.u8()? {
            0 => None,
            1 => Some(true),
            2 => Some(false),
            _ => return None,
        };
        let write_behind = match (f.u8()?, f.u64()?) {
            (0, 0) => None,
            (1, nanos) => Some(WriteBehind::After(Duration::from_nanos(nanos))),
            (2, 0) => Some(WriteBehind::Never),
            _ => return None,
        };
        f.end()?;
        Some(DirPolicy { promote, transient, write_behind })
    }
}

/// Sets what a directory says; an empty policy takes its record away.
pub fn set<T: Txn + ?Sized>(txn: &mut T, dir: Ino, policy: &DirPolicy) -> Result<()> {
    let mut inode = inode::load_live_dir(txn, dir)?;
    let (key, before) = (key::policy(dir), inode.flags);
    if let Some(WriteBehind::After(delay)) = policy.write_behind
        && u64::try_from(delay.as_nanos()).is_err()
    {
        return refuse(Errno::EINVAL);
    }
    inode.flags.set(InodeFlags::POLICY, !policy.is_empty());
    if inode.flags != before {
        inode::store(txn, dir, &inode);
    }
    if policy.is_empty() {
        txn.delete(&key);
    } else {
        txn.put(&key, policy.encode());
    }
    Ok(())
}

/// All directories with a policy, in order.
pub fn list<R: Reader + ?Sized>(reader: &R) -> Result<Vec<(Ino, DirPolicy)>> {
    let (mut found, mut bad) = (Vec::new(), None);
    reader.scan(&key::policy_start(), &key::policy_end(), &mut |key, value| {
        let dir = key::Parsed::new(key).and_then(|p| key::ino_of(p.rest));
        match dir.zip(DirPolicy::decode(value)) {
            Some(one) => {
                found.push(one);
                ControlFlow::Continue(())
            }
            None => {
                bad = Some(corrupt(key));
                ControlFlow::Break(())
            }
        }
    })?;
    match bad {
        None => Ok(found),
        Some(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the record keeps its form. Method: golden bytes, every combination, values out of range, truncations.
    #[test]
    fn the_record_has_its_golden_bytes() {
        let policy = DirPolicy {
            promote: Some(Promote::OnRequest),
            transient: Some(true),
            write_behind: Some(WriteBehind::After(Duration::from_nanos(0x0102))),
        };
        let golden = b"\x01\x02\x01\x01\x02\x01\0\0\0\0\0\0";
        assert_eq!(&policy.encode()[..], golden);
        for (at, byte) in [(0, 2), (1, 3), (2, 3), (3, 3), (3, 0), (3, 2)] {
            let mut bad = *golden;
            bad[at] = byte;
            assert_eq!(DirPolicy::decode(&bad), None);
        }
        for len in 0..golden.len() {
            assert_eq!(DirPolicy::decode(&golden[..len]), None);
        }
        for promote in [None, Some(Promote::OnOpen), Some(Promote::OnRequest)] {
            for transient in [None, Some(true), Some(false)] {
                for write_behind in [None, Some(WriteBehind::Never), policy.write_behind] {
                    let one = DirPolicy { promote, transient, write_behind };
                    assert_eq!(DirPolicy::decode(&one.encode()), Some(one));
                    assert_eq!(one.is_empty(), one == DirPolicy::default());
                    assert_eq!(one.or(policy).or(policy), one.or(policy));
                }
            }
        }
    }
}
