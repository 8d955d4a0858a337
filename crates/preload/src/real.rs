//! The C library's own functions, behind the hooks of the same names.
//!
//! Found at the first call, which may come before any constructor ran; nothing is allocated here.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{iovec, mmsghdr, msghdr, off_t, pid_t, sockaddr, socklen_t, ssize_t};

struct Symbol {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Symbol {
    #[inline]
    fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: [preload-real] a constant name, looked up behind this library.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            found = absent as *mut c_void;
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Where the C library's `syscall` lies, which is called too often to be looked up each time.
pub(crate) fn syscall() -> *const c_void {
    static SYMBOL: Symbol = Symbol { name: c"syscall", found: AtomicPtr::new(std::ptr::null_mut()) };
    SYMBOL.get()
}

/// Where a function lies that is called with its arguments as they came.
pub(crate) fn address(name: &'static CStr) -> *const c_void {
    // SAFETY: [preload-real] a constant name, looked up behind this library.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() { absent as *const c_void } else { found }
}

/// Stands for a function that this C library does not have; nobody could have called it without
/// this library.
extern "C" fn absent() -> c_int {
    crate::errno::set(libc::ENOSYS);
    -1
}

macro_rules! real {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
            static SYMBOL: Symbol = Symbol {
                // SAFETY: [preload-real] ends with a zero, has none before.
                name: unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
                found: AtomicPtr::new(std::ptr::null_mut()),
            };
            // SAFETY: [preload-real] the C library declares the function of this name so.
            unsafe {
                let real: unsafe extern "C-unwind" fn($($type),*) -> $result = std::mem::transmute(SYMBOL.get());
                real($($arg),*)
            }
        }
    )*};
}

real! {
    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn read(fd: c_int, to: *mut c_void, len: usize) -> ssize_t;
    fn __read_chk(fd: c_int, to: *mut c_void, len: usize, room: usize) -> ssize_t;
    fn __recv_chk(fd: c_int, to: *mut c_void, len: usize, room: usize, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(fd: c_int, to: *mut c_void, len: usize, room: usize, flags: c_int, address: *mut sockaddr, alen: *mut socklen_t) -> ssize_t;
    fn __poll_chk(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int, room: usize) -> c_int;
    fn __ppoll_chk(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: *const libc::timespec, mask: *const libc::sigset_t, room: usize) -> c_int;
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, to: *mut c_void, len: usize, flags: c_int, address: *mut sockaddr, alen: *mut socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut libc::timespec) -> c_int;
    fn write(fd: c_int, from: *const c_void, len: usize) -> ssize_t;
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn send(fd: c_int, from: *const c_void, len: usize, flags: c_int) -> ssize_t;
    fn sendto(fd: c_int, from: *const c_void, len: usize, flags: c_int, address: *const sockaddr, alen: socklen_t) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int;
    fn sendfile(out: c_int, from: c_int, at: *mut off_t, len: usize) -> ssize_t;
    fn sendfile64(out: c_int, from: c_int, at: *mut off_t, len: usize) -> ssize_t;
    fn splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, len: usize, flags: u32) -> ssize_t;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    fn select(count: c_int, r: *mut libc::fd_set, w: *mut libc::fd_set, e: *mut libc::fd_set, timeout: *mut libc::timeval) -> c_int;
    fn pselect(count: c_int, r: *mut libc::fd_set, w: *mut libc::fd_set, e: *mut libc::fd_set, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_wait(set: c_int, events: *mut libc::epoll_event, count: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(set: c_int, events: *mut libc::epoll_event, count: c_int, timeout: c_int, mask: *const libc::sigset_t) -> c_int;
    fn epoll_pwait2(set: c_int, events: *mut libc::epoll_event, count: c_int, timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn flock(fd: c_int, operation: c_int) -> c_int;
    fn lockf(fd: c_int, command: c_int, length: off_t) -> c_int;
    fn lockf64(fd: c_int, command: c_int, length: off_t) -> c_int;
    fn fchmod(fd: c_int, mode: libc::mode_t) -> c_int;
    fn fchown(fd: c_int, owner: libc::uid_t, group: libc::gid_t) -> c_int;
    fn futimens(fd: c_int, times: *const libc::timespec) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    fn close_range(first: u32, last: u32, flags: c_int) -> c_int;
    fn closefrom(first: c_int) -> ();
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    fn aio_read(block: *mut libc::aiocb) -> c_int;
    fn aio_read64(block: *mut libc::aiocb) -> c_int;
    fn aio_write(block: *mut libc::aiocb) -> c_int;
    fn aio_write64(block: *mut libc::aiocb) -> c_int;
    fn lio_listio(mode: c_int, blocks: *const *mut libc::aiocb, count: c_int, event: *mut c_void) -> c_int;
    fn lio_listio64(mode: c_int, blocks: *const *mut libc::aiocb, count: c_int, event: *mut c_void) -> c_int;
    fn _exit(status: c_int) -> ();
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void;
    fn fclose(stream: *mut c_void) -> c_int;
    fn fork() -> pid_t;
    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvp(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvpe(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn posix_spawnp(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int;
    fn posix_spawn_file_actions_addopen(actions: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    fn pread(fd: c_int, to: *mut c_void, len: usize, at: off_t) -> ssize_t;
    fn pwrite(fd: c_int, from: *const c_void, len: usize, at: off_t) -> ssize_t;
    fn preadv(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t;
    fn pwritev(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t;
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    fn ftruncate(fd: c_int, size: off_t) -> c_int;
    fn fallocate(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int;
    fn posix_fallocate(fd: c_int, at: off_t, len: off_t) -> c_int;
    fn posix_fadvise(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int;
    fn __xstat(version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int;
    fn __lxstat(version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int;
    fn __xstat64(version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int;
    fn __lxstat64(version: c_int, path: *const c_char, found: *mut libc::stat) -> c_int;
    fn __fxstat(version: c_int, fd: c_int, found: *mut libc::stat) -> c_int;
    fn __fxstat64(version: c_int, fd: c_int, found: *mut libc::stat) -> c_int;
    fn __fxstatat(version: c_int, folder: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, folder: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int;
    fn stat(path: *const c_char, found: *mut libc::stat) -> c_int;
    fn lstat(path: *const c_char, found: *mut libc::stat) -> c_int;
    fn fstat(fd: c_int, found: *mut libc::stat) -> c_int;
    fn fstatat(folder: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int;
    fn truncate(path: *const c_char, size: off_t) -> c_int;
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut c_void;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
    fn pread64(fd: c_int, to: *mut c_void, len: usize, at: off_t) -> ssize_t;
    fn pwrite64(fd: c_int, from: *const c_void, len: usize, at: off_t) -> ssize_t;
    fn preadv64(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t;
    fn pwritev64(fd: c_int, iov: *const iovec, count: c_int, at: off_t) -> ssize_t;
    fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    fn ftruncate64(fd: c_int, size: off_t) -> c_int;
    fn fallocate64(fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int;
    fn posix_fallocate64(fd: c_int, at: off_t, len: off_t) -> c_int;
    fn posix_fadvise64(fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int;
    fn stat64(path: *const c_char, found: *mut libc::stat) -> c_int;
    fn lstat64(path: *const c_char, found: *mut libc::stat) -> c_int;
    fn fstat64(fd: c_int, found: *mut libc::stat) -> c_int;
    fn fstatat64(folder: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int) -> c_int;
    fn truncate64(path: *const c_char, size: off_t) -> c_int;
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void;
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void;
    fn __pread_chk(fd: c_int, to: *mut c_void, len: usize, at: off_t, room: usize) -> ssize_t;
    fn fsync(fd: c_int) -> c_int;
    fn fdatasync(fd: c_int) -> c_int;
    fn sync_file_range(fd: c_int, at: off_t, len: off_t, flags: c_uint) -> c_int;
    fn readahead(fd: c_int, at: off_t, len: usize) -> ssize_t;
    fn statx(folder: c_int, path: *const c_char, flags: c_int, mask: c_uint, found: *mut libc::statx) -> c_int;
    fn copy_file_range(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, len: usize, flags: c_uint) -> ssize_t;
    fn rename(from: *const c_char, to: *const c_char) -> c_int;
    fn renameat(from_folder: c_int, from: *const c_char, folder: c_int, to: *const c_char) -> c_int;
    fn renameat2(from_folder: c_int, from: *const c_char, folder: c_int, to: *const c_char, flags: c_uint) -> c_int;
    fn unlink(path: *const c_char) -> c_int;
    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn remove(path: *const c_char) -> c_int;
    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
}
