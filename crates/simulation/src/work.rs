//! What programs do: calls of names, bytes and locks, one after the other, drawn at random; and what each call comes to.

use std::{collections::BTreeSet, time::Duration};

use lease::coherence::{
    locks::{Class, LockRequest, Owner},
    ranges::{Kind, Range},
    rights::{Claim, Key, Rights},
};
use namespace::RenameMode;
use types::{Ino, Slot};

use crate::{
    cast::{
        Broken, CELLS, DATA_SERVERS, FILES, NAMES, Place, WORK_UNTIL, directory, file, slots, spot, ugsd_of,
    },
    client::{Called, Client},
    message::{CallId, DataWrite, Message, NameAnswer, NameOp, Op},
    program::{Doing, File, What},
    scene::Scene,
};

const KNOWN_MAX: usize = 6;

/// A file has locks of one kind: of processes, or of flock(2).
fn class_of(ino: Ino) -> Class {
    if ino.get().is_multiple_of(2) { Class::Process } else { Class::Flock }
}

impl Client {
    pub(crate) fn work(&mut self, scene: &mut Scene) {
        for program in 0..self.programs.len() {
            if self.programs[program].next > scene.now() {
                continue;
            }
            if self.programs[program].doing.is_none() {
                self.choose(scene, program);
            }
            self.advance(scene, program);
            if self.programs[program].doing.is_none() {
                self.programs[program].next = scene.now() + scene.random.millis(60);
            }
        }
    }

    fn begin(&mut self, scene: &mut Scene, program: usize, what: impl FnOnce(&mut Client, CallId) -> What) {
        let (call, called) = (CallId(scene.number()), scene.now());
        let what = what(self, call);
        scene.note(|| format!("client {} program {program}: {call:?} {what:?}", self.at));
        self.programs[program].doing = Some(Doing { call, called, what });
    }

    fn choose(&mut self, scene: &mut Scene, program: usize) {
        let works = scene.now() < WORK_UNTIL;
        match (self.programs[program].file, works) {
            (None, false) => (),
            (None, true) => {
                if scene.random.one_in(3) {
                    self.choose_file(scene, program)
                } else {
                    self.choose_name(scene, program)
                }
            }
            (Some(file), works) => {
                let dice = if works { scene.random.below(100) } else { 99 };
                match dice {
                    0..30 => {
                        let cell = scene.random.below(CELLS);
                        self.begin(scene, program, |_, _| What::Read { cell, on_way: false, drops: 0 });
                    }
                    30..58 if file.claim == Claim::Modify => {
                        let (cell, value) = (scene.random.below(CELLS), scene.number());
                        self.begin(scene, program, |_, _| What::Write {
                            cell,
                            value,
                            begun: false,
                            on_way: false,
                        });
                    }
                    58..62 => {
                        let (left, on_way) = ((0..DATA_SERVERS).collect(), BTreeSet::new());
                        self.begin(scene, program, |_, _| What::Sync { left, flushed: false, on_way });
                    }
                    62..66 if file.claim == Claim::Modify => {
                        let (left, on_way) = ((0..DATA_SERVERS).collect(), BTreeSet::new());
                        self.begin(scene, program, |_, _| What::Cut { left, begun: false, on_way });
                    }
                    66..78 => self.choose_lock(scene, program, file, false),
                    78..90 => self.choose_name(scene, program),
                    _ => self.choose_lock(scene, program, file, true),
                }
            }
        }
    }

    fn choose_file(&mut self, scene: &mut Scene, program: usize) {
        let Some(slot) = scene.random.any(&slots()) else { return };
        let ino = file(ugsd_of(slot), scene.random.below(FILES));
        let claim = if scene.random.one_in(2) { Claim::Look } else { Claim::Modify };
        self.begin(scene, program, |client, call| {
            let asked =
                client.sessions.get_mut(&slot).map(|s| s.ask(Op::Open { ino, claim }, call, Some(program)));
            What::Open { slot, ino, claim, number: asked.unwrap_or_default() }
        });
    }

    /// Locks, unlocks, or unlocks and closes.
    fn choose_lock(&mut self, scene: &mut Scene, program: usize, file: File, close: bool) {
        let File { slot, ino, number, .. } = file;
        let Some(session) = self.sessions.get_mut(&slot) else { return };
        let owner = Owner { session: session.id, class: class_of(ino), id: program as u64 };
        let (wait, half) = (!scene.random.one_in(3), scene.random.below(3));
        let kind = if scene.random.one_in(3) { Kind::Read } else { Kind::Write };
        let range = match (owner.class, half) {
            (Class::Process, 0) => Range::new(0, 99).unwrap_or(Range::ALL),
            (Class::Process, 1) => Range::new(50, 149).unwrap_or(Range::ALL),
            _ => Range::ALL,
        };
        if session.locks.remove(&owner).is_some() {
            self.begin(scene, program, |client, call| {
                let op = Op::Unlock { owner, ino, range: Range::ALL };
                client.sessions.get_mut(&slot).map(|s| s.ask(op, call, Some(program)));
                What::Unlock { slot }
            });
        } else if close {
            session.held.remove(&number);
            self.begin(scene, program, |client, call| {
                client.sessions.get_mut(&slot).map(|s| s.ask(Op::End { number }, call, Some(program)));
                What::Close { slot }
            });
        } else {
            let request = LockRequest { ino, owner, range, kind, pid: 1, wait };
            self.begin(scene, program, |client, call| {
                let asked =
                    client.sessions.get_mut(&slot).map(|s| s.ask(Op::Lock(request), call, Some(program)));
                What::Lock { slot, number: asked.unwrap_or_default() }
            });
        }
    }

    fn choose_name(&mut self, scene: &mut Scene, program: usize) {
        let Some(slot) = scene.random.any(&slots()) else { return };
        let dir = directory(ugsd_of(slot));
        let any = |scene: &mut Scene| scene.random.any(&NAMES).unwrap_or("a");
        let (name, other) = (any(scene), any(scene));
        let stays = file(ugsd_of(slot), scene.random.below(FILES));
        let known = self.known.get(&slot).and_then(|known| scene.random.any(known)).unwrap_or(stays);
        let mode = (scene.number() % 0o777) as u32;
        let op = match scene.random.below(100) {
            0..25 => NameOp::Lookup { dir, name },
            25..45 => NameOp::GetAttr { ino: known },
            45..60 => NameOp::List { dir },
            60..73 => NameOp::Create { dir, name, mode },
            73..80 => NameOp::Unlink { dir, name },
            80..88 => {
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let mode = scene.random.any(&modes).unwrap_or(RenameMode::Replace);
                NameOp::Rename { dir, from: name, to: other, mode }
            }
            88..93 => NameOp::Link { ino: known, dir, name },
            _ => NameOp::Chmod { ino: known, mode },
        };
        let now = scene.local(self.place());
        let from_here = self.sessions.get(&slot).and_then(|session| session.look(now, &op));
        let holds = !op.changes() && scene.random.one_in(2);
        self.begin(scene, program, |client, call| {
            if let Some(session) = client.sessions.get_mut(&slot).filter(|_| from_here.is_none()) {
                if op.changes() {
                    session.changing += 1;
                    session.forget_names();
                }
                session.ask(Op::Names { op: op.clone(), holds }, call, Some(program));
            }
            What::Names { slot, op: op.clone() }
        });
        if let Some(answer) = from_here {
            scene.tally.from_cache += 1;
            self.name_answered(scene, program, slot, &op, &answer);
        }
    }

    pub(crate) fn name_answered(
        &mut self,
        scene: &mut Scene,
        program: usize,
        slot: Slot,
        op: &NameOp,
        answer: &NameAnswer,
    ) {
        let Some(doing) = &self.programs[program].doing else { return };
        let (call, called) = (doing.call, doing.called);
        scene.note(|| format!("client {} program {program}: {call:?} is {answer:?}", self.at));
        let verdict = scene.names.check(call, op, answer, (called, scene.net.now));
        scene.judge(verdict);
        if let NameAnswer::Found(Some(ino)) = answer {
            let known = self.known.entry(slot).or_default();
            known.insert(0, *ino);
            known.truncate(KNOWN_MAX);
        }
        self.finish(scene, program, call);
    }

    /// A call goes on by itself, as far as it can.
    fn advance(&mut self, scene: &mut Scene, program: usize) {
        let Some(doing) = &self.programs[program].doing else { return };
        let call = doing.call;
        match &doing.what {
            What::Names { .. } | What::Open { .. } | What::Close { .. } | What::Unlock { .. } => (),
            What::Lock { slot, number } => {
                let (slot, number) = (*slot, *number);
                let often = if scene.now() < WORK_UNTIL { 80 } else { 15 };
                if scene.random.one_in(often)
                    && let Some(session) = self.sessions.get_mut(&slot)
                {
                    session.ask(Op::Cancel { number }, CallId(0), None);
                }
            }
            What::Read { on_way: false, cell, .. } => {
                let cell = *cell;
                self.read(scene, program, call, cell);
            }
            What::Write { on_way: false, cell, value, begun } => {
                let write = (*cell, *value, *begun);
                self.write(scene, program, call, write);
            }
            What::Read { .. } | What::Write { .. } => (),
            What::Sync { .. } => self.sync(scene, program, call),
            What::Cut { .. } => self.cut(scene, program, call),
        }
    }

    fn read(&mut self, scene: &mut Scene, program: usize, call: CallId, cell: u64) {
        let Some(File { slot, ino, .. }) = self.programs[program].file else { return };
        let now = scene.local(self.place());
        let Some(session) = self.sessions.get_mut(&slot) else { return };
        let key = Key::Inode(ino);
        let may = session.may(now, &key, Rights::PAGES) || scene.broken == Broken::StalePages;
        let (by, is_in) = (session.party(), session.is_in());
        let cache = session.cache(ino);
        let here =
            cache.dirty.get(&cell).map(|value| Some(*value)).or_else(|| cache.pages.get(&cell).copied());
        if let Some(value) = here.filter(|_| may) {
            scene.tally.from_cache += 1;
            return self.was_read(scene, program, call, cell, value);
        }
        let drops = cache.drops;
        if !cache.dirty.is_empty() && !may || !is_in {
            return;
        }
        if scene.random.one_in(4) {
            let rights = self.wish(program);
            if let Some(session) = self.sessions.get_mut(&slot) {
                session.want(now, key, rights, None);
            }
        }
        let called = Called::Data { program, call, server: spot(cell).0 };
        self.ask(scene, Place::Data(spot(cell).0), called, Message::Read { slot, by, ino, cell });
        if let Some(Doing { what: What::Read { on_way, drops: of, .. }, .. }) =
            &mut self.programs[program].doing
        {
            (*on_way, *of) = (true, drops);
        }
    }

    fn wish(&self, program: usize) -> Rights {
        match self.programs[program].file.map(|file| file.claim) {
            Some(Claim::Modify) => Rights::ALL,
            _ => Rights::PAGES.with(Rights::ATTRIBUTES),
        }
    }

    fn was_read(&mut self, scene: &mut Scene, program: usize, call: CallId, cell: u64, value: Option<u64>) {
        let Some(File { ino, .. }) = self.programs[program].file else { return };
        let Some(called) = self.programs[program].doing.as_ref().map(|doing| doing.called) else { return };
        scene.note(|| format!("client {} program {program}: {call:?} read {value:?}", self.at));
        let verdict = scene.content.check((ino, cell), value, (called, scene.net.now));
        scene.judge(verdict.map_err(|why| format!("client {} {call:?}: {why}", self.at)));
        self.finish(scene, program, call);
    }

    fn write(
        &mut self,
        scene: &mut Scene,
        program: usize,
        call: CallId,
        (cell, value, begun): (u64, u64, bool),
    ) {
        let Some(File { slot, ino, .. }) = self.programs[program].file else { return };
        let now = scene.local(self.place());
        let Some(session) = self.sessions.get_mut(&slot) else { return };
        let key = Key::Inode(ino);
        let keeps = session.may(now, &key, Rights::WRITE_BACK) && !session.releases.contains_key(&key);
        let (by, is_in) = (session.party(), session.is_in());
        let cache = session.cache(ino);
        if !begun && cache.direct > 0 {
            return;
        }
        if !begun && keeps {
            cache.dirty.insert(cell, value);
            cache.pages.remove(&cell);
            let verdict = scene.content.wrote_here(scene.net.now, (ino, cell), value, by.session);
            scene.judge(verdict);
            return self.finish(scene, program, call);
        }
        if !is_in || !begun && !cache.dirty.is_empty() {
            return;
        }
        if !begun {
            cache.direct += 1;
            cache.drops += 1;
            cache.pages.remove(&cell);
        }
        if scene.random.one_in(3) {
            let rights = self.wish(program);
            if let Some(session) = self.sessions.get_mut(&slot) {
                session.want(now, key, rights, None);
            }
        }
        let called = Called::Data { program, call, server: spot(cell).0 };
        let write = DataWrite { slot, by, ino, cell, value, kept: false };
        self.ask(scene, Place::Data(spot(cell).0), called, Message::Write(write));
        if let Some(Doing { what: What::Write { on_way, begun, .. }, .. }) = &mut self.programs[program].doing
        {
            (*on_way, *begun) = (true, true);
        }
    }

    fn sync(&mut self, scene: &mut Scene, program: usize, call: CallId) {
        let Some(File { slot, ino, .. }) = self.programs[program].file else { return };
        let clean = self.sessions.get_mut(&slot).is_some_and(|session| session.cache(ino).dirty.is_empty());
        let Some(Doing { what: What::Sync { left, flushed, on_way }, .. }) =
            &mut self.programs[program].doing
        else {
            return;
        };
        *flushed |= clean;
        if !*flushed {
            return;
        }
        let to: Vec<usize> = left.difference(on_way).copied().collect();
        on_way.extend(&to);
        for server in to {
            let called = Called::Data { program, call, server };
            self.ask(scene, Place::Data(server), called, Message::Sync { ino });
        }
    }

    fn cut(&mut self, scene: &mut Scene, program: usize, call: CallId) {
        let Some(File { slot, ino, .. }) = self.programs[program].file else { return };
        let Some(session) = self.sessions.get_mut(&slot).filter(|session| session.is_in()) else { return };
        let by = session.party();
        let cache = session.cache(ino);
        let Some(Doing { what: What::Cut { left, begun, on_way }, .. }) = &mut self.programs[program].doing
        else {
            return;
        };
        if !*begun {
            if !cache.dirty.is_empty() || cache.direct > 0 {
                return;
            }
            cache.direct += 1;
            cache.forget_clean();
            *begun = true;
        }
        let to: Vec<usize> = left.difference(on_way).copied().collect();
        on_way.extend(&to);
        for server in to {
            let called = Called::Data { program, call, server };
            self.ask(scene, Place::Data(server), called, Message::Cut { slot, by, ino, call });
        }
    }

    pub(crate) fn data_failed(&mut self, scene: &mut Scene, program: usize, call: CallId, server: usize) {
        scene.tally.again += 1;
        self.again(scene, program, call, server);
    }

    /// It is asked once more, after a while.
    fn again(&mut self, scene: &mut Scene, program: usize, call: CallId, server: usize) {
        let next = scene.now() + Duration::from_millis(60);
        let program = &mut self.programs[program];
        let Some(doing) = program.doing.as_mut().filter(|doing| doing.call == call) else { return };
        program.next = next;
        match &mut doing.what {
            What::Read { on_way, .. } | What::Write { on_way, .. } => *on_way = false,
            What::Sync { on_way, .. } | What::Cut { on_way, .. } => drop(on_way.remove(&server)),
            What::Names { .. }
            | What::Open { .. }
            | What::Close { .. }
            | What::Lock { .. }
            | What::Unlock { .. } => (),
        }
    }

    pub(crate) fn data_answered(
        &mut self,
        scene: &mut Scene,
        program: usize,
        call: CallId,
        server: usize,
        message: &Message,
    ) {
        let now = scene.local(self.place());
        let Some(File { slot, ino, .. }) = self.programs[program].file else { return };
        let Some(doing) = self.programs[program].doing.as_mut().filter(|doing| doing.call == call) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&slot) else { return };
        let may = session.may(now, &Key::Inode(ino), Rights::PAGES);
        let cache = session.cache(ino);
        match (&mut doing.what, message) {
            (What::Read { cell, drops, .. }, Message::Value(value)) => {
                let cell = *cell;
                if may && *drops == cache.drops && cache.direct == 0 && !cache.dirty.contains_key(&cell) {
                    cache.pages.insert(cell, *value);
                }
                self.was_read(scene, program, call, cell, *value);
            }
            (What::Write { cell, value: number, .. }, Message::Value(value)) => {
                scene.content.finished(*number);
                cache.direct -= 1;
                cache.drops += 1;
                cache.pages.remove(cell);
                scene.tally.errors += u64::from(value.is_none());
                self.finish(scene, program, call);
            }
            (What::Sync { left, .. }, Message::Yes) => {
                left.remove(&server);
                if left.is_empty() {
                    self.finish(scene, program, call);
                }
            }
            (What::Cut { left, .. }, Message::Yes) => {
                left.remove(&server);
                if left.is_empty() {
                    scene.content.finished(call.0);
                    cache.direct -= 1;
                    cache.forget_clean();
                    self.finish(scene, program, call);
                }
            }
            _ => self.again(scene, program, call, server),
        }
    }
}
