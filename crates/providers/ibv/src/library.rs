//! libibverbs, loaded when it is first asked for. Nothing is needed to build or to run without it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::ffi::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd, ibv_port_attr,
    ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr,
};

/// Declares the table of the library's functions, and how it is filled.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's functions.
        #[derive(Debug)]
        #[allow(clippy::type_complexity)]
        pub(crate) struct Library {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Newer than the rest: whether a peer's bytes become visible in the order of their
            /// addresses.
            pub(crate) ibv_query_qp_data_in_order: Option<unsafe extern "C" fn(*mut ibv_qp, c_uint, u32) -> c_int>,
        }

        impl Library {
            /// Functions that end the process, for a test to put its own in their places.
            #[cfg(test)]
            pub(crate) fn absent() -> Self {
                unsafe extern "C" fn absent() {
                    std::process::abort();
                }
                Self {
                    $(
                        // SAFETY: [ibv-library] it takes nothing, and does not return.
                        $name: unsafe { std::mem::transmute::<unsafe extern "C" fn(), unsafe extern "C" fn($($argument),*) $(-> $result)?>(absent) },
                    )*
                    ibv_query_qp_data_in_order: None,
                }
            }

            /// # Safety
            /// `handle` is that of libibverbs.
            unsafe fn fill(handle: *mut c_void) -> Result<Self, String> {
                $(
                    let symbol = concat!(stringify!($name), "\0");
                    // SAFETY: [ibv-library] a name that ends in 0.
                    let $name = unsafe { dlsym(handle, symbol.as_ptr().cast()) };
                    if $name.is_null() {
                        return Err(format!(
                            "{NAME} has no {}: install a newer one (Debian and Ubuntu: apt install libibverbs1)",
                            stringify!($name)
                        ));
                    }
                )*
                // SAFETY: [ibv-library] a name that ends in 0.
                let in_order = unsafe { dlsym(handle, c"ibv_query_qp_data_in_order".as_ptr()) };
                Ok(Self {
                    $(
                        // SAFETY: [ibv-library] the function has this signature in verbs.h.
                        $name: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>($name) },
                    )*
                    // SAFETY: [ibv-library] null becomes none; the function has this signature in verbs.h.
                    ibv_query_qp_data_in_order: unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(*mut ibv_qp, c_uint, u32) -> c_int>>(in_order) },
                })
            }
        }
    };
}

functions! {
    ibv_fork_init: fn() -> c_int;
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut [u8; 16]) -> c_int;
    ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: fn(*mut ibv_async_event);
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr_iova: fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
}

/// The library, or why there is none.
pub(crate) fn library() -> Result<&'static Library, String> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Library, String> {
    // SAFETY: [ibv-library] a name that ends in 0; the library's initialisers are those of a system library.
    let handle = unsafe { dlopen(FILE.as_ptr(), RTLD_NOW) };
    if handle.is_null() {
        // SAFETY: [ibv-library] null, or a text that ends in 0 and stays until the next call from this thread.
        let said = unsafe {
            let text = dlerror();
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        return Err(format!(
            "{NAME} cannot be loaded ({said}); install rdma-core (Debian and Ubuntu: apt install libibverbs1 ibverbs-providers)"
        ));
    }
    // SAFETY: [ibv-library] the handle is libibverbs', and is never closed.
    let library = unsafe { Library::fill(handle)? };
    // Before anything else, so that a forked child's copies of registered pages do not move the parent's; where the kernel
    // takes care of that by itself, the call does nothing.
    // SAFETY: [ibv-library] no other call of the library has been made.
    let _ = unsafe { (library.ibv_fork_init)() };
    Ok(library)
}

// The program is linked with the C library that has them; so nothing more is needed to look for libibverbs.
unsafe extern "C" {
    fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn dlerror() -> *mut c_char;
}

const NAME: &str = "libibverbs.so.1";
const FILE: &CStr = c"libibverbs.so.1";
const RTLD_NOW: c_int = 2;
