//! What is asked of all parts of a directory that is spread: its attributes, and its listing. And learning that one is.

use std::time::Instant;

use prost::Message;
use proto::{
    Request,
    metadata::{self, GetAttr},
    spread::{FindSpread, GetAlone, Over, ReadDots, complete_attr},
};
use types::{Attr, Errno, Ino};

use crate::{
    Remote,
    at_once::Begun,
    dirs::{Page, Wish, listed},
    names::attr_of,
    spreads::Said,
};

/// So often in a row a request may find that what is remembered is not so any more.
const TURNS_MAX: usize = 4;
/// Far more than two entries take.
const DOTS_BYTES_MAX: u32 = 4096;

impl Remote {
    /// A request was told that a directory is spread, or that a part is none any more: is there more to try?
    pub(crate) fn learn_spread<R: Request>(&self, mut request: R, told: bool, entered: &[u64]) -> bool {
        entered.iter().for_each(|dir| self.now_over(*dir, None));
        if !told {
            return !entered.is_empty();
        }
        let mut learned = false;
        request.directories(&mut |dir, name| {
            let asked = self.look(|head| FindSpread { head: Some(head), dir: *dir });
            let over = asked.and_then(|told| Over::new(&told).map_err(|_| Errno::EIO));
            // What is not about a name goes to each part: see `attr_of_all` and `list_spread`.
            learned |= over.is_ok() && name.is_some();
            self.now_over(*dir, over.ok().flatten());
        });
        learned
    }

    /// What is known of a directory has changed: what is kept was granted by what was known before.
    fn now_over(&self, dir: u64, over: Option<Over>) {
        self.spreads.learn(dir, over);
        self.kept.lock().clear();
    }

    /// Attributes of this moment; of a directory that is spread those of all its parts.
    pub(crate) fn attr_of_all(&self, ino: Ino) -> Result<Attr, Errno> {
        for _ in 0..TURNS_MAX {
            let Some(over) = self.spreads.of(ino.get()) else {
                let asked = self.look(|head| GetAttr { head: Some(head), ino: ino.get() });
                if asked.is_err() && self.spreads.of(ino.get()).is_some() {
                    continue;
                }
                return attr_of(asked?.attr);
            };
            match self.attr_over(ino, &over) {
                // It was gathered meanwhile.
                Err(Errno::ESTALE) => self.now_over(ino.get(), None),
                attr => return attr,
            }
        }
        Err(Errno::EIO)
    }

    /// The directory, and those of its parts that did not say it a moment ago, are asked at once.
    fn attr_over(&self, ino: Ino, over: &Over) -> Result<Attr, Errno> {
        let alone = |head| GetAlone { head: Some(head), ino: ino.get() };
        let part = |ino: Ino| move |head| GetAttr { head: Some(head), ino: ino.get() };
        let (asking, parts) = self.spreads.ask(Instant::now(), over);
        let begun = self.begin_look(alone);
        let parts: Vec<(Said, Option<Begun>)> = parts
            .into_iter()
            .map(|said| {
                let begun = if said.attr.is_none() { self.begin_look(part(said.part)) } else { None };
                (said, begun)
            })
            .collect();
        let answer = self.end_look(begun, alone)?;
        // It was gathered, and its own record says it all; or the server does not say.
        let is_over = over.parts().next().is_some_and(|first| first.get() == answer.ino);
        let mut attr = attr_of(answer.attr)?;
        for (said, begun) in parts {
            let of_part = match said.attr.filter(|_| is_over) {
                Some(attr) => attr,
                None => {
                    let of_part = attr_of(self.end_look(begun, part(said.part))?.attr)?;
                    self.spreads.heard(asking, said.part, of_part);
                    of_part
                }
            };
            complete_attr(&mut attr, &of_part);
        }
        Ok(attr)
    }

    pub(crate) fn list_spread(&self, dir: Ino, wish: &Wish) -> Result<Page, Errno> {
        for _ in 0..TURNS_MAX {
            let listed = match self.spreads.of(dir.get()) {
                None => {
                    let page = self.list_one(dir, wish, dir);
                    if page.is_err() && self.spreads.of(dir.get()).is_some() {
                        continue;
                    }
                    return page;
                }
                Some(over) => self.list_over(dir, &over, wish),
            };
            match listed {
                // It was gathered meanwhile. Cookies are the same then.
                Err(Errno::ESTALE) => self.now_over(dir.get(), None),
                page => return page,
            }
        }
        Err(Errno::EIO)
    }

    /// The first page that is not empty, or the last: the parts one after the other have the directory's order.
    fn list_over(&self, dir: Ino, over: &Over, wish: &Wish) -> Result<Page, Errno> {
        let dots = self.dots(dir, wish.cookie)?;
        if !dots.entries.is_empty() {
            return Ok(dots);
        }
        let mut parts = over.parts_after(wish.cookie).peekable();
        while let Some(part) = parts.next() {
            let page = self.list_one(part, wish, dir)?;
            let is_last = parts.peek().is_none();
            if is_last || !page.entries.is_empty() {
                return Ok(Page { end: page.end && is_last, ..page });
            }
        }
        Ok(Page { entries: Vec::new(), end: true })
    }

    fn dots(&self, dir: Ino, cookie: u64) -> Result<Page, Errno> {
        let mut want = self.want(false);
        want.answer_bytes_max = DOTS_BYTES_MAX;
        let (_, body) = self.ask(|head| ReadDots { head: Some(head), dir: dir.get(), cookie }, want)?;
        let entries = metadata::Entries::decode(body.as_slice()).map_err(|_| Errno::EIO)?.entries;
        Ok(Page { entries: listed(entries)?, end: false })
    }
}
