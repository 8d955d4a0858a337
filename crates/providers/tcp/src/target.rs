//! What the peer asks of us: one-sided operations, checked and carried out here, and the answers
//! that wait to leave.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use overside_memory::kernels;
use overside_verbs::{Access, Memory};

use crate::fate::Fate;
use crate::frame::{Head, Op, READ_CHUNK, WRITE_CHUNK};
use crate::outbound::Outbound;
use crate::registry::{Reach, Registry, reach};
use crate::requests::READING_MAX;

/// The target's side of a connection.
#[derive(Debug)]
pub struct Target {
    /// Requests carried out, ever.
    executed: u64,
    /// How many of them the peer was told of.
    told: u64,
    answers: VecDeque<Answer>,
    reading: usize,
    writing: Option<Writing>,
    /// Where the last answer ends among all bytes ever queued.
    last_end: u64,
}

/// What waits to be told of a request.
#[derive(Debug)]
struct Answer {
    number: u64,
    kind: Effect,
}

#[derive(Debug)]
enum Effect {
    /// Bytes of memory from here on.
    Data {
        reach: Reach,
        at: u64,
        left: u64,
    },
    Value(u64),
    Refused,
}

/// A WRITE of which more is to come.
#[derive(Debug)]
struct Writing {
    /// None: it is refused.
    reach: Option<Reach>,
    at: u64,
    total: u64,
    done: u64,
    immediate: Option<u32>,
    word: [u8; 8],
}

impl Target {
    /// Of a new connection.
    #[allow(clippy::new_without_default, reason = "a connection's state is made where the connection is")]
    pub fn new() -> Self {
        Self { executed: 0, told: 0, answers: VecDeque::new(), reading: 0, writing: None, last_end: 0 }
    }

    /// The number of the request that is being carried out.
    pub fn number(&self) -> u64 {
        self.executed
    }

    /// A request that needs no answer has been carried out.
    pub(crate) fn done(&mut self) {
        self.executed += 1;
    }

    /// Requests carried out that the peer was not told of.
    pub(crate) fn untold(&self) -> u64 {
        self.executed - self.told
    }

    /// What to write into the next frame: everything before it has been carried out, and answered
    /// on this connection.
    pub(crate) fn acked(&mut self) -> u64 {
        let acked = self.answers.front().map_or(self.executed, |answer| answer.number);
        self.told = acked;
        acked
    }

    /// As [`acked`](Self::acked) for a goodbye, before which all is forgotten that has not left,
    /// answers too: of those that would be lost the peer must not hear that they came.
    pub(crate) fn acked_at_end(&mut self, sent: u64) -> u64 {
        if self.last_end <= sent { self.acked() } else { 0 }
    }

    /// Whether answers wait.
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Queues answers as long as there is room for them.
    pub(crate) fn answer(&mut self, out: &mut Outbound, room: u64, mut credits: impl FnMut() -> u32) {
        while out.waiting() < room && self.has_answers() {
            let acked = self.acked();
            let Some(answer) = self.answers.front_mut() else { return };
            let mut head = Head { acked, credits: credits(), len: 0, op: Op::Refused };
            let mut over = true;
            match &mut answer.kind {
                Effect::Refused => out.frame(&head, &[]),
                Effect::Value(value) => {
                    head.op = Op::Value(*value);
                    self.reading -= 1;
                    out.frame(&head, &[]);
                }
                Effect::Data { reach, at, left } => {
                    if let Some(memory) = &*reach.memory() {
                        let len = (*left).min(READ_CHUNK as u64) as usize;
                        (head.op, head.len) = (Op::Data, len as u32);
                        out.frame_with(&head, len, |own| append(memory, *at, len, own));
                        *at += len as u64;
                        *left -= len as u64;
                        over = *left == 0;
                    } else {
                        // It was deregistered meanwhile: what is left of the READ is refused.
                        out.frame(&head, &[]);
                    }
                    self.reading -= usize::from(over);
                }
            }
            self.last_end = out.queued();
            if over {
                self.answers.pop_front();
            }
        }
    }

    /// Carries out a READ or an atomic, as far as the peer may.
    ///
    /// # Errors
    /// When the peer asks for more at a time than any peer of ours does.
    pub(crate) fn execute(&mut self, op: Op, registry: &Registry, domain: u64) -> Result<(), Fate> {
        let kind = match op {
            Op::Read { rkey, at, len } => reach(registry, domain, rkey, Access::REMOTE_READ, at, len)
                .map(|reach| Effect::Data { reach, at, left: len }),
            Op::FetchAdd { rkey, at, add } => reach(registry, domain, rkey, Access::REMOTE_ATOMIC, at, 8)
                .and_then(|reach| word(&reach, at, |word| word.fetch_add(add, Ordering::SeqCst))),
            Op::CompareSwap { rkey, at, compare, swap } => reach(registry, domain, rkey, Access::REMOTE_ATOMIC, at, 8)
                .and_then(|reach| {
                    word(&reach, at, |word| {
                        let swapped = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
                        swapped.unwrap_or_else(|found| found)
                    })
                }),
            _ => return Err(Fate::Malformed("a request that is none")),
        };
        match kind {
            // An empty READ is answered by an acknowledgement with nothing before it; it has no bytes to wait for.
            Some(Effect::Data { left: 0, .. }) => self.push(Effect::Value(0)),
            Some(kind) => self.push(kind),
            None => self.push(Effect::Refused),
        }
    }

    /// Queues an answer to the request that is being carried out, which ends it.
    fn push(&mut self, kind: Effect) -> Result<(), Fate> {
        self.reading += usize::from(!matches!(kind, Effect::Refused));
        if self.reading > READING_MAX || self.answers.len() >= ANSWERS_MAX {
            return Err(Fate::Malformed("more requests under way than its queue can hold"));
        }
        self.answers.push_back(Answer { number: self.executed, kind });
        self.executed += 1;
        Ok(())
    }

    /// Places the first or next part of a WRITE. When it was the last: what the receive that it
    /// consumes is told, if it consumes one.
    ///
    /// # Errors
    /// When parts do not fit together.
    pub(crate) fn write(
        &mut self,
        head: &Head,
        bytes: &[u8],
        registry: &Registry,
        domain: u64,
    ) -> Result<Option<Written>, Fate> {
        match (head.op, &self.writing) {
            (Op::Write { rkey, at, total, immediate }, None) => {
                let reach = reach(registry, domain, rkey, Access::REMOTE_WRITE, at, total);
                self.writing = Some(Writing { reach, at, total, done: 0, immediate, word: [0; 8] });
            }
            (Op::WriteMore, Some(_)) => {}
            _ => return Err(Fate::Malformed("parts of a WRITE out of place")),
        }
        let Some(writing) = &mut self.writing else { return Ok(None) };
        writing.place(bytes)?;
        if writing.done < writing.total {
            return Ok(None);
        }
        let written = Written { immediate: writing.immediate, bytes: writing.total, placed: writing.reach.is_some() };
        self.writing = None;
        match written.placed {
            true => self.executed += 1,
            false => self.push(Effect::Refused)?,
        }
        Ok(Some(written))
    }

    /// Whether a WRITE is under way, so that nothing else may come in between.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Credits that the peer has used and that nothing was taken for yet: a WRITE under way takes
    /// its receive with its last part.
    pub(crate) fn used_credits(&self) -> usize {
        usize::from(self.writing.as_ref().is_some_and(|writing| writing.immediate.is_some()))
    }
}

/// A WRITE that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// It consumes a receive, with this.
    pub(crate) immediate: Option<u32>,
    pub(crate) bytes: u64,
    /// It was allowed.
    pub(crate) placed: bool,
}

impl Writing {
    /// Places the next bytes. The last aligned word of the whole range is held back until all the
    /// rest is there.
    fn place(&mut self, bytes: &[u8]) -> Result<(), Fate> {
        if bytes.len() as u64 > self.total - self.done || bytes.len() > WRITE_CHUNK {
            return Err(Fate::Malformed("more bytes than the WRITE said it has"));
        }
        let (start, end) = (self.at.wrapping_add(self.done), self.at.wrapping_add(self.total));
        self.done += bytes.len() as u64;
        let Some(reach) = self.reach.clone() else { return Ok(()) };
        let memory = reach.memory();
        let Some(Memory::Window(window)) = &*memory else {
            // It was deregistered between two parts: the rest goes nowhere, and the peer is told that it was refused.
            self.reach = None;
            return Ok(());
        };
        let word = (end & !7).saturating_sub(8);
        // A range without an aligned word of its own has no order.
        let held = if self.total >= 8 && word >= self.at { word..word + 8 } else { end..end };
        let cut = |to: u64| (to.clamp(start, start + bytes.len() as u64) - start) as usize;
        let (before, inside) = (cut(held.start), cut(held.end));
        let placed = window.write(start, &bytes[..before]).and(window.write(start + inside as u64, &bytes[inside..]));
        if before < inside {
            let first = (start + before as u64 - held.start) as usize;
            self.word[first..first + inside - before].copy_from_slice(&bytes[before..inside]);
        }
        let placed = match self.done == self.total && !held.is_empty() {
            // An aligned word is stored whole, with release ordering.
            true => placed.and(window.write(held.start, &self.word)),
            false => placed,
        };
        placed.map_err(|_| Fate::Malformed("a WRITE that leaves its window"))
    }
}

/// The word's old value, if it is an aligned word of a window.
fn word(reach: &Reach, at: u64, operation: impl FnOnce(&std::sync::atomic::AtomicU64) -> u64) -> Option<Effect> {
    match &*reach.memory() {
        Some(Memory::Window(window)) => window.word(at).ok().map(|word| Effect::Value(operation(word))),
        Some(Memory::Segment(_)) | None => None,
    }
}

/// Appends a copy of `len` bytes at `at`, whoever may be writing them.
fn append(memory: &Memory, at: u64, len: usize, own: &mut Vec<u8>) {
    let start = own.len();
    own.resize(start + len, 0);
    match memory {
        Memory::Segment(segment) => {
            let inside = at.checked_add(len as u64).is_some_and(|end| end <= segment.len() as u64);
            assert!(inside, "checked when the READ was accepted");
            let source = segment.base().as_ptr().wrapping_add(at as usize);
            // SAFETY: [tcp-read-source] in bounds of a segment that `memory` keeps mapped; the target is ours.
            unsafe { kernels::copy_racing(own[start..].as_mut_ptr(), source, len) };
        }
        // The range was checked against this very window.
        Memory::Window(window) => _ = window.read(at, &mut own[start..]),
    }
}

/// Answers that wait; no peer of ours has more requests under way.
const ANSWERS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{deregister, register};
    use crate::seal::Seal;
    use overside_memory::Window;
    use std::sync::Arc;

    /// Frames that wait: how many bytes of READs, and how many refusals.
    fn answered(out: &mut Outbound) -> (usize, usize) {
        let (bytes, mut at, mut found) = (out.unsent(), 0, (0, 0));
        out.drop_unsent();
        while at < bytes.len() {
            let head = Head::decode(&bytes[at..at + crate::frame::HEAD_MIN]).unwrap();
            at += crate::frame::HEAD_MIN + head.len as usize;
            match head.op {
                Op::Data => found.0 += head.len as usize,
                Op::Refused => found.1 += 1,
                other => panic!("{other:?}"),
            }
        }
        found
    }

    /// A peer that takes its time must not see what the memory's owner does with it afterwards, nor
    /// keep it.
    #[test]
    fn a_read_ends_where_its_memory_is_deregistered() {
        let (registry, mut target) = (Registry::default(), Target::new());
        let mut out = Outbound::new(Seal::new(None), Arc::default(), false);
        let domain = registry.allocate_domain(()).unwrap();
        let window = Arc::new(Window::new(1 << 20).unwrap());
        let region = register(&registry, &domain, &Memory::Window(window.clone()), Access::REMOTE_READ).unwrap();
        let read = Op::Read { rkey: region.token().rkey, at: 0, len: 1 << 20 };
        target.execute(read, &registry, domain.id()).unwrap();
        target.execute(read, &registry, domain.id()).unwrap();
        target.answer(&mut out, 1, || 0);
        assert_eq!(answered(&mut out), (READ_CHUNK, 0), "as much as there was room for");
        deregister(&registry, &region).unwrap();
        drop(region);
        assert_eq!(Arc::strong_count(&window), 1, "the peer's READ keeps it");
        target.answer(&mut out, u64::MAX, || 0);
        assert_eq!(answered(&mut out), (0, 2), "the rest of the first, and the second");
        assert!(!target.has_answers() && target.reading == 0);
    }

    #[test]
    fn a_write_in_parts_ends_where_its_memory_is_deregistered() {
        let (registry, mut target) = (Registry::default(), Target::new());
        let domain = registry.allocate_domain(()).unwrap();
        let window = Arc::new(Window::new(4096).unwrap());
        let region = register(&registry, &domain, &Memory::Window(window.clone()), Access::REMOTE_WRITE).unwrap();
        let first = Op::Write { rkey: region.token().rkey, at: 0, total: 32, immediate: None };
        let part = |op| Head { acked: 0, credits: 0, len: 16, op };
        assert!(target.write(&part(first), &[1; 16], &registry, domain.id()).unwrap().is_none());
        deregister(&registry, &region).unwrap();
        drop(region);
        assert_eq!(Arc::strong_count(&window), 1, "the peer's WRITE keeps it");
        let written = target.write(&part(Op::WriteMore), &[2; 16], &registry, domain.id()).unwrap().unwrap();
        assert!(!written.placed, "the peer is told that all of it was placed");
        let mut there = [0; 32];
        window.read(0, &mut there).unwrap();
        assert_eq!(there[16..], [0; 16]);
        assert!(target.has_answers());
    }

    proptest::proptest! {
        #[test]
        fn a_write_in_parts_places_every_byte_and_no_other(
            at in 0u64..40,
            parts in proptest::collection::vec(1usize..30, 1..6),
        ) {
            let registry = Registry::default();
            let domain = registry.allocate_domain(()).unwrap();
            let window = Arc::new(Window::new(4096).unwrap());
            let region = register(&registry, &domain, &Memory::Window(window.clone()), Access::REMOTE_WRITE).unwrap();
            window.write(0, &[0xEE; 512]).unwrap();
            let total: usize = parts.iter().sum();
            let bytes: Vec<u8> = (0..total as u8).collect();
            let (mut target, mut done) = (Target::new(), 0);
            for (i, part) in parts.iter().enumerate() {
                let rkey = region.token().rkey;
                let first = Op::Write { rkey, at, total: total as u64, immediate: Some(3) };
                let op = if i == 0 { first } else { Op::WriteMore };
                let head = Head { acked: 0, credits: 0, len: *part as u32, op };
                let written = target.write(&head, &bytes[done..done + part], &registry, domain.id()).unwrap();
                done += part;
                assert_eq!(written.is_some(), done == total);
                // The word that says that all is there is not there before.
                let word = (at + total as u64) & !7;
                if done < total && total >= 8 && word.saturating_sub(8) >= at {
                    let mut there = [0; 8];
                    window.read(word - 8, &mut there).unwrap();
                    assert_eq!(there, [0xEE; 8]);
                }
            }
            assert_eq!(target.untold(), 1);
            let mut out = vec![0; 512];
            window.read(0, &mut out).unwrap();
            let at = at as usize;
            assert_eq!(&out[at..at + total], &bytes[..]);
            assert!(out[..at].iter().chain(&out[at + total..]).all(|b| *b == 0xEE));
        }
    }
}
