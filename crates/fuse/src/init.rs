//! INIT: what the kernel offers, what the file system takes, and the answer.

use types::Errno;

use crate::{
    abi,
    buffer::PAGE,
    call::Agreed,
    decode::Dialect,
    device::{Backing, Notifier},
    flags::Capabilities,
    options::TransportKind,
};

/// Flags that belong to the transport: a file system neither sets nor clears them.
const TRANSPORTS_OWN: Capabilities =
    Capabilities::MAX_PAGES.union(Capabilities::INIT_EXT).union(Capabilities::OVER_IO_URING);

/// What runs below the file system.
#[derive(Clone)]
pub struct KernelInfo {
    pub major: u32,
    pub minor: u32,
    /// What the kernel offers.
    pub capabilities: Capabilities,
    /// Bytes.
    pub max_readahead: u32,
    /// What will serve the requests, unless the kernel refuses the rings.
    pub transport: TransportKind,
    pub notifier: Notifier,
    pub backing: Backing,
}

impl KernelInfo {
    /// Does it take [`Notifier::prune`]?
    pub fn can_prune(&self) -> bool {
        self.minor >= abi::MINOR_OF_PRUNE
    }
}

/// What the file system wants; it comes filled with defaults. What the kernel does not offer is not granted.
#[derive(Clone, Debug)]
pub struct InitConfig {
    pub capabilities: Capabilities,
    /// Bytes per WRITE and READ, in whole pages: 4 KiB to what the mount was made for (1 MiB).
    pub max_write: u32,
    /// Bytes. Beyond what the kernel offers only where we may set it (as root).
    pub max_readahead: u32,
    /// Requests that nobody waits for (readahead, write-back, FORGET) under way at once.
    pub max_background: u16,
    /// From so many of them on the kernel reports congestion.
    pub congestion_threshold: u16,
    /// Nanoseconds.
    pub time_granularity_ns: u32,
    /// 1: backing files may be on an ordinary file system; 2: also on a stacked one. Takes effect with `PASSTHROUGH`.
    pub max_stack_depth: u32,
    /// `st_blksize` of every file: what programs read and write at a time.
    pub block_size: u32,
}

impl InitConfig {
    pub(crate) fn new(kernel: &KernelInfo, max_write: u32) -> InitConfig {
        let wanted = Capabilities::ASYNC_READ
            | Capabilities::BIG_WRITES
            | Capabilities::PARALLEL_DIROPS
            | Capabilities::READDIRPLUS
            | Capabilities::READDIRPLUS_AUTO
            | Capabilities::HAS_EXPIRE_ONLY;
        InitConfig {
            capabilities: wanted & kernel.capabilities,
            max_write,
            max_readahead: kernel.max_readahead,
            max_background: 64,
            congestion_threshold: 48,
            time_granularity_ns: 1,
            max_stack_depth: 0,
            block_size: PAGE as u32,
        }
    }
}

/// The request's body; older kernels send only the first 16 bytes.
pub(crate) fn parse(body: &[u8]) -> Result<abi::InitIn, Errno> {
    if body.len() < 16 {
        return Err(Errno::EINVAL);
    }
    let mut whole = [0; size_of::<abi::InitIn>()];
    let len = body.len().min(whole.len());
    whole[..len].copy_from_slice(&body[..len]);
    abi::read(&whole).ok_or(Errno::EINVAL)
}

/// The request as a kernel would send it that does not offer these.
pub(crate) fn without(mut init: abi::InitIn, withheld: Capabilities) -> abi::InitIn {
    init.flags &= !(withheld.bits() as u32);
    init.flags2 &= !((withheld.bits() >> 32) as u32);
    if withheld.contains(Capabilities::NEWER_THAN_LINUX_6_1) {
        init.minor = init.minor.min(abi::MINOR_OF_LINUX_6_1);
    }
    init
}

pub(crate) fn offered(init: &abi::InitIn) -> Capabilities {
    let low = Capabilities::from_bits_retain(u64::from(init.flags));
    if low.contains(Capabilities::INIT_EXT) {
        low | Capabilities::from_bits_retain(u64::from(init.flags2) << 32)
    } else {
        low
    }
}

/// The answer, and what it means for requests from now on.
pub(crate) fn agree(
    init: &abi::InitIn,
    config: &InitConfig,
    limit: u32,
    ring: bool,
) -> (abi::InitOut, Agreed) {
    let offered = offered(init);
    let mut granted =
        config.capabilities.difference(TRANSPORTS_OWN) | Capabilities::MAX_PAGES | Capabilities::INIT_EXT;
    if ring {
        granted |= Capabilities::OVER_IO_URING;
    }
    granted &= offered;
    let stack_depth = if granted.contains(Capabilities::PASSTHROUGH) { config.max_stack_depth } else { 0 };
    let page = PAGE as u32;
    let most = if offered.contains(Capabilities::MAX_PAGES) { limit } else { 32 * page };
    let max_write = (config.max_write / page * page).clamp(page, most.max(page));
    let out = abi::InitOut {
        major: abi::MAJOR,
        minor: init.minor.min(abi::MINOR),
        max_readahead: config.max_readahead,
        flags: granted.bits() as u32,
        max_background: config.max_background.max(1),
        congestion_threshold: config.congestion_threshold.clamp(1, config.max_background.max(1)),
        max_write,
        time_gran: config.time_granularity_ns.clamp(1, 1_000_000_000),
        max_pages: u16::try_from(max_write / page).unwrap_or(u16::MAX),
        map_alignment: 0,
        flags2: (granted.bits() >> 32) as u32,
        max_stack_depth: stack_depth,
        request_timeout: 0,
        unused: [0; 11],
    };
    let agreed = Agreed {
        dialect: Dialect { setxattr_ext: granted.contains(Capabilities::SETXATTR_EXT) },
        block_size: config.block_size,
        // READ is limited by max_pages too, but never below the least size of a buffer.
        payload: (max_write as usize).max(abi::MIN_READ_BUFFER),
    };
    (out, agreed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(capabilities: Capabilities) -> InitConfig {
        InitConfig {
            capabilities,
            max_write: 1 << 20,
            max_readahead: 1 << 17,
            max_background: 64,
            congestion_threshold: 48,
            time_granularity_ns: 1,
            max_stack_depth: 1,
            block_size: 4096,
        }
    }

    fn offer(minor: u32, capabilities: Capabilities) -> abi::InitIn {
        abi::InitIn {
            major: 7,
            minor,
            max_readahead: 1 << 17,
            flags: capabilities.bits() as u32,
            flags2: (capabilities.bits() >> 32) as u32,
            unused: [0; 11],
        }
    }

    /// Goal: nothing is granted that was not offered. Method: an old kernel (short INIT, no second word of flags)
    /// and a file system that wants everything.
    #[test]
    fn an_old_kernel_gets_only_what_it_offered() {
        let offered_flags = Capabilities::ASYNC_READ | Capabilities::MAX_PAGES;
        let bytes = [7_u32, 31, 1 << 17, offered_flags.bits() as u32].map(u32::to_ne_bytes).concat();
        let init = parse(&bytes).unwrap();
        let (out, agreed) = agree(&init, &config(Capabilities::all()), 1 << 20, true);
        assert_eq!((out.major, out.minor), (7, 31));
        assert_eq!(u64::from(out.flags), offered_flags.bits());
        assert_eq!(out.flags2, 0);
        assert_eq!(out.max_stack_depth, 0);
        assert!(!agreed.dialect.setxattr_ext);
        assert!(parse(&bytes[..12]).is_err());
    }

    /// Goal: what is withheld is not offered, and nothing else is. Method: a bit of each word.
    #[test]
    fn withheld_capabilities_are_not_offered() {
        let init = offer(99, Capabilities::all());
        let withheld = Capabilities::POSIX_ACL | Capabilities::PASSTHROUGH;
        assert_eq!(offered(&without(init, withheld)), Capabilities::all() - withheld);
        let old = offered(&without(init, Capabilities::NEWER_THAN_LINUX_6_1));
        assert_eq!(old.bits(), (1 << 34) - 1);
    }

    /// Goal: the ring flag is the transport's, sizes stay within the limit. Method: a new kernel, a config out of
    /// bounds, with and without the ring.
    #[test]
    fn a_new_kernel_gets_the_ring_only_when_it_runs() {
        let init = offer(99, Capabilities::all());
        let mut wants = config(Capabilities::PASSTHROUGH | Capabilities::OVER_IO_URING);
        wants.max_write = u32::MAX;
        let (out, agreed) = agree(&init, &wants, 1 << 20, false);
        assert_eq!(out.minor, abi::MINOR);
        assert_eq!(out.flags2, (Capabilities::PASSTHROUGH.bits() >> 32) as u32);
        assert_eq!((out.max_write, out.max_pages, out.max_stack_depth), (1 << 20, 256, 1));
        assert_eq!(agreed.payload, 1 << 20);
        let (out, _) = agree(&init, &config(Capabilities::empty()), 1 << 20, true);
        assert_eq!(out.flags2, (Capabilities::OVER_IO_URING.bits() >> 32) as u32);
        wants.max_write = 0;
        assert_eq!(agree(&init, &wants, 1 << 20, false).0.max_write, 4096);
    }
}
