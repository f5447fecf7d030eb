//! Circles of processes that wait for each other over the locks of several servers: who is on duty looks at all who wait, again and again
//! ([`lease::coherence::circles`]).

use std::time::{Duration, Instant};

use super::Owners;
use crate::{
    answer::{Done, No, Outcome},
    metadata::{MetadataService, terms::Asked},
};
use cluster::NodeId;
use lease::coherence::{
    circles::{Behind, Pair, Victim, Wait},
    locks::{Class, Owner},
    server::Input,
};
use prost::Message;
use proto::{
    Nothing, SessionId,
    circles::{LockWait, LockWaits, PAIRS_MAX, Process, RefuseLock, Waits, WaitsFor, WaitsTold},
};

/// The second look after a circle was closed finds it.
const EVERY: Duration = Duration::from_millis(500);
/// Who does not answer by then is left out, and with it circles that it has a part of.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// A server and its life.
type At = (NodeId, u64);

impl MetadataService {
    /// One look of the clock.
    pub(in crate::metadata) fn tend_circles(&self) {
        let Ok((owners, duty)) = self.on_duty() else { return };
        let mut looks = duty.looks.lock();
        if looks.last.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        let pairs = self.all_who_wait(owners);
        let victims = looks.search.look(pairs);
        looks.last = Some(Instant::now());
        for Victim { server: (node, incarnation), session, number } in victims {
            tracing::info!(%session, number, "a circle of processes that wait at several servers: one is told so");
            if let Err(no) = self.refuse_at(owners, node, (session, number, incarnation)) {
                tracing::debug!(%node, detail = no.0.detail, "who waits in a circle was not told");
            }
        }
    }

    fn all_who_wait(&self, owners: &Owners) -> Vec<Pair<At>> {
        let map = self.nodes.map();
        let servers: Vec<NodeId> =
            map.nodes().map(|node| node.id).filter(|node| map.slots_of(*node).next().is_some()).collect();
        if servers.len() < 2 {
            // It sees those of its own locks by itself.
            return Vec::new();
        }
        let mut pairs = Vec::new();
        for node in servers {
            match self.who_waits_at(owners, node) {
                Ok((incarnation, waits)) => {
                    // What a server had that another goes on for says nothing.
                    let map = self.nodes.map();
                    let its =
                        waits.iter().filter(|wait| map.slot(wait.ino.ugsd().slot()).owner == Some(node));
                    pairs.extend(its.flat_map(|wait| Pair::of((node, incarnation), wait)));
                }
                Err(no) => tracing::debug!(%node, detail = no.0.detail, "who waits at a server is not known"),
            }
        }
        pairs
    }

    fn who_waits_at(&self, owners: &Owners, node: NodeId) -> Result<(u64, Vec<Wait>), No> {
        if node == owners.me.id {
            return Ok((self.incarnation, self.who_waits_here()?));
        }
        if !self.is_heard(node) {
            return Err(No::later("it is silent"));
        }
        let peer = owners.peers.of(&self.nodes.map(), node)?;
        let (told, body) = peer.ask(&LockWaits {}, Vec::new(), ANSWER_WAIT)?;
        let waits = Waits::read(&body)?.waits.iter().map(heard).collect::<Result<_, proto::Bad>>()?;
        Ok((told.incarnation, waits))
    }

    /// In our slots. Told only if they were ours after it was looked at.
    fn who_waits_here(&self) -> Result<Vec<Wait>, No> {
        let mut waits = self.terms.machine.lock().server.waits(PAIRS_MAX);
        waits.retain(|wait| self.mds.serves(wait.ino.ugsd().slot()));
        match &self.shared()?.tails {
            Some(tails) if !tails.keeper.may_act() => Err(No::later("its standby does not answer")),
            Some(_) | None => Ok(waits),
        }
    }

    pub(in crate::metadata) fn lock_waits(&self, meta: &[u8]) -> Outcome {
        let LockWaits {} = proto::decode(meta)?;
        let waits = Waits { waits: self.who_waits_here()?.iter().map(told).collect() };
        Ok(Done::with_body(&WaitsTold { incarnation: self.incarnation }, waits.encode_to_vec()))
    }

    fn refuse_at(
        &self,
        owners: &Owners,
        node: NodeId,
        (session, number, incarnation): (SessionId, u64, u64),
    ) -> Result<(), No> {
        let Process { session_high, session_low, .. } = Process::new(session, 0);
        let refused = RefuseLock { session_high, session_low, number, incarnation };
        if node == owners.me.id {
            self.refuse_here(&refused);
            return Ok(());
        }
        owners.peers.of(&self.nodes.map(), node)?.ask(&refused, Vec::new(), ANSWER_WAIT).map(|_| ())
    }

    fn refuse_here(&self, refused: &RefuseLock) {
        if refused.incarnation == self.incarnation {
            let input = Input::Refuse { session: refused.session(), number: refused.number };
            let (_, due) = self.terms.drive(input, Asked::Nothing);
            self.carry_on(due);
        }
    }

    pub(in crate::metadata) fn refuse_lock(&self, meta: &[u8]) -> Outcome {
        self.refuse_here(&proto::decode(meta)?);
        Ok(Done::new(&Nothing {}))
    }
}

fn told(wait: &Wait) -> LockWait {
    let process = |owner: Owner| Some(Process::new(owner.session, owner.id));
    let behind = wait.behind.iter();
    LockWait {
        ino: wait.ino.get(),
        process: process(wait.owner),
        number: wait.number,
        behind: behind.map(|one| WaitsFor { process: process(one.owner), since: one.since }).collect(),
    }
}

fn heard(wait: &LockWait) -> Result<Wait, proto::Bad> {
    let process = |process: Option<Process>| {
        let process = process.ok_or(proto::Bad::Missing("process"))?;
        Ok(Owner { session: process.session(), class: Class::Process, id: process.owner })
    };
    let behind = wait.behind.iter();
    Ok(Wait {
        ino: proto::attr::ino(wait.ino)?,
        owner: process(wait.process)?,
        number: wait.number,
        behind: behind
            .map(|one| Ok(Behind { owner: process(one.process)?, since: one.since }))
            .collect::<Result<_, proto::Bad>>()?,
    })
}

#[cfg(test)]
mod tests {
    use types::Ino;

    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let owner = |session, id| Owner { session: SessionId(session), class: Class::Process, id };
        let behind = vec![Behind { owner: owner(1 << 70, u64::MAX), since: 3 }];
        let wait = Wait { ino: Ino::ROOT, owner: owner(u128::MAX, 2), number: 9, behind };
        assert_eq!(heard(&told(&wait)), Ok(wait));
    }
}
