//! Another process of a client's goes on with its session (a guarded mount): what the ended one waited for nobody waits for any more, and what it had is
//! said to the next one.

use lease::coherence::{locks::HadLock, message::Party, ranges::Found};
use proto::locks::{HadLocks, LOCKS_MAX};

use super::MetadataService;

impl MetadataService {
    /// Its locks, unless they are more than can be said.
    pub(super) fn resumed(&self, by: Party) -> Option<HadLocks> {
        for number in self.waited_for(by) {
            let due = self.terms.cancel(by, number);
            self.carry_on(due);
        }
        let machine = self.terms.machine.lock();
        let own = machine.server.locks().all().filter(|(_, found)| found.owner.session == by.session);
        let own =
            own.map(|(ino, Found { owner, range, kind, pid })| HadLock { ino, owner, range, kind, pid });
        let locks: Vec<_> = own.map(|lock| lock.to_say()).collect();
        (locks.len() <= LOCKS_MAX).then_some(HadLocks { locks })
    }

    /// Operations that wait for locks.
    fn waited_for(&self, by: Party) -> Vec<u64> {
        let machine = self.terms.machine.lock();
        let early = machine.early.iter().filter(|early| early.by == by).map(|early| early.number);
        let waiting = machine.server.locks().all_waiting();
        let waiting = waiting.filter(|(_, request)| request.owner.session == by.session);
        early.chain(waiting.map(|(number, _)| number)).collect()
    }
}
