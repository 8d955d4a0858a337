//! sendfile: from a file into a ring by reading and sending; while the connection is the
//! kernel's, by the kernel, counted.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::{iovec, off_t, ssize_t};

use super::{give_up, give_up_to, send_by};
use crate::connection::State;
use crate::settle::Reader;
use crate::{errno, files, real, send, table};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(out: c_int, from: c_int, at: *mut off_t, len: usize) -> ssize_t {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe { by_ring_or(out, from, at, len, || real::sendfile(out, from, at, len)) }
}

/// On this platform the same function under another name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(out: c_int, from: c_int, at: *mut off_t, len: usize) -> ssize_t {
    // SAFETY: [preload-program] [preload-real] the program's arguments.
    unsafe { by_ring_or(out, from, at, len, || real::sendfile64(out, from, at, len)) }
}

/// # Safety
/// `at` is null or the program's.
unsafe fn by_ring_or(out: c_int, from: c_int, at: *mut off_t, len: usize, kernel: impl Fn() -> ssize_t) -> ssize_t {
    if files::has(from) || files::has(out) {
        // Programs read and write then.
        return errno::fail(libc::EINVAL);
    }
    give_up(from, "sendfile");
    if len == 0 {
        return kernel();
    }
    loop {
        let Some(connection) = table::find(out) else { return kernel() };
        if connection.state() == State::Ring {
            // SAFETY: [preload-program] the program's place for a position.
            return unsafe { into_ring(out, from, at, len) }.unwrap_or_else(|| {
                give_up_to(Reader::Here, out, "sendfile of what is no file");
                kernel()
            });
        }
        if let Some(result) = send::by_kernel(out, connection, &kernel) {
            return result;
        }
    }
}

/// None when nothing was sent because the file cannot be read at a position: the kernel
/// says what is wrong with it.
///
/// # Safety
/// As above.
unsafe fn into_ring(out: c_int, from: c_int, at: *mut off_t, len: usize) -> Option<ssize_t> {
    // SAFETY: [preload-program] the program's position, or the file's own.
    let start = match unsafe { at.as_ref() } {
        Some(start) => *start,
        None => errno::kept(|| rustix::fs::tell(crate::kernel::borrowed(from)).ok().and_then(|at| at.try_into().ok()))?,
    };
    let len = len.min(KERNEL_MAX);
    let mut bytes = [MaybeUninit::<u8>::uninit(); PIECE];
    let (mut sent, mut result) = (0usize, 0);
    while sent < len {
        let want = (len - sent).min(PIECE);
        let position = u64::try_from(start).ok()? + sent as u64;
        let piece = bytes.get_mut(..want)?;
        let read = errno::kept(|| {
            rustix::io::pread(crate::kernel::borrowed(from), piece, position).map(|(read, _)| read.len())
        });
        let read = match read {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if sent > 0 => break,
            Err(_) => return None,
        };
        let list = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: read }];
        // SAFETY: [preload-real] so many bytes of ours, just read.
        result = send_by(out, &list, 0, || unsafe { real::send(out, bytes.as_ptr().cast(), read, 0) });
        sent += usize::try_from(result).unwrap_or(0);
        if result < read as ssize_t {
            break;
        }
    }
    let end = start + sent as off_t;
    // SAFETY: [preload-program] as above.
    match unsafe { at.as_mut() } {
        Some(at) => *at = end,
        None if sent > 0 => {
            errno::kept(|| {
                rustix::fs::seek(crate::kernel::borrowed(from), rustix::fs::SeekFrom::Start(end as u64)).ok()
            });
        }
        None => {}
    }
    Some(if sent > 0 { sent as ssize_t } else { result })
}

/// Bytes that are read at once, on the program's stack.
const PIECE: usize = 16 << 10;
/// The kernel moves no more in one call.
const KERNEL_MAX: usize = 0x7fff_f000;
