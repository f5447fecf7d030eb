//! The boundary to an engine's code, which checks some of its files' content by assertions: a panic there is an error of
//! the engine, and neither the end of the process nor a message of its own.
//!
//! After one the engine may refuse every further request (its locks are poisoned), which is right for damaged files. The
//! program must be built to unwind, and its panic hook must be quiet [`inside`].

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe},
};

use namespace::txn::KvError;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`; a panic in it becomes [`KvError::Corrupt`]. Nothing of ours is changed inside but the engine itself.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, KvError>) -> Result<T, KvError> {
    let outer = INSIDE.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    INSIDE.set(outer);
    result.unwrap_or_else(|payload| {
        let message = message(&*payload);
        tracing::error!(message, "the metadata engine cannot read its own files");
        Err(KvError::Corrupt(format!("engine: {message}")))
    })
}

/// Is this thread in the engine's code? Then a panic is caught, and its message becomes an error's.
pub fn inside() -> bool {
    INSIDE.get()
}

fn message(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "a panic without words",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_is_an_error() {
        let failed: Result<(), KvError> = guarded(|| {
            assert!(inside());
            panic!("block {} is odd", 7)
        });
        assert_eq!(failed, Err(KvError::Corrupt("engine: block 7 is odd".to_owned())));
        assert_eq!(guarded(|| Ok(1)), Ok(1));
        assert!(!inside());
    }
}
