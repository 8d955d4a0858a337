//! The handshake alone, for the fuzz target and the replay of its corpus. Not for users.

use super::{HELLO_BYTES, Handshake, Key, PROOF_BYTES, Terms, Turn};

/// A peer's side of a handshake. Bit 0 of the first byte: we listen; bit 1: with a key; the second
/// byte says in which portions the rest comes. True: the peer is known.
///
/// # Panics
/// When more is said than there is to say, or a side that waits has no room.
pub fn handshake(bytes: &[u8]) -> bool {
    let [how, portion, rest @ ..] = bytes else { return false };
    let mut side = side(*how);
    let (mut rest, mut said) = (rest, 0);
    loop {
        said += side.unsent().len();
        side.sent(side.unsent().len());
        assert!(said <= HELLO_BYTES + PROOF_BYTES, "{said} bytes said");
        let room = side.room();
        assert!(!room.is_empty() && room.len() <= HELLO_BYTES);
        let some = room.len().min(usize::from(*portion) + 1).min(rest.len());
        if some == 0 {
            return false;
        }
        room[..some].copy_from_slice(&rest[..some]);
        rest = &rest[some..];
        match side.heard(some) {
            Turn::More => {}
            Turn::Known(_) => return true,
            Turn::Refused(why) | Turn::OtherKey(why) => {
                assert!(!why.is_empty() && why.len() < 200);
                return false;
            }
        }
    }
}

/// Inputs that it takes: what the right peer says to each kind of side.
///
/// # Panics
/// Never: all of it is made here.
pub fn seeds() -> Vec<Vec<u8>> {
    let of = |how: u8| {
        let (mut ours, mut theirs) = (side(how), peer(how));
        let mut seed = vec![how, 40];
        for _ in 0..2 {
            carry(&mut ours, &mut theirs, &mut Vec::new());
            carry(&mut theirs, &mut ours, &mut seed);
        }
        seed
    };
    (0..4).map(of).collect()
}

/// All that one side has to say goes to the other, and what of it is for the corpus into `seed`.
fn carry(from: &mut Handshake, to: &mut Handshake, seed: &mut Vec<u8>) {
    while !from.unsent().is_empty() {
        let bytes = from.unsent().len().min(to.room().len());
        seed.extend_from_slice(&from.unsent()[..bytes]);
        to.room()[..bytes].copy_from_slice(&from.unsent()[..bytes]);
        from.sent(bytes);
        to.heard(bytes);
    }
}

fn side(how: u8) -> Handshake {
    if how & 1 == 1 { Handshake::listen(&terms(how), [5; 32]) } else { Handshake::connect(&terms(how), [5; 32]) }
}

fn peer(how: u8) -> Handshake {
    if how & 1 == 1 { Handshake::connect(&terms(how), [9; 32]) } else { Handshake::listen(&terms(how), [9; 32]) }
}

fn terms(how: u8) -> Terms {
    Terms { protocol: "fuzz", version: 1, key: (how & 2 == 2).then(|| key(1)), tags: true }
}

/// One of as many keys as there are seeds, for tests.
///
/// # Panics
/// Never: each is good.
pub fn key(seed: u8) -> Key {
    Key::from_bytes(blake3::hash(&[seed]).as_bytes()).expect("random bytes")
}
