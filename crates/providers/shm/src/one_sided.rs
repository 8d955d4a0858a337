//! WRITE, READ and atomics: executed by the initiator on memory that the target granted, so the
//! target need not call in.

use std::sync::atomic::{Ordering, fence};

use overside_memory::{Fragment, Window};
use overside_verbs::port::{Payload, RawBuffer};
use overside_verbs::{Access, RemoteToken, Status};

use crate::grants::Reach;
use crate::pair::{Heard, Pair};

/// Whether a one-sided request was carried out: its status, and what an atomic found.
pub(crate) type Outcome = (Status, u64);

impl Pair {
    /// Hears of grants that are in the socket, for a key that is not known yet. One call of `hear`
    /// may stop before all of them; a key that the peer has passed is good whatever lies before it.
    fn learn(&mut self, rkey: u128) {
        for _ in 0..LEARN_TURNS {
            if self.grants.knows(rkey) {
                return;
            }
            match self.hear() {
                Ok(Heard::Some) => {}
                Ok(Heard::All) => return,
                // How the connection ended, if it did, shows at the next poll.
                Err(fate) => {
                    self.heard_fate.get_or_insert(fate);
                    return;
                }
            }
        }
    }

    /// WRITE.
    ///
    /// # Safety
    /// The payload's bytes are readable and unchanged.
    pub(crate) unsafe fn write(&mut self, payload: Payload<'_>, token: &RemoteToken) -> Outcome {
        self.learn(token.rkey);
        let single;
        let fragments = match payload {
            Payload::Gather(fragments) => fragments,
            Payload::Inline(bytes) => {
                single = [Fragment {
                    address: bytes.as_ptr(),
                    len: bytes.len() as u32,
                    segment: overside_memory::SegmentId::FOREIGN,
                }];
                &single
            }
        };
        let len = fragments.iter().map(|f| u64::from(f.len)).sum();
        // Of a peer that has gone the memory is its owner's again: nothing is to change there. Whoever closes meanwhile may be
        // overtaken, and then this was no success.
        if len > token.len || self.check_open().is_err() {
            return REFUSED;
        }
        let Some(Reach::Write(window)) = self.grants.reach(token, Access::REMOTE_WRITE, len) else { return REFUSED };
        // SAFETY: [shm-posted] the caller's promise.
        let placed = unsafe { place(window, token.at, len, fragments) };
        fence(Ordering::SeqCst);
        if placed && self.check_open().is_ok() { (Status::Success, 0) } else { REFUSED }
    }

    /// READ.
    ///
    /// # Safety
    /// The sink is ours to write.
    pub(crate) unsafe fn read(&mut self, sink: RawBuffer, token: &RemoteToken) -> Outcome {
        self.learn(token.rkey);
        if token.len > sink.len as u64 {
            return REFUSED;
        }
        let Some(reach) = self.grants.reach(token, Access::REMOTE_READ, token.len) else { return REFUSED };
        // SAFETY: [shm-posted] the sink has at least that length.
        let out = unsafe { std::slice::from_raw_parts_mut(sink.address, token.len as usize) };
        let read = match reach {
            Reach::Read(foreign) => foreign.read(token.at, out),
            Reach::Write(window) => window.read(token.at, out),
        };
        // Of a peer that has gone the memory is its owner's again: what was copied may be what it wrote there since.
        fence(Ordering::Acquire);
        if read.is_ok() && self.check_open().is_ok() { (Status::Success, 0) } else { REFUSED }
    }

    /// An atomic on the target's word.
    pub(crate) fn atomic(
        &mut self,
        token: &RemoteToken,
        operation: impl FnOnce(&std::sync::atomic::AtomicU64) -> u64,
    ) -> Outcome {
        self.learn(token.rkey);
        if token.len < 8 || self.check_open().is_err() {
            return REFUSED;
        }
        match self.grants.reach(token, Access::REMOTE_ATOMIC, 8) {
            Some(Reach::Write(window)) => match window.word(token.at) {
                Ok(word) => {
                    let found = operation(word);
                    fence(Ordering::SeqCst);
                    if self.check_open().is_ok() { (Status::Success, found) } else { REFUSED }
                }
                Err(_) => REFUSED,
            },
            _ => REFUSED,
        }
    }
}

/// Copies the fragments to `at`; the last aligned word of the whole range becomes visible last.
///
/// # Safety
/// The fragments' bytes are readable and unchanged.
unsafe fn place(window: &Window, at: u64, len: u64, fragments: &[Fragment]) -> bool {
    let word_at = ((at + len) & !7).saturating_sub(8);
    // A range without an aligned word of its own has no order.
    let held_back = if word_at >= at && len >= 8 { word_at..word_at + 8 } else { 0..0 };
    let mut word = [0u8; 8];
    let mut target = at;
    for fragment in fragments.iter().filter(|f| f.len > 0) {
        // SAFETY: [shm-posted] the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(fragment.address, fragment.len as usize) };
        let end = target + bytes.len() as u64;
        let cut = |to: u64| (to.clamp(target, end) - target) as usize;
        let (before, inside) = (cut(held_back.start), cut(held_back.end));
        let (before, inside) = if held_back.is_empty() { (bytes.len(), bytes.len()) } else { (before, inside) };
        if window.write(target, &bytes[..before]).is_err()
            || window.write(target + inside as u64, &bytes[inside..]).is_err()
        {
            return false;
        }
        if before < inside {
            let first = (target + before as u64 - held_back.start) as usize;
            word[first..first + inside - before].copy_from_slice(&bytes[before..inside]);
        }
        target = end;
    }
    if held_back.is_empty() {
        return true;
    }
    // An aligned word of eight bytes is stored whole, with release ordering.
    window.write(held_back.start, &word).is_ok()
}

const REFUSED: Outcome = (Status::RemoteAccess, 0);
/// Looks at the socket for one key. A peer that says more meanwhile, without an end, holds this
/// port up no longer.
const LEARN_TURNS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_gathered_write_places_every_byte_and_no_other(
            at in 0u64..40,
            parts in proptest::collection::vec(0usize..30, 0..6),
        ) {
            let window = Window::new(4096).unwrap();
            window.write(0, &[0xEE; 512]).unwrap();
            let len: usize = parts.iter().sum();
            let bytes: Vec<u8> = (0..len as u8).collect();
            let mut done = 0;
            let fragments: Vec<Fragment> = parts.iter().map(|part| {
                let address = bytes[done..].as_ptr();
                done += part;
                Fragment { address, len: *part as u32, segment: overside_memory::SegmentId::FOREIGN }
            }).collect();
            // SAFETY: [shm-posted] the vector outlives the call.
            assert!(unsafe { place(&window, at, len as u64, &fragments) });
            let mut out = vec![0; 512];
            window.read(0, &mut out).unwrap();
            let at = at as usize;
            assert_eq!(&out[at..at + len], &bytes[..]);
            assert!(out[..at].iter().chain(&out[at + len..]).all(|b| *b == 0xEE));
        }
    }
}
