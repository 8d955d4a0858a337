//! Panics of a decoder over damaged bytes, turned into errors.
//!
//! The `parquet` crate's decoders index and assert on what a page holds (a bit width, a
//! dictionary index, a run's length); a damaged page can make them panic. What a panic leaves
//! behind is thrown away with the reader, so unwinding through it is harmless; this process
//! never reads on after an error.

use anyhow::{Result, bail};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `decode`; a panic in it becomes an error that says the file is damaged.
pub fn guarded<T>(decode: impl FnOnce() -> Result<T>) -> Result<T> {
    quiet_hook();
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(decode));
    GUARDED.set(outer);
    match result {
        Ok(result) => result,
        Err(panic) => {
            let told = panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            bail!("the file is damaged (its decoder stopped: {told})")
        }
    }
}

/// A panic that [`guarded`] reports as an error must not also print a backtrace.
fn quiet_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                usual(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        let slice: &[u8] = &[];
        let error = guarded(|| Ok(slice[0])).unwrap_err().to_string();
        assert!(error.contains("damaged") && error.contains("index out of bounds"), "{error}");
        assert_eq!(guarded(|| Ok(1)).unwrap(), 1);
        assert!(!GUARDED.get());
    }
}
