//! Extended attributes: the stored ones, and ONFS's own `user.onfs.*`.
//!
//! Invariants: the own ones are never stored; all but `user.onfs.pin`, `mode` and `sync` are read-only, and setting one needs
//! what setting any `user.` attribute needs (the kernel checks), of a directory's to be its owner. None of them is listed: programs that copy what is
//! listed (`rsync -X`, `cp -a`) would fail when they set it. Each is there for whoever asks by name.

use std::fmt::Write;

use ds::ObjectReport;
use fuse::SetxattrArgs;
use mds::{SetXattr, XattrMode};
use types::{Errno, FileKind, Ino, TierId};

use crate::{
    Client,
    turn::{Answer, Turn},
};

const PREFIX: &[u8] = b"user.onfs.";
/// What a write takes away.
const CAPABILITY: &[u8] = b"security.capability";

/// ONFS's own attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Own {
    /// Where the daemon listens for commands.
    Control,
    /// Bytes per tier: `memory:4194304 ssd:8388608`.
    Tiers,
    /// Bytes that would be lost if the node died now.
    Dirty,
    /// `clean`, `dirty`, `lost`, with what goes on.
    State,
    /// The tier that the file is pinned in.
    Pin,
    /// What holds for a file, or in a directory: its mode, and what a close waits for.
    Mode,
    Sync,
}

impl Own {
    /// `None` for other people's attributes, `Some(None)` for a name of ours that means nothing.
    fn from_name(name: &[u8]) -> Option<Option<Own>> {
        Some(match name.strip_prefix(PREFIX)? {
            b"control" => Some(Own::Control),
            b"tiers" => Some(Own::Tiers),
            b"dirty" => Some(Own::Dirty),
            b"state" => Some(Own::State),
            b"pin" => Some(Own::Pin),
            b"mode" => Some(Own::Mode),
            b"sync" => Some(Own::Sync),
            _ => None,
        })
    }
}

/// The answer to GETXATTR and LISTXATTR.
pub(crate) enum XattrOut {
    /// The caller asked for the size alone.
    Size(u32),
    Bytes(Vec<u8>),
}

/// `ERANGE` when the value does not fit in `size`.
fn sized(bytes: Vec<u8>, size: u32) -> Result<XattrOut, Errno> {
    let len = u32::try_from(bytes.len()).map_err(|_| Errno::E2BIG)?;
    match size {
        0 => Ok(XattrOut::Size(len)),
        _ if len > size => Err(Errno::ERANGE),
        _ => Ok(XattrOut::Bytes(bytes)),
    }
}

impl Client {
    pub(crate) fn getxattr(&self, turn: Turn, ino: Ino, name: &[u8], size: u32) -> Answer<XattrOut> {
        let value = match Own::from_name(name) {
            None => self.mds.getxattr(ino, name)?.to_vec(),
            Some(None) => return Err(Errno::ENODATA.into()),
            Some(Some(Own::Control)) => self.options.control_socket.clone().ok_or(Errno::ENODATA)?,
            Some(Some(Own::Mode)) => self.policy_of(ino)?.mode.name().into(),
            Some(Some(Own::Sync)) => self.policy_of(ino)?.sync().name().into(),
            Some(Some(own)) => self.own_value(turn, ino, own)?.into_bytes(),
        };
        Ok(sized(value, size)?)
    }

    /// As elsewhere, `trusted.` names are root's to see.
    pub(crate) fn listxattr(&self, caller_uid: u32, ino: Ino, size: u32) -> Answer<XattrOut> {
        let names = self.mds.listxattr(ino)?;
        Ok(sized(if caller_uid == 0 { names } else { without_trusted(&names) }, size)?)
    }

    pub(crate) fn setxattr(
        &self,
        turn: Turn,
        caller_uid: u32,
        ino: Ino,
        args: &SetxattrArgs<'_>,
    ) -> Answer<()> {
        match Own::from_name(args.name) {
            None => {}
            Some(Some(Own::Pin)) => return self.set_pin(turn, ino, args.value),
            Some(Some(Own::Mode)) => return self.set_mode(turn, caller_uid, ino, args.value),
            Some(Some(Own::Sync)) => return self.set_close_sync(turn, caller_uid, ino, args.value),
            Some(_) => return Err(Errno::EPERM.into()),
        }
        let how = SetXattr { mode: xattr_mode(args.flags)?, kill_sgid: args.acl_kill_sgid };
        let had =
            matches!(how.mode, XattrMode::Create).then(|| self.had_xattr(ino, args.name)).transpose()?;
        if let Err(error) = self.mds.setxattr(ino, args.name, args.value, how) {
            let made_it = had == Some(false) && Client::done_before(error, Errno::EEXIST).is_ok();
            if !made_it {
                return Err(error.into());
            }
        }
        if args.name == CAPABILITY
            && let Some(inode) = self.inodes.get(ino)
        {
            inode.note_capabilities();
        }
        Ok(())
    }

    pub(crate) fn removexattr(&self, turn: Turn, caller_uid: u32, ino: Ino, name: &[u8]) -> Answer<()> {
        match Own::from_name(name) {
            None => {
                let had = self.had_xattr(ino, name)?;
                match self.mds.removexattr(ino, name) {
                    Err(error) if had => Client::done_before(error, Errno::ENODATA),
                    removed => Ok(removed?),
                }
            }
            Some(Some(Own::Pin)) => self.set_pin(turn, ino, b""),
            Some(Some(Own::Mode)) => self.set_mode(turn, caller_uid, ino, b""),
            Some(Some(Own::Sync)) => self.set_close_sync(turn, caller_uid, ino, b""),
            Some(_) => Err(Errno::EPERM.into()),
        }
    }

    fn own_value(&self, turn: Turn, ino: Ino, own: Own) -> Answer<String> {
        if self.mds.find(ino)?.attr.kind != FileKind::Regular {
            return Err(Errno::ENODATA.into());
        }
        turn.wait()?;
        let (inode, _) = self.inodes.acquire(ino)?;
        let report = self.ds.report(&inode.object);
        Ok(match own {
            Own::Control | Own::Mode | Own::Sync => return Err(Errno::ENODATA.into()),
            Own::Tiers => tiers_text(&report.bytes),
            Own::Dirty => report.at_risk.to_string(),
            Own::State => state_text(&report),
            Own::Pin => report.pinned.map(TierId::name).ok_or(Errno::ENODATA)?.to_owned(),
        })
    }

    fn set_pin(&self, turn: Turn, ino: Ino, value: &[u8]) -> Answer<()> {
        let tier = parse_pin(value)?;
        turn.wait()?;
        let (inode, _) = self.inodes.acquire(ino)?;
        match tier {
            Some(tier) => self.ds.pin(&inode.object, tier)?,
            None => self.ds.unpin(&inode.object)?,
        }
        Ok(())
    }
}

/// As in setxattr(2).
fn xattr_mode(flags: u32) -> Result<XattrMode, Errno> {
    match flags {
        0 => Ok(XattrMode::Set),
        1 => Ok(XattrMode::Create),
        2 => Ok(XattrMode::Replace),
        _ => Err(Errno::EINVAL),
    }
}

/// `names` have a NUL after each.
fn without_trusted(names: &[u8]) -> Vec<u8> {
    let each = names.split_inclusive(|byte| *byte == 0);
    each.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}

fn tiers_text(bytes: &[u64; 3]) -> String {
    let mut text = String::new();
    for tier in TierId::ALL {
        if bytes[tier.index()] > 0 {
            let gap = if text.is_empty() { "" } else { " " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{gap}{tier}:{}", bytes[tier.index()]);
        }
    }
    text
}

/// What would be lost first, then what goes on.
fn state_text(report: &ObjectReport) -> String {
    let data = if report.lost_saus > 0 {
        "lost"
    } else if report.at_risk > 0 {
        "dirty"
    } else {
        "clean"
    };
    let notes = [
        (report.open_for_write, " writing"),
        (report.open && !report.open_for_write, " open"),
        (report.moving, " moving"),
        (report.passthrough, " passthrough"),
        (report.transient, " transient"),
        (report.pinned.is_some(), " pinned"),
    ];
    notes.iter().filter(|(is, _)| *is).fold(data.to_owned(), |text, (_, note)| text + note)
}

/// Nothing: no pin.
fn parse_pin(value: &[u8]) -> Result<Option<TierId>, Errno> {
    let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?.trim();
    if text.is_empty() {
        return Ok(None);
    }
    TierId::from_name(text).map(Some).ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: size 0 asks for the size, a short buffer is ERANGE, an exact one is enough.
    #[test]
    fn the_size_protocol() {
        assert!(matches!(sized(vec![1; 5], 0), Ok(XattrOut::Size(5))));
        assert!(matches!(sized(vec![1; 5], 4), Err(Errno::ERANGE)));
        assert!(matches!(sized(vec![1; 5], 5), Ok(XattrOut::Bytes(bytes)) if bytes.len() == 5));
        assert!(matches!(sized(vec![], 5), Ok(XattrOut::Bytes(bytes)) if bytes.is_empty()));
    }

    #[test]
    fn regression_trusted_names_are_not_for_everybody() {
        assert_eq!(without_trusted(b"trusted.a\0user.trusted.b\0trusted.c\0"), b"user.trusted.b\0");
        assert_eq!(without_trusted(b""), b"");
    }

    /// Goal: our names are told from others, with no prefix trick. Method: table.
    #[test]
    fn own_names() {
        assert_eq!(Own::from_name(b"user.onfs.tiers"), Some(Some(Own::Tiers)));
        assert_eq!(Own::from_name(b"user.onfs.tiers2"), Some(None));
        assert_eq!(Own::from_name(b"user.onfsx"), None);
        assert_eq!(Own::from_name(b"trusted.onfs.tiers"), None);
    }

    #[test]
    fn tiers_and_pins_as_text() {
        assert_eq!(tiers_text(&[4_194_304, 8_388_608, 0]), "memory:4194304 ssd:8388608");
        assert_eq!(tiers_text(&[0, 0, 0]), "");
        assert_eq!(parse_pin(b"memory\n"), Ok(Some(TierId::Memory)));
        assert_eq!(parse_pin(b""), Ok(None));
        assert_eq!(parse_pin(b"tape"), Err(Errno::EINVAL));
        assert_eq!(parse_pin(&[0xff]), Err(Errno::EINVAL));
    }
}
