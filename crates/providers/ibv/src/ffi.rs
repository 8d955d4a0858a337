//! The few structures and constants of libibverbs that this provider needs, declared as in
//! `infiniband/verbs.h`.
//!
//! A test compiles the installed header, where there is one, and compares every size and offset.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Declares a structure, and for the test the offset of each of its fields.
macro_rules! structure {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$meta])*
        #[allow(non_camel_case_types)]
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name { $(pub(crate) $field: $kind),* }

        #[cfg(test)]
        impl $name {
            pub(crate) fn layout() -> (&'static str, usize, Vec<(&'static str, usize)>) {
                let fields = vec![$((stringify!($field), std::mem::offset_of!($name, $field))),*];
                (stringify!($name), size_of::<$name>(), fields)
            }
        }
    };
}

structure!(
    /// The operations that `verbs.h` calls through the context instead of exporting them.
    ibv_context_ops {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Unused,
        bind_mw: Unused,
        dealloc_mw: Unused,
        _compat_create_cq: Unused,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }
);

structure!(
    /// An opened device; what follows `async_fd` is the library's.
    ibv_context { device: *mut ibv_device, ops: ibv_context_ops, cmd_fd: c_int, async_fd: c_int }
);

structure!(ibv_pd { context: *mut ibv_context, handle: u32 });

structure!(ibv_mr {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    lkey: u32,
    rkey: u32,
});

structure!(
    /// What follows `cqe` is the library's.
    ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
    }
);

structure!(
    /// What follows `qp_type` is the library's.
    ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
    }
);

structure!(
    /// What follows `handle` is the library's.
    ibv_srq { context: *mut ibv_context, srq_context: *mut c_void, pd: *mut ibv_pd, handle: u32 }
);

structure!(ibv_comp_channel { context: *mut ibv_context, fd: c_int, refcnt: c_int });

structure!(ibv_sge { addr: u64, length: u32, lkey: u32 });

structure!(
    /// `wr` and `tail` are the unions `wr`, `qp_type` and the last one.
    ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data: u32,
        wr: ibv_wr_remote,
        qp_type: u64,
        bind_mw: [u64; 6],
    }
);

structure!(
    /// The member `atomic` of the union `wr`; `rdma` shares its first word.
    ibv_wr_remote { remote_addr: u64, compare_add: u64, swap: u64, rkey: u32 }
);

structure!(ibv_recv_wr { wr_id: u64, next: *mut ibv_recv_wr, sg_list: *mut ibv_sge, num_sge: c_int });

structure!(ibv_wc {
    wr_id: u64,
    status: c_uint,
    opcode: c_uint,
    vendor_err: u32,
    byte_len: u32,
    imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
});

structure!(ibv_global_route { dgid: [u64; 2], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8 });

structure!(ibv_ah_attr {
    grh: ibv_global_route,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
});

structure!(ibv_qp_cap {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
});

structure!(ibv_qp_attr {
    qp_state: c_uint,
    cur_qp_state: c_uint,
    path_mtu: c_uint,
    path_mig_state: c_uint,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: c_uint,
    cap: ibv_qp_cap,
    ah_attr: ibv_ah_attr,
    alt_ah_attr: ibv_ah_attr,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
});

structure!(ibv_qp_init_attr {
    qp_context: *mut c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    cap: ibv_qp_cap,
    qp_type: c_uint,
    sq_sig_all: c_int,
});

structure!(ibv_srq_attr { max_wr: u32, max_sge: u32, srq_limit: u32 });

structure!(ibv_srq_init_attr { srq_context: *mut c_void, attr: ibv_srq_attr });

structure!(ibv_device_attr {
    fw_ver: [c_char; 64],
    node_guid: u64,
    sys_image_guid: u64,
    max_mr_size: u64,
    page_size_cap: u64,
    vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    max_qp: c_int,
    max_qp_wr: c_int,
    device_cap_flags: c_uint,
    max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    max_res_rd_atom: c_int,
    max_qp_init_rd_atom: c_int,
    max_ee_init_rd_atom: c_int,
    atomic_cap: c_uint,
    max_ee: c_int,
    max_rdd: c_int,
    max_mw: c_int,
    max_raw_ipv6_qp: c_int,
    max_raw_ethy_qp: c_int,
    max_mcast_grp: c_int,
    max_mcast_qp_attach: c_int,
    max_total_mcast_qp_attach: c_int,
    max_ah: c_int,
    max_fmr: c_int,
    max_map_per_fmr: c_int,
    max_srq: c_int,
    max_srq_wr: c_int,
    max_srq_sge: c_int,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    phys_port_cnt: u8,
});

structure!(ibv_port_attr {
    state: c_uint,
    max_mtu: c_uint,
    active_mtu: c_uint,
    gid_tbl_len: c_int,
    port_cap_flags: u32,
    max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pkey_tbl_len: u16,
    lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    active_width: u8,
    active_speed: u8,
    phys_state: u8,
    link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
});

structure!(
    /// `element` is a union of pointers.
    ibv_async_event { element: *mut c_void, event_type: c_uint }
);

/// The library's alone.
#[allow(non_camel_case_types)]
#[repr(C)]
pub(crate) struct ibv_device {
    private: [u8; 0],
}

/// A place in the table of operations that nobody calls.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

macro_rules! constants {
    ($kind:ty: $($name:ident = $value:expr),* $(,)?) => {
        $(pub(crate) const $name: $kind = $value;)*

        #[cfg(test)]
        pub(crate) const CONSTANTS: &[(&str, $kind)] = &[$((stringify!($name), $value)),*];
    };
}

constants!(c_uint:
    IBV_WC_SUCCESS = 0,
    IBV_WC_LOC_LEN_ERR = 1,
    IBV_WC_LOC_QP_OP_ERR = 2,
    IBV_WC_LOC_EEC_OP_ERR = 3,
    IBV_WC_LOC_PROT_ERR = 4,
    IBV_WC_WR_FLUSH_ERR = 5,
    IBV_WC_MW_BIND_ERR = 6,
    IBV_WC_BAD_RESP_ERR = 7,
    IBV_WC_LOC_ACCESS_ERR = 8,
    IBV_WC_REM_INV_REQ_ERR = 9,
    IBV_WC_REM_ACCESS_ERR = 10,
    IBV_WC_REM_OP_ERR = 11,
    IBV_WC_RETRY_EXC_ERR = 12,
    IBV_WC_RNR_RETRY_EXC_ERR = 13,
    IBV_WC_LOC_RDD_VIOL_ERR = 14,
    IBV_WC_REM_INV_RD_REQ_ERR = 15,
    IBV_WC_REM_ABORT_ERR = 16,
    IBV_WC_INV_EECN_ERR = 17,
    IBV_WC_INV_EEC_STATE_ERR = 18,
    IBV_WC_FATAL_ERR = 19,
    IBV_WC_RESP_TIMEOUT_ERR = 20,
    IBV_WC_GENERAL_ERR = 21,
    IBV_WC_TM_ERR = 22,
    IBV_WC_TM_RNDV_INCOMPLETE = 23,
    IBV_WC_RECV_RDMA_WITH_IMM = 129,
    IBV_WC_WITH_IMM = 2,
    IBV_WR_RDMA_WRITE = 0,
    IBV_WR_RDMA_WRITE_WITH_IMM = 1,
    IBV_WR_SEND = 2,
    IBV_WR_SEND_WITH_IMM = 3,
    IBV_WR_RDMA_READ = 4,
    IBV_WR_ATOMIC_CMP_AND_SWP = 5,
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
    IBV_SEND_FENCE = 1,
    IBV_SEND_SIGNALED = 2,
    IBV_SEND_INLINE = 8,
    IBV_QPT_RC = 2,
    IBV_QPS_INIT = 1,
    IBV_QPS_RTR = 2,
    IBV_QPS_RTS = 3,
    IBV_QPS_ERR = 6,
    IBV_QP_STATE = 1,
    IBV_QP_ACCESS_FLAGS = 1 << 3,
    IBV_QP_PKEY_INDEX = 1 << 4,
    IBV_QP_PORT = 1 << 5,
    IBV_QP_AV = 1 << 7,
    IBV_QP_PATH_MTU = 1 << 8,
    IBV_QP_TIMEOUT = 1 << 9,
    IBV_QP_RETRY_CNT = 1 << 10,
    IBV_QP_RNR_RETRY = 1 << 11,
    IBV_QP_RQ_PSN = 1 << 12,
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    IBV_QP_MIN_RNR_TIMER = 1 << 15,
    IBV_QP_SQ_PSN = 1 << 16,
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    IBV_QP_DEST_QPN = 1 << 20,
    IBV_ACCESS_LOCAL_WRITE = 1,
    IBV_ACCESS_REMOTE_WRITE = 2,
    IBV_ACCESS_REMOTE_READ = 4,
    IBV_ACCESS_REMOTE_ATOMIC = 8,
    IBV_PORT_ACTIVE = 4,
    IBV_ATOMIC_NONE = 0,
    IBV_EVENT_CQ_ERR = 0,
    IBV_EVENT_QP_FATAL = 1,
    IBV_EVENT_QP_REQ_ERR = 2,
    IBV_EVENT_QP_ACCESS_ERR = 3,
    IBV_EVENT_DEVICE_FATAL = 8,
    IBV_EVENT_SRQ_ERR = 14,
);
