//! The side channel: a TCP connection that carries messages, and whose end is the peer's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use core::net::SocketAddr;
use overside_verbs::VerbsError;
use overside_verbs::watch::failed;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::messages::{BYTES, Message};

/// Sends and receives messages without ever waiting.
#[derive(Debug)]
pub(crate) struct SideChannel {
    socket: OwnedFd,
    heard: [u8; BYTES],
    heard_bytes: usize,
    unsent: Vec<u8>,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// A message.
    Message(Message),
    /// Nothing for now.
    Nothing,
    /// The other end is closed.
    End,
    /// Something no peer of ours says.
    Malformed,
}

impl SideChannel {
    /// Over a connection; a peer that is gone without a word is noticed within seconds.
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, VerbsError> {
        let set = || -> Result<(), Errno> {
            sockopt::set_tcp_nodelay(&socket, true)?;
            sockopt::set_socket_keepalive(&socket, true)?;
            sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
            sockopt::set_tcp_keepintvl(&socket, KEEPALIVE)?;
            sockopt::set_tcp_keepcnt(&socket, KEEPALIVES)?;
            sockopt::set_tcp_user_timeout(&socket, UNHEARD_MS)
        };
        set().map_err(|e| failed("setting up the side channel", e))?;
        Ok(Self { socket, heard: [0; BYTES], heard_bytes: 0, unsent: Vec::new() })
    }

    /// Says something after all that was said before, now or when there is room. A connection that is gone swallows
    /// it: whoever listens to it notices.
    pub(crate) fn send(&mut self, message: &Message) {
        self.unsent.extend(message.encode());
        self.flush();
    }

    /// Whether something waits for room.
    pub(crate) fn blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn flush(&mut self) {
        while !self.unsent.is_empty() {
            match rustix::net::send(&self.socket, &self.unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.unsent.drain(..sent.min(self.unsent.len()))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// The next message, without waiting.
    pub(crate) fn receive(&mut self) -> Incoming {
        while self.heard_bytes < BYTES {
            match rustix::net::recv(&self.socket, &mut self.heard[self.heard_bytes..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Incoming::End,
                Ok((bytes, _)) => self.heard_bytes += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Incoming::Nothing,
                Err(_) => return Incoming::End,
            }
        }
        self.heard_bytes = 0;
        Message::decode(&self.heard).map_or(Incoming::Malformed, Incoming::Message)
    }
}

impl AsFd for SideChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A TCP socket that never blocks.
pub(crate) fn socket(address: &SocketAddr) -> Result<OwnedFd, VerbsError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(|e| failed("socket", e))
}

/// Silence after which the peer's system is asked whether it is there, and between two such questions.
const KEEPALIVE: Duration = Duration::from_secs(1);
/// Questions without an answer after which it is not.
const KEEPALIVES: u32 = 3;
/// What was said and not taken for so long ends the connection, too.
const UNHEARD_MS: u32 = 4000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn connected() -> (TcpStream, SideChannel) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours, SideChannel::new(theirs.into()).unwrap())
    }

    fn next(channel: &mut SideChannel) -> Incoming {
        for _ in 0..2000 {
            match channel.receive() {
                Incoming::Nothing => std::thread::sleep(Duration::from_millis(1)),
                other => return other,
            }
        }
        Incoming::Nothing
    }

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let (mut peer, mut channel) = connected();
        let said = [Message::Ready, Message::Close { fate: 2 }, Message::Second { number: 9 }];
        let bytes: Vec<u8> = said.iter().flat_map(Message::encode).collect();
        let mut heard = Vec::new();
        for part in bytes.chunks(7) {
            peer.write_all(part).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            if let Incoming::Message(message) = channel.receive() {
                heard.push(message);
            }
        }
        while heard.len() < said.len() {
            match next(&mut channel) {
                Incoming::Message(message) => heard.push(message),
                other => panic!("{other:?} after {heard:?}"),
            }
        }
        assert_eq!(heard, said);
        drop(peer);
        assert_eq!(next(&mut channel), Incoming::End);
    }

    #[test]
    fn garbage_and_the_end_are_told_apart() {
        let (mut peer, mut channel) = connected();
        peer.write_all(&[0xFF; BYTES + 3]).unwrap();
        assert_eq!(next(&mut channel), Incoming::Malformed);
        drop(peer);
        assert_eq!(next(&mut channel), Incoming::End, "three bytes and the end are the end");
    }
}
