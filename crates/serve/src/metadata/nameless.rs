//! What a session merely refers to without a name: files and directories that another client removed, and that the kernel of this one only
//! remembers. For as long as it does the bytes are kept, which may be until its memory is needed for something else.
//!
//! - I-NAMELESS-1: of what somebody has open nothing is said.

use std::time::{Duration, Instant};

use proto::control::NAMELESS_MAX;

use super::{
    MetadataService,
    session::{Session, ToldNameless},
};

/// Who removed it gives it up by himself, a moment later.
const AGE: Duration = Duration::from_secs(2);
/// Between the beginnings of two rounds through all of them: what a client was told of may be in use there.
const ROUND: Duration = Duration::from_secs(10);
/// Looked at for one renewal.
const LOOKED_AT_MAX: usize = 64 << 10;
const STEP: usize = 1024;

impl MetadataService {
    pub(super) fn merely_known(&self, session: &Session) -> Vec<u64> {
        let mut told = session.told_nameless.lock();
        let (mut known, mut looked) = (Vec::new(), 0);
        while looked < LOOKED_AT_MAX && known.len() + STEP <= NAMELESS_MAX {
            let (some, behind) = self.mds.nameless(told.behind, AGE, STEP);
            if some.is_empty() {
                if told.behind > 0 && told.began.is_none_or(|began| began.elapsed() >= ROUND) {
                    *told = ToldNameless { behind: 0, began: Some(Instant::now()) };
                }
                break;
            }
            (told.behind, looked) = (behind, looked + some.len());
            let has = session.has.lock();
            let some: Vec<_> = some.into_iter().filter(|ino| has.references.contains_key(ino)).collect();
            drop(has);
            known.extend(some.into_iter().filter(|ino| !self.files.is_open(*ino)).map(types::Ino::get));
        }
        known
    }
}
