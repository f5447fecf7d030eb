//! Which request is carried out by what.

use net::Incoming;
use proto::{Method, Request, data as asked};
use types::Errno;
use wire::handshake::Roles;

use super::DataService;
use crate::answer::{Done, No, Outcome};

impl DataService {
    /// Asked by another server for what has two copies.
    pub(super) fn is_of_copies(&self, incoming: &Incoming) -> bool {
        let by_server = incoming.peer().roles.has(Roles::DS);
        match Method::from_number(incoming.header.method) {
            Some(Method::StoreCopy | Method::CopyDone | Method::AskLeave | Method::KnowView) => true,
            Some(Method::Sync) => by_server,
            Some(_) | None => false,
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "one service's methods, of many")]
    pub(super) fn carry_out(&self, incoming: &mut Incoming) -> Outcome {
        let meta = &incoming.meta;
        let Some(method) = Method::from_number(incoming.header.method) else {
            return Err(Errno::ENOSYS.into());
        };
        let roles = incoming.peer().roles;
        if is_among_servers(method) && !roles.has(Roles::MDS) && !roles.has(Roles::DS) {
            return Err(Errno::EPERM.into());
        }
        self.vouched.may_answer()?;
        match method {
            Method::Pull => self.pull(&decode(meta)?),
            Method::Follow => self.follow(&decode(meta)?),
            Method::Changed => self.changed(&decode(meta)?),
            Method::HandOver => self.hand_over(&decode(meta)?),
            Method::Copies => {
                let proto::moving::Copies { after } = decode(meta)?;
                Ok(self.copies(after))
            }
            Method::Judge => self.judge(&decode(meta)?),
            Method::Lend => self.lend(&decode(meta)?, incoming),
            Method::StoreTo => self.store_to(&decode(meta)?, incoming),
            Method::Coolest => self.coolest(&decode(meta)?),
            Method::StoreCopy => self.store_copy(&decode(meta)?, incoming),
            Method::CopyDone => self.copy_done(&decode(meta)?),
            Method::AskLeave => self.ask_leave(&decode(meta)?),
            Method::KnowView => self.know_view(&decode(meta)?),
            Method::DropCopies => self.drop_copies(&decode(meta)?),
            Method::Read => {
                self.replicas.is_used();
                self.read(&decode(meta)?, incoming)
            }
            Method::Write => {
                self.replicas.is_used();
                self.write(&decode(meta)?, incoming)
            }
            Method::Sync => self.sync(&decode(meta)?, incoming),
            Method::Truncate => self.truncate(&decode(meta)?, incoming),
            Method::Allocate => self.allocate(&decode(meta)?, incoming),
            Method::Seek => self.seek(&decode(meta)?, incoming),
            Method::Attrs => self.attrs(&decode(meta)?),
            Method::Remove => self.remove_all(&decode(meta)?, incoming),
            Method::Stat => {
                let _: asked::Stat = decode(meta)?;
                let (total, free) = self.space();
                Ok(Done::new(&asked::DataSpace { total, free }))
            }
            Method::Settle => self.settle_all(&decode(meta)?),
            Method::SetTime => self.set_time(&decode(meta)?, incoming),
            // The metadata service's.
            _ => Err(Errno::ENOSYS.into()),
        }
    }
}

/// Not for clients.
fn is_among_servers(method: Method) -> bool {
    matches!(
        method,
        Method::Pull
            | Method::Follow
            | Method::Changed
            | Method::HandOver
            | Method::Copies
            | Method::Judge
            | Method::Coolest
            | Method::StoreCopy
            | Method::CopyDone
            | Method::AskLeave
            | Method::KnowView
            | Method::DropCopies
    )
}

fn decode<R: Request>(meta: &[u8]) -> Result<R, No> {
    Ok(proto::decode(meta)?)
}
