//! Functions that take any number of arguments, which Rust cannot define.
//!
//! Each saves the registers in which arguments come, and lets this library do what must be done
//! first. Then it jumps to the C library's own with everything as it was. Those that execute a
//! program may come back, and are called with a list.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use super::{descriptors, give_up, give_up_to};
use crate::settle::Reader;
use crate::{epoll, errno, files, fork, iovecs, real, table};

type Strings = *const *const c_char;

unsafe extern "C" fn executes(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: [preload-real] the program's arguments, as a list.
    fork::exec(|| unsafe { real::execv(path, arguments) })
}

unsafe extern "C" fn executes_by_name(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: [preload-real] the program's arguments, as a list.
    fork::exec(|| unsafe { real::execvp(path, arguments) })
}

unsafe extern "C" fn executes_in(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: [preload-program] behind the last of the arguments, which is null, the program names the environment.
    let environment = unsafe {
        let mut last = arguments;
        while !(*last).is_null() {
            last = last.add(1);
        }
        last.add(1).cast::<Strings>().read()
    };
    // SAFETY: [preload-real] the program's arguments, as a list.
    fork::exec(|| unsafe { real::execve(path, arguments, environment) })
}

extern "C" fn before_dprintf(fd: c_int) -> *const c_void {
    if files::has(fd) {
        return refused_dprintf as *const c_void;
    }
    give_up_to(Reader::Here, fd, "dprintf");
    real::address(c"dprintf")
}

extern "C" fn before_dprintf_chk(fd: c_int) -> *const c_void {
    if files::has(fd) {
        return refused_dprintf as *const c_void;
    }
    give_up_to(Reader::Here, fd, "dprintf");
    real::address(c"__dprintf_chk")
}

/// System calls by number: those that concern a connection do what their functions would, or end
/// its acceleration.
extern "C" fn before_syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    _fourth: usize,
    fifth: usize,
) -> *const c_void {
    let fd = first as c_int;
    if files::is_on() {
        let doubles = number == libc::SYS_fcntl && [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&(second as c_int));
        let maps = number == libc::SYS_mmap && third as c_int & libc::MAP_ANONYMOUS == 0 && files::has(fifth as c_int);
        if number == libc::SYS_io_uring_setup || maps || (doubles || takes_descriptor(number)) && files::has(fd) {
            return refused as *const c_void;
        }
        if number == libc::SYS_openat {
            return opened as *const c_void;
        }
        if let Some((folder, path)) = path_of(number, first, second)
            // SAFETY: [preload-program] the program's text.
            && let Some(path) = unsafe { super::volume::text(path) }
            && errno::kept(|| files::is_at(folder, path))
        {
            return refused as *const c_void;
        }
    }
    match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_recvfrom
        | libc::SYS_sendto
        | libc::SYS_recvmsg
        | libc::SYS_sendmsg
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_recvmmsg
        | libc::SYS_sendmmsg
        | libc::SYS_shutdown
        | libc::SYS_dup => give_up(fd, "a raw system call"),
        libc::SYS_sendfile => give_up(fd, "a raw system call"),
        libc::SYS_splice => {
            give_up(fd, "a raw system call");
            give_up(third as c_int, "a raw system call");
        }
        libc::SYS_dup3 => before_dup(fd, second as c_int),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => before_dup(fd, second as c_int),
        // It may make a double, or the socket wait no more.
        libc::SYS_fcntl | libc::SYS_ioctl | libc::SYS_setsockopt => give_up(fd, "a raw system call"),
        libc::SYS_close => descriptors::forget(fd),
        libc::SYS_close_range => {
            descriptors::before_close_range(first as c_uint, second as c_uint, third as c_int);
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait => before_wait(number, first, second),
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 | libc::SYS_epoll_ctl => {
            before_wait(number, first, second)
        }
        libc::SYS_seccomp => fork::before_sandbox("a sandbox"),
        libc::SYS_prctl if fd == libc::PR_SET_SECCOMP => fork::before_sandbox("a sandbox"),
        libc::SYS_io_uring_setup => fork::before_sandbox("io_uring"),
        libc::SYS_execve | libc::SYS_execveat => fork::before_exec("exec"),
        _ => {}
    }
    real::syscall()
}

/// In place of a system call by its number that is about a file on the volume, or that would be
/// past this library.
extern "C" fn refused() -> c_long {
    files::refuse("a raw system call")
}

extern "C" fn refused_dprintf() -> c_int {
    files::refuse("dprintf") as c_int
}

/// `openat` by its number. The file may be on the volume.
unsafe extern "C" fn opened(_: c_long, folder: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_long {
    // SAFETY: [preload-program] the program's arguments.
    c_long::from(unsafe { super::volume::open_at(folder, path, flags, mode) })
}

/// By which folder and path a system call opens or cuts a file; those for which no function here
/// stands.
fn path_of(number: c_long, first: usize, second: usize) -> Option<(c_int, *const c_char)> {
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_creat => Some((libc::AT_FDCWD, first as *const c_char)),
        libc::SYS_truncate => Some((libc::AT_FDCWD, first as *const c_char)),
        libc::SYS_openat2 => Some((first as c_int, second as *const c_char)),
        _ => None,
    }
}

/// Whether a system call's first argument is a descriptor whose bytes or length it is about.
fn takes_descriptor(number: c_long) -> bool {
    [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_preadv,
        libc::SYS_pwritev,
        libc::SYS_preadv2,
        libc::SYS_pwritev2,
        libc::SYS_lseek,
        libc::SYS_fstat,
        libc::SYS_ftruncate,
        libc::SYS_fallocate,
        libc::SYS_copy_file_range,
        libc::SYS_sendfile,
        libc::SYS_splice,
        libc::SYS_statx,
        libc::SYS_newfstatat,
        libc::SYS_dup,
        libc::SYS_dup3,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2,
    ]
    .contains(&number)
}

fn before_dup(fd: c_int, to: c_int) {
    give_up(fd, "a raw system call");
    if fd != to && descriptors::borrowed_exists(fd) {
        descriptors::forget(to);
    }
}

/// What is waited for without this library, or changed in a set, is the kernel's.
fn before_wait(number: c_long, first: usize, second: usize) {
    let is_set = [libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_epoll_ctl].contains(&number);
    #[cfg(target_arch = "x86_64")]
    let (is_set, is_poll) = (is_set || number == libc::SYS_epoll_wait, number == libc::SYS_poll);
    #[cfg(not(target_arch = "x86_64"))]
    let is_poll = false;
    if is_set {
        errno::kept(|| epoll::make_foreign(first as c_int, "a raw system call"));
    } else if is_poll || number == libc::SYS_ppoll {
        let fds = first as *const libc::pollfd;
        for index in 0..if iovecs::is_inside(fds) { second } else { 0 } {
            // SAFETY: [preload-program] the program's array.
            give_up(unsafe { (*fds.add(index)).fd }, "a raw system call");
        }
    } else if first > 0 {
        // Which of these it asks for is the kernel's to see.
        table::range(0, first as u32 - 1).for_each(|(fd, _)| give_up(fd, "a raw system call"));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    if files::has(fd) {
        return refused_dprintf();
    }
    give_up_to(Reader::Here, fd, "dprintf");
    // SAFETY: [preload-real] the program's arguments; a list of arguments is passed by its address.
    unsafe { real::vdprintf(fd, format, arguments) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if files::has(fd) {
        return refused_dprintf();
    }
    give_up_to(Reader::Here, fd, "dprintf");
    // SAFETY: [preload-real] the program's arguments; a list of arguments is passed by its address.
    unsafe { real::__vdprintf_chk(fd, flag, format, arguments) }
}

macro_rules! variadic {
    ($($name:ident: $before:ident;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 192",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov [rsp + 48], rax",
                "movaps [rsp + 64], xmm0",
                "movaps [rsp + 80], xmm1",
                "movaps [rsp + 96], xmm2",
                "movaps [rsp + 112], xmm3",
                "movaps [rsp + 128], xmm4",
                "movaps [rsp + 144], xmm5",
                "movaps [rsp + 160], xmm6",
                "movaps [rsp + 176], xmm7",
                "call {before}",
                "mov r11, rax",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "mov rax, [rsp + 48]",
                "movaps xmm0, [rsp + 64]",
                "movaps xmm1, [rsp + 80]",
                "movaps xmm2, [rsp + 96]",
                "movaps xmm3, [rsp + 112]",
                "movaps xmm4, [rsp + 128]",
                "movaps xmm5, [rsp + 144]",
                "movaps xmm6, [rsp + 160]",
                "movaps xmm7, [rsp + 176]",
                "leave",
                "jmp r11",
                before = sym $before,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-224]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "str x8, [sp, #80]",
                "stp q0, q1, [sp, #96]",
                "stp q2, q3, [sp, #128]",
                "stp q4, q5, [sp, #160]",
                "stp q6, q7, [sp, #192]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldr x8, [sp, #80]",
                "ldp q0, q1, [sp, #96]",
                "ldp q2, q3, [sp, #128]",
                "ldp q4, q5, [sp, #160]",
                "ldp q6, q7, [sp, #192]",
                "ldp x29, x30, [sp], #224",
                "br x16",
                before = sym $before,
            )
        }
    )*};
}

/// What comes in registers is put before what comes on the stack: a list, which ends as the
/// program has it end.
macro_rules! lists {
    ($($name:ident: $by:ident;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "pop r11",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r11",
                "call {by}",
                "pop r11",
                "add rsp, 40",
                "push r11",
                "ret",
                by = sym $by,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "sub sp, sp, #80",
                "stp x29, x30, [sp]",
                "mov x29, sp",
                "stp x1, x2, [sp, #24]",
                "stp x3, x4, [sp, #40]",
                "stp x5, x6, [sp, #56]",
                "str x7, [sp, #72]",
                "add x1, sp, #24",
                "bl {by}",
                "ldp x29, x30, [sp]",
                "add sp, sp, #80",
                "ret",
                by = sym $by,
            )
        }
    )*};
}

lists! {
    execl: executes;
    execlp: executes_by_name;
    execle: executes_in;
}

variadic! {
    dprintf: before_dprintf;
    __dprintf_chk: before_dprintf_chk;
    syscall: before_syscall;
}
