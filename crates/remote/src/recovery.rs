//! Sessions: the first one, and one in place of one that is gone.
//!
//! A session is gone when the metadata server was started again, or has heard nothing of it for too long. In the new one the references
//! are taken again and the files opened again by their numbers; a file that is no more cannot be, and its openings give errors.

use std::sync::{Arc, atomic::Ordering};

use prost::Message;
use proto::{BATCH_MAX, Request, SessionId, control, metadata};
use types::Errno;
use wire::frame::Body;

use crate::{
    Remote,
    line::{Asking, Stop},
    session::Session,
};

impl Remote {
    /// What cluster it is, and who is in it.
    pub(crate) fn fetch_facts(&self) -> Result<(), Stop> {
        let (facts, body) = self.ask_control(&control::Hello {}, self.options.patience)?;
        self.set_renew(facts.renew_ms);
        self.nodes.take(&body).map_err(|errno| Stop::Silent(format!("the cluster map: {errno}")))
    }

    pub(crate) fn new_session(&self) -> Result<Arc<Session>, Stop> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Stop::Silent(error.to_string()))?;
        // 0 is none.
        let id = SessionId(u128::from_le_bytes(random).max(1));
        let host: String = self.options.host.chars().filter(|c| !c.is_control()).take(16).collect();
        let mount = control::Mount { head: Some(proto::Head::of(id)), host, node: 0 };
        let (mounted, _) = self.ask_control(&mount, self.options.patience)?;
        self.set_renew(mounted.renew_ms);
        Ok(Arc::new(Session::new(id, mounted.incarnation, mounted.operations_max)))
    }

    /// Makes a session in place of `gone`, unless somebody did.
    pub(crate) fn recover(&self, gone: &Arc<Session>) -> Result<(), Errno> {
        let _one = self.recovering.lock();
        if !Arc::ptr_eq(&self.session(), gone) {
            return Ok(());
        }
        tracing::warn!(session = %gone.id, "the session is gone; a new one is made");
        let session = self.new_session().map_err(|stop| stop.errno())?;
        if session.incarnation != gone.incarnation {
            self.nodes.forget_map();
        }
        self.fetch_facts().map_err(|stop| stop.errno())?;
        self.hold_all(&session)?;
        let lost = self.open_again(&session)?;
        tracing::warn!(session = %session.id, lost, "a new session; openings that are lost give EIO");
        let mut current = self.session.write();
        // From now on writes begin anew.
        self.recoveries.fetch_add(1, Ordering::AcqRel);
        *current = session;
        Ok(())
    }

    fn hold_all(&self, session: &Arc<Session>) -> Result<(), Errno> {
        for some in self.references.all().chunks(BATCH_MAX) {
            let hold = metadata::Hold { head: Some(session.head()), references: some.to_vec() };
            self.ask_in(&hold).map_err(|stop| stop.errno())?;
        }
        Ok(())
    }

    /// How many are lost.
    fn open_again(&self, session: &Arc<Session>) -> Result<u64, Errno> {
        let mut lost = 0;
        for file in self.openings.all() {
            let open = metadata::Open {
                head: Some(session.head()),
                ino: file.ino.get(),
                opening: file.number,
                write: file.access.write,
            };
            match self.ask_in(&open) {
                Ok(_) => file.lost.store(false, Ordering::Release),
                Err(Stop::Silent(_)) => return Err(Errno::EIO),
                // Also one whose data server is away: it must not keep the others from going on.
                Err(Stop::Fault { fault, .. }) => {
                    let (ino, errno) = (file.ino.get(), Errno::from_raw(fault.errno));
                    tracing::warn!(ino, %errno, "an open file is lost with its session");
                    file.lost.store(true, Ordering::Release);
                    lost += 1;
                }
            }
        }
        Ok(lost)
    }

    /// In a session that is not yet the mount's.
    fn ask_in<R: Request>(&self, request: &R) -> Result<R::Answer, Stop> {
        let asking = Asking {
            method: R::METHOD,
            meta: request.encode_to_vec().into(),
            body: Body::default(),
            answer_bytes_max: 0,
        };
        let answered = self.metadata.ask(&asking, self.waits())?;
        let unread = |_| Stop::Silent("an answer that makes no sense".to_owned());
        R::Answer::decode(answered.meta.as_slice()).map_err(unread)
    }
}
