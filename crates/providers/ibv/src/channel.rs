//! The side channel: a TCP connection that carries messages, and whose end is the peer's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overside_verbs::handshake::{Keys, TAG_BYTES, same, tag};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use crate::messages::{BYTES, Message};

/// Sends and receives messages without ever waiting. What is kept of a peer, and for it, has a
/// bound.
#[derive(Debug)]
pub(crate) struct SideChannel {
    socket: OwnedFd,
    /// Each message carries a tag, made with these.
    keys: Option<Keys>,
    /// Messages said and heard.
    said: u64,
    heard: u64,
    part: [u8; BYTES + TAG_BYTES],
    part_bytes: usize,
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
    /// Over a connection that has shaken hands.
    pub(crate) fn new(socket: OwnedFd, keys: Option<Keys>) -> Self {
        Self { socket, keys, said: 0, heard: 0, part: [0; BYTES + TAG_BYTES], part_bytes: 0, unsent: Vec::new() }
    }

    /// Says something after all that was said before, now or when there is room. A connection that
    /// is gone swallows it: whoever listens to it notices.
    pub(crate) fn send(&mut self, message: &Message) {
        let bytes = message.encode();
        self.unsent.extend(bytes);
        if let Some(keys) = &self.keys {
            self.unsent.extend(tag(&keys.out, self.said, &bytes));
        }
        self.said += 1;
        self.flush();
        if self.unsent.len() > UNSENT_MAX {
            // Nobody reads it: the end, for both sides.
            self.unsent = Vec::new();
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
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
        let whole = BYTES + if self.keys.is_some() { TAG_BYTES } else { 0 };
        while self.part_bytes < whole {
            match rustix::net::recv(&self.socket, &mut self.part[self.part_bytes..whole], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Incoming::End,
                Ok((bytes, _)) => self.part_bytes += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Incoming::Nothing,
                Err(_) => return Incoming::End,
            }
        }
        self.part_bytes = 0;
        let (bytes, tagged): (&[u8; BYTES], &[u8]) = match self.part.split_first_chunk() {
            Some((bytes, rest)) => (bytes, &rest[..whole - BYTES]),
            None => return Incoming::Malformed,
        };
        let number = self.heard;
        self.heard += 1;
        match &self.keys {
            Some(keys) if !same(&tag(&keys.into, number, bytes), tagged) => Incoming::Malformed,
            _ => Message::decode(bytes).map_or(Incoming::Malformed, Incoming::Message),
        }
    }
}

impl AsFd for SideChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a peer leaves unread ends the connection beyond this: all that is ever said is a few
/// messages.
const UNSENT_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    fn connected(keys: Option<Keys>) -> (TcpStream, SideChannel) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours, SideChannel::new(theirs.into(), keys))
    }

    fn next(channel: &mut SideChannel) -> Incoming {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            match channel.receive() {
                Incoming::Nothing => std::thread::sleep(Duration::from_millis(1)),
                other => return other,
            }
        }
        Incoming::Nothing
    }

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let (mut peer, mut channel) = connected(None);
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
        let (mut peer, mut channel) = connected(None);
        peer.write_all(&[0xFF; BYTES + 3]).unwrap();
        assert_eq!(next(&mut channel), Incoming::Malformed);
        drop(peer);
        assert_eq!(next(&mut channel), Incoming::End, "three bytes and the end are the end");
    }

    #[test]
    fn a_message_without_its_tag_or_played_back_is_garbage() {
        let keys = Keys { out: [1; 32], into: [2; 32] };
        let tagged = |number| {
            let bytes = Message::Ready.encode();
            [&bytes[..], &tag(&keys.into, number, &bytes)].concat()
        };
        let (mut peer, mut channel) = connected(Some(keys));
        peer.write_all(&tagged(0)).unwrap();
        assert_eq!(next(&mut channel), Incoming::Message(Message::Ready));
        peer.write_all(&tagged(0)).unwrap();
        assert_eq!(next(&mut channel), Incoming::Malformed, "played back");
        let (mut peer, mut channel) = connected(Some(keys));
        peer.write_all(&[&Message::Ready.encode()[..], &[0; TAG_BYTES]].concat()).unwrap();
        assert_eq!(next(&mut channel), Incoming::Malformed, "no tag");
    }

    #[test]
    fn a_peer_that_reads_nothing_costs_a_bounded_amount() {
        let (peer, mut channel) = connected(None);
        let mut most = 0;
        // More than the sockets' own buffers hold.
        for _ in 0..1 << 20 {
            channel.send(&Message::Ready);
            most = most.max(channel.unsent.capacity());
            if channel.receive() == Incoming::End {
                assert!(most < 4 * UNSENT_MAX, "{most} bytes kept");
                return drop(peer);
            }
        }
        panic!("it never ended");
    }
}
