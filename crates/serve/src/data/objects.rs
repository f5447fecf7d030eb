//! Requests about objects, many at once: what they are, what they came to, that they go.

use net::Incoming;
use proto::{Nothing, data as asked};
use types::Timestamp;
use wire::schema::Retry;

use super::{DataService, Record};
use crate::answer::{Done, No, Outcome};

impl DataService {
    pub(super) fn attrs(&self, asked: &asked::Attrs) -> Outcome {
        // Whoever asks for one alone comes again by himself; of several each has an error number alone.
        if let [object] = asked.objects.as_slice() {
            return match self.attr(object) {
                Err(no) if Retry::try_from(no.0.retry) == Ok(Retry::After) => Err(no),
                attr => Ok(Done::new(&asked::ObjectAttrs { attrs: vec![or_errno(attr)] })),
            };
        }
        let attrs = asked.objects.iter().map(|object| or_errno(self.attr(object))).collect();
        Ok(Done::new(&asked::ObjectAttrs { attrs }))
    }

    /// Whoever asks has recorded what they came to. The first error is told, after all were looked at.
    pub(super) fn settle_all(&self, asked: &asked::Settle) -> Outcome {
        let settled = asked.objects.iter().map(|one| self.settle_one(one));
        let failed = settled.filter_map(Result::err).last();
        failed.map_or_else(|| Ok(Done::new(&Nothing {})), Err)
    }

    pub(super) fn remove_all(&self, asked: &asked::Remove, incoming: &Incoming) -> Outcome {
        let errnos = asked.objects.iter().map(|object| {
            let Ok(ino) = proto::attr::ino(object.ino) else { return Ok(types::Errno::EINVAL.raw()) };
            let _begun = self.under_way.begin(incoming, ino)?;
            Ok(self.remove(ino).map_or_else(|error| error.errno().raw(), |()| 0))
        });
        Ok(Done::new(&asked::Removed { errnos: errnos.collect::<Result<_, No>>()? }))
    }

    fn attr(&self, object: &asked::Object) -> Result<asked::ObjectAttr, No> {
        match self.asked_replica(object)? {
            Some(replica) => self.attr_copy(&replica),
            None => self.attr_here(object),
        }
    }

    pub(super) fn attr_here(&self, object: &asked::Object) -> Result<asked::ObjectAttr, No> {
        let ino = proto::attr::ino(object.ino)?;
        if self.table.get(ino).is_none() {
            match self.load(ino)? {
                None => return Ok(asked::ObjectAttr::default()),
                Some(record) if record.gone.is_some() || record.generation != object.generation => {
                    return Err(No::moved());
                }
                Some(record) if !record.live && !self.lending.is_stored_to(ino) => {
                    return Ok(of_record(&record));
                }
                // A crash left it: its bytes know.
                Some(_) => (),
            }
        }
        self.shared(object, |state, there| {
            let Some(record) = state.record.filter(|_| !self.ds.first_record_is_late(there)) else {
                return Ok(asked::ObjectAttr::default());
            };
            self.see_stores(there);
            let live = self.ds.live(there);
            Ok(asked::ObjectAttr {
                errno: 0,
                known: true,
                size: live.size,
                blocks: live.blocks,
                mtime: live.mtime.or(record.mtime).map(Into::into),
                still_us: u64::try_from(live.still.as_micros()).unwrap_or(u64::MAX),
            })
        })
    }

    fn settle_one(&self, one: &asked::Recorded) -> Result<(), No> {
        let ino = proto::attr::ino(one.object.unwrap_or_default().ino)?;
        let mtime = one.mtime.map(Timestamp::try_from).transpose()?;
        self.forget(ino, mtime)
    }
}

fn of_record(record: &Record) -> asked::ObjectAttr {
    asked::ObjectAttr {
        errno: 0,
        known: true,
        size: record.size,
        blocks: record.blocks,
        mtime: record.mtime.map(Into::into),
        // It was settled, perhaps just now.
        still_us: 0,
    }
}

fn or_errno(attr: Result<asked::ObjectAttr, No>) -> asked::ObjectAttr {
    attr.unwrap_or_else(|error| asked::ObjectAttr { errno: error.errno().raw(), ..Default::default() })
}
