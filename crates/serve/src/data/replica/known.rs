//! Which view of an object is the newest that was named here.

use std::sync::Arc;

use proto::{
    copies::{REVIVED, TWOFOLD, View},
    data::Object,
};
use types::Errno;

use super::object::Replica;
use crate::{answer::No, data::DataService, views};

/// It has two copies, or is to have them; then it names a view.
fn view_of(object: &Object) -> Result<Option<View>, No> {
    match (object.generation & TWOFOLD != 0, object.view) {
        (false, None) => Ok(None),
        (true, Some(view)) => Ok(Some(view)),
        // Of a client that knows nothing of views, or that mixes things up.
        (true, None) | (false, Some(_)) => Err(Errno::EINVAL.into()),
    }
}

impl DataService {
    /// The object, which knows the view that is named by now. `None`: there is one copy of it.
    pub(in crate::data) fn replica(&self, object: &Object) -> Result<Option<Arc<Replica>>, No> {
        let Some(view) = view_of(object)? else { return Ok(None) };
        let replica = self.replicas.get_or_make(object)?;
        let world = self.replicas.world();
        let view = views::view(&view);
        if replica.state.lock().number() < view.number {
            let length = if view.primary == world.me { self.length_of(&replica.object)? } else { 0 };
            let mut state = replica.state.lock();
            state.adopt(&view, length, &world, replica.ino);
            state.pump(&world, &replica);
            drop(state);
            self.replicas.is_busy(&replica);
        }
        Ok(Some(replica))
    }

    /// The same for who reads and writes: after both copies were lost whoever asks by a view of before has to learn of that first (I-TWO-5).
    pub(in crate::data) fn asked_replica(&self, object: &Object) -> Result<Option<Arc<Replica>>, No> {
        let replica = self.replica(object)?;
        if let (Some(replica), Some(view)) = (&replica, object.view)
            && replica.state.lock().number() >> REVIVED != view.number >> REVIVED
        {
            return Err(No(Box::new(proto::fault::other_view())));
        }
        Ok(replica)
    }

    pub(super) fn length_of(&self, object: &Object) -> Result<u64, No> {
        if self.is_nothing(object)? {
            return Ok(0);
        }
        self.shared(object, |_, there| Ok(there.size()))
    }
}
