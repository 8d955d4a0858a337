//! A device for tests, within this process: it counts what is registered, and carries out each
//! WRITE and READ as it is posted.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use overside_verbs::ForkMark;

use crate::ffi::{
    IBV_SEND_INLINE, IBV_WR_RDMA_READ, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_send_wr, ibv_wc,
};
use crate::library::Library;
use crate::objects::Context;

/// What was asked of this thread's device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// Where memory begins that was registered; its key is its place, from 1.
    pub(crate) registered: Vec<*mut u8>,
    pub(crate) deregistered: usize,
    /// Of each request, in the order of posting.
    pub(crate) opcodes: Vec<u32>,
    /// The queue of each that has not been reported.
    unreported: Vec<*mut ibv_cq>,
}

thread_local! {
    static ASKED: RefCell<Asked> = RefCell::default();
}

/// What was asked since the last [`open`].
pub(crate) fn asked() -> Asked {
    ASKED.with_borrow(Asked::clone)
}

/// A new device, as opened by this thread, which alone may use it.
pub(crate) fn open() -> Arc<Context> {
    ASKED.take();
    let library = Library {
        ibv_close_device: close_device,
        ibv_alloc_pd: alloc_pd,
        ibv_dealloc_pd: dealloc_pd,
        ibv_reg_mr_iova: reg_mr,
        ibv_dereg_mr: dereg_mr,
        ibv_create_cq: create_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_create_qp: create_qp,
        ibv_modify_qp: modify_qp,
        ibv_destroy_qp: destroy_qp,
        ..Library::absent()
    };
    let mut context: ibv_context = blank();
    context.ops.post_send = Some(post_send);
    context.ops.poll_cq = Some(poll_cq);
    let raw = NonNull::from(Box::leak(Box::new(context)));
    Arc::new(Context { raw, library: Box::leak(Box::new(library)), fork: ForkMark::new().unwrap() })
}

fn blank<T: Copy>() -> T {
    // SAFETY: [ibv-plain] asked of the library's structures alone, of which zeros are a value.
    unsafe { std::mem::zeroed() }
}

fn made<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// # Safety
/// `object` is of [`made`], and ended once.
unsafe fn ended<T>(object: *mut T) -> c_int {
    // SAFETY: [ibv-object] as said.
    drop(unsafe { Box::from_raw(object) });
    0
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: [ibv-object] ended by its owner.
    unsafe { ended(context) }
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    made(ibv_pd { context, ..blank() })
}

unsafe extern "C" fn dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: [ibv-object] ended by its owner.
    unsafe { ended(domain) }
}

unsafe extern "C" fn reg_mr(_: *mut ibv_pd, at: *mut c_void, _: usize, _: u64, _: c_int) -> *mut ibv_mr {
    ASKED.with_borrow_mut(|asked| {
        asked.registered.push(at.cast());
        let key = asked.registered.len() as u32;
        made(ibv_mr { lkey: key, rkey: key, ..blank() })
    })
}

unsafe extern "C" fn dereg_mr(region: *mut ibv_mr) -> c_int {
    ASKED.with_borrow_mut(|asked| asked.deregistered += 1);
    // SAFETY: [ibv-object] ended by its owner.
    unsafe { ended(region) }
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    _: c_int,
    _: *mut c_void,
    _: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    made(ibv_cq { context, ..blank() })
}

unsafe extern "C" fn destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: [ibv-object] ended by its owner.
    unsafe { ended(queue) }
}

unsafe extern "C" fn create_qp(domain: *mut ibv_pd, wanted: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: [ibv-object] the domain lives, and what is wanted is read during the call.
    let (context, send_cq) = unsafe { ((*domain).context, (*wanted).send_cq) };
    made(ibv_qp { context, send_cq, qp_num: 7, ..blank() })
}

unsafe extern "C" fn modify_qp(_: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: [ibv-object] ended by its owner.
    unsafe { ended(pair) }
}

unsafe extern "C" fn post_send(pair: *mut ibv_qp, mut request: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    ASKED.with_borrow_mut(|asked| {
        // SAFETY: [ibv-object] requests and their entries are read during the call.
        while let Some(one) = unsafe { request.as_ref() } {
            // SAFETY: [ibv-object] as above; each has one entry.
            let entry = unsafe { *one.sg_list };
            let key = one.wr.compare_add.to_ne_bytes();
            let key = u32::from_ne_bytes([key[0], key[1], key[2], key[3]]);
            let place = |key: u32, at: u64| asked.registered[key as usize - 1].wrapping_add(at as usize);
            let far = place(key, one.wr.remote_addr);
            let near = match one.send_flags & IBV_SEND_INLINE {
                0 => place(entry.lkey, entry.addr),
                _ => entry.addr as *mut u8,
            };
            let (from, to) = if one.opcode == IBV_WR_RDMA_READ { (far, near) } else { (near, far) };
            // SAFETY: [ibv-wire] the memory is registered, and as long as the test says.
            unsafe { std::ptr::copy(from, to, entry.length as usize) };
            asked.opcodes.push(one.opcode);
            // SAFETY: [ibv-object] the queue pair lives.
            asked.unreported.push(unsafe { (*pair).send_cq });
            request = one.next;
        }
    });
    0
}

/// All that has ended, where there is room for it.
unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, places: c_int, out: *mut ibv_wc) -> c_int {
    ASKED.with_borrow_mut(|asked| {
        let before = asked.unreported.len();
        asked.unreported.retain(|of| *of != queue);
        let count = before - asked.unreported.len();
        assert!(count <= places as usize, "{count} at a time");
        // SAFETY: [ibv-object] there are so many places. Zeros are a success.
        (0..count).for_each(|at| unsafe { out.add(at).write(blank()) });
        count as c_int
    })
}
