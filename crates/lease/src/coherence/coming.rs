//! Who comes to the server, comes back, or is brought with what another server gave it; and what it is brought with.
//!
//! Who is brought with a slot has come when it says itself what it had: until then it is waited for as before. Who was given up comes in no way.

use cluster::tenure::Time;
use proto::SessionId;
use types::Ino;

use super::{
    locks::HadLock,
    message::{Had, Joined, Life, Party, Telling},
    server::{Effect, Server, Session, Standing, Timer},
};

impl Server {
    /// Whoever does not live here under that number: he was given up, or never came to this life.
    pub(super) fn tell_stranger(&mut self, by: Party) {
        let joined = by.joined;
        let life = self.past.life;
        let telling = if Life::of(joined.0) == life {
            Telling::Gone { joined }
        } else {
            Telling::Rejoin { joined, life }
        };
        self.tell(by.session, telling);
    }

    pub(super) fn join(&mut self, now: Time, by: Party, number: u64, (life, had): (Life, Had)) {
        if life != self.past.life {
            return self.tell_stranger(by);
        }
        let before = by.joined;
        match self.sessions.get_mut(&by.session) {
            // It says it again, or it comes late.
            Some(session)
                if session.standing == Standing::Alive && session.came && session.before == before =>
            {
                session.heard = now;
                session.granted = now;
            }
            Some(session) if session.standing == Standing::Alive && !session.came => {
                if !had.is_empty() && !self.may_come_back(by, &had) {
                    return self.tell(by.session, Telling::Gone { joined: before });
                }
                if let Some(session) = self.sessions.get_mut(&by.session) {
                    (session.heard, session.granted) = (now, now);
                    (session.before, session.came) = (before, true);
                }
                self.restore(by.session, &had);
            }
            Some(session) if session.standing == Standing::Alive => return,
            Some(_) => return self.tell(by.session, Telling::Gone { joined: before }),
            None => {
                let new = before == Joined::default() && had.is_empty();
                if new && self.sessions.len() >= self.limits.sessions {
                    return;
                }
                // One that never heard that it was in is refused under this name, too, wherever the verdict is known.
                let given_up = self.given_up.contains(&by.session) || self.past.fenced.contains(&by.session);
                if given_up || (!new && !self.may_come_back(by, &had)) {
                    return self.tell(by.session, Telling::Gone { joined: before });
                }
                self.admit(
                    by.session,
                    Session {
                        joined: Joined(self.joins + 1),
                        before,
                        came: true,
                        heard: now,
                        granted: now,
                        standing: Standing::Alive,
                    },
                );
                self.restore(by.session, &had);
            }
        }
        if let Some(session) = self.sessions.get(&by.session) {
            let joined = session.joined;
            let leases = self.table.of_session(by.session);
            self.tell(by.session, Telling::Joined { before, joined, number, leases });
        }
    }

    fn admit(&mut self, id: SessionId, session: Session) {
        self.joins += 1;
        let silent = session.heard.saturating_add(self.limits.silence);
        self.sessions.insert(id, session);
        self.timers.insert((silent, Timer::Session(id)));
    }

    /// It has come, with what it had.
    fn restore(&mut self, id: SessionId, had: &Had) {
        self.table.restore(id, had);
        for lock in &had.locks {
            self.locks.restore(lock);
        }
        if let Some(expected) = &mut self.expected {
            expected.sessions.remove(&id);
            expected.keeping.remove(&id);
            expected.writing.remove(&id);
        }
        self.end_grace_if_all_are_back();
    }

    pub(super) fn place(&mut self, now: Time, id: SessionId, silent: Time) {
        let joined = match self.sessions.get(&id) {
            Some(session) if session.standing == Standing::Alive => session.joined,
            None if !self.given_up.contains(&id) && !self.past.fenced.contains(&id) => {
                if self.sessions.len() >= self.limits.sessions {
                    return;
                }
                let joined = Joined(self.joins + 1);
                self.admit(
                    id,
                    Session {
                        joined,
                        before: Joined::default(),
                        came: false,
                        heard: now.saturating_sub(silent),
                        granted: now,
                        standing: Standing::Alive,
                    },
                );
                joined
            }
            Some(_) | None => return self.tell(id, Telling::Gone { joined: Joined::default() }),
        };
        let leases = self.table.of_session(id);
        self.tell(id, Telling::Joined { before: Joined::default(), joined, number: 0, leases });
    }

    /// What is on some inodes goes to another server: locks, and who waits for some.
    pub fn take_locks(&mut self, there: &dyn Fn(Ino) -> bool) -> (Vec<HadLock>, Vec<(SessionId, u64)>) {
        self.locks.take_out(there)
    }

    /// It came from another server. Those who have it are there.
    pub fn put_locks(&mut self, locks: &[HadLock]) {
        locks.iter().for_each(|lock| self.locks.restore(lock));
    }

    /// What a session says that it has where nobody else knows: all of it, or nothing. True: it has it now.
    pub fn bring_locks(&mut self, by: Party, locks: &[HadLock]) -> bool {
        let fit = self.is_alive(by) && self.locks.fit(by.session, locks);
        if fit {
            self.put_locks(locks);
        }
        fit
    }

    /// Be it that something was brought of it and it did not come itself.
    pub(super) fn give_up(&mut self, session: SessionId) {
        if self.sessions.contains_key(&session) {
            self.condemn(session);
        } else {
            self.given_up.insert(session);
        }
    }

    /// Beyond the bound of sessions, too: it is on its way out.
    pub(super) fn place_given_up(&mut self, now: Time, id: SessionId, silent: Time) {
        match self.sessions.get_mut(&id) {
            Some(session) if session.standing == Standing::Alive => self.condemn(id),
            Some(session) => {
                session.standing = Standing::Condemned;
                self.effects.push_back(Effect::Fence(id));
            }
            None => {
                let heard = now.saturating_sub(silent);
                self.admit(
                    id,
                    Session {
                        joined: Joined(self.joins + 1),
                        before: Joined::default(),
                        came: false,
                        heard,
                        granted: heard,
                        standing: Standing::Condemned,
                    },
                );
                self.effects.push_back(Effect::Fence(id));
            }
        }
    }

    /// It was given up, and what it has is not free yet.
    pub fn is_condemned(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.standing != Standing::Alive)
    }

    pub fn alive(&self) -> Vec<SessionId> {
        let alive = self.sessions.iter().filter(|(_, session)| session.standing == Standing::Alive);
        alive.map(|(id, _)| *id).collect()
    }

    /// By a verdict that may not be carried out yet, of this life or, until they come back no more, of earlier ones.
    pub fn given_up(&self) -> impl Iterator<Item = SessionId> {
        let judged = self.sessions.iter().filter(|(_, session)| session.standing != Standing::Alive);
        let judged = judged.map(|(id, _)| *id);
        self.given_up.iter().copied().chain(self.past.fenced.iter().copied()).chain(judged)
    }

    /// With all that it had, or not at all: nothing was granted since that could be in the way, if all said what is true.
    fn may_come_back(&self, by: Party, had: &Had) -> bool {
        let life = Life::of(by.joined.0);
        // It was there at the end of the last life: others brought what it had, or it came back to that one and never heard so.
        let was_there = || self.expected.as_ref().is_some_and(|past| past.sessions.contains(&by.session));
        let in_time = self.in_grace()
            && life < self.past.life
            && (was_there() || (by.joined != Joined::default() && life >= self.past.from));
        let limits = &self.limits;
        let room = self.sessions.len() < limits.sessions
            && self.table.leases() + had.leases.len() <= limits.leases
            && self.table.operations() + had.claims.len() <= limits.operations
            && had.claims.iter().all(|(_, claims)| claims.len() <= limits.claims)
            && had.locks.iter().all(|lock| lock.owner.session == by.session);
        in_time
            && room
            && !self.past.fenced.contains(&by.session)
            && self.table.fits(by.session, had)
            && self.locks.fit(by.session, &had.locks)
    }
}
