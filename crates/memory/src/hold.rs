//! What keeps memory in place while a transfer reads it.

/// Released once, from any thread, by the completion of the request that owns it.
///
/// The equivalent of a `RawWaker` for bytes: two words, so that a request needs no
/// allocation of its own. Dropping it releases; forgetting it leaks what it holds.
pub struct Hold {
    data: *const (),
    release: unsafe fn(*const ()),
}

// SAFETY: [hold] `from_raw` demands a release that is sound on any thread.
unsafe impl Send for Hold {}
// SAFETY: [hold] a shared reference to a hold offers nothing.
unsafe impl Sync for Hold {}

impl Hold {
    /// A hold that calls `release(data)` once.
    ///
    /// # Safety
    /// `release(data)` is sound once, on any thread, at any time.
    ///
    /// # What it should not do
    /// Completion queues run it while they poll. Soundness does not lean on the rest, for a hold
    /// can be made of any value and that value's destructor may do anything. One that blocks holds
    /// up the thread that polls. One that waits for a lock that is held around `poll` waits for
    /// ever. One that panics goes through `poll` once: the other completions of its batch are
    /// delivered and their holds released, nothing is released twice or lost, and later polls go
    /// on.
    pub const unsafe fn from_raw(data: *const (), release: unsafe fn(*const ())) -> Self {
        Self { data, release }
    }

    /// A hold on nothing, for memory that lives as long as the process.
    pub const fn nothing() -> Self {
        const unsafe fn nothing(_: *const ()) {}
        Self { data: std::ptr::null(), release: nothing }
    }

    /// One hold for two: released together.
    pub fn both(self, other: Hold) -> Hold {
        Hold::from(Box::new((self, other)))
    }
}

impl<T: Send + Sync + 'static> From<std::sync::Arc<T>> for Hold {
    fn from(value: std::sync::Arc<T>) -> Self {
        unsafe fn release<T>(data: *const ()) {
            // SAFETY: [hold] `data` came from `Arc::into_raw` below and is used once.
            drop(unsafe { std::sync::Arc::from_raw(data.cast::<T>()) });
        }
        // SAFETY: [hold] T may be dropped on any thread.
        unsafe { Self::from_raw(std::sync::Arc::into_raw(value).cast(), release::<T>) }
    }
}

impl<T: Send + 'static> From<Box<T>> for Hold {
    fn from(value: Box<T>) -> Self {
        unsafe fn release<T>(data: *const ()) {
            // SAFETY: [hold] `data` came from `Box::into_raw` below and is used once.
            drop(unsafe { Box::from_raw(data.cast::<T>().cast_mut()) });
        }
        // SAFETY: [hold] T may be dropped on any thread.
        unsafe { Self::from_raw(Box::into_raw(value).cast_const().cast(), release::<T>) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: [hold] once, here; `from_raw`'s contract covers the rest.
        unsafe { (self.release)(self.data) }
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hold")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_hold_releases_once_wherever_it_ends() {
        let value = Arc::new(7);
        let hold = Hold::from(value.clone()).both(Hold::from(value.clone()));
        assert_eq!(Arc::strong_count(&value), 3);
        std::thread::spawn(move || drop(hold)).join().unwrap();
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_forgotten_hold_leaks_and_no_more() {
        let value = Arc::new(7);
        std::mem::forget(Hold::from(value.clone()));
        assert_eq!(Arc::strong_count(&value), 2);
    }
}
