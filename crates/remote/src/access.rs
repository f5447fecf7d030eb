//! What the flags of open(2) ask for.

use types::Errno;

// As in <asm-generic/fcntl.h>.
const O_ACCMODE: u32 = 0o3;
const O_WRONLY: u32 = 0o1;
const O_RDWR: u32 = 0o2;
const O_EXCL: u32 = 0o200;
const O_APPEND: u32 = 0o2000;
const O_DSYNC: u32 = 0o1_0000;
#[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
const O_DIRECT: u32 = 0o20_0000;
#[cfg(not(any(target_arch = "aarch64", target_arch = "arm")))]
const O_DIRECT: u32 = 0o4_0000;
const O_NOATIME: u32 = 0o100_0000;
/// The bit that `O_SYNC` has beyond `O_DSYNC`.
const O_SYNC_ALONE: u32 = 0o400_0000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    pub read: bool,
    pub write: bool,
    pub exclusive: bool,
    pub no_atime: bool,
}

impl Access {
    /// `EINVAL` for access mode 3, which Linux keeps for its own.
    pub fn from_flags(flags: u32) -> Result<Access, Errno> {
        let (read, write) = match flags & O_ACCMODE {
            0 => (true, false),
            O_WRONLY => (false, true),
            O_RDWR => (true, true),
            _ => return Err(Errno::EINVAL),
        };
        Ok(Access { read, write, exclusive: flags & O_EXCL != 0, no_atime: flags & O_NOATIME != 0 })
    }
}

/// `O_DIRECT`, as the kernel of this machine has it.
pub(crate) fn is_direct(flags: u32) -> bool {
    flags & O_DIRECT != 0
}

/// Of one write: at the end, wherever that is.
pub(crate) fn is_append(flags: u32) -> bool {
    flags & O_APPEND != 0
}

/// Of one write: durable when it is answered.
pub(crate) fn is_sync(flags: u32) -> bool {
    flags & (O_DSYNC | O_SYNC_ALONE) != 0
}
