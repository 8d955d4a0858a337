//! New programs: exec, posix_spawn, system, popen, and a process that shuts itself off.
//!
//! `execl`, `execlp` and `execle` take any number of arguments; they are in `variadic`.

use std::ffi::{c_char, c_int, c_void};

use libc::pid_t;

use super::give_up_to;
use crate::settle::Reader;
use crate::{errno, files, fork, real};

type Strings = *const *const c_char;

/// What is to be done before and after is done by handlers, which other ways to fork call as well;
/// only here the child's number is known.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fork() -> pid_t {
    // SAFETY: [preload-real] the program's call.
    let child = unsafe { real::fork() };
    if child != 0 {
        errno::kept(|| fork::made(child));
    }
    child
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    fork::exec(|| unsafe { real::execve(path, arguments, environment) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    fork::exec(|| unsafe { real::execv(path, arguments) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvp(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    fork::exec(|| unsafe { real::execvp(path, arguments) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    fork::exec(|| unsafe { real::execvpe(path, arguments, environment) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    fork::exec(|| unsafe { real::fexecve(fd, arguments, environment) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    fork::beside("posix_spawn", || unsafe { real::posix_spawn(pid, path, actions, attributes, arguments, environment) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    fork::beside("posix_spawn", || unsafe {
        real::posix_spawnp(pid, path, actions, attributes, arguments, environment)
    })
}

/// What is doubled for a new program goes back, whether it would be inherited by itself or not.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int {
    give_up_to(Reader::Stranger, fd, "posix_spawn with its descriptor");
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

/// The C library opens it in the child by calls of its own, where a placeholder would be cut. It
/// returns what went wrong.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_addopen(
    actions: *mut c_void,
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: [preload-program] the program's text.
    let cut = if flags & libc::O_TRUNC != 0 && files::is_on() { unsafe { super::volume::text(path) } } else { None };
    if cut.is_some_and(|path| errno::kept(|| files::is_at(libc::AT_FDCWD, path))) {
        errno::kept(|| files::refuse("posix_spawn that truncates"));
        return libc::ENOTSUP;
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::posix_spawn_file_actions_addopen(actions, fd, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    // SAFETY: [preload-real] the program's arguments.
    fork::beside("system", || unsafe { real::system(command) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: [preload-real] the program's arguments.
    fork::beside("popen", || unsafe { real::popen(command, mode) })
}

/// The end without what `exit` does: this library's part of that is not the program's to leave out.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    super::fini();
    loop {
        // SAFETY: [preload-real] the program's argument.
        unsafe { real::_exit(status) };
    }
}

/// The same under another name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: [preload-real] the program's argument.
    unsafe { _exit(status) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        fork::before_sandbox("a sandbox");
    }
    // SAFETY: [preload-real] the program's arguments.
    unsafe { real::prctl(option, a, b, c, d) }
}
