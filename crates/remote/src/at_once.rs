//! Looks at several places at once: each request is on its way before the first answer is waited for.

use std::{sync::Arc, time::Instant};

use net::{Answered, Pending};
use prost::Message;
use proto::{Head, Request};
use types::Errno;
use wire::frame::Verdict;

use crate::{Remote, held::Source, homes::Home, line::Asking};

/// A look that is under way.
pub(crate) struct Begun {
    home: Arc<Home>,
    from: Source,
    asking: Asking,
    sent: Instant,
    pending: Pending,
}

impl Remote {
    /// Asks whoever has it by the map. `None`: there is no connection to him where the session is known; nothing is on its way.
    pub(crate) fn begin_look<R: Request>(&self, make: impl Fn(Head) -> R) -> Option<Begun> {
        let session = self.session();
        let home = self.whose(&make(session.head()));
        let joined = self.joined_at(home.node, &session)?;
        let meta = make(Head { joined, ..session.head() }).encode_to_vec().into();
        let asking = Asking { method: R::METHOD, meta, body: Default::default(), answer_bytes_max: 0 };
        let channel = home.metadata.open_channel()?;
        let pending = channel.begin(asking.call(Instant::now() + self.options.longest)).ok()?;
        let sent = home.metadata.begin();
        let from = Source { node: home.node, joined };
        Some(Begun { home, from, asking, sent, pending })
    }

    /// Waits for it. What did not come so is asked for as anything else, wherever it is by then.
    pub(crate) fn end_look<R: Request>(
        &self,
        begun: Option<Begun>,
        make: impl Fn(Head) -> R,
    ) -> Result<R::Answer, Errno> {
        match begun.and_then(|begun| self.ended::<R>(begun)) {
            Some(answer) => Ok(answer),
            None => self.look(make),
        }
    }

    fn ended<R: Request>(&self, Begun { home, from, asking, sent, pending }: Begun) -> Option<R::Answer> {
        let answered: Result<Answered, Errno> = pending.wait().map_err(|_| Errno::EIO);
        home.metadata.end(&asking, sent, answered.as_ref().map_err(|errno| *errno));
        let answered = answered.ok().filter(|answered| answered.header.verdict == Verdict::Done)?;
        self.kept.lock().heard(from, sent, Instant::now());
        R::Answer::decode(answered.meta.as_slice()).ok()
    }
}
