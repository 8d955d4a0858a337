//! Bytes on their way out: heads and tags of our own, payloads from where they lie, small pieces of
//! them by way of `stage`.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use crate::frame::{HEAD_MAX, Head, SMALL_BYTES};
use crate::prices::Prices;
use crate::seal::Seal;
use crate::stage::{self, Stage};
use crate::zerocopy::{self, ZeroCopy};

/// A stretch of a posted request's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) address: *const u8,
    pub(crate) len: usize,
}

impl Source {
    /// Its bytes.
    ///
    /// # Safety
    /// It is of a request that was posted and has not completed; the borrow must not outlive that.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: [tcp-posted] the caller's promise: valid and unchanged until the completion.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }
}

/// What goes out next.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// So many bytes of `own`.
    Own(usize),
    /// A posted request's memory.
    Posted(Source),
    /// So many bytes of `stage`, which were a posted request's.
    Staged(usize),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Own(len) | Piece::Staged(len) => *len,
            Piece::Posted(source) => source.len,
        }
    }
}

/// A queue of frames, sent in order; the first may be half gone.
#[derive(Debug)]
pub(crate) struct Outbound {
    seal: Seal,
    zero_copy: ZeroCopy,
    prices: Arc<Prices>,
    /// What the next call takes, and what follows.
    ready: VecDeque<Piece>,
    pieces: VecDeque<Piece>,
    /// Bytes of `Piece::Own`, in order; those before `own_start` are gone.
    own: Vec<u8>,
    own_start: usize,
    /// Bytes of `Piece::Staged`, in order.
    stage: Stage,
    /// Bytes that are ready, and of the first piece of them those that are gone.
    ready_bytes: usize,
    gone: usize,
    /// Bytes queued, and sent, ever.
    queued: u64,
    sent: u64,
    /// Where each frame that is not wholly gone ends, as a count of bytes ever queued.
    ends: VecDeque<u64>,
    /// Where the first of those begins.
    begins: u64,
}

impl Outbound {
    /// Frames with these tags. By the prices short pieces are copied together and, with
    /// `zero_copy`, long ones left to the kernel to send from.
    pub(crate) fn new(seal: Seal, prices: Arc<Prices>, zero_copy: bool) -> Self {
        Self {
            seal,
            zero_copy: ZeroCopy::new(zero_copy.then(|| prices.zero_copy_from())),
            prices,
            ready: VecDeque::new(),
            pieces: VecDeque::new(),
            own: Vec::new(),
            own_start: 0,
            stage: Stage::default(),
            ready_bytes: 0,
            gone: 0,
            queued: 0,
            sent: 0,
            ends: VecDeque::new(),
            begins: 0,
        }
    }

    /// Bytes that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.queued - self.sent
    }

    /// Bytes queued, ever; what was queued up to here has left when [`sent`](Self::sent) says as
    /// much.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    /// Bytes sent, ever.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Queues a frame with a payload of our own, which is copied.
    pub(crate) fn frame(&mut self, head: &Head, payload: &[u8]) {
        self.frame_with(head, payload.len(), |own| own.extend_from_slice(payload));
    }

    /// Queues a frame whose payload of `len` bytes `fill` appends to what it is given.
    pub(crate) fn frame_with(&mut self, head: &Head, len: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        debug_assert_eq!(head.len as usize, len);
        let start = self.own.len();
        self.put_head(head);
        if !head.is_whole() {
            self.tag_head(start);
        }
        let payload = self.own.len();
        fill(&mut self.own);
        debug_assert_eq!(self.own.len() - payload, len);
        if head.is_whole() {
            self.tag_head(start);
        } else if let Some(mut sealing) = self.seal.payload() {
            sealing.add(&self.own[payload..]);
            self.own.extend_from_slice(&sealing.finish());
        }
        self.own_piece(start);
        self.end_frame();
    }

    /// Queues a frame whose payload lies in posted memory, or is `inline`. A small one is copied, a
    /// large one stays where it is; unless it has a tag and lies in small pieces, which are cheaper
    /// to copy than to tag one by one.
    ///
    /// # Safety
    /// The sources stay valid and unchanged until the frame is gone or
    /// [`drop_unsent`](Self::drop_unsent) was called.
    pub(crate) unsafe fn frame_from(&mut self, head: &Head, sources: &[Source], inline: &[u8]) {
        let len = head.len as usize;
        let scattered =
            self.seal.tag_bytes() > 0 && sources.len() * self.prices.copied_max() > len && len <= SCATTERED_BYTES;
        if len <= SMALL_BYTES || !inline.is_empty() || scattered {
            return self.frame_with(head, len, |own| {
                own.extend_from_slice(inline);
                for source in sources {
                    // SAFETY: [tcp-posted] the caller's promise; the borrow ends here.
                    own.extend_from_slice(unsafe { source.bytes() });
                }
            });
        }
        let start = self.own.len();
        self.put_head(head);
        let mut sealing = if head.is_whole() {
            self.seal.whole(&self.own[start..])
        } else {
            self.tag_head(start);
            self.seal.payload()
        };
        self.own_piece(start);
        for source in sources.iter().filter(|source| source.len > 0) {
            if let Some(sealing) = &mut sealing {
                // SAFETY: [tcp-posted] the caller's promise; the borrow ends here.
                sealing.add(unsafe { source.bytes() });
            }
            self.pieces.push_back(Piece::Posted(*source));
            self.queued += source.len as u64;
        }
        if let Some(sealing) = sealing {
            let start = self.own.len();
            self.own.extend_from_slice(&sealing.finish());
            self.own_piece(start);
        }
        self.end_frame();
    }

    /// Sends as much as the system takes now. False: it is full.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> Result<bool, Errno> {
        loop {
            self.stage();
            let Some(first) = self.ready.front() else { return Ok(true) };
            let apart = self.is_apart(first, self.gone) && self.zero_copy.is_ready(&socket);
            let mut sent = self.send(socket.as_fd(), apart);
            if apart && sent.is_err_and(ZeroCopy::is_refused) {
                sent = self.send(socket.as_fd(), false);
            } else if apart && sent.is_ok() {
                self.zero_copy.sent(self.sent);
            }
            let (sent, asked) = match sent {
                Ok(done) => done,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
                Err(errno) => return Err(errno),
            };
            self.advance(sent);
            if sent < asked {
                return Ok(false);
            }
        }
    }

    /// Whether a piece, but for what is gone of it, is worth a call in which the kernel sends from
    /// where it lies.
    fn is_apart(&self, piece: &Piece, gone: usize) -> bool {
        matches!(piece, Piece::Posted(source) if self.zero_copy.wants(source.len - gone))
    }

    /// Makes ready what the next call is to take: small pieces are copied together, as many as
    /// there is room for.
    fn stage(&mut self) {
        let copied_max = self.prices.copied_max();
        while self.ready.len() < IOV_MAX && self.ready_bytes < SEND_BYTES {
            let Some(piece) = self.pieces.front().copied() else { return };
            let len = piece.len();
            match (piece, self.ready.back_mut()) {
                (Piece::Posted(source), last) if len <= copied_max => {
                    if let Some(Piece::Posted(next)) = self.pieces.get(stage::ahead(len))
                        && next.len <= copied_max
                    {
                        stage::ask_for(*next);
                    }
                    // SAFETY: [tcp-posted] `frame_from`'s promise.
                    if !unsafe { self.stage.put(source) } {
                        return;
                    }
                    match last {
                        Some(Piece::Staged(before)) => *before += len,
                        _ => self.ready.push_back(Piece::Staged(len)),
                    }
                }
                (Piece::Own(_), Some(Piece::Own(before))) => *before += len,
                _ => self.ready.push_back(piece),
            }
            self.ready_bytes += len;
            self.pieces.pop_front();
        }
    }

    /// One `sendmsg` of what is ready: bytes that went, and bytes that were offered. `apart`: of
    /// pieces that the kernel is to send from where they lie; our own bytes, which move, are never
    /// among these.
    fn send(&self, socket: impl AsFd, apart: bool) -> Result<(usize, usize), Errno> {
        let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let (mut asked, mut slices) = (0, Vec::with_capacity(self.ready.len()));
        for (at, (piece, bytes)) in self.bytes().take(self.ready.len()).enumerate() {
            if at > 0 && self.is_apart(piece, 0) != apart {
                flags |= SendFlags::MORE;
                break;
            }
            asked += bytes.len();
            slices.push(IoSlice::new(bytes));
        }
        if apart {
            flags |= zerocopy::FLAG;
        }
        let sent = rustix::net::sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags)?;
        Ok((sent, asked))
    }

    /// Whether the kernel may still send from posted memory.
    pub(crate) fn is_lent(&self) -> bool {
        self.zero_copy.is_pending()
    }

    /// Hears whether the kernel has given posted memory back.
    pub(crate) fn hear(&mut self, socket: impl AsFd) {
        self.zero_copy.hear(socket);
    }

    /// How far into all bytes ever queued the kernel needs no posted memory any longer.
    pub(crate) fn released(&self) -> u64 {
        self.zero_copy.released()
    }

    fn advance(&mut self, sent: usize) {
        self.sent += sent as u64;
        let mut left = sent;
        self.ready_bytes -= sent;
        while let Some(piece) = self.ready.front() {
            let now = left.min(piece.len() - self.gone);
            match piece {
                Piece::Own(_) => self.own_start += now,
                Piece::Staged(_) => self.stage.advance(now),
                Piece::Posted(_) => {}
            }
            left -= now;
            self.gone += now;
            if self.gone < piece.len() {
                break;
            }
            self.gone = 0;
            self.ready.pop_front();
        }
        while let Some(end) = self.ends.front().copied().filter(|end| *end <= self.sent) {
            self.begins = end;
            self.ends.pop_front();
        }
        if self.own_start == self.own.len() {
            self.own.clear();
            self.own_start = 0;
            self.own.shrink_to(OWN_KEPT);
        } else if self.own_start > OWN_KEPT {
            self.own.drain(..self.own_start);
            self.own_start = 0;
        }
    }

    /// Forgets every frame that was not begun, and makes the rest of the one that was our own
    /// bytes, if they are few. False: that frame cannot be finished, so nothing can follow it.
    /// After this no posted memory is named.
    pub(crate) fn drop_unsent(&mut self) -> bool {
        let kept_until = match self.ends.front() {
            Some(end) if self.sent > self.begins => *end,
            _ => self.sent,
        };
        let keep = (kept_until - self.sent) as usize;
        let before = self.ends.len();
        self.ends.retain(|end| *end <= kept_until);
        self.seal.take_back((before - self.ends.len()) as u64);
        let rest = if keep <= FINISH_BYTES { self.front(keep) } else { Vec::new() };
        self.pieces = rest.is_empty().then(VecDeque::new).unwrap_or_else(|| VecDeque::from([Piece::Own(rest.len())]));
        (self.ready_bytes, self.gone, self.own_start, self.own) = (0, 0, 0, rest);
        self.ready.clear();
        self.stage.clear();
        self.queued = self.sent + self.own.len() as u64;
        keep == self.own.len()
    }

    /// A copy of the first `len` bytes that wait.
    fn front(&self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len);
        for (_, bytes) in self.bytes() {
            out.extend_from_slice(&bytes[..bytes.len().min(len - out.len())]);
            if out.len() == len {
                break;
            }
        }
        out
    }

    /// The pieces and what of each waits.
    fn bytes(&self) -> impl Iterator<Item = (&Piece, &[u8])> {
        let (mut own, mut staged, mut skip) = (&self.own[self.own_start..], self.stage.bytes(), self.gone);
        self.ready.iter().chain(&self.pieces).map(move |piece| {
            let skip = std::mem::take(&mut skip);
            let bytes = match piece {
                Piece::Own(len) => own.split_off(..len - skip),
                Piece::Staged(len) => staged.split_off(..len - skip),
                // SAFETY: [tcp-posted] `frame_from`'s promise; the borrow ends with the caller's.
                Piece::Posted(source) => Some(unsafe { &source.bytes()[skip..] }),
            };
            (piece, bytes.unwrap_or_default())
        })
    }

    /// A copy of all that waits.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn unsent(&self) -> Vec<u8> {
        self.front(self.waiting() as usize)
    }

    fn put_head(&mut self, head: &Head) {
        let mut bytes = [0; HEAD_MAX];
        let len = head.encode(&mut bytes);
        self.own.extend_from_slice(&bytes[..len]);
    }

    /// Appends the tag of what `own` has from `start` on.
    fn tag_head(&mut self, start: usize) {
        if let Some(tag) = self.seal.head(&[&self.own[start..]]) {
            self.own.extend_from_slice(&tag);
        }
    }

    /// Queues what `own` has from `start` on.
    fn own_piece(&mut self, start: usize) {
        let len = self.own.len() - start;
        self.queued += len as u64;
        match self.pieces.back_mut() {
            Some(Piece::Own(before)) => *before += len,
            _ => self.pieces.push_back(Piece::Own(len)),
        }
    }

    fn end_frame(&mut self) {
        self.seal.next();
        self.ends.push_back(self.queued);
    }
}

/// Most entries that one `sendmsg` takes.
const IOV_MAX: usize = 1024;
/// Enough for one call: the rest would only wait in it.
const SEND_BYTES: usize = 1 << 20;
/// Messages up to here whose pieces are short on average are copied before they are tagged.
const SCATTERED_BYTES: usize = 256 << 10;
/// What `own` may keep allocated.
const OWN_KEPT: usize = 256 << 10;
/// The rest of a frame that is copied, so that a goodbye can follow it.
const FINISH_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Op;

    fn queue(out: &mut Outbound, sizes: &[usize], memory: &[u8]) {
        for size in sizes {
            let head = Head { acked: 0, credits: 0, len: *size as u32, op: Op::Send { immediate: None } };
            let half = size / 2;
            let source = |from: usize, to: usize| Source { address: memory[from..to].as_ptr(), len: to - from };
            // SAFETY: [test] `memory` outlives the queue.
            unsafe { out.frame_from(&head, &[source(0, half), source(half, *size)], &[]) };
        }
    }

    proptest::proptest! {
        /// Whatever part has gone, what is left after forgetting the rest ends the frame that was
        /// begun.
        #[test]
        fn what_was_begun_is_finished_and_the_rest_forgotten(
            sizes in proptest::collection::vec(0usize..5000, 1..6),
            part in 0.0f64..1.0,
            sealed: bool,
        ) {
            let memory: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
            let seal = || Seal::new(sealed.then_some([3; 32]));
            let (mut whole, mut out) = (Outbound::new(seal(), Arc::default(), false), Outbound::new(seal(), Arc::default(), false));
            queue(&mut whole, &sizes, &memory);
            queue(&mut out, &sizes, &memory);
            let all = whole.front(whole.waiting() as usize);
            let cut = (all.len() as f64 * part) as usize;
            let ends = out.ends.clone();
            let mut left = cut;
            while left > 0 {
                out.stage();
                let now = left.min(out.ready_bytes);
                out.advance(now);
                left -= now;
            }
            assert!(out.drop_unsent());
            let end = if ends.contains(&(cut as u64)) || cut == 0 {
                cut
            } else {
                *ends.iter().find(|end| **end > cut as u64).unwrap() as usize
            };
            assert_eq!(out.front(out.waiting() as usize), &all[cut..end]);
            // The next frame's tag counts on from there.
            let begun = ends.iter().filter(|e| **e as usize <= end).count();
            let bye = Head { acked: 0, credits: 0, len: 0, op: Op::Ack };
            out.frame(&bye, &[]);
            let mut fresh = seal();
            (0..begun).for_each(|_| fresh.next());
            let sent = out.front(out.waiting() as usize);
            let bytes = &sent[end - cut..];
            assert!(fresh.head_holds(&[&bytes[..24]], &bytes[24..]));
        }
    }
    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

        /// Whatever the system takes at a time, and wherever pieces were copied or not, the same
        /// bytes go out in order.
        #[test]
        fn what_was_queued_goes_out_in_order(
            sizes in proptest::collection::vec(0usize..9000, 1..60),
            reads in proptest::collection::vec(1usize..40_000, 1..20),
            forgets in 0usize..40,
        ) {
            let memory: Vec<u8> = (0..9000u32).map(|i| (i * 7) as u8).collect();
            let mut out = Outbound::new(Seal::new(None), Arc::default(), false);
            queue(&mut out, &sizes, &memory);
            let expected = out.unsent();
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
            let (mut got, mut turn) = (Vec::new(), 0);
            while !out.flush(&ours).unwrap() {
                let mut part = vec![0; reads[turn % reads.len()]];
                let len = rustix::io::read(&theirs, &mut part).unwrap();
                got.extend_from_slice(&part[..len]);
                turn += 1;
                // In the middle of anything the rest can be forgotten.
                if turn == forgets + 1 && out.drop_unsent() {
                    assert!(out.flush(&ours).unwrap() || out.waiting() > 0);
                }
            }
            drop(ours);
            std::io::Read::read_to_end(&mut &theirs, &mut got).unwrap();
            assert!(expected.starts_with(&got));
            assert!(turn > forgets || got.len() == expected.len());
        }
    }
}
