//! Messages between those who take part in a simulation: lost, repeated, late, or stopped one way.

use std::{collections::BTreeMap, time::Duration};

use super::Random;

/// Faults, each one in so many; 0 is never.
#[derive(Clone, Copy)]
pub struct Ways {
    pub loss: u64,
    pub repeat: u64,
    pub late: u64,
    /// What a message takes at least.
    pub least: Duration,
    /// In milliseconds, what one takes at most beyond that, and one that is late.
    pub most: [u64; 2],
}

pub struct Post<Place, Message> {
    ways: Ways,
    cuts: BTreeMap<(Place, Place), Duration>,
    /// By when they come, and in which order they were sent.
    on_way: BTreeMap<(Duration, u64), (Place, Place, Message)>,
    pub sent: u64,
}

impl<Place: Copy + Ord, Message: Clone> Post<Place, Message> {
    /// Half of the runs have each of the faults.
    pub fn new(random: &mut Random, mut ways: Ways) -> Post<Place, Message> {
        for often in [&mut ways.loss, &mut ways.repeat, &mut ways.late] {
            *often = random.maybe(*often);
        }
        Post { ways, cuts: BTreeMap::new(), on_way: BTreeMap::new(), sent: 0 }
    }

    /// Nothing befalls what is sent from now on.
    pub fn calm(&mut self) {
        self.ways = Ways { loss: 0, repeat: 0, late: 0, ..self.ways };
        self.cuts.clear();
    }

    /// Nothing that is sent this way until then arrives.
    pub fn cut(&mut self, way: (Place, Place), until: Duration) {
        self.cuts.insert(way, until);
    }

    /// `once`: it is not repeated.
    pub fn send(
        &mut self,
        random: &mut Random,
        now: Duration,
        way: (Place, Place),
        message: Message,
        once: bool,
    ) {
        let cut = self.cuts.get(&way).is_some_and(|until| now < *until);
        if cut || random.one_in(self.ways.loss) {
            return;
        }
        let copies = if !once && random.one_in(self.ways.repeat) { 2 } else { 1 };
        for _ in 0..copies {
            let late = usize::from(random.one_in(self.ways.late));
            let at = now + self.ways.least + random.millis(self.ways.most[late]);
            self.put(at, way, message.clone());
        }
    }

    /// Who it is for does not look before.
    pub fn put(&mut self, at: Duration, (from, to): (Place, Place), message: Message) {
        self.sent += 1;
        self.on_way.insert((at, self.sent), (from, to, message));
    }

    /// One that has come by now.
    pub fn next(&mut self, now: Duration) -> Option<(Place, Place, Message)> {
        let first = self.on_way.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }
}
