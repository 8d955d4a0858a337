//! Exactly once: which requests of a client are in flight, and how those ended
//! that it may ask for again.

use std::collections::BTreeMap;
use std::time::Instant;

use overside_service::BadMessage;
use overside_volume::wire::{RequestHeader, Status};

/// Numbers between a client's lowest unanswered request and its newest, at most. So what is
/// remembered of a client is bounded.
pub const NUMBERS_MAX: u64 = 16_384;

/// One client's requests.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    generation: u32,
    lowest: u64,
    /// By numbers.
    in_flight: BTreeMap<u64, Entered>,
    bytes: u64,
    /// How requests ended that must not be carried out twice.
    ended: BTreeMap<u64, Status>,
}

/// A request that is carried out.
#[derive(Clone, Copy, Debug)]
struct Entered {
    bytes: u64,
    since: Instant,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// It is carried out.
    New,
    /// It was carried out; this is its answer.
    Again(Status),
}

/// What a client may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credits {
    pub(super) requests: usize,
    pub(super) bytes: u64,
}

impl Ledger {
    /// A connection of this generation comes. Whether it begins the generation: then what older
    /// ones have in flight must end before it is welcomed. None where there is a newer one.
    pub(super) fn renew(&mut self, generation: u32) -> Option<bool> {
        if generation < self.generation {
            return None;
        }
        let begins = generation > self.generation;
        self.generation = generation;
        Some(begins)
    }

    /// Nothing is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// How many are.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// When the oldest of them came.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.in_flight.values().map(|entered| entered.since).min()
    }

    /// A request is announced. All are, in the order in which they were sent.
    pub(super) fn announce(&mut self, request: &RequestHeader) -> Result<(), BadMessage> {
        // A mutant carries out what an old connection says late, although its replay has been answered and forgotten.
        let is_late = request.generation != self.generation;
        if is_late && !overside_disk::mutant("volume-no-generation-fence") {
            return Err(BadMessage("a request of another generation of its session"));
        }
        if (request.lowest < self.lowest && !is_late) || request.number >= request.lowest.saturating_add(NUMBERS_MAX) {
            return Err(BadMessage("requests are numbered without a bound"));
        }
        self.lowest = self.lowest.max(request.lowest);
        self.ended = self.ended.split_off(&self.lowest);
        Ok(())
    }

    /// A request comes that was announced, with all its bytes.
    pub(super) fn enter(
        &mut self,
        request: &RequestHeader,
        credits: Credits,
        now: Instant,
    ) -> Result<Admitted, BadMessage> {
        let number = request.number;
        let is_late = request.generation != self.generation;
        if (is_late || number < self.lowest) && !overside_disk::mutant("volume-no-generation-fence") {
            return Err(BadMessage("a request of another generation, or one whose answer was seen"));
        }
        if let Some(status) = self.ended.get(&number)
            && !overside_disk::mutant("volume-carried-out-twice")
        {
            return Ok(Admitted::Again(*status));
        }
        let bytes = u64::from(request.length);
        let bytes = if request.operation.moves() { bytes } else { 0 };
        if self.in_flight.len() >= credits.requests || self.bytes + bytes > credits.bytes {
            return Err(BadMessage("more requests in flight than there are credits"));
        }
        if self.in_flight.insert(number, Entered { bytes, since: now }).is_some() {
            return Err(BadMessage("a request twice at the same time"));
        }
        self.bytes += bytes;
        Ok(Admitted::New)
    }

    /// A request of this process, which numbers its requests itself and asks for none again.
    pub(super) fn begin(&mut self, number: u64, bytes: u64, now: Instant) {
        self.in_flight.insert(number, Entered { bytes, since: now });
        self.bytes += bytes;
    }

    /// A request has ended; `remember` is for those that change something. How many bytes it moved,
    /// unless it was not there.
    pub(super) fn end(&mut self, number: u64, status: Status, remember: bool) -> Option<u64> {
        let Entered { bytes, .. } = self.in_flight.remove(&number)?;
        self.bytes -= bytes;
        if remember && number >= self.lowest {
            self.ended.insert(number, status);
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use overside_volume::wire::Operation;

    use super::*;

    const CREDITS: Credits = Credits { requests: 4, bytes: 64 << 10 };

    fn request(number: u64, lowest: u64) -> RequestHeader {
        let operation = Operation::Write { fua: false };
        RequestHeader { operation, session: 1, generation: 1, number, lowest, lba: 0, length: 8192 }
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.renew(1), Some(true));
        ledger
    }

    /// As a request whose bytes ride in its message.
    fn enter(
        ledger: &mut Ledger,
        request: &RequestHeader,
        credits: Credits,
        now: Instant,
    ) -> Result<Admitted, BadMessage> {
        ledger.announce(request)?;
        ledger.enter(request, credits, now)
    }

    #[test]
    fn what_was_done_is_answered_from_memory_until_the_client_has_seen_it() {
        let mut ledger = ledger();
        assert_eq!(enter(&mut ledger, &request(1, 1), CREDITS, Instant::now()), Ok(Admitted::New));
        assert!(enter(&mut ledger, &request(1, 1), CREDITS, Instant::now()).is_err(), "it is in flight");
        ledger.end(1, Status::Done, true);
        assert_eq!(enter(&mut ledger, &request(1, 1), CREDITS, Instant::now()), Ok(Admitted::Again(Status::Done)));
        assert_eq!(enter(&mut ledger, &request(2, 2), CREDITS, Instant::now()), Ok(Admitted::New));
        assert!(ledger.ended.is_empty(), "forgotten");
        assert!(enter(&mut ledger, &request(3, 1), CREDITS, Instant::now()).is_err(), "the lowest does not go back");
    }

    #[test]
    fn nothing_of_an_older_generation_is_admitted() {
        let mut ledger = ledger();
        enter(&mut ledger, &request(1, 1), CREDITS, Instant::now()).unwrap();
        assert_eq!(ledger.renew(1), Some(false), "another connection of the same");
        assert_eq!(ledger.renew(2), Some(true));
        assert!(!ledger.is_quiet(), "what was admitted before must end first");
        assert!(enter(&mut ledger, &request(2, 1), CREDITS, Instant::now()).is_err());
        assert_eq!(ledger.renew(1), None);
        ledger.end(1, Status::Done, true);
        assert!(ledger.is_quiet());
        let again = RequestHeader { generation: 2, ..request(1, 1) };
        assert_eq!(enter(&mut ledger, &again, CREDITS, Instant::now()), Ok(Admitted::Again(Status::Done)));
    }

    #[test]
    fn credits_cannot_be_overdrawn() {
        let mut ledger = ledger();
        (1..=4).for_each(|number| {
            assert_eq!(enter(&mut ledger, &request(number, 1), CREDITS, Instant::now()), Ok(Admitted::New))
        });
        assert!(enter(&mut ledger, &request(5, 1), CREDITS, Instant::now()).is_err(), "requests");
        ledger.end(3, Status::Done, false);
        let long = RequestHeader { length: 64 << 10, ..request(5, 1) };
        assert!(enter(&mut ledger, &long, CREDITS, Instant::now()).is_err(), "bytes");
        assert_eq!(enter(&mut ledger, &request(5, 1), CREDITS, Instant::now()), Ok(Admitted::New));
        assert!(enter(&mut ledger, &request(NUMBERS_MAX + 1, 1), CREDITS, Instant::now()).is_err(), "numbers");
    }

    /// Its bytes are read meanwhile: others that were sent after it may come before it.
    #[test]
    fn a_request_that_was_announced_may_come_after_later_ones() {
        let mut ledger = ledger();
        ledger.announce(&request(2, 1)).unwrap();
        ledger.announce(&request(3, 1)).unwrap();
        assert_eq!(enter(&mut ledger, &request(5, 2), CREDITS, Instant::now()), Ok(Admitted::New));
        assert_eq!(ledger.enter(&request(2, 1), CREDITS, Instant::now()), Ok(Admitted::New));
        assert_eq!(enter(&mut ledger, &request(6, 4), CREDITS, Instant::now()), Ok(Admitted::New));
        assert!(
            ledger.enter(&request(3, 1), CREDITS, Instant::now()).is_err(),
            "its answer was seen, so there is none"
        );
        ledger.renew(2);
        assert!(ledger.enter(&request(5, 2), CREDITS, Instant::now()).is_err(), "its generation is over");
    }
}
