//! What is due by itself: what has no answer is sent again, leave is asked for, and who waits for an end of another's leave goes on.

use std::{
    io,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use cluster::replica::Member;
use proto::{copies::AskLeave, data::Object};
use wire::frame::Body;

use super::{
    object::Replica,
    peers::{self, Question},
    registry::Job,
};
use crate::{
    data::DataService,
    views::{said_member, view},
};

/// Between two looks while something is under way, and while nothing is.
const LOOK: Duration = Duration::from_millis(20);
const REST: Duration = Duration::from_millis(500);
/// That carry out what nobody's own thread does.
const THREADS: usize = 4;
/// A thread's work.
fn run(service: &Weak<DataService>) {
    while let Some(there) = service.upgrade() {
        if there.replicas.ends.load(Ordering::Acquire) {
            return;
        }
        there.look_at_copies();
        let busy = !there.replicas.busy.lock().is_empty();
        let registry = &there.replicas;
        let (lock, woken) = &registry.peers.woken;
        let mut is_woken = lock.lock();
        if !*is_woken {
            woken.wait_for(&mut is_woken, if busy { LOOK } else { REST });
        }
        *is_woken = false;
    }
}

impl DataService {
    pub(in crate::data) fn start_copies(&self) -> io::Result<()> {
        let mut threads = self.replicas.threads.lock();
        for n in 0..THREADS {
            let (service, jobs) = (self.me.clone(), self.replicas.jobs.clone());
            let thread = std::thread::Builder::new().name(format!("copies-{n}"));
            threads.push(thread.spawn(move || {
                while let Some(job) = jobs.take() {
                    let Some(service) = service.upgrade() else { return };
                    service.do_job(job);
                }
            })?);
        }
        let service = self.me.clone();
        self.replicas.peers.ask_who_with(Box::new(move || {
            if let Some(service) = service.upgrade() {
                service.pressed.nudge();
            }
        }));
        let service = self.me.clone();
        threads.extend(self.replicas.pieces.start(move |piece| {
            if let Some(service) = service.upgrade() {
                service.send_piece(piece);
            }
        })?);
        let service = self.me.clone();
        let thread = std::thread::Builder::new().name("copies-due".into());
        threads.push(thread.spawn(move || run(&service))?);
        Ok(())
    }

    fn look_at_copies(&self) {
        let busy: Vec<Arc<Replica>> = self.replicas.busy.lock().values().cloned().collect();
        for replica in busy {
            self.look_at(&replica);
        }
        for question in self.replicas.peers.questions() {
            self.do_job_or(Job::Ask(question));
        }
        if !self.replicas.words.is_empty() {
            self.pressed.nudge();
        }
    }

    fn look_at(&self, replica: &Arc<Replica>) {
        let world = self.replicas.world();
        let now = self.replicas.peers.now();
        // Whoever has it lets it go on, too.
        let Some(mut state) = replica.state.try_lock() else { return };
        if state.core.next_deadline().is_some_and(|at| at <= now) {
            state.core.handle_deadline(now);
        }
        state.pump(&world, replica);
        let (has_more, rests) = (!state.outbox.is_empty(), state.is_at_rest());
        if rests {
            // Under its lock: who begins something afterwards says so again.
            self.replicas.busy.lock().remove(&replica.ino);
        }
        drop(state);
        if has_more {
            self.do_job_or(Job::Flush(replica.clone()));
        }
    }

    /// What does not fit is due again.
    fn do_job_or(&self, job: Job) {
        if let Err(net::Refused::Full(Job::Ask(question)) | net::Refused::Closed(Job::Ask(question))) =
            self.replicas.jobs.put(job)
        {
            self.replicas.peers.answered(&question, None);
        }
    }

    pub(super) fn do_job(&self, job: Job) {
        match job {
            Job::Flush(replica) => self.flush(&replica),
            Job::Wake => self.look_at_copies(),
            Job::LeftOut(by, objects) => self.left_out(by, &objects),
            Job::Adopt(object) => {
                if let Err(no) = self.replica(&object) {
                    tracing::debug!(ino = object.ino, errno = %no.errno(), "a view is not taken");
                }
            }
            Job::Ask(question) => self.ask_for_leave(question),
        }
    }

    fn ask_for_leave(&self, question: Question) {
        let of = question.of;
        let me = self.replicas.me();
        let asked =
            AskLeave { by: Some(said_member(me)), of: Some(said_member(of)), knows: question.knows.clone() };
        let Ok(channel) = self.replicas.peers.channel(of.node.0) else {
            return self.replicas.peers.answered(&question, None);
        };
        let question = Arc::new(question);
        let (weak, asks) = (self.me.clone(), question.clone());
        let begun = channel.begin_then(peers::call(&asked, Body::default()), move |answered| {
            let Some(service) = weak.upgrade() else { return };
            let leave = answered.ok().and_then(|it| peers::answer::<AskLeave>(of.node.0, &it).ok());
            service.replicas.peers.answered(&asks, leave.as_ref().map(|leave| leave.granted));
            let Some(leave) = leave else { return };
            let job = if leave.granted { Job::Wake } else { Job::LeftOut(of, leave.left_out) };
            let _ = service.replicas.jobs.put(job);
        });
        if begun.is_err() {
            self.replicas.peers.answered(&question, None);
        }
    }

    /// The other one says that we do not have these any more: it is told that we know.
    fn left_out(&self, by: Member, objects: &[Object]) {
        let mut known = Vec::new();
        for object in objects {
            if object.view.is_none_or(|view| view.check().is_err()) {
                continue;
            }
            if let Ok(Some(replica)) = self.replica(object) {
                let number = replica.state.lock().number();
                if object.view.is_some_and(|named| view(&named).number <= number) {
                    known.push(*object);
                }
            }
        }
        self.replicas.peers.note_known(by, known);
    }
}
