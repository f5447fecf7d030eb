//! What a power cut must find (I-DS-4): the map that is durable, and the bytes that it speaks of.
//!
//! - Device bytes that the durable map names are changed, cut or cleared only when the map that says otherwise is durable.
//! - A record that strikes a copy, or the checksum of one that is not durable yet, is saved only when the copy that stays is
//!   durable: the kernel may write the journal's pages before we ask it to.
//!
//! Whoever finds that something is not durable yet lets go of the object, calls [`DataServer::make_durable`] and begins
//! again. Nobody waits for it under an object's lock.

use crate::{
    DataServer,
    object::{Condemned, Object, State},
};
use layout::{Piece, Sau, SauIndex};
use types::{Errno, Ino, TierId, TierSet};

impl DataServer {
    pub(crate) fn is_durable(&self, record: u64) -> bool {
        record <= self.maps.synced()
    }

    /// Does the durable map name device copies of an object, or may it?
    pub fn is_on_devices(&self, ino: Ino) -> bool {
        if let Some(object) = self.table.get(ino) {
            let state = object.state.read();
            let named = self.ours(state.map.tiers_used()).without(TierId::Memory);
            return !state.condemned.is_empty() || !named.is_empty();
        }
        let named = |record: layout::ObjectRecord| {
            !self.ours(record.map.tiers_used()).without(TierId::Memory).is_empty()
        };
        // What cannot be read was said, and may name them.
        self.maps.load(ino).map_or(true, |record| record.is_some_and(named))
    }

    /// Bytes on devices first, then the journal.
    pub(crate) fn make_durable(&self) -> Result<(), Errno> {
        self.sync_devices();
        self.maps.sync()
    }

    /// May bytes of this tier be changed that the last strike was about?
    pub(crate) fn may_change(&self, state: &State, tier: TierId) -> bool {
        !tier.is_persistent() || self.is_durable(state.struck)
    }

    /// Does the durable map still name this tier's copy of the SAU, or of one behind it, which was given up?
    pub(crate) fn still_vouched(&self, state: &State, tier: TierId, sau: SauIndex) -> bool {
        let gone = |c: &Condemned| c.tier == tier && c.sau >= sau && !self.is_durable(c.after);
        tier.is_persistent() && state.condemned.iter().any(gone)
    }

    /// Makes this tier's copy durable if others are to be struck in its favour, or the checksum that would tell, after a power
    /// cut, that it is not there. Rare, so under the lock.
    pub(crate) fn let_stand_alone(
        &self,
        object: &Object,
        state: &State,
        sau: Sau,
        tier: TierId,
    ) -> Result<(), Errno> {
        match &state.files[tier.index()] {
            Some(file) if sau.valid != TierSet::of(tier) && state.is_unsynced(tier) => {
                self.sync_to_rely_on(object, file)
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Does the old record vouch for bytes that this tier has of the SAU, until one that does not is durable? Then this holds for
/// all later changes of them, too, which find no seal in the map any more.
pub(crate) fn vouches(before: Sau, tier: TierId) -> bool {
    tier.is_persistent() && (before.seal.is_some() || has_others(before, tier))
}

/// Does the write change such bytes? Not what lies behind a seal.
pub(crate) fn changes_vouched(before: Sau, piece: Piece, tier: TierId) -> bool {
    let within = piece.offset - piece.sau.start();
    vouches(before, tier) && before.seal.is_none_or(|seal| within < u64::from(seal.len))
}

/// Other persistent copies than this one.
fn has_others(sau: Sau, tier: TierId) -> bool {
    !sau.valid.without(tier).intersect(TierSet::PERSISTENT).is_empty()
}
