//! A message in memory that a peer lends.

use std::cell::RefCell;
use std::sync::Arc;

use overside_memory::{Buffer, Foreign, Segment};
use overside_verbs::{Lender, Loan};

/// The same bytes as a loan, at the very end of the peer's memory, so that what reads on faults;
/// none for more than there is room for.
pub fn lent(message: &[u8]) -> Option<Loan> {
    thread_local! {
        static MEMORY: RefCell<(Buffer, Foreign)> = RefCell::new(memory());
    }
    MEMORY.with_borrow_mut(|(owned, foreign)| {
        let at = owned.len().checked_sub(message.len())?;
        owned[at..].copy_from_slice(message);
        let part = foreign.range(at as u64, message.len()).expect("within the memory");
        Some(Loan::new([part], Arc::new(Vouching), 0))
    })
}

fn memory() -> (Buffer, Foreign) {
    let segment = Segment::shared(BYTES).expect("memory to lend");
    let fd = segment.fd().expect("a shared segment has one").try_clone_to_owned().expect("a descriptor");
    let foreign = Foreign::map(fd, segment.len() as u64).expect("a segment of ours");
    (segment.carve(BYTES).pop().expect("a buffer as long as its segment"), foreign)
}

#[derive(Debug)]
struct Vouching;

impl Lender for Vouching {
    fn vouches(&self) -> bool {
        true
    }

    fn take_back(&self, _: u64) {}
}

const BYTES: usize = 1 << 16;
