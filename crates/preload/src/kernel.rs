//! The kernel socket itself, by system calls that are no cancellation points: these run with
//! a connection's lock held.

use std::ffi::c_int;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};

#[cfg(test)]
use crate::explore;
use crate::iovecs::{Cursor, PARTS};
use crate::real;

/// A descriptor of the program's, for the time of a call.
#[inline]
pub(crate) fn borrowed(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: [preload-descriptor] a number out of the table, hence not negative; a closed one gives EBADF.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Takes at most `len` bytes to where the program or we want them, without waiting. 0
/// is the end of the stream.
pub(crate) fn take(fd: c_int, to: *mut u8, len: usize, look: bool) -> Result<usize, Errno> {
    #[cfg(test)]
    if let Some(taken) = explore::take(fd, to, len, look) {
        return taken;
    }
    // SAFETY: [preload-program] the program's buffer, or one of ours, of `len` bytes.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<MaybeUninit<u8>>(), len) };
    let flags = RecvFlags::DONTWAIT | if look { RecvFlags::PEEK } else { RecvFlags::empty() };
    retry(|| rustix::net::recv(borrowed(fd), &mut *to, flags).map(|(_, n)| n))
}

/// Gives at most `len` bytes, without waiting and without a signal.
pub(crate) fn give(fd: c_int, from: *const u8, len: usize) -> Result<usize, Errno> {
    #[cfg(test)]
    if let Some(given) = explore::give(fd, from, len) {
        return given;
    }
    // SAFETY: [preload-program] the program's bytes, or the ring's, which only the system reads.
    let from = unsafe { std::slice::from_raw_parts(from, len) };
    retry(|| rustix::net::send(borrowed(fd), from, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
}

/// Gives what is left of the program's buffers, in one message: over a Unix socket each costs the
/// buffer what a small page does.
pub(crate) fn give_buffers(fd: c_int, from: &mut Cursor<'_>) -> Result<usize, Errno> {
    #[cfg(test)]
    if explore::is_on() {
        return from.peek(usize::MAX).map_or(Ok(0), |(at, len)| give(fd, at, len));
    }
    let mut parts = [IoSlice::new(&[]); PARTS];
    // SAFETY: [preload-program] the program's bytes, which only the system reads.
    let part = |at: *mut u8, len| IoSlice::new(unsafe { std::slice::from_raw_parts(at, len) });
    let many = from.list(&mut parts, part);
    let parts = parts.get(..many).unwrap_or(&[]);
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    retry(|| rustix::net::sendmsg(borrowed(fd), parts, &mut SendAncillaryBuffer::default(), flags))
}

/// Whether the stream from the peer has ended: `Some(Ok)`, or in an error. None while it goes
/// on, or behind unread bytes.
pub(crate) fn ended(fd: c_int) -> Option<Result<(), Errno>> {
    let mut byte = 0;
    match take(fd, &mut byte, 1, true) {
        Ok(0) => Some(Ok(())),
        Ok(_) | Err(Errno::AGAIN) => None,
        Err(errno) => Some(Err(errno)),
    }
}

/// Whether a receive from the kernel would return something: bytes, the end, or an error,
/// which is left where it is.
pub(crate) fn something(fd: c_int) -> bool {
    events(fd, PollFlags::IN).intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
}

/// Whether the kernel takes so many bytes at once, its buffer made as large as a program may ask
/// for where it is smaller.
pub(crate) fn takes(fd: c_int, bytes: u64) -> bool {
    #[cfg(test)]
    if let Some(takes) = explore::takes(fd, bytes) {
        return takes;
    }
    let mut queued: c_int = 0;
    // SAFETY: [preload-real] an int of ours.
    let known = unsafe { real::ioctl(fd, libc::TIOCOUTQ, (&raw mut queued) as usize) } == 0;
    known && u64::try_from(queued).is_ok_and(|queued| queued + bytes <= capacity(fd))
}

/// Bytes that the kernel takes of a sender whose peer reads nothing, in pieces that are large. What
/// it keeps beside them counts, too.
fn capacity(fd: c_int) -> u64 {
    let size = sockopt::socket_send_buffer_size(borrowed(fd)).unwrap_or(0);
    // The kernel tells twice of what it is given.
    let usable = match sockopt::socket_domain(borrowed(fd)) {
        Ok(AddressFamily::UNIX) => size.max(2 * MOST_BUFFER) / 8 * 7,
        _ if is_send_buffer_set(fd) => (size / 2).max(MOST_BUFFER),
        // Over TCP it grows by itself.
        _ => (size / 4 * 3).max(MOST_BUFFER),
    };
    usable as u64
}

/// Whether the program has set the size of the kernel's buffer.
pub(crate) fn is_send_buffer_set(fd: c_int) -> bool {
    option(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK).is_some_and(|lock| lock & SNDBUF_LOCKED != 0)
}

/// A socket option that is a number.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: [preload-real] a buffer of ours and its length.
    let done = unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    (done == 0).then_some(value)
}

/// Does it while the kernel's buffer takes so many bytes more, if it can be made to,
/// and leaves that as it was.
pub(crate) fn with_buffer_for(fd: c_int, bytes: usize, f: impl FnOnce()) {
    let fd = borrowed(fd);
    // The kernel tells twice of what it is given.
    let before = sockopt::socket_send_buffer_size(fd).unwrap_or(usize::MAX) / 2;
    let wanted = before.saturating_add(bytes).min(MOST_BUFFER);
    if wanted <= before {
        // One that has grown by itself; setting it would make it smaller.
        return f();
    }
    let locked = option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK);
    let _ = sockopt::set_socket_send_buffer_size(fd, wanted);
    f();
    let _ = sockopt::set_socket_send_buffer_size(fd, before);
    // One whose size is set never grows by itself again, unless the kernel, since 5.15, is told that it may.
    if let Some(locked) = locked {
        let (at, len) = ((&raw const locked).cast(), size_of::<c_int>() as libc::socklen_t);
        // SAFETY: [preload-real] an int of ours and its size.
        let _ = unsafe { real::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK, at, len) };
    }
}

/// What a program may ask for where nobody has changed net.core.wmem_max.
pub(crate) const MOST_BUFFER: usize = 212_992;

/// Bytes that wait in the kernel.
pub(crate) fn pending(fd: c_int) -> u64 {
    #[cfg(test)]
    if let Some(pending) = explore::pending(fd) {
        return pending;
    }
    rustix::io::ioctl_fionread(borrowed(fd)).unwrap_or(0)
}

/// Which of these events stand now.
pub(crate) fn events(fd: c_int, wanted: PollFlags) -> PollFlags {
    #[cfg(test)]
    if let Some(events) = explore::events(fd, wanted) {
        return events;
    }
    let mut poll = [PollFd::from_borrowed_fd(borrowed(fd), wanted)];
    match rustix::event::poll(&mut poll, Some(&NOW)) {
        Ok(1) => poll.first().map_or(PollFlags::empty(), PollFd::revents),
        _ => PollFlags::empty(),
    }
}

/// Whether the peer has closed it, or it is broken.
pub(crate) fn is_over(fd: c_int) -> bool {
    fd >= 0 && events(fd, PollFlags::RDHUP).intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

/// Whether a program that takes over this process, or is started by it, has this descriptor.
pub(crate) fn is_inherited(fd: c_int) -> bool {
    rustix::io::fcntl_getfd(borrowed(fd)).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
}

/// Whether it is to have it.
pub(crate) fn set_inherited(fd: c_int, inherited: bool) {
    let _ = rustix::io::fcntl_setfd(borrowed(fd), if inherited { FdFlags::empty() } else { FdFlags::CLOEXEC });
}

/// Takes the error that stands at a socket, if there is one.
pub(crate) fn take_error(fd: c_int) -> Option<Errno> {
    #[cfg(test)]
    if explore::is_on() {
        return take(fd, &mut 0, 0, true).err().filter(|error| *error != Errno::AGAIN);
    }
    rustix::net::sockopt::socket_error(borrowed(fd)).ok().and_then(Result::err)
}

/// The close of it resets the connection.
pub(crate) fn reset_by_close(fd: c_int) {
    #[cfg(test)]
    if explore::reset_by_close(fd) {
        return;
    }
    let _ = rustix::net::sockopt::set_socket_linger(borrowed(fd), Some(std::time::Duration::ZERO));
}

/// An eventfd can be read from now on.
pub(crate) fn signal(fd: c_int) {
    #[cfg(test)]
    if explore::write_eventfd(fd) {
        return;
    }
    let _ = rustix::io::write(borrowed(fd), &1u64.to_ne_bytes());
}

/// It cannot, until the next signal.
pub(crate) fn drain(fd: c_int) {
    #[cfg(test)]
    if explore::read_eventfd(fd) {
        return;
    }
    let mut count = [0; 8];
    let _ = rustix::io::read(borrowed(fd), &mut count);
}

/// Waits a moment for what another is in the midst of: so often by giving the processor away, then
/// so many milliseconds. None if it does not come.
pub(crate) fn soon(yields: u32, naps: u32, mut come: impl FnMut() -> Option<u64>) -> Option<u64> {
    #[cfg(test)]
    if explore::is_on() {
        return Some(explore::when(come));
    }
    for attempt in 0..yields + naps {
        let came = come();
        if came.is_some() {
            return came;
        }
        if attempt < yields { rustix::thread::sched_yield() } else { nap() }
    }
    come()
}

/// A short sleep.
pub(crate) fn nap() {
    #[cfg(test)]
    if explore::is_on() {
        return;
    }
    let _ = rustix::event::poll(&mut [], Some(&NAP));
}

fn retry<T>(mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match f() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

const SNDBUF_LOCKED: c_int = 1;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_the_kernel_is_said_to_take_it_takes() {
        let (unix, _other) = UnixStream::pair().unwrap();
        let (large, _other_large) = UnixStream::pair().unwrap();
        sockopt::set_socket_send_buffer_size(&large, MOST_BUFFER).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (tcp, small, _accepted) = (connect(), connect(), [listener.accept().unwrap(), listener.accept().unwrap()]);
        sockopt::set_socket_send_buffer_size(&small, 5000).unwrap();
        let bytes = vec![1; PIECE];
        for socket in [unix.as_fd(), large.as_fd(), tcp.as_fd(), small.as_fd()] {
            let fd = socket.as_raw_fd();
            let all = capacity(fd);
            assert!(takes(fd, all) && !takes(fd, all + 1));
            let mut left = all as usize;
            while left > 0 {
                with_buffer_for(fd, left, || left -= give(fd, bytes.as_ptr(), left.min(PIECE)).unwrap());
            }
        }
        assert!(capacity(tcp.as_raw_fd()) > 4 * capacity(small.as_raw_fd()), "it grows by itself");
    }

    /// As much as a ring gives at a time.
    const PIECE: usize = 128 << 10;

    #[test]
    fn a_buffer_is_larger_for_the_moment_and_then_what_it_was() {
        let (unix, _other) = UnixStream::pair().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let small = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sockopt::set_socket_send_buffer_size(&small, 5000).unwrap();
        for socket in [unix.as_fd(), tcp.as_fd(), small.as_fd()] {
            let size = || sockopt::socket_send_buffer_size(socket).unwrap();
            let lock = || option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK);
            let before = (size(), lock());
            let mut during = 0;
            with_buffer_for(socket.as_raw_fd(), 50_000, || during = size());
            assert!(during > before.0 || before.0 / 2 >= MOST_BUFFER, "{before:?} {during}");
            assert!(during >= before.0, "{before:?} {during}");
            assert_eq!((size(), lock()), before);
        }
    }
}
