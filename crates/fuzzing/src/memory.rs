//! How much memory a piece of code held at the most: an allocator that counts, for each thread by itself.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(change: i64) {
    // A thread that ends has no counters any more, and nothing is asked about it.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system's allocator with the arguments that came; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps to the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above; `place` came from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as above; `place` came from the system's allocator.
        unsafe { System.realloc(place, layout, size) }
    }
}

/// Runs `code`; the most bytes that it held at once on this thread, beyond what was held before.
pub(crate) fn peak(code: impl FnOnce()) -> u64 {
    let before = HELD.get();
    PEAK.set(before);
    code();
    PEAK.get().saturating_sub(before).unsigned_abs()
}
