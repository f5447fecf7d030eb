//! Policies of directories: what a directory says about where data below it is kept, how soon it is made safe, and what
//! closing a file waits for. Files of a hybrid directory say their mode themselves, in the flags of their inodes.
//!
//! Invariants: a directory has the flag [`InodeFlags::POLICY`] exactly while it has a record. Policies are few and
//! wanted all together at a mount, so the records are not beside the inodes.
//!
//! Record, version 2, 13 bytes: version u8 | promote u8 (0 inherited, 1 on open, 2 on request) | mode u8 (0 inherited,
//! 1 global, 2 local, 3 hybrid, 4 transient) | write-behind u8 (0 inherited, 1 after a time, 2 never) | that time in
//! nanoseconds u64, else 0 | sync u8 (0 inherited, 1 forced, 2 normal).
//! Version 1, 12 bytes, is read: without the last, and with transient u8 (0 inherited, 1 yes, 2 no) in the place of the mode.
//!
//! Refuses to know what follows from a policy, and how it is inherited.

use std::{ops::ControlFlow, time::Duration};

use types::{Errno, Ino};

use crate::{
    apart,
    codec::{Fields, Writer},
    error::{Result, refuse},
    inode::{self, InodeFlags, corrupt},
    key,
    mode::{CloseSync, Mode},
    parts,
    txn::{Bytes, Reader, Txn},
};

const VERSION: u8 = 2;
/// Without modes.
const FIRST_VERSION: u8 = 1;

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
    pub mode: Option<Mode>,
    pub sync: Option<CloseSync>,
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
            mode: self.mode.or(above.mode),
            sync: self.sync.or(above.sync),
            write_behind: self.write_behind.or(above.write_behind),
        }
    }

    pub fn encode(&self) -> Bytes {
        let promote = match self.promote {
            None => 0,
            Some(Promote::OnOpen) => 1,
            Some(Promote::OnRequest) => 2,
        };
        let mode = match self.mode {
            None => 0,
            Some(Mode::Global) => 1,
            Some(Mode::Local) => 2,
            Some(Mode::Hybrid) => 3,
            Some(Mode::Transient) => 4,
        };
        let sync = match self.sync {
            None => 0,
            Some(CloseSync::Forced) => 1,
            Some(CloseSync::Normal) => 2,
        };
        let (kind, nanos) = match self.write_behind {
            None => (0, 0),
            Some(WriteBehind::After(delay)) => (1, u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)),
            Some(WriteBehind::Never) => (2, 0),
        };
        let record = Writer::<13>::new().u8(VERSION).u8(promote).u8(mode).u8(kind).u64(nanos).u8(sync);
        Bytes::copy_from_slice(&record.finish())
    }

    /// `None` when the bytes are not a policy's record.
    pub fn decode(bytes: &[u8]) -> Option<DirPolicy> {
        let mut f = Fields::new(bytes);
        let version = f.u8()?;
        if !(FIRST_VERSION..=VERSION).contains(&version) {
            return None;
        }
        let promote = match f.u8()? {
            0 => None,
            1 => Some(Promote::OnOpen),
            2 => Some(Promote::OnRequest),
            _ => return None,
        };
        let mode = match (version, f.u8()?) {
            (_, 0) => None,
            (FIRST_VERSION, 1) => Some(Mode::Transient),
            (FIRST_VERSION, 2) => Some(Mode::Local),
            (VERSION, 1) => Some(Mode::Global),
            (VERSION, 2) => Some(Mode::Local),
            (VERSION, 3) => Some(Mode::Hybrid),
            (VERSION, 4) => Some(Mode::Transient),
            _ => return None,
        };
        let write_behind = match (f.u8()?, f.u64()?) {
            (0, 0) => None,
            (1, nanos) => Some(WriteBehind::After(Duration::from_nanos(nanos))),
            (2, 0) => Some(WriteBehind::Never),
            _ => return None,
        };
        let sync = match if version == FIRST_VERSION { 0 } else { f.u8()? } {
            0 => None,
            1 => Some(CloseSync::Forced),
            2 => Some(CloseSync::Normal),
            _ => return None,
        };
        f.end()?;
        Some(DirPolicy { promote, mode, sync, write_behind })
    }
}

/// What a directory says.
pub fn get<R: Reader + ?Sized>(reader: &R, dir: Ino) -> Result<DirPolicy> {
    let key = key::policy(dir);
    match reader.get(&key)? {
        None => Ok(DirPolicy::default()),
        Some(bytes) => Ok(DirPolicy::decode(&bytes).ok_or_else(|| corrupt(&key))?),
    }
}

/// Sets what a directory says; an empty policy takes its record away. `linked`: there is a linked directory, which is told
/// of nothing that is in a transient one. `ENOTEMPTY`: it would begin or end to be told of what is there already. `EINVAL`:
/// in a transient directory all is transient; and the root cannot be, where it is linked.
pub fn set<T: Txn + ?Sized>(txn: &mut T, dir: Ino, policy: &DirPolicy, linked: bool) -> Result<()> {
    let mut inode = inode::load_live_dir(txn, dir)?;
    parts::check_shown(&inode)?;
    let (key, before) = (key::policy(dir), inode.flags);
    if let Some(WriteBehind::After(delay)) = policy.write_behind
        && u64::try_from(delay.as_nanos()).is_err()
    {
        return refuse(Errno::EINVAL);
    }
    if linked && get(txn, dir)?.mode != policy.mode {
        apart::set_for_dir(txn, dir, &mut inode, policy.mode)?;
    }
    inode.flags.set(InodeFlags::POLICY, !policy.is_empty());
    if inode.flags != before {
        inode::store(txn, dir, &inode);
        parts::reflect(txn, dir, &inode, false)?;
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

    const PROMOTE: [Option<Promote>; 3] = [None, Some(Promote::OnOpen), Some(Promote::OnRequest)];
    const SYNC: [Option<CloseSync>; 3] = [None, Some(CloseSync::Forced), Some(CloseSync::Normal)];

    fn delay() -> Option<WriteBehind> {
        Some(WriteBehind::After(Duration::from_nanos(0x0102)))
    }

    /// Goal: the record keeps its form. Method: golden bytes, every combination, values out of range, truncations.
    #[test]
    fn the_record_has_its_golden_bytes() {
        let (promote, sync) = (Some(Promote::OnRequest), Some(CloseSync::Normal));
        let policy = DirPolicy { promote, mode: Some(Mode::Hybrid), sync, write_behind: delay() };
        let golden = b"\x02\x02\x03\x01\x02\x01\0\0\0\0\0\0\x02";
        assert_eq!(&policy.encode()[..], golden);
        for (at, byte) in [(0, 0), (0, 1), (0, 3), (1, 3), (2, 5), (3, 3), (3, 0), (3, 2), (12, 3)] {
            let mut bad = *golden;
            bad[at] = byte;
            assert_eq!(DirPolicy::decode(&bad), None, "byte {at} = {byte}");
        }
        for len in 0..golden.len() {
            assert_eq!(DirPolicy::decode(&golden[..len]), None);
        }
        let modes = [Mode::Global, Mode::Local, Mode::Hybrid, Mode::Transient].map(Some);
        for mode in modes.into_iter().chain([None]) {
            for (promote, sync) in PROMOTE.into_iter().flat_map(|p| SYNC.map(|s| (p, s))) {
                for write_behind in [None, Some(WriteBehind::Never), delay()] {
                    let one = DirPolicy { promote, mode, sync, write_behind };
                    assert_eq!(DirPolicy::decode(&one.encode()), Some(one));
                    assert_eq!(one.is_empty(), one == DirPolicy::default());
                    assert_eq!(one.or(policy).or(policy), one.or(policy));
                }
            }
        }
    }

    /// Goal: records of the first version are read as what they said then. Method: golden bytes, values out of range.
    #[test]
    fn records_of_the_first_version_are_read() {
        let promote = Some(Promote::OnRequest);
        for (word, mode) in [(0, None), (1, Some(Mode::Transient)), (2, Some(Mode::Local))] {
            let mut first = *b"\x01\x02\x01\x01\x02\x01\0\0\0\0\0\0";
            first[2] = word;
            let policy = DirPolicy { promote, mode, sync: None, write_behind: delay() };
            assert_eq!(DirPolicy::decode(&first), Some(policy));
            assert_eq!(DirPolicy::decode(&[&first[..], &[0]].concat()), None);
        }
        assert_eq!(DirPolicy::decode(b"\x01\x02\x03\x01\x02\x01\0\0\0\0\0\0"), None);
    }
}
