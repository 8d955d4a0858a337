//! One line for each connection that ends, in the file that `overside run --verbose` names.
//! Nothing is ever printed.

use std::ffi::{CStr, c_int};
use std::fmt::Write;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::net::SocketAddrAny;

use crate::connection::LockHeld;
use crate::diagnosis::Reason;
use crate::kernel::borrowed;
use crate::line::Line;
use crate::state::Host;

/// The file's name in the environment; it stays where it is as long as the program leaves its
/// environment alone, so a copy is kept.
static FILE: AtomicPtr<libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Looks for the file's name. At start-up, when allocation is allowed.
pub(crate) fn find_file() {
    // SAFETY: [preload-real] at start-up, before the program can change its environment; the copy is never freed.
    let copy = unsafe {
        let value = libc::getenv(VARIABLE.as_ptr());
        if value.is_null() { std::ptr::null_mut() } else { libc::strdup(value) }
    };
    FILE.store(copy, Ordering::Release);
}

/// Nothing is told from now on.
pub(crate) fn stop() {
    FILE.store(std::ptr::null_mut(), Ordering::Release);
}

/// Appends the line of this connection.
pub(crate) fn write(held: &LockHeld<'_>, fd: c_int) {
    let file = FILE.load(Ordering::Acquire);
    if file.is_null() {
        return;
    }
    let mut line = Line::<512>::new();
    let tally = held.tally;
    let accelerated = tally.messages_in + tally.messages_out > 0;
    // A server that forks closes its own copy of what its child goes on with: not the end of anything.
    if !accelerated && !held.is_ours_alone() {
        return;
    }
    let reason = match held.reason {
        Reason::None if accelerated => "",
        // The ends met and had nothing more to say.
        Reason::None => Reason::Short.text(),
        // Over before the other end had its turn.
        Reason::Alone if held.operations < FEW_CALLS => Reason::Short.text(),
        reason => reason.text(),
    };
    let _ = write!(line, "{}\t", rustix::process::getpid().as_raw_nonzero());
    let _ = write!(line, "{}\t", ["connected", "accepted"].get(held.end).unwrap_or(&""));
    let here = rustix::net::getsockname(borrowed(fd)).ok();
    let there = rustix::net::getpeername(borrowed(fd)).ok().flatten();
    let _ = write!(line, "{}\t{}\t", Shown(here), Shown(there));
    let _ = write!(
        line,
        "{}\t{reason}\t",
        match (accelerated, held.host) {
            (true, Host::Other) => "rdma",
            (true, Host::This) => "ring",
            (false, _) => "kernel",
        }
    );
    let _ = writeln!(line, "{}\t{}\t{}\t{}", tally.bytes_out, tally.messages_out, tally.bytes_in, tally.messages_in);
    append(line.bytes());
}

/// Appends a line that is made already.
pub(crate) fn append(line: &[u8]) {
    let file = FILE.load(Ordering::Acquire);
    if file.is_null() {
        return;
    }
    // SAFETY: [preload-real] the copy that `find_file` made.
    let file = unsafe { CStr::from_ptr(file) };
    if file.to_bytes().starts_with(b"/proc/") && !is_report(file) {
        return;
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
    if let Ok(file) = rustix::fs::open(file, flags, Mode::empty()) {
        let _ = rustix::io::write(&file, line);
    }
}

/// Whether a descriptor of another process is what `overside run`, or a figure, made: that process
/// may have ended, and its number be another's.
fn is_report(path: &CStr) -> bool {
    let mut target = [std::mem::MaybeUninit::uninit(); 64];
    rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut target).is_ok_and(|(name, _)| name.starts_with(MEMORY))
}

struct Shown(Option<SocketAddrAny>);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(address) = &self.0 else { return f.write_str("-") };
        if let Ok(v4) = rustix::net::SocketAddrV4::try_from(address.clone()) {
            write!(f, "{v4}")
        } else if let Ok(v6) = rustix::net::SocketAddrV6::try_from(address.clone()) {
            write!(f, "{v6}")
        } else {
            f.write_str("unix")
        }
    }
}

/// Calls of one end by which the other has tried to meet it, as a rule.
const FEW_CALLS: u32 = 16;
const MEMORY: &[u8] = b"/memfd:overside-";
const VARIABLE: &CStr = c"OVERSIDE_SOCKETS_REPORT";
