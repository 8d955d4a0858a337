//! A handshake over a TCP socket, by system calls alone.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::{Handshake, Keys, Turn};
use crate::VerbsError;
use crate::clock::{Clock, SystemClock};
use crate::watch::{failed, timespec};

/// Says and hears what can be said and heard without waiting.
pub fn turn(handshake: &mut Handshake, socket: impl AsFd) -> Turn {
    let mut turn = Turn::More;
    loop {
        while !handshake.unsent().is_empty() {
            match rustix::net::send(&socket, handshake.unsent(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(bytes) => handshake.sent(bytes),
                Err(Errno::INTR) => {}
                // A fresh socket has room for a short answer, or nobody reads it.
                Err(_) if matches!(turn, Turn::Refused(_)) => return turn,
                Err(errno) => return Turn::Refused(format!("{} ({errno})", handshake.hung_up())),
            }
        }
        if !matches!(turn, Turn::More) {
            return turn;
        }
        match rustix::net::recv(&socket, handshake.room(), RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Turn::Refused(handshake.hung_up().to_owned()),
            Ok((bytes, _)) => turn = handshake.heard(bytes),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Turn::More,
            Err(errno) => return Turn::Refused(format!("{} ({errno})", handshake.hung_up())),
        }
    }
}

/// Shakes hands to the end, however slowly the peer answers, until the end of all patience.
///
/// # Errors
/// [`VerbsError::Handshake`] and [`VerbsError::Key`] with the reason, [`VerbsError::TimedOut`].
pub fn shake(mut handshake: Handshake, socket: impl AsFd, patience: Patience) -> Result<Keys, VerbsError> {
    loop {
        match turn(&mut handshake, &socket) {
            Turn::Known(keys) => return Ok(keys),
            Turn::Refused(why) => return Err(VerbsError::Handshake(why)),
            Turn::OtherKey(why) => return Err(VerbsError::Key(why)),
            Turn::More => patience.ready(&socket, PollFlags::IN)?,
        }
    }
}

/// Until when somebody waits, and how long that is in all.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    end: Instant,
    timeout: Duration,
}

impl Patience {
    /// From now on.
    pub fn new(timeout: Duration) -> Self {
        Self { end: SystemClock.now() + timeout, timeout }
    }

    /// What is left of it.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`] when nothing is.
    pub fn left(&self) -> Result<Duration, VerbsError> {
        let left = self.end.saturating_duration_since(SystemClock.now());
        if left.is_zero() { Err(self.over()) } else { Ok(left) }
    }

    /// That it is over.
    pub fn over(&self) -> VerbsError {
        VerbsError::TimedOut(self.timeout)
    }

    /// Waits for so long, if there is so much left.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`].
    pub fn pause(&self, duration: Duration) -> Result<(), VerbsError> {
        (&SystemClock as &dyn Clock).sleep(duration.min(self.left()?));
        Ok(())
    }

    /// Waits until the descriptor is ready.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`].
    pub fn ready(&self, fd: impl AsFd, flags: PollFlags) -> Result<(), VerbsError> {
        loop {
            match rustix::event::poll(&mut [PollFd::new(&fd, flags)], Some(&timespec(self.left()?))) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(failed("poll", errno)),
            }
        }
    }
}

/// What every connection between hosts has: no delay, and an end within seconds when the other
/// side's host is gone.
///
/// # Errors
/// When it is no TCP socket.
pub fn prepare(socket: impl AsFd) -> Result<(), VerbsError> {
    let set = || -> Result<(), Errno> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&socket, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(&socket, KEEPALIVES)?;
        sockopt::set_tcp_user_timeout(&socket, SILENCE.as_millis() as u32)
    };
    set().map_err(|e| failed("setting the socket's options", e))
}

/// Silence after which the peer's system is asked whether it is there, and between two such
/// questions.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// Questions without an answer after which it is not.
const KEEPALIVES: u32 = 3;
/// What is sent and not acknowledged by the peer's host for so long ends the connection.
pub const SILENCE: Duration = Duration::from_secs(4);
