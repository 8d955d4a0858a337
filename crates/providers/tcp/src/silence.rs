//! How long a peer's host may say nothing.
//!
//! What is sent and not acknowledged for some seconds ends a connection: the wire is cut. The
//! kernel's limit for that (`TCP_USER_TIMEOUT`) also runs while the host is there and says that the
//! socket is full, since its process stands still; but a peer that is alive has no deadline. So the
//! limit is lifted as long as a host says so, and the questions that it leaves without an answer
//! are counted here.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use overside_verbs::handshake::stream::SILENCE;
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::fate::Fate;

/// What is known of one connection.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// The kernel's limit does not hold for now.
    lifted: bool,
}

/// What the kernel says of a socket.
#[derive(Clone, Copy, Debug)]
struct Info {
    /// Segments that were sent and not acknowledged.
    unacked: u32,
    /// Bytes that were not sent yet.
    unsent: u32,
    /// Questions whether there is room again that have no answer yet.
    questions: u8,
    /// Since the peer's host last acknowledged anything.
    silent: Duration,
}

impl Silence {
    /// A look at a connection with something under way, several times while the kernel's limit
    /// lasts.
    ///
    /// # Errors
    /// When the host was asked for room and has not answered for as long as it may be silent.
    pub(crate) fn look(&mut self, socket: impl AsFd) -> Result<(), Fate> {
        let Some(info) = info(&socket) else { return Ok(()) };
        if info.is_full() != self.lifted {
            self.lifted = info.is_full();
            let limit = if self.lifted { 0 } else { SILENCE.as_millis() as u32 };
            // One that has ended: the next look at its bytes tells.
            let _ = sockopt::set_tcp_user_timeout(&socket, limit);
        }
        if self.lifted && info.questions >= UNANSWERED && info.silent >= SILENCE {
            return Err(Fate::Lost(Errno::TIMEDOUT));
        }
        Ok(())
    }
}

impl Info {
    /// Whether the peer has all that was sent and no room for the rest.
    fn is_full(self) -> bool {
        self.unacked == 0 && self.unsent > 0
    }
}

fn info(socket: impl AsFd) -> Option<Info> {
    let mut info = [0u8; 256];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: [tcp-info] a buffer of ours and its length.
    let done = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    if done != 0 || (len as usize) < UNSENT + 4 {
        return None;
    }
    let word = |at: usize| info.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes));
    let silent = Duration::from_millis(u64::from(word(LAST_ACK)?));
    Some(Info { unacked: word(UNACKED)?, unsent: word(UNSENT)?, questions: info[QUESTIONS], silent })
}

/// So many questions in a row have no answer: one may be on its way.
const UNANSWERED: u8 = 2;
/// Offsets in `struct tcp_info`, which only ever grows at its end.
const QUESTIONS: usize = 3;
const UNACKED: usize = 24;
const LAST_ACK: usize = 56;
const UNSENT: usize = 144;
