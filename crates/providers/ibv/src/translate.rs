//! A request in the device's words.

use overside_memory::{Fragment, SegmentId};
use overside_verbs::port::{Payload, RawBuffer, RawRequest, RawWork};
use overside_verbs::{Opcode, VerbsError};
use smallvec::SmallVec;

use crate::bounce::{Block, Bounce};
use crate::ffi::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_sge, ibv_wr_remote,
};
use crate::limits::Limits;
use crate::registry::Registry;
use crate::segments::Segments;
use crate::token;

/// A request that has been accepted and is not yet with the device.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) slot: u32,
    pub(crate) opcode: Opcode,
    pub(crate) bytes: u64,
    pub(crate) signalled: bool,
    /// Whether it consumes a receive of the peer's.
    pub(crate) meets_receive: bool,
    /// It names what no key allows, and fails when its turn comes.
    pub(crate) refused: bool,
    pub(crate) work: u32,
    pub(crate) flags: u32,
    pub(crate) immediate: u32,
    pub(crate) remote: ibv_wr_remote,
    pub(crate) sges: SmallVec<[ibv_sge; 4]>,
    pub(crate) inline: SmallVec<[u8; 64]>,
    /// Memory of the port's own that goes with it.
    pub(crate) block: Option<Block>,
}

impl std::fmt::Debug for ibv_wr_remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ibv_wr_remote").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ibv_sge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ibv_sge").field("length", &self.length).finish_non_exhaustive()
    }
}

/// What a translation needs to know.
#[derive(Debug)]
pub(crate) struct Translator<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) registry: &'a Registry,
    pub(crate) segments: &'a mut Segments,
    pub(crate) bounce: &'a mut Bounce,
    pub(crate) domain: u64,
}

impl Translator<'_> {
    /// The request in the device's words; none when the memory that it needs is lent out for now.
    ///
    /// # Safety
    /// As `Port::post`.
    pub(crate) unsafe fn translate(&mut self, raw: &RawRequest<'_>) -> Result<Option<Request>, VerbsError> {
        let mut request = Request {
            slot: raw.slot,
            opcode: Opcode::Send,
            bytes: 0,
            signalled: raw.signalled,
            meets_receive: false,
            refused: false,
            work: IBV_WR_SEND,
            flags: if raw.fence { IBV_SEND_FENCE } else { 0 },
            immediate: 0,
            remote: ibv_wr_remote { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 },
            sges: SmallVec::new(),
            inline: SmallVec::new(),
            block: None,
        };
        let enough = match raw.work {
            RawWork::Send(payload, immediate) => {
                request.meets_receive = true;
                request.work = if immediate.is_some() { IBV_WR_SEND_WITH_IMM } else { IBV_WR_SEND };
                request.immediate = immediate.unwrap_or(0).to_be();
                // SAFETY: [ibv-posted] the caller's promise.
                unsafe { self.payload(payload, &mut request) }?
            }
            RawWork::SendRegion(_) => return Err(VerbsError::Unsupported("requests of regions; plan without them")),
            RawWork::Write(payload, token, immediate) => {
                request.opcode = Opcode::Write;
                request.meets_receive = immediate.is_some();
                request.work = if immediate.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
                request.immediate = immediate.unwrap_or(0).to_be();
                // SAFETY: [ibv-posted] the caller's promise.
                let enough = unsafe { self.payload(payload, &mut request) }?;
                let len = request.bytes;
                request.aim(&token, len);
                enough
            }
            RawWork::Read(sink, token) => {
                request.opcode = Opcode::Read;
                request.work = IBV_WR_RDMA_READ;
                request.bytes = token.len;
                request.aim(&token, token.len);
                self.sink(sink, &mut request)?;
                true
            }
            RawWork::FetchAdd(token, add) => {
                request.opcode = Opcode::FetchAdd;
                request.work = IBV_WR_ATOMIC_FETCH_AND_ADD;
                request.remote.compare_add = add;
                request.aim(&token, 8);
                self.word(&mut request)?
            }
            RawWork::CompareSwap(token, compare, swap) => {
                request.opcode = Opcode::CompareSwap;
                request.work = IBV_WR_ATOMIC_CMP_AND_SWP;
                request.remote.compare_add = compare;
                request.remote.swap = swap;
                request.aim(&token, 8);
                self.word(&mut request)?
            }
        };
        Ok(enough.then_some(request))
    }

    /// # Safety
    /// As `Port::post`.
    unsafe fn payload(&mut self, payload: Payload<'_>, request: &mut Request) -> Result<bool, VerbsError> {
        match payload {
            Payload::Inline(bytes) => {
                within("an inline payload", bytes.len(), self.limits.inline_max)?;
                request.bytes = bytes.len() as u64;
                request.inline.extend_from_slice(bytes);
                request.flags |= IBV_SEND_INLINE;
                Ok(true)
            }
            Payload::Gather(fragments) => {
                within("a gather list", fragments.len(), self.limits.sge_max)?;
                request.bytes = fragments.iter().map(|f| u64::from(f.len)).sum();
                if request.bytes > self.limits.message_max {
                    let max = self.limits.message_max;
                    return Err(VerbsError::Limit { what: "a message", value: request.bytes, max });
                }
                if fragments.iter().any(|f| f.segment == SegmentId::FOREIGN && f.len > 0) {
                    // SAFETY: [ibv-posted] the caller's promise.
                    return unsafe { self.push(fragments, request) };
                }
                // A device may take an entry of no bytes for one of 2^31.
                for fragment in fragments.iter().filter(|f| f.len > 0) {
                    let place = (fragment.segment, fragment.address, fragment.len as usize);
                    request.sges.push(self.segments.find(place, self.registry, self.domain)?.0);
                }
                Ok(true)
            }
        }
    }

    /// A message of bytes that the device cannot reach, some or all: a short one rides in the
    /// descriptor, of a longer one those bytes are copied to where it can.
    ///
    /// # Safety
    /// As `Port::post`.
    unsafe fn push(&mut self, fragments: &[Fragment], request: &mut Request) -> Result<bool, VerbsError> {
        let foreign = |f: &&Fragment| f.segment == SegmentId::FOREIGN;
        if request.bytes <= self.limits.inline_max as u64 && fragments.iter().all(|f| foreign(&f)) {
            for fragment in fragments.iter().filter(|f| f.len > 0) {
                // SAFETY: [ibv-posted] readable and unchanged until the completion.
                let bytes = unsafe { std::slice::from_raw_parts(fragment.address, fragment.len as usize) };
                request.inline.extend_from_slice(bytes);
            }
            request.flags |= IBV_SEND_INLINE;
            return Ok(true);
        }
        let bytes = fragments.iter().filter(foreign).map(|f| f.len as usize).sum();
        let Some(mut block) = self.bounce.take(bytes)? else { return Ok(false) };
        let mut at = 0;
        for fragment in fragments.iter().filter(|f| f.len > 0) {
            let len = fragment.len as usize;
            if foreign(&fragment) {
                // SAFETY: [ibv-posted] readable and unchanged until the completion.
                unsafe { block.fill(at, fragment.address, len) };
                request.sges.push(block.part(at, len));
                at += len;
                continue;
            }
            match self.segments.find((fragment.segment, fragment.address, len), self.registry, self.domain) {
                Ok((sge, _)) => request.sges.push(sge),
                Err(error) => {
                    self.bounce.give_back(block);
                    return Err(error);
                }
            }
        }
        request.block = Some(block);
        Ok(true)
    }

    fn sink(&mut self, sink: RawBuffer, request: &mut Request) -> Result<(), VerbsError> {
        let len = request.bytes;
        if len > self.limits.message_max || len > sink.len as u64 {
            let max = self.limits.message_max.min(sink.len as u64);
            return Err(VerbsError::Limit { what: "a READ", value: len, max });
        }
        if len > 0 {
            let place = (sink.segment, sink.address.cast_const(), len as usize);
            request.sges.push(self.segments.find(place, self.registry, self.domain)?.0);
        }
        Ok(())
    }

    /// Room for what an atomic finds.
    fn word(&mut self, request: &mut Request) -> Result<bool, VerbsError> {
        request.bytes = 8;
        let Some(block) = self.bounce.take(8)? else { return Ok(false) };
        request.sges.push(block.part(0, 8));
        request.block = Some(block);
        Ok(true)
    }
}

impl Request {
    fn aim(&mut self, token: &overside_verbs::RemoteToken, len: u64) {
        match token::unpack(token, len) {
            Some((address, rkey)) => {
                self.remote.remote_addr = address;
                match self.opcode {
                    Opcode::FetchAdd | Opcode::CompareSwap => self.remote.rkey = rkey,
                    // The union's other member has its key here.
                    _ => self.remote.compare_add = leading(rkey),
                }
            }
            None => self.refused = true,
        }
    }
}

/// A word whose first four bytes in memory are the key.
pub(crate) fn leading(rkey: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&rkey.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

fn within(what: &'static str, value: usize, max: usize) -> Result<(), VerbsError> {
    if value <= max { Ok(()) } else { Err(VerbsError::Limit { what, value: value as u64, max: max as u64 }) }
}
