//! A sync: what is here, and what all whom the view names have; answered if the view is still the same then.

use cluster::replica::View;

use super::{
    cast::{Left, all_of, place_of},
    said::Said,
    server::{Called, Server, Syncing},
    stage::Stage,
};
use crate::network::Ticket;

impl Server {
    pub(super) fn sync(
        &mut self,
        stage: &mut Stage,
        ticket: Ticket,
        object: u64,
        view: View,
        own: bool,
    ) -> Option<Said> {
        self.adopt(stage, object, view);
        let known = self.view(object)?;
        let me = self.me();
        if known.number != view.number || !known.has(me) || !own && known.primary != me {
            return Some(Said::Elsewhere(Some(known)));
        }
        let tag = stage.number();
        self.tiers.sync(object, tag);
        let mut waits = 1;
        if !own && stage.left != Left::SyncOfOne {
            for other in all_of(&view).into_iter().filter(|other| *other != me) {
                waits += 1;
                let said = Said::Sync { object, view, own: true };
                self.ask(stage, place_of(other), Called::Sync { tag }, said);
            }
        }
        self.syncing.insert(tag, Syncing { ticket, object, view, waits, failed: false });
        None
    }

    pub(super) fn synced_there(&mut self, tag: u64, is: bool) {
        if let Some(syncing) = self.syncing.get_mut(&tag) {
            syncing.waits -= 1;
            syncing.failed |= !is;
        }
    }

    pub(super) fn end_syncs(&mut self, stage: &mut Stage) {
        for tag in std::mem::take(&mut self.tiers.synced) {
            self.synced_there(tag, true);
        }
        let over: Vec<u64> =
            self.syncing.iter().filter(|(_, syncing)| syncing.waits == 0).map(|(tag, _)| *tag).collect();
        for tag in over {
            let Some(syncing) = self.syncing.remove(&tag) else { continue };
            let known = self.view(syncing.object);
            let stays = known.is_some_and(|known| known.number == syncing.view.number);
            let is = stays && !syncing.failed;
            stage.answer(syncing.ticket, if is { Said::Synced } else { Said::Elsewhere(known) });
        }
    }
}
