//! Sends that the kernel makes from posted memory itself (MSG_ZEROCOPY), and its word that it needs
//! that memory no longer.
//!
//! The word comes on the socket's error queue, by ranges of such sends counted from 0. Until then
//! the bytes may travel again, so a request that was sent so is not reported, whatever the peer
//! says of it. Where the kernel copied all the same (loopback, veth, a device that cannot gather)
//! the word says so, and such sends are a loss: they are asked for no more.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::net::SendFlags;

/// Zero-copy sends of one connection.
#[derive(Debug)]
pub(crate) struct ZeroCopy {
    state: State,
    /// Payloads from this length on are worth it.
    from: usize,
    /// Those that the kernel may still need, in order: where each begins in the stream, and whether
    /// it is done with it.
    pending: VecDeque<(u64, bool)>,
    /// The number of the first of them.
    first: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The socket was not asked yet.
    Untried,
    On,
    /// The kernel copies all the same, or does not know it.
    Off,
}

/// What the kernel says of sends `low..=high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    low: u32,
    high: u32,
    copied: bool,
}

impl ZeroCopy {
    /// For payloads of `from` bytes or more; never, when there is no such length.
    pub(crate) fn new(from: Option<usize>) -> Self {
        let state = if from.is_some() { State::Untried } else { State::Off };
        Self { state, from: from.unwrap_or(usize::MAX), pending: VecDeque::new(), first: 0 }
    }

    /// Whether a stretch of posted memory of this length is worth it.
    pub(crate) fn wants(&self, len: usize) -> bool {
        len >= self.from && self.state != State::Off && self.pending.len() < PENDING_MAX
    }

    /// Makes the socket ready, once. False: it cannot.
    pub(crate) fn is_ready(&mut self, socket: impl AsFd) -> bool {
        if self.state == State::Untried {
            self.state = if enable(socket) { State::On } else { State::Off };
        }
        self.state == State::On
    }

    /// Such a send took bytes of the stream from `begin` on.
    pub(crate) fn sent(&mut self, begin: u64) {
        self.pending.push_back((begin, false));
    }

    /// The kernel has no room for another one: this one goes the usual way.
    pub(crate) fn is_refused(errno: Errno) -> bool {
        matches!(errno, Errno::NOBUFS | Errno::NOMEM | Errno::OPNOTSUPP | Errno::INVAL)
    }

    /// Whether the kernel holds memory of ours.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// How far into the stream the kernel needs no memory any longer.
    pub(crate) fn released(&self) -> u64 {
        self.pending.front().map_or(u64::MAX, |(begin, _)| *begin)
    }

    /// Takes what the kernel says.
    pub(crate) fn hear(&mut self, socket: impl AsFd) {
        while self.is_pending() {
            let Some(word) = read(socket.as_fd()) else { return };
            self.note(word);
        }
    }

    /// The kernel is done with these.
    fn note(&mut self, word: Word) {
        if word.copied {
            self.state = State::Off;
        }
        // Numbers wrap; a range never reaches what was not sent.
        let (low, high) = (word.low.wrapping_sub(self.first), word.high.wrapping_sub(self.first));
        if high as usize >= self.pending.len() || low > high {
            return;
        }
        self.pending.range_mut(low as usize..=high as usize).for_each(|(_, done)| *done = true);
        while let Some((_, true)) = self.pending.front() {
            self.pending.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }
}

fn enable(socket: impl AsFd) -> bool {
    let on: libc::c_int = 1;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: [tcp-error-queue] the option's value is read during the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast::<libc::c_void>(),
            len,
        )
    };
    done == 0
}

/// The next word on the socket's error queue that is about such sends.
fn read(socket: impl AsFd) -> Option<Word> {
    loop {
        let mut control = [0u64; CONTROL_WORDS];
        // SAFETY: [tcp-error-queue] all zeros is an empty message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: [tcp-error-queue] the message names `control` and its length, and nothing else.
        let got = unsafe {
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags)
        };
        if got < 0 {
            return None;
        }
        let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // Other errors are told by the socket's own calls.
        if let Some(word) = parse(&bytes[..(message.msg_controllen as usize).min(bytes.len())]) {
            return Some(word);
        }
    }
}

/// The word in a control message: `cmsghdr` and behind it `sock_extended_err`.
fn parse(control: &[u8]) -> Option<Word> {
    let half = |at: usize| Some(u32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?));
    let (level, kind) = (half(size_of::<usize>())?, half(size_of::<usize>() + 4)?);
    let v4 = (level, kind) == (libc::SOL_IP as u32, libc::IP_RECVERR as u32);
    let v6 = (level, kind) == (libc::SOL_IPV6 as u32, libc::IPV6_RECVERR as u32);
    let error = size_of::<usize>() + 8;
    let [origin, _, code] = [4, 5, 6].map(|at| control.get(error + at).copied());
    if !(v4 || v6) || half(error)? != 0 || origin? != ORIGIN_ZEROCOPY {
        return None;
    }
    Some(Word { low: half(error + 8)?, high: half(error + 12)?, copied: code? & CODE_COPIED != 0 })
}

/// The flag of such a send.
pub(crate) const FLAG: SendFlags = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);
/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` of `linux/errqueue.h`.
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;
/// `sock_extended_err` with an address behind it, and room to spare.
const CONTROL_WORDS: usize = 16;
/// Such sends that may be under way.
const PENDING_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    fn word(low: u32, high: u32) -> Word {
        Word { low, high, copied: false }
    }

    #[test]
    fn memory_is_released_in_order_whatever_order_the_kernel_tells() {
        let mut sends = ZeroCopy { first: u32::MAX - 1, ..ZeroCopy::new(Some(10)) };
        (0..4).for_each(|i| sends.sent(100 * i));
        sends.note(word(u32::MAX, 0));
        assert_eq!(sends.released(), 0, "those behind the first");
        sends.note(word(u32::MAX - 1, u32::MAX - 1));
        assert_eq!(sends.released(), 300);
        sends.note(word(2, 9));
        sends.note(word(5, 4));
        assert_eq!(sends.released(), 300, "what was never sent");
        sends.note(word(1, 1));
        assert_eq!((sends.released(), sends.is_pending()), (u64::MAX, false));
        assert!(sends.wants(10) && !sends.wants(9));
    }

    #[test]
    fn only_words_of_such_sends_count() {
        let word = |level: i32, kind: i32, errno: u32, origin: u8, code: u8| {
            let mut control = 48usize.to_ne_bytes().to_vec();
            control.extend([level.to_ne_bytes(), kind.to_ne_bytes()].concat());
            control.extend(errno.to_ne_bytes());
            control.extend([origin, 0, code, 0]);
            control.extend([3u32.to_ne_bytes(), 7u32.to_ne_bytes()].concat());
            parse(&control)
        };
        assert_eq!(word(0, 11, 0, 5, 1), Some(Word { low: 3, high: 7, copied: true }));
        assert_eq!(word(41, 25, 0, 5, 0), Some(Word { low: 3, high: 7, copied: false }));
        assert_eq!(word(0, 11, 110, 5, 0), None);
        assert_eq!(word(0, 11, 0, 2, 0), None);
        assert_eq!(word(1, 11, 0, 5, 0), None);
        assert_eq!(parse(&[0; 30]), None);
    }

    /// On loopback the kernel copies, says so, and is not asked again.
    #[test]
    fn where_the_kernel_copies_all_the_same_it_is_asked_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut sends = ZeroCopy::new(Some(4096));
        assert!(sends.wants(65536));
        if !sends.is_ready(&socket) {
            eprintln!("SKIPPED: this kernel has no MSG_ZEROCOPY");
            return;
        }
        let bytes = vec![7; 65536];
        let sent = rustix::net::send(&socket, &bytes, FLAG).unwrap();
        sends.sent(0);
        assert_eq!(sends.released(), 0);
        peer.read_exact(&mut vec![0; sent]).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while sends.is_pending() {
            sends.hear(&socket);
            assert!(Instant::now() < end, "the kernel does not say that it is done");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((sends.released(), sends.is_pending()), (u64::MAX, false));
        assert!(!sends.wants(65536), "loopback copies");
    }
}
