//! The operations of the random tests, and a seeded generator that knows the tree it writes for.
//!
//! An operation carries its whole meaning (paths relative to the root, patterns instead of bytes), so that a
//! recorded list can be cut down and run again, and be kept as a file of JSON lines.

use serde::{Deserialize, Serialize};

use crate::{random::Random, tree::Tree};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AllocateKind {
    Extend,
    KeepSize,
    Punch,
    Zero,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RenameKind {
    Replace,
    NoReplace,
    Exchange,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum XattrKind {
    Any,
    Create,
    Replace,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TierName {
    Memory,
    Ssd,
    Nearline,
}

impl TierName {
    pub const ALL: [TierName; 3] = [TierName::Memory, TierName::Ssd, TierName::Nearline];

    pub const fn word(self) -> &'static str {
        match self {
            TierName::Memory => "memory",
            TierName::Ssd => "ssd",
            TierName::Nearline => "nearline",
        }
    }
}

/// One step. `fill` names a pattern ([`crate::random::pattern`]); offsets and lengths are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    Create {
        path: String,
        mode: u32,
        exclusive: bool,
    },
    Rewrite {
        path: String,
        len: u64,
        fill: u32,
    },
    Write {
        path: String,
        offset: u64,
        len: u64,
        fill: u32,
    },
    Append {
        path: String,
        len: u64,
        fill: u32,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Allocate {
        path: String,
        kind: AllocateKind,
        offset: u64,
        len: u64,
    },
    CopyRange {
        from: String,
        to: String,
        from_offset: u64,
        to_offset: u64,
        len: u64,
    },
    Read {
        path: String,
        offset: u64,
        len: u64,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Rmdir {
        path: String,
    },
    Unlink {
        path: String,
    },
    Symlink {
        target: String,
        path: String,
    },
    Link {
        from: String,
        to: String,
    },
    Mkfifo {
        path: String,
        mode: u32,
    },
    Rename {
        from: String,
        to: String,
        kind: RenameKind,
    },
    /// `O_TMPFILE` in the parent of `path`, written, then linked as `path`.
    Tmpfile {
        path: String,
        len: u64,
        fill: u32,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: u32,
        gid: u32,
    },
    SetTimes {
        path: String,
        seconds: i64,
        nanos: u32,
    },
    SetXattr {
        path: String,
        name: String,
        len: u64,
        fill: u32,
        kind: XattrKind,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    Fsync {
        path: String,
        data_only: bool,
    },
    Open {
        slot: u8,
        path: String,
    },
    WriteOpen {
        slot: u8,
        offset: u64,
        len: u64,
        fill: u32,
    },
    ReadOpen {
        slot: u8,
        offset: u64,
        len: u64,
    },
    TruncateOpen {
        slot: u8,
        size: u64,
    },
    SyncOpen {
        slot: u8,
    },
    Close {
        slot: u8,
    },
    /// `onfs migrate PATH --to TIER`; nothing on a plain directory.
    Move {
        path: String,
        tier: TierName,
    },
    /// Close everything, unmount, mount again; nothing on a plain directory.
    Remount,
}

/// What the generator may use, found out at the start ([`crate::perform::abilities`]).
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    pub zero_range: bool,
    pub tmpfile: bool,
    pub exchange: bool,
    pub xattrs: bool,
    /// Tier moves and remounts mean something.
    pub tiers: bool,
}

/// Bounds of a run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Largest file, bytes.
    pub file_bytes_max: u64,
    /// All files together; above it the generator shrinks and deletes.
    pub tree_bytes_max: u64,
    /// Percentage of steps that are a remount.
    pub remount_per_mille: u64,
}

pub const SLOTS: u8 = 4;
const FILES: u64 = 10;
const DIRS: u64 = 4;
const DEPTH_MAX: usize = 4;
const MODES: [u32; 8] = [0o644, 0o600, 0o755, 0o700, 0o666, 0o4755, 0o2755, 0o000];
const DIR_MODES: [u32; 6] = [0o755, 0o700, 0o777, 0o1777, 0o2755, 0o500];
const XATTRS: [&str; 4] = ["user.a", "user.colour", "user.\u{fc}nicode", "trusted.t"];

impl Op {
    /// A sync: without an answer it promises nothing.
    pub fn promises(&self) -> bool {
        matches!(self, Op::Fsync { .. } | Op::SyncOpen { .. })
    }
}

/// Draws operations for a tree.
pub struct Generator {
    pub random: Random,
    pub abilities: Abilities,
    pub shape: Shape,
    next_fill: u32,
}

impl Generator {
    pub fn new(random: Random, abilities: Abilities, shape: Shape) -> Generator {
        Generator { random, abilities, shape, next_fill: 1 }
    }

    /// The next step, given what is there now.
    pub fn draw(&mut self, tree: &Tree) -> Op {
        if tree.total_bytes() > self.shape.tree_bytes_max {
            return self.relieve(tree);
        }
        if self.abilities.tiers {
            if self.random.below(1000) < self.shape.remount_per_mille {
                return Op::Remount;
            }
            if self.random.chance(8) {
                let tier = TierName::ALL[self.random.below(3) as usize];
                return Op::Move { path: self.file(tree), tier };
            }
        }
        match self.random.below(100) {
            0..42 => self.draw_data(tree),
            42..72 => self.draw_names(tree),
            72..86 => self.draw_attributes(tree),
            _ => self.draw_open(tree),
        }
    }

    fn relieve(&mut self, tree: &Tree) -> Op {
        match self.random.below(6) {
            0 => Op::Truncate { path: self.file(tree), size: 0 },
            1 => Op::Close { slot: self.slot() },
            _ => Op::Unlink { path: self.file(tree) },
        }
    }

    fn draw_data(&mut self, tree: &Tree) -> Op {
        let path = self.file(tree);
        let (offset, len, fill) = (self.offset(), self.len(), self.fill());
        match self.random.below(20) {
            0..3 => Op::Create { path, mode: self.mode(), exclusive: self.random.chance(50) },
            3..6 => Op::Rewrite { path, len, fill },
            6..11 => Op::Write { path, offset, len, fill },
            11..13 => Op::Append { path, len, fill },
            13..15 => Op::Truncate { path, size: offset },
            15..17 => {
                let kinds =
                    [AllocateKind::Extend, AllocateKind::KeepSize, AllocateKind::Punch, AllocateKind::Zero];
                let count = if self.abilities.zero_range { 4 } else { 3 };
                Op::Allocate { path, kind: kinds[self.random.below(count) as usize], offset, len: len.max(1) }
            }
            17 => {
                let (to, to_offset) = (self.file(tree), self.offset());
                Op::CopyRange { from: path, to, from_offset: offset, to_offset, len }
            }
            18 => Op::Read { path, offset, len },
            _ => Op::Fsync { path, data_only: self.random.chance(50) },
        }
    }

    fn draw_names(&mut self, tree: &Tree) -> Op {
        let (path, mode) = (self.any(tree), self.mode());
        match self.random.below(20) {
            0..4 => Op::Mkdir { path: self.dir(tree), mode: self.dir_mode() },
            4..6 => Op::Rmdir { path: self.dir(tree) },
            6..9 => Op::Unlink { path },
            9 => Op::Symlink { target: self.name(tree), path },
            10..12 => Op::Link { from: path, to: self.any(tree) },
            12 => Op::Mkfifo { path, mode },
            13 if self.abilities.tmpfile => {
                Op::Tmpfile { path: self.file(tree), len: self.len(), fill: self.fill() }
            }
            _ => {
                let kind = match self.random.below(10) {
                    0..2 if self.abilities.exchange => RenameKind::Exchange,
                    2..4 if self.abilities.exchange => RenameKind::NoReplace,
                    _ => RenameKind::Replace,
                };
                Op::Rename { from: path, to: self.any(tree), kind }
            }
        }
    }

    fn draw_attributes(&mut self, tree: &Tree) -> Op {
        let path = self.any(tree);
        match self.random.below(10) {
            0..2 => {
                Op::Chmod { path, mode: if self.random.chance(50) { self.mode() } else { self.dir_mode() } }
            }
            2 => Op::Chown {
                path,
                uid: self.random.below(4) as u32 * 1000,
                gid: self.random.below(4) as u32 * 1000,
            },
            3..5 => Op::SetTimes {
                path,
                seconds: self.random.below(4_000_000_000) as i64,
                nanos: self.random.below(1_000_000_000) as u32,
            },
            5..8 if self.abilities.xattrs => {
                let kinds = [XattrKind::Any, XattrKind::Any, XattrKind::Create, XattrKind::Replace];
                let kind = kinds[self.random.below(4) as usize];
                Op::SetXattr {
                    path,
                    name: self.xattr(),
                    len: self.random.below(200),
                    fill: self.fill(),
                    kind,
                }
            }
            8 if self.abilities.xattrs => Op::RemoveXattr { path, name: self.xattr() },
            _ => Op::Fsync { path: self.file(tree), data_only: false },
        }
    }

    fn draw_open(&mut self, tree: &Tree) -> Op {
        let (slot, offset, len) = (self.slot(), self.offset(), self.len());
        match self.random.below(10) {
            0..3 => Op::Open { slot, path: self.file(tree) },
            3..6 => Op::WriteOpen { slot, offset, len, fill: self.fill() },
            6 => Op::ReadOpen { slot, offset, len },
            7 => Op::TruncateOpen { slot, size: offset },
            8 => Op::SyncOpen { slot },
            _ => Op::Close { slot },
        }
    }

    fn slot(&mut self) -> u8 {
        self.random.below(u64::from(SLOTS)) as u8
    }
    fn mode(&mut self) -> u32 {
        MODES[self.random.below(MODES.len() as u64) as usize]
    }
    fn dir_mode(&mut self) -> u32 {
        DIR_MODES[self.random.below(DIR_MODES.len() as u64) as usize]
    }
    fn xattr(&mut self) -> String {
        XATTRS[self.random.below(XATTRS.len() as u64) as usize].to_owned()
    }
    fn fill(&mut self) -> u32 {
        self.next_fill += 1;
        self.next_fill
    }

    /// Mostly small, sometimes across a storage allocation unit, often on a page border or beside it.
    fn offset(&mut self) -> u64 {
        let max = self.shape.file_bytes_max;
        let raw = if self.random.chance(70) { self.random.log_below(max) } else { self.random.below(max) };
        match self.random.below(4) {
            0 => raw & !4095,
            1 => (raw & !4095).saturating_sub(1),
            2 => raw & !((1 << 20) - 1),
            _ => raw,
        }
    }
    fn len(&mut self) -> u64 {
        let max = self.shape.file_bytes_max / 2;
        let raw = if self.random.chance(90) {
            self.random.log_below(max.min(256 << 10))
        } else {
            self.random.below(max)
        };
        if self.random.chance(30) { raw & !4095 } else { raw }
    }

    fn parent(&mut self, tree: &Tree) -> String {
        let dirs = tree.directories();
        let shallow: Vec<&String> = dirs.iter().filter(|d| d.matches('/').count() + 1 < DEPTH_MAX).collect();
        self.random.pick(&shallow).map(|d| (*d).clone()).unwrap_or_default()
    }
    fn below_parent(&mut self, tree: &Tree, name: String) -> String {
        let parent = self.parent(tree);
        if parent.is_empty() { name } else { format!("{parent}/{name}") }
    }
    /// A path that names a file, or will; sometimes one that cannot.
    fn file(&mut self, tree: &Tree) -> String {
        if self.random.chance(75) {
            let files = tree.files();
            if let Some(path) = self.random.pick(&files) {
                return path.clone();
            }
        }
        let name = self.name(tree);
        self.below_parent(tree, name)
    }
    fn dir(&mut self, tree: &Tree) -> String {
        let name = format!("d{}", self.random.below(DIRS));
        self.below_parent(tree, name)
    }
    fn any(&mut self, tree: &Tree) -> String {
        if self.random.chance(30) { self.dir(tree) } else { self.file(tree) }
    }
    fn name(&mut self, tree: &Tree) -> String {
        match self.random.below(60) {
            0 => "n".repeat(255),
            1 => "n".repeat(256),
            2 => "\u{f6}\u{20ac}\u{1f600}".to_owned(),
            3 => "a b\nc".to_owned(),
            4 => "...".to_owned(),
            5 => {
                // A path through a file: not a directory.
                let files = tree.files();
                self.random
                    .pick(&files)
                    .map_or_else(|| "f0".to_owned(), |f| format!("{}/x", f.rsplit('/').next().unwrap_or(f)))
            }
            _ => format!("f{}", self.random.below(FILES)),
        }
    }
}
