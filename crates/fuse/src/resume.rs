//! A mount goes on in another process: what that has to know of the connection, and how it begins.
//!
//! Invariants: the kernel sends again what nobody answered before the first thread reads, so that nothing is carried out by two
//! of them; what was granted to the first process is neither more nor less for the next one.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use types::Errno;

use crate::{
    Filesystem, abi,
    connection::Connection,
    core::Core,
    device::{Backing, Device, Notifier},
    flags::Capabilities,
    init::{InitConfig, KernelInfo},
    mount::{MountError, MountPoint},
    options::{MountOptions, TransportKind, TransportReport},
    record::Record,
    session::{Session, device_buffers, spawn_device_threads},
};

/// What one process gives to the next.
impl Session {
    /// The connection.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// What [`Session::resume`] has to know of it.
    pub fn record(&self) -> Vec<u8> {
        self.record.encode()
    }

    /// Goes on with a connection that another process served, which must have ended. `record` is that one's. Serving begins with what
    /// that one did not answer: such requests have the highest bit of their number set.
    pub fn resume<F: Filesystem>(
        options: &MountOptions,
        filesystem: Arc<F>,
        device: OwnedFd,
        record: &[u8],
    ) -> Result<Session, MountError> {
        let record = Record::decode(record).ok_or(MountError::Refused(Errno::EIO))?;
        let device = Arc::new(Device::from_fd(device));
        let connection = Connection::numbered(record.connection);
        let point = MountPoint::resumed(options.mountpoint.clone(), connection);
        ask_filesystem(&*filesystem, &device, &record, options)?;
        filesystem.resume().map_err(MountError::Refused)?;
        let core = Core::new(filesystem as Arc<dyn Filesystem>, record.agreed(), Vec::new());
        let presence = core.enter();
        core.started();
        if let Err(error) = device.resend()
            && device.is_connected()
        {
            return Err(MountError::Setup(error));
        }
        spawn_device_threads((&core, &device, connection), options)?;
        drop(presence);
        let transport =
            TransportReport { kind: TransportKind::Device, reason: Some("it is guarded".to_owned()) };
        tracing::info!(path = %point.path.display(), "the mount goes on");
        let buffer_bytes = device_buffers(options, &core);
        Ok(Session { core, point, device, transport, buffer_bytes, record })
    }

    /// For a successor: from now on nothing but FORGET is begun. Returns when all that was begun is answered, or the time is
    /// over; whether it is. What is not begun or not answered stays with the kernel.
    pub fn leave(&self, patience: std::time::Duration) -> bool {
        self.core.leave(patience)
    }
}

/// It has to want what was granted already, and cannot have more.
fn ask_filesystem<F: Filesystem>(
    filesystem: &F,
    device: &Arc<Device>,
    record: &Record,
    options: &MountOptions,
) -> Result<(), MountError> {
    let kernel = KernelInfo {
        major: abi::MAJOR,
        minor: record.minor,
        capabilities: record.capabilities,
        max_readahead: record.max_readahead,
        transport: TransportKind::Device,
        notifier: Notifier::new(Arc::clone(device)),
        backing: Backing::new(Arc::clone(device)),
    };
    let mut config = InitConfig::new(&kernel, options.max_transfer);
    filesystem.init(&kernel, &mut config).map_err(MountError::Refused)?;
    let own = Capabilities::MAX_PAGES | Capabilities::INIT_EXT;
    let lacking = record.capabilities.difference(config.capabilities | own);
    if lacking.is_empty() { Ok(()) } else { Err(MountError::OtherTerms(format!("{lacking:?}"))) }
}
