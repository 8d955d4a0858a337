//! A message that was lent instead of copied.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use overside_memory::{ForeignRange, MemoryError};
use smallvec::SmallVec;

/// A message's bytes where they lie in the sender's memory, in list order.
///
/// The sender keeps them as they are until the loan ends, which it does when this is dropped, on
/// any thread and in any order. It may have to take them back before: then the connection ends,
/// and [`is_valid`](Self::is_valid) says so. Whoever reads therefore asks it after the last load,
/// and before he believes any of what he read. A sender that breaks its word may write there at
/// any moment, so what is read is checked in a copy.
///
/// Reading is sound for as long as the loan is there, whatever became of sender and connection.
pub struct Loan(Option<Box<Parts>>);

/// Memory of a loan that has ended, for another one.
#[derive(Debug, Default)]
pub struct SpareLoan(Box<Parts>);

#[derive(Default)]
struct Parts {
    parts: SmallVec<[ForeignRange; 2]>,
    lender: Option<Arc<dyn Lender>>,
    number: u64,
}

/// The connection that loans came by, as its provider knows it.
pub trait Lender: fmt::Debug + Send + Sync {
    /// Whether the sender still vouches for what it has lent: a load of a word that it changes
    /// before it lets go of the bytes. No round trip.
    fn vouches(&self) -> bool;

    /// The loan of that number has ended. Called once for each; never waits.
    fn take_back(&self, number: u64);

    /// After that, what the loan was kept in: a lender that hands it to [`Loan::again`] need not
    /// allocate for every message.
    fn keep(&self, _spare: SpareLoan) {}
}

impl Loan {
    /// Made by a provider when it accepts a loan.
    pub fn new(parts: impl IntoIterator<Item = ForeignRange>, lender: Arc<dyn Lender>, number: u64) -> Self {
        Self::again(SpareLoan::default(), parts, lender, number)
    }

    /// The same, in the memory of one that has ended.
    pub fn again(
        SpareLoan(mut memory): SpareLoan,
        parts: impl IntoIterator<Item = ForeignRange>,
        lender: Arc<dyn Lender>,
        number: u64,
    ) -> Self {
        memory.parts.extend(parts);
        (memory.lender, memory.number) = (Some(lender), number);
        Self(Some(memory))
    }

    /// The message's pieces, in order.
    pub fn parts(&self) -> &[ForeignRange] {
        self.0.as_ref().map_or(&[], |memory| &memory.parts)
    }

    /// Bytes in the message.
    pub fn bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.len() as u64).sum()
    }

    /// Copies `out.len()` bytes of the message from `at` on, across its pieces.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when the message ends before; then part of `out` may be written.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let escapes = MemoryError::Escapes { at, len: out.len() as u64, of: self.bytes() };
        let (mut skip, mut done) = (at, 0);
        for part in self.parts() {
            let len = part.len() as u64;
            if skip >= len {
                skip -= len;
                continue;
            }
            let take = (part.len() - skip as usize).min(out.len() - done);
            part.read(skip as usize, &mut out[done..done + take])?;
            (skip, done) = (0, done + take);
        }
        if done == out.len() && skip == 0 { Ok(()) } else { Err(escapes) }
    }

    /// Whether all that was loaded from it before this call is what the sender sent.
    ///
    /// An acquire fence, and a load of a word that the sender changes before it lets go of the
    /// bytes (**revoke**).
    #[inline]
    pub fn is_valid(&self) -> bool {
        fence(Ordering::Acquire);
        self.0.as_ref().and_then(|memory| memory.lender.as_ref()).is_some_and(|lender| lender.vouches())
    }
}

impl Drop for Loan {
    /// Nothing is sound because of it: a loan that is forgotten stays out until the connection
    /// ends.
    fn drop(&mut self) {
        let Some(mut memory) = self.0.take() else { return };
        let Some(lender) = memory.lender.take() else { return };
        memory.parts.clear();
        lender.take_back(memory.number);
        lender.keep(SpareLoan(memory));
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.as_ref().map(|memory| memory.number);
        f.debug_struct("Loan").field("number", &number).field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use overside_memory::{Foreign, Segment};

    use super::*;

    #[derive(Debug, Default)]
    struct Ledger {
        closed: AtomicBool,
        returned: AtomicU64,
        spare: Mutex<Option<SpareLoan>>,
    }

    impl Lender for Ledger {
        fn vouches(&self) -> bool {
            !self.closed.load(Ordering::Acquire)
        }

        fn take_back(&self, number: u64) {
            self.returned.fetch_add(number, Ordering::Relaxed);
        }

        fn keep(&self, spare: SpareLoan) {
            *self.spare.lock().unwrap() = Some(spare);
        }
    }

    #[test]
    fn a_loan_is_read_across_its_parts_and_returned_once() {
        let segment = Segment::shared(4096).unwrap();
        let fd = segment.fd().unwrap().try_clone_to_owned().unwrap();
        let foreign = Foreign::map(fd, 4096).unwrap();
        let mut buffer = segment.carve(4096).pop().unwrap();
        buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        let ledger = Arc::new(Ledger::default());
        let parts = [(10, 3), (0, 0), (100, 4)].map(|(at, len)| foreign.range(at, len).unwrap());
        let loan = Loan::new(parts, ledger.clone(), 7);
        assert_eq!((loan.bytes(), loan.parts().len()), (7, 3));
        for (at, len, expected) in
            [(0, 7, &[10, 11, 12, 100, 101, 102, 103][..]), (2, 2, &[12, 100]), (3, 4, &[100, 101, 102, 103])]
        {
            let mut out = vec![0; len];
            loan.read(at, &mut out).unwrap();
            assert_eq!(out, expected);
        }
        loan.read(7, &mut []).unwrap();
        for (at, len) in [(0, 8), (7, 1), (u64::MAX, 1), (8, 0)] {
            assert!(loan.read(at, &mut vec![0; len]).is_err(), "{len} bytes from {at}");
        }
        assert!(loan.is_valid());
        ledger.closed.store(true, Ordering::Release);
        assert!(!loan.is_valid());
        assert_eq!(ledger.returned.load(Ordering::Relaxed), 0);
        std::thread::spawn(move || drop(loan)).join().unwrap();
        assert_eq!(ledger.returned.load(Ordering::Relaxed), 7);

        let spare = ledger.spare.lock().unwrap().take().unwrap();
        let loan = Loan::again(spare, [foreign.range(20, 2).unwrap()], ledger.clone(), 2);
        let mut out = [0; 2];
        loan.read(0, &mut out).unwrap();
        assert_eq!((loan.bytes(), out), (2, [20, 21]), "nothing of the one before");
        drop(loan);
        assert_eq!(ledger.returned.load(Ordering::Relaxed), 9);
        assert_eq!(Arc::strong_count(&ledger), 1, "what is kept holds nobody");
    }
}
