//! Receives: the shared queue, and those of a queue pair's own.

use std::sync::Arc;

use overside_verbs::ByNumber;
use overside_verbs::port::{QpIndex, RawCompletion, RawReceive};
use overside_verbs::{Opcode, Status, VerbsError};

use crate::completions::Completions;
use crate::ffi::{
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM, ibv_qp_cap, ibv_recv_wr, ibv_sge, ibv_srq_attr, ibv_srq_init_attr,
    ibv_wc,
};
use crate::limits::{self, Limits};
use crate::objects::{Domain, Qp, Srq, refused};
use crate::pair::{OWN, Pair, SHARED, receive_id};

/// The shared receive queue of a port, if it has one.
#[derive(Debug)]
pub(crate) struct Receives {
    queue: Option<Srq>,
    shared_max: usize,
    /// Slots in the shared queue, with their segments.
    shared: ByNumber<u32>,
    posted_ever: bool,
}

type Describe<'a> = &'a mut dyn FnMut(&RawReceive) -> Result<(ibv_sge, u32), VerbsError>;

impl Receives {
    pub(crate) fn new(domain: &Arc<Domain>, shared_max: usize) -> Result<Self, VerbsError> {
        let attr = ibv_srq_attr { max_wr: shared_max as u32, max_sge: 1, srq_limit: 0 };
        let mut wanted = ibv_srq_init_attr { srq_context: std::ptr::null_mut(), attr };
        let queue = if shared_max > 0 { Some(domain.shared_queue(&mut wanted)?) } else { None };
        Ok(Self { queue, shared_max, shared: ByNumber::default(), posted_ever: false })
    }

    /// Whether the shared queue is the one that lies there.
    pub(crate) fn is(&self, address: usize) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.raw.addr().get() == address)
    }

    /// How many fit into the shared queue.
    pub(crate) fn shared_max(&self) -> usize {
        self.shared_max
    }

    /// Whether the shared queue has ever been used.
    pub(crate) fn any(&self) -> bool {
        self.posted_ever
    }

    /// Makes a queue pair with receives of its own, or on the shared queue.
    pub(crate) fn queue_pair(
        &self,
        domain: &Arc<Domain>,
        completions: &Completions,
        limits: &Limits,
        depth: usize,
        which: usize,
    ) -> Result<Qp, VerbsError> {
        let cap = ibv_qp_cap {
            max_send_wr: depth as u32,
            max_recv_wr: if which == OWN { depth as u32 } else { 1 },
            max_send_sge: limits.sge_max as u32,
            max_recv_sge: 1,
            max_inline_data: limits.inline_max as u32,
        };
        let srq = if which == SHARED { self.queue.as_ref() } else { None };
        Ok(limits::make(domain, completions.queue(), srq, cap)?.0)
    }

    /// Posts to the shared queue; returns how many.
    pub(crate) fn post_shared(&mut self, batch: &[RawReceive], find: Describe<'_>) -> Result<usize, VerbsError> {
        let Some(queue) = &self.queue else { return Ok(0) };
        let room = self.shared_max.saturating_sub(self.shared.len()).min(batch.len());
        let raw = queue.raw.as_ptr();
        for (i, receive) in batch[..room].iter().enumerate() {
            let (sge, segment) = match find(receive) {
                Ok(found) => found,
                Err(_) if i > 0 => return Ok(i),
                Err(error) => return Err(error),
            };
            // SAFETY: [ibv-posted] the queue lives; the buffer is the device's until the completion.
            let failed = unsafe {
                let post = (*(*raw).context).ops.post_srq_recv;
                with_list(receive_id(0, receive.slot), sge, |wr, bad| post.map_or(-1, |post| post(raw, wr, bad)))
            };
            match failed {
                0 => {}
                _ if i > 0 => return Ok(i),
                ENOMEM => return Ok(0),
                errno => return Err(refused("ibv_post_srq_recv", errno)),
            }
            self.shared.insert(receive.slot, segment);
            self.posted_ever = true;
        }
        Ok(room)
    }

    /// The segment of a receive in the shared queue.
    pub(crate) fn segment(&self, slot: u32) -> u32 {
        self.shared.get(&slot).copied().unwrap_or(u32::MAX)
    }

    /// A receive of the shared queue has completed; its segment, if it was there.
    pub(crate) fn taken(&mut self, slot: u32) -> Option<u32> {
        self.shared.remove(&slot)
    }

    /// Posts to a queue pair's own queue; returns how many, which are its last receives then.
    pub(crate) fn post_own(
        &self,
        pair: &mut Pair,
        batch: &[RawReceive],
        find: Describe<'_>,
    ) -> Result<usize, VerbsError> {
        let Some(raw) = pair.qps[OWN].as_ref().map(|qp| qp.raw.as_ptr()) else { return Err(VerbsError::Closed) };
        for (i, receive) in batch.iter().enumerate() {
            let (sge, segment) = match find(receive) {
                Ok(found) => found,
                Err(_) if i > 0 => return Ok(i),
                Err(error) => return Err(error),
            };
            // SAFETY: [ibv-posted] the queue pair lives; the buffer is the device's until the completion.
            let failed = unsafe {
                let post = (*(*raw).context).ops.post_recv;
                with_list(receive_id(pair.serial, receive.slot), sge, |wr, bad| {
                    post.map_or(-1, |post| post(raw, wr, bad))
                })
            };
            match failed {
                0 => pair.receives.push_back((receive.slot, segment)),
                _ if i > 0 => return Ok(i),
                ENOMEM => return Ok(0),
                errno => return Err(refused("ibv_post_recv", errno)),
            }
        }
        Ok(batch.len())
    }
}

/// A receive of one entry, as the device is given it.
fn with_list(id: u64, mut sge: ibv_sge, post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32) -> i32 {
    // A device may take an entry of no bytes for one of 2^31.
    let num_sge = i32::from(sge.length > 0);
    let mut wr = ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: &mut sge, num_sge };
    let mut bad = std::ptr::null_mut();
    post(&mut wr, &mut bad)
}

/// A receive that met a message.
pub(crate) fn report(slot: u32, qp: Option<QpIndex>, wc: &ibv_wc) -> RawCompletion {
    let written = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    let opcode = if written { Opcode::ReceiveImmediate } else { Opcode::Receive };
    let immediate = (wc.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(wc.imm_data));
    RawCompletion::new(slot, qp, opcode, Status::Success).with(u64::from(wc.byte_len), immediate)
}

const ENOMEM: i32 = 12;
