//! What is heard on a side channel, alone, for the fuzz target and the replay of its corpus. Not
//! for users.

use overside_verbs::handshake::{Keys, tag};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::channel::{Incoming, SideChannel};
use crate::messages::{Attach, Message, Mode};
use crate::process::Process;
use crate::said::Said;
use crate::status::Fate;

/// A peer's messages on a side channel; tagged when the first byte is odd. True: all of them were
/// taken.
///
/// # Panics
/// When what is known of the peer is not what a peer may say.
pub fn side_channel(bytes: &[u8]) -> bool {
    let Some((tagged, bytes)) = bytes.split_first() else { return false };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok((ours, theirs)) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None) else {
        return false;
    };
    let bytes = &bytes[..bytes.len().min(INPUT_BYTES_MAX)];
    if rustix::io::write(&theirs, bytes) != Ok(bytes.len()) {
        return false;
    }
    drop(theirs);
    let mut channel = SideChannel::new(ours, keys(*tagged));
    let mut said = Said::nothing();
    loop {
        let message = match channel.receive() {
            Incoming::Message(message) => message,
            Incoming::Nothing | Incoming::End => return true,
            Incoming::Malformed => return false,
        };
        assert_eq!(Message::decode(&message.encode()), Some(message), "a message has one encoding");
        let attached = said.attach.is_some();
        if let Err(fate) = said.hear(message) {
            return fate == Fate::Closed;
        }
        let Some(peer) = said.attach else { panic!("{message:?} was taken before the peer said how to reach it") };
        assert!(!attached || !matches!(message, Message::Attach(_)), "attached twice");
        assert!(peer.shares || said.mode == Mode::Own, "{peer:?} takes from {:?}", said.mode);
        assert!(peer.numbers.iter().all(|number| number >> 24 == 0) && (1..=5).contains(&peer.mtu));
    }
}

/// Inputs that it takes.
///
/// # Panics
/// Never: all of it is made here.
pub fn seeds() -> Vec<Vec<u8>> {
    let attach = |shares, mode| {
        Message::Attach(Attach {
            numbers: [17, 0],
            psn: 0xabcdef,
            gid: [7; 16],
            lid: 3,
            mtu: 5,
            reads: 16,
            shares,
            mode,
            process: shares.then_some(Process { host: [9; 16], space: 5, pid: 77 }),
        })
    };
    let said: [&[Message]; 2] = [
        &[attach(true, Mode::Undecided), Message::Second { number: 18 }, Message::Ready, Message::Mode(Mode::Shared)],
        &[attach(false, Mode::Own), Message::Ready, Message::Mode(Mode::Own), Message::Close { fate: 1 }],
    ];
    let mut seeds = Vec::new();
    for tagged in [0, 1] {
        for messages in said {
            let mut seed = vec![tagged];
            for (number, message) in messages.iter().enumerate() {
                let bytes = message.encode();
                seed.extend_from_slice(&bytes);
                seed.extend(keys(tagged).iter().flat_map(|keys| tag(&keys.into, number as u64, &bytes)));
            }
            seeds.push(seed);
        }
    }
    seeds
}

fn keys(tagged: u8) -> Option<Keys> {
    (tagged & 1 == 1).then_some(Keys { out: [1; 32], into: [2; 32] })
}

/// What fits into a socket at once.
const INPUT_BYTES_MAX: usize = 16 << 10;
