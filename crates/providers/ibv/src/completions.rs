//! The device's completion queue, and its news.

use std::os::fd::BorrowedFd;

use overside_verbs::VerbsError;

use crate::ffi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
    IBV_EVENT_SRQ_ERR, ibv_async_event, ibv_qp, ibv_wc,
};
use crate::objects::{Cq, refused};
use crate::provider::Shared;
use crate::registry::Letter;
use crate::status;

/// Polled, or announced on a descriptor once it has been armed.
#[derive(Debug)]
pub(crate) struct Completions {
    cq: Cq,
    /// Entries there are, and entries that what is posted may need.
    entries: usize,
    needed: usize,
    entries_max: usize,
}

impl Completions {
    /// With room for `needed` requests whatever connections come, and for `more` of these before it
    /// grows.
    pub(crate) fn new(shared: &Shared, needed: usize, more: usize) -> Result<Self, VerbsError> {
        let entries = (needed + more).min(shared.limits.completions_max);
        let cq = Cq::new(&shared.device.context, entries as u32)?;
        Ok(Self { cq, entries, needed, entries_max: shared.limits.completions_max })
    }

    /// Whether the device's queue is the one that lies there.
    pub(crate) fn is(&self, address: usize) -> bool {
        self.cq.raw.addr().get() == address
    }

    pub(crate) fn queue(&self) -> &Cq {
        &self.cq
    }

    /// Makes sure that `more` requests beyond those known find room: an overrun would be the end of
    /// everything.
    pub(crate) fn make_room(&mut self, more: usize) -> Result<(), VerbsError> {
        let needed = self.needed + more;
        if needed > self.entries_max {
            let (what, max) = ("the completion queue's entries", self.entries_max as u64);
            return Err(VerbsError::Limit { what, value: needed as u64, max });
        }
        if needed > self.entries {
            let entries = (self.entries * 2).max(needed).min(self.entries_max);
            // SAFETY: [ibv-object] the queue lives.
            let failed =
                unsafe { (self.cq.channel.context.library.ibv_resize_cq)(self.cq.raw.as_ptr(), entries as i32) };
            if failed != 0 {
                return Err(refused("ibv_resize_cq", failed));
            }
            self.entries = entries;
        }
        self.needed = needed;
        Ok(())
    }

    /// So many requests can complete no more.
    pub(crate) fn returned(&mut self, fewer: usize) {
        self.needed = self.needed.saturating_sub(fewer);
    }

    /// Takes completions; returns how many.
    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [ibv_wc]) -> usize {
        let cq = self.cq.raw.as_ptr();
        // SAFETY: [ibv-object] the queue lives, and `out` has that many places.
        let count =
            unsafe { (*(*cq).context).ops.poll_cq.map_or(0, |poll| poll(cq, out.len() as i32, out.as_mut_ptr())) };
        usize::try_from(count).unwrap_or(0).min(out.len())
    }

    /// Readable when there may be something to take.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.cq.channel.fd()
    }

    /// Has the descriptor become readable at the next completion, and not for earlier ones.
    pub(crate) fn arm(&mut self) -> Result<(), VerbsError> {
        self.quiet();
        let cq = self.cq.raw.as_ptr();
        // SAFETY: [ibv-object] the queue lives.
        let failed = unsafe { (*(*cq).context).ops.req_notify_cq.map_or(-1, |notify| notify(cq, 0)) };
        if failed == 0 { Ok(()) } else { Err(refused("ibv_req_notify_cq", failed)) }
    }

    /// Takes announcements off the descriptor.
    pub(crate) fn quiet(&mut self) {
        let library = self.cq.channel.context.library;
        let (mut cq, mut nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: [ibv-object] the channel lives and does not block; its one queue is acknowledged for each announcement.
        unsafe {
            while (library.ibv_get_cq_event)(self.cq.channel.raw.as_ptr(), &mut cq, &mut nothing) == 0 {
                (library.ibv_ack_cq_events)(cq, 1);
            }
        }
    }

    /// Takes the device's news, and tells every port that it concerns.
    pub(crate) fn device_events(&self, shared: &Shared) {
        let context = &shared.device.context;
        let mut event = ibv_async_event { element: std::ptr::null_mut(), event_type: 0 };
        // SAFETY: [ibv-object] the context lives and does not block.
        while unsafe { (context.library.ibv_get_async_event)(context.raw.as_ptr(), &mut event) } == 0 {
            let failed = match event.event_type {
                // SAFETY: [ibv-object] until it is acknowledged, the queue pair that an event names is not freed.
                kind @ (IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR) => unsafe {
                    Some(Letter::Pair((*event.element.cast::<ibv_qp>()).qp_num, status::event(kind)))
                },
                IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR => Some(Letter::Queue(event.element.addr())),
                IBV_EVENT_DEVICE_FATAL => Some(Letter::Device),
                _ => None,
            };
            failed.into_iter().for_each(|failed| shared.registry.announce(|| failed));
            // SAFETY: [ibv-object] once for each event.
            unsafe { (context.library.ibv_ack_async_event)(&mut event) };
        }
    }
}
