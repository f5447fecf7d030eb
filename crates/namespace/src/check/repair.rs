//! Putting findings right. A repair reads what is stored now, so repairs can follow each other.
//!
//! Nothing that could hold somebody's data is deleted: what has no name gets one in the root directory,
//! `lost+found-<inode number>`.

use std::ops::ControlFlow;

use types::{Ino, ProjectId, UgsdId};

use super::{finding::Finding, walk::walk};
use crate::{
    Env, Inode, InodeFlags, Place, Spread, alloc,
    dentry::{self, Dentry},
    error::Result,
    inode,
    key::{self, Parsed},
    orphan, parts,
    quota::{self, Quota},
    superblock,
    txn::{Reader, Txn},
};

/// Puts one finding right, if that is possible without guessing. `Ok(false)`: it is not, nothing was changed.
pub fn repair<T: Txn + ?Sized>(txn: &mut T, env: &Env, finding: &Finding) -> Result<bool> {
    match finding {
        Finding::Damaged { key } => return repair_damaged(txn, key),
        Finding::NoRoot => return Ok(false),
        Finding::WrongTarget { ino } => return drop_target(txn, *ino),
        Finding::Dangling { dir, name, .. } => {
            dentry::delete(txn, &env.names, Place { dir: *dir, name });
        }
        Finding::WrongKind { dir, name, ino, kind } => {
            dentry::put(txn, &env.names, Place { dir: *dir, name }, Dentry { ino: *ino, kind: *kind });
        }
        Finding::WrongName { dir, hash, name } => return move_entry(txn, env, *dir, *hash, name),
        Finding::WrongParent { dir, name, ino } => {
            repair_parent(txn, env, Place { dir: *dir, name }, *ino)?;
        }
        Finding::WrongLinks { ino, counted, .. } => {
            let revived = edit(txn, *ino, |inode| inode.nlink = *counted)?;
            if revived {
                orphan::drop_record(txn, *ino);
            }
        }
        Finding::Lost { ino, .. } | Finding::Detached { ino } => return give_name(txn, env, *ino),
        Finding::NoOrphanRecord { ino } => orphan::add(txn, env, *ino, orphan::Origin::Unlinked),
        Finding::NotOrphan { ino } => orphan::drop_record(txn, *ino),
        Finding::Stray { ino } => {
            // What is remembered of the linked directory may still be needed.
            let (link, mut behind) = (key::link(*ino), key::link(*ino).to_vec());
            behind.push(0);
            delete_all(txn, &ino.get().to_be_bytes(), &link)?;
            delete_all(txn, &behind, &after_all_of(*ino))?;
        }
        Finding::MisplacedEntries { ino } => {
            delete_all(txn, &key::dentry_from(*ino, 0), &key::dentry_end(*ino))?;
        }
        Finding::WrongFlags { ino, counted, .. } => {
            edit(txn, *ino, |inode| inode.flags = *counted)?;
        }
        Finding::WrongMode { ino, acl, .. } => {
            edit(txn, *ino, |inode| inode.mode = inode.mode & !0o777 | acl & 0o777)?;
        }
        Finding::AllocatorBehind { ugsd, used, .. } => {
            txn.put(&key::allocator(*ugsd), alloc::encode(used + 1));
        }
        Finding::UgsdBehind { used, .. } => {
            let mut superblock = superblock::load(txn)?;
            superblock.next_ugsd = used + 1;
            superblock::store(txn, &superblock);
        }
        Finding::WrongPart { dir, name, right } => return move_into_part(txn, env, *dir, *right, name),
        Finding::BadPart { dir, part } => return parts::restore(txn, *dir, *part),
        // The next check finds that it has no name.
        Finding::StrayPart { ino } => {
            edit(txn, *ino, |inode| {
                inode.flags.remove(InodeFlags::PART);
                inode.rdev = 0;
            })?;
        }
        Finding::StrayPin { ino } => txn.delete(&key::pin(*ino)),
        Finding::StrayPolicy { ino } => txn.delete(&key::policy(*ino)),
        Finding::StrayLink { ino } => txn.delete(&key::link(*ino)),
        Finding::WrongUsage { project, counted, .. } => {
            let before = quota::get(txn, *project)?.unwrap_or_default();
            let (bytes, inodes) = (counted.bytes.max(0) as u64, counted.inodes.max(0) as u64);
            quota::store(txn, *project, &Quota { bytes, inodes, ..before });
        }
    }
    Ok(true)
}

/// Returns whether the inode had no links before.
fn edit<T: Txn + ?Sized>(txn: &mut T, ino: Ino, change: impl FnOnce(&mut Inode)) -> Result<bool> {
    let mut inode = inode::load(txn, ino)?;
    let orphan = inode.nlink == 0;
    change(&mut inode);
    inode::store(txn, ino, &inode);
    Ok(orphan)
}

/// Behind all keys of an inode.
fn after_all_of(ino: Ino) -> Vec<u8> {
    // The last number that there can be has no next one.
    ino.get().checked_add(1).map_or_else(|| vec![0xff; 512], |next| next.to_be_bytes().to_vec())
}

/// Records that the next check computes anew can go; their limits or unused numbers with them.
fn repair_damaged<T: Txn + ?Sized>(txn: &mut T, key: &[u8]) -> Result<bool> {
    let Some(parsed) = Parsed::new(key) else {
        txn.delete(key);
        return Ok(true);
    };
    match parsed.kind {
        key::QUOTA if parsed.raw_ino == 0 => {
            if let Ok(project) = parsed.rest.try_into().map(u32::from_be_bytes) {
                quota::store(txn, ProjectId(project), &Quota::default());
            } else {
                txn.delete(key);
            }
            Ok(true)
        }
        key::ALLOCATOR if UgsdId::new((parsed.raw_ino >> 40) as u32).is_some() => {
            txn.delete(key);
            Ok(true)
        }
        // The inode tells whether it is an orphan; a pin and a policy can be set again. What an entry named keeps its other
        // names, or is found lost by the next check and gets one.
        key::ORPHAN | key::PIN | key::POLICY | key::DENTRY => {
            txn.delete(key);
            Ok(true)
        }
        // Their content is not looked at here: the key is wrong, and nobody asks for it.
        key::LINK
        | key::WORK
        | key::CONFLICT
        | key::STRIPES
        | key::HELD
        | key::LENT
        | key::VERDICT
        | key::STANDING
        | key::STATE => {
            txn.delete(key);
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// A target where none belongs goes; a missing one cannot be made up.
fn drop_target<T: Txn + ?Sized>(txn: &mut T, ino: Ino) -> Result<bool> {
    if inode::load(txn, ino)?.kind == types::FileKind::Symlink {
        return Ok(false);
    }
    txn.delete(&key::symlink(ino));
    Ok(true)
}

fn move_entry<T: Txn + ?Sized>(txn: &mut T, env: &Env, dir: Ino, hash: u64, name: &[u8]) -> Result<bool> {
    let wrong = key::dentry(dir, hash, name);
    let right = key::dentry(dir, env.names.hash(name), name);
    let Some(entry) = txn.get(&wrong)? else { return Ok(false) };
    if crate::name::check_new(name).is_err() || txn.get(&right)?.is_some() {
        // What it names keeps its other name, or is found lost by the next check.
        txn.delete(&wrong);
        return Ok(true);
    }
    txn.delete(&wrong);
    txn.put(&right, entry);
    Ok(true)
}

/// As [`move_entry`].
fn move_into_part<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    dir: Ino,
    right: Ino,
    name: &[u8],
) -> Result<bool> {
    let (wrong, place) = (Place { dir, name }, Place { dir: right, name });
    let Some(entry) = dentry::get(txn, &env.names, wrong)? else { return Ok(false) };
    let shown = inode::load_dir(txn, dir)?.shown(dir);
    if !inode::get(txn, right)?.is_some_and(|part| part.is_part() && part.parent == Some(shown)) {
        return Ok(false);
    }
    dentry::delete(txn, &env.names, wrong);
    if dentry::get(txn, &env.names, place)?.is_none() {
        dentry::put(txn, &env.names, place, entry);
    }
    Ok(true)
}

/// A directory in two places stays where its parent says; one that its parent does not know stays here.
fn repair_parent<T: Txn + ?Sized>(txn: &mut T, env: &Env, at: Place<'_>, ino: Ino) -> Result<()> {
    let mut inode = inode::load(txn, ino)?;
    let shown = inode::get(txn, at.dir)?.map_or(at.dir, |dir| dir.shown(at.dir));
    let known = match inode.parent {
        _ if ino == Ino::ROOT => true,
        Some(parent) if parent != shown => has_entry_of(txn, parent, ino)?,
        Some(_) | None => false,
    };
    if known {
        dentry::delete(txn, &env.names, at);
        return Ok(());
    }
    inode.parent = Some(shown);
    if inode.nlink == 0 {
        inode.nlink = 2;
        orphan::drop_record(txn, ino);
    }
    inode::store(txn, ino, &inode);
    Ok(())
}

fn has_entry_of<R: Reader + ?Sized>(reader: &R, dir: Ino, ino: Ino) -> Result<bool> {
    let spread = inode::get(reader, dir)?.and_then(|inode| inode.spread());
    let mut has = false;
    for dir in spread.into_iter().flat_map(Spread::parts).chain([dir]) {
        if has {
            break;
        }
        walk(reader, (&key::dentry_from(dir, 0), &key::dentry_end(dir)), &mut |_, value| {
            has = Dentry::decode(value).is_some_and(|entry| entry.ino == ino);
            Ok(if has { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
    }
    Ok(has)
}

fn give_name<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino) -> Result<bool> {
    let name = format!("lost+found-{}", ino.get());
    let at = Place { dir: Ino::ROOT, name: name.as_bytes() };
    let Some(mut root) = inode::get(txn, Ino::ROOT)? else { return Ok(false) };
    let Some(mut inode) = inode::get(txn, ino)? else { return Ok(false) };
    if ino == Ino::ROOT || dentry::get(txn, &env.names, at)?.is_some() {
        return Ok(false);
    }
    dentry::put(txn, &env.names, at, Dentry { ino, kind: inode.kind });
    inode.parent = Some(Ino::ROOT);
    if inode.is_dir() {
        root.nlink += 1;
    } else {
        inode.nlink = 1;
    }
    inode.flags &= InodeFlags::all();
    inode::store(txn, ino, &inode);
    root.entries_changed(env.now);
    inode::store(txn, Ino::ROOT, &root);
    Ok(true)
}

fn delete_all<T: Txn + ?Sized>(txn: &mut T, from: &[u8], to: &[u8]) -> Result<()> {
    let mut keys = Vec::new();
    walk(txn, (from, to), &mut |key, _| {
        keys.push(key.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    for key in &keys {
        txn.delete(key);
    }
    Ok(())
}
