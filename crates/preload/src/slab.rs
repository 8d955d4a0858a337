//! Places from the system directly, for the program's allocator may be what called us; never
//! unmapped, and used again.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// What lies in a slab.
pub(crate) trait SlabEntry: Sized + 'static {
    /// One that nobody uses.
    fn fresh() -> Self;

    /// Names the next one while it is free.
    fn next_free(&self) -> &AtomicPtr<Self>;
}

/// Those that are free. Each call is made under the lock that guards the list.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    free: AtomicPtr<T>,
}

impl<T: SlabEntry> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { free: AtomicPtr::new(null_mut()) }
    }

    /// None when the system has no memory.
    pub(crate) fn take(&self) -> Option<&'static T> {
        if self.free.load(Ordering::Relaxed).is_null() {
            self.refill();
        }
        // SAFETY: [preload-slab] places are never unmapped.
        let place = unsafe { self.free.load(Ordering::Relaxed).as_ref() }?;
        self.free.store(place.next_free().load(Ordering::Relaxed), Ordering::Relaxed);
        Some(place)
    }

    /// Nobody uses it any more.
    pub(crate) fn give_back(&self, place: &'static T) {
        place.next_free().store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
        self.free.store(std::ptr::from_ref(place).cast_mut(), Ordering::Relaxed);
    }

    fn refill(&self) {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: [preload-slab] a new mapping at an address of the system's choice.
        let Ok(base) = (unsafe { rustix::mm::mmap_anonymous(null_mut(), CHUNK_BYTES, prot, flags) }) else { return };
        let Some(base) = NonNull::new(base.cast::<T>()) else { return };
        for index in 0..CHUNK_BYTES / size_of::<T>() {
            // SAFETY: [preload-slab] within the new mapping, which is aligned to a page.
            let place = unsafe {
                base.add(index).write(T::fresh());
                base.add(index).as_ref()
            };
            self.give_back(place);
        }
    }
}

const CHUNK_BYTES: usize = 32 << 10;
