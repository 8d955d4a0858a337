//! Streams of the C library (`FILE`) over a connection.
//!
//! The C library reads and writes its streams by system calls of its own, which know of no ring. So
//! a connection goes back to the kernel when a stream is opened. What is unread then may still lie
//! in its ring, and its sender may never make a call again. Such a stream reads and writes by the
//! calls of this library, with the ring first and the kernel behind it.

use std::ffi::{c_char, c_int, c_void};

use libc::{off64_t, size_t, ssize_t};

use super::descriptors::forget;
use super::{data, give_up_to};
use crate::connection::State;
use crate::settle::Reader;
use crate::{errno, files, real, table};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    if files::has(fd) {
        // The C library would read the placeholder.
        files::refuse("fdopen");
        return std::ptr::null_mut();
    }
    // Through the ring, as long as something is there.
    give_up_to(Reader::Here, fd, "fdopen");
    if is_in_ring(fd) {
        // SAFETY: [preload-real] the program's mode.
        if let Some(stream) = unsafe { of_calls(fd, mode) } {
            return stream;
        }
        give_up_to(Reader::Stranger, fd, "fdopen");
    }
    if table::find(fd).is_none() {
        // A socket that is connected later is the kernel's, too.
        table::note_in_set(fd, true);
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::fdopen(fd, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(stream: *mut c_void) -> c_int {
    if !stream.is_null() {
        // SAFETY: [preload-program] the program's stream.
        let fd = errno::kept(|| unsafe { libc::fileno(stream.cast()) });
        if is_in_ring(fd) {
            // What it has not written yet goes before the connection ends.
            // SAFETY: [preload-program] the program's stream.
            errno::kept(|| unsafe { libc::fflush(stream.cast()) });
        }
        if fd >= 0 {
            forget(fd);
        }
    }
    // SAFETY: [preload-real] the program's argument.
    unsafe { real::fclose(stream) }
}

fn is_in_ring(fd: c_int) -> bool {
    table::find(fd).is_some_and(|connection| connection.state() == State::Ring)
}

/// A stream by the calls of this library. None where the C library cannot have one, or does not
/// know it by its descriptor.
///
/// # Safety
/// The mode is the program's text.
unsafe fn of_calls(fd: c_int, mode: *const c_char) -> Option<*mut c_void> {
    let calls = Calls { read, write, seek, close };
    // SAFETY: [preload-program] the caller's promise; functions of the types that the C library calls.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, calls) };
    if stream.is_null() {
        return None;
    }
    let number = stream.cast::<u8>().wrapping_add(NUMBER_AT).cast::<c_int>();
    // SAFETY: [preload-program] a stream that was just made, which is larger than that in every version of the GNU C library.
    unsafe {
        if number.read() == NO_NUMBER {
            number.write(fd);
            if libc::fileno(stream.cast()) == fd {
                return Some(stream);
            }
            number.write(NO_NUMBER);
        }
        // It keeps its place in the C library's list; closing it would close the descriptor.
    }
    None
}

/// What a stream calls, with the descriptor as its cookie.
#[repr(C)]
struct Calls {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C-unwind" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, calls: Calls) -> *mut c_void;
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: [preload-program] the stream's buffer, of so many bytes.
    unsafe { data::read(cookie as usize as c_int, to.cast(), len) }
}

/// All of it, as the C library does it with a descriptor.
unsafe extern "C-unwind" fn write(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    let mut written = 0;
    while written < len {
        // SAFETY: [preload-program] the rest of the stream's buffer.
        let n = unsafe { data::write(cookie as usize as c_int, from.add(written).cast(), len - written) };
        let Ok(n) = usize::try_from(n) else { break };
        written += n;
    }
    written as ssize_t
}

unsafe extern "C-unwind" fn seek(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    errno::fail(libc::ESPIPE) as c_int
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: [preload-program] the stream's descriptor.
    unsafe { super::descriptors::close(cookie as usize as c_int) }
}

/// Where the GNU C library keeps a stream's descriptor: behind the flags and thirteen pointers. And
/// what it keeps there of one that has none.
const NUMBER_AT: usize = 14 * size_of::<usize>();
const NO_NUMBER: c_int = -2;
