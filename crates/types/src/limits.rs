//! Sizes that the formats and the interfaces fix.

/// Bytes in a storage allocation unit: the unit of reservation, residency and movement (paper, section 5.2
/// and 8.6).
pub const SAU_BYTES: u64 = 4 << 20;
/// Bytes in one path component, as on every Linux file system.
pub const NAME_MAX: usize = 255;
/// Bytes in a symbolic link's target (`PATH_MAX` without its terminator).
pub const SYMLINK_MAX: usize = 4095;
/// Hard links to one inode.
pub const LINK_MAX: u32 = 65_000;
/// Bytes in an extended attribute's name (Linux `XATTR_NAME_MAX`).
pub const XATTR_NAME_MAX: usize = 255;
/// Bytes in an extended attribute's value (Linux `XATTR_SIZE_MAX`).
pub const XATTR_SIZE_MAX: usize = 65_536;
