//! The library's objects, each ended by whoever owns it last. A forked child ends none of them:
//! they are its parent's.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use overside_memory::{Segment, Window};
use overside_verbs::watch::failed;
use overside_verbs::{ForkMark, Memory, VerbsError};
use rustix::fs::OFlags;

use crate::ffi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr,
    ibv_srq, ibv_srq_init_attr,
};
use crate::library::Library;

/// An opened device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) raw: NonNull<ibv_context>,
    pub(crate) library: &'static Library,
    pub(crate) fork: ForkMark,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) raw: NonNull<ibv_pd>,
    pub(crate) context: Arc<Context>,
}

/// A memory region; it keeps its memory.
#[derive(Debug)]
pub(crate) struct Region {
    raw: NonNull<ibv_mr>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// The device's address of its first byte.
    pub(crate) iova: u64,
    /// The processor's.
    base: usize,
    len: usize,
    domain: Arc<Domain>,
    _memory: Memory,
}

/// Where a completion queue announces itself.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) raw: NonNull<ibv_comp_channel>,
    pub(crate) context: Arc<Context>,
}

/// A completion queue of the device.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) raw: NonNull<ibv_cq>,
    pub(crate) channel: Channel,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) raw: NonNull<ibv_srq>,
    domain: Arc<Domain>,
}

/// A queue pair of the device. Dropping it ends it: afterwards the device touches no memory for it.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) raw: NonNull<ibv_qp>,
    pub(crate) domain: Arc<Domain>,
}

// SAFETY: [ibv-object] the library's functions may be called from any thread; an object is ended once.
unsafe impl Send for Context {}
// SAFETY: [ibv-object] as above.
unsafe impl Sync for Context {}
// SAFETY: [ibv-object] as above.
unsafe impl Send for Domain {}
// SAFETY: [ibv-object] as above.
unsafe impl Sync for Domain {}
// SAFETY: [ibv-object] as above.
unsafe impl Send for Region {}
// SAFETY: [ibv-object] as above.
unsafe impl Sync for Region {}
// SAFETY: [ibv-object] as above.
unsafe impl Send for Channel {}
// SAFETY: [ibv-object] as above.
unsafe impl Send for Cq {}
// SAFETY: [ibv-object] as above.
unsafe impl Send for Srq {}
// SAFETY: [ibv-object] as above.
unsafe impl Send for Qp {}

impl Context {
    /// What the device can do.
    pub(crate) fn attributes(&self) -> Result<ibv_device_attr, VerbsError> {
        // SAFETY: [ibv-plain] zeros are a value of it.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: [ibv-object] the context lives; the structure has the library's size.
        let failed = unsafe { (self.library.ibv_query_device)(self.raw.as_ptr(), &mut attributes) };
        if failed == 0 { Ok(attributes) } else { Err(refused("ibv_query_device", failed)) }
    }

    /// What a port of the device says.
    pub(crate) fn port(&self, port: u8) -> Result<ibv_port_attr, VerbsError> {
        // SAFETY: [ibv-plain] zeros are a value of it.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: [ibv-object] the context lives; the structure is as long as any that the library fills.
        let failed = unsafe { (self.library.ibv_query_port)(self.raw.as_ptr(), port, &mut attributes) };
        if failed == 0 { Ok(attributes) } else { Err(refused("ibv_query_port", failed)) }
    }

    /// An entry of a port's table of addresses; none when it is empty.
    pub(crate) fn gid(&self, port: u8, index: i32) -> Option<[u8; 16]> {
        let mut gid = [0; 16];
        // SAFETY: [ibv-object] the context lives; 16 bytes are filled.
        let failed = unsafe { (self.library.ibv_query_gid)(self.raw.as_ptr(), port, index, &mut gid) };
        (failed == 0 && gid != [0; 16]).then_some(gid)
    }

    /// Where the device tells of what concerns no request.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: [ibv-object] the context keeps its descriptor open.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }
}

impl Domain {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: [ibv-object] the context lives as long as the domain, which keeps it.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw.as_ptr()) };
        Ok(Self { raw: made("ibv_alloc_pd", raw)?, context: context.clone() })
    }

    /// Registers memory at a place of the device's address space, by which peers name it.
    pub(crate) fn register(self: &Arc<Self>, memory: &Memory, iova: u64, access: u32) -> Result<Region, VerbsError> {
        let (base, len) = place(memory)?;
        // SAFETY: [ibv-object] [ibv-registered] mapped as long as the region, which keeps the memory.
        let raw = unsafe {
            (self.context.library.ibv_reg_mr_iova)(self.raw.as_ptr(), base.cast(), len, iova, access as c_int)
        };
        let raw = NonNull::new(raw).ok_or_else(|| registration_failed(len))?;
        // SAFETY: [ibv-object] just made.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Region { raw, lkey, rkey, iova, base: base as usize, len, domain: self.clone(), _memory: memory.clone() })
    }

    pub(crate) fn queue_pair(self: &Arc<Self>, wanted: &mut ibv_qp_init_attr) -> Result<Qp, VerbsError> {
        // SAFETY: [ibv-object] the queues that `wanted` names live as long as the queue pair: their owner drops them after it.
        let raw = unsafe { (self.context.library.ibv_create_qp)(self.raw.as_ptr(), wanted) };
        Ok(Qp { raw: made("ibv_create_qp", raw)?, domain: self.clone() })
    }

    pub(crate) fn shared_queue(self: &Arc<Self>, wanted: &mut ibv_srq_init_attr) -> Result<Srq, VerbsError> {
        // SAFETY: [ibv-object] the domain lives.
        let raw = unsafe { (self.context.library.ibv_create_srq)(self.raw.as_ptr(), wanted) };
        Ok(Srq { raw: made("ibv_create_srq", raw)?, domain: self.clone() })
    }
}

impl Region {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The device's address of bytes of this region; none when they leave it.
    #[inline]
    pub(crate) fn device_address(&self, address: *const u8, len: usize) -> Option<u64> {
        let at = (address as usize).wrapping_sub(self.base);
        (at <= self.len && len <= self.len - at).then_some(self.iova + at as u64)
    }
}

impl Channel {
    fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: [ibv-object] the context lives as long as the channel, which keeps it.
        let raw = unsafe { (context.library.ibv_create_comp_channel)(context.raw.as_ptr()) };
        let channel = Self { raw: made("ibv_create_comp_channel", raw)?, context: context.clone() };
        nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: [ibv-object] the channel keeps its descriptor open.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd as RawFd) }
    }
}

impl Cq {
    pub(crate) fn new(context: &Arc<Context>, entries: u32) -> Result<Self, VerbsError> {
        let channel = Channel::new(context)?;
        // SAFETY: [ibv-object] context and channel live as long as the queue, which keeps both.
        let raw = unsafe {
            (context.library.ibv_create_cq)(
                context.raw.as_ptr(),
                entries as c_int,
                std::ptr::null_mut(),
                channel.raw.as_ptr(),
                0,
            )
        };
        Ok(Self { raw: made("ibv_create_cq", raw)?, channel })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if !context.fork.inherited() {
            // SAFETY: [ibv-object] ended once, by its owner, and made by this process.
            unsafe { (context.library.ibv_destroy_qp)(self.raw.as_ptr()) };
        }
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if !context.fork.inherited() {
            // SAFETY: [ibv-object] as above; its queue pairs are gone.
            unsafe { (context.library.ibv_destroy_srq)(self.raw.as_ptr()) };
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let context = &self.channel.context;
        if !context.fork.inherited() {
            // SAFETY: [ibv-object] as above; every event of it was acknowledged when it was taken.
            unsafe { (context.library.ibv_destroy_cq)(self.raw.as_ptr()) };
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.context.fork.inherited() {
            // SAFETY: [ibv-object] as above; its completion queue is gone.
            unsafe { (self.context.library.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let context = &self.domain.context;
        if !context.fork.inherited() {
            // SAFETY: [ibv-object] [ibv-registered] as above; no request in flight names it.
            unsafe { (context.library.ibv_dereg_mr)(self.raw.as_ptr()) };
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.context.fork.inherited() {
            // SAFETY: [ibv-object] as above; whatever was made in it keeps it.
            unsafe { (self.context.library.ibv_dealloc_pd)(self.raw.as_ptr()) };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.fork.inherited() {
            // SAFETY: [ibv-object] as above; whatever was made in it keeps it.
            unsafe { (self.library.ibv_close_device)(self.raw.as_ptr()) };
        }
    }
}

/// Where memory begins, and how long it is.
pub(crate) fn place(memory: &Memory) -> Result<(*mut u8, usize), VerbsError> {
    match memory {
        Memory::Segment(segment) => Ok((segment_base(segment), segment.len())),
        Memory::Window(window) => Ok((window_base(window)?, window.len())),
    }
}

fn segment_base(segment: &Segment) -> *mut u8 {
    segment.base().as_ptr()
}

fn window_base(window: &Window) -> Result<*mut u8, VerbsError> {
    Ok(window.word(0)?.as_ptr().cast())
}

/// So that whoever finds nothing in it does not sleep.
pub(crate) fn nonblocking(fd: BorrowedFd<'_>) -> Result<(), VerbsError> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|e| failed("fcntl", e))?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(|e| failed("fcntl", e))
}

/// The library answers null and leaves the reason in errno.
pub(crate) fn made<T>(what: &'static str, raw: *mut T) -> Result<NonNull<T>, VerbsError> {
    NonNull::new(raw).ok_or_else(|| VerbsError::System { what, reason: std::io::Error::last_os_error().to_string() })
}

/// The library answers an error number.
pub(crate) fn refused(what: &'static str, errno: c_int) -> VerbsError {
    let errno = if errno > 0 { std::io::Error::from_raw_os_error(errno) } else { std::io::Error::last_os_error() };
    VerbsError::System { what, reason: errno.to_string() }
}

fn registration_failed(len: usize) -> VerbsError {
    let error = std::io::Error::last_os_error();
    let advice = match error.raw_os_error() {
        Some(ENOMEM) => "; raise the limit of locked memory (ulimit -l), registered memory is never swapped out",
        _ => "",
    };
    VerbsError::System { what: "registering memory", reason: format!("{error} ({len} bytes){advice}") }
}

const ENOMEM: i32 = 12;
