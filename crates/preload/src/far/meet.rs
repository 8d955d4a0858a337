//! The ends of a connection between hosts find each other, while it goes on through the kernel.
//!
//! By datagrams, not one byte of the stream: the connecting end listens on the UDP port of its connection's own number, the accepting
//! end sends there. `KNOCK` names the connection; `ANSWER` and `CARD` bring each end's queue pair and a number that the other has made up
//! for this once. All carry a proof of the key that both hosts have. Nobody waits: a step is made at the end of a call, a datagram that
//! is lost costs the acceleration, and where nobody answers the connection stays as it is.

use core::net::SocketAddr;
use std::ffi::c_int;

use overside_ibv::Card;
use overside_verbs::handshake::same;
use overside_verbs::random;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType};

use super::{Far, nic};
use crate::connection::Inner;
use crate::diagnosis::Reason;
use crate::kernel::borrowed;
use crate::meeting::out_of_the_way;
use crate::name;

/// One step towards a meeting. Once there is memory for it, [`introduce`] goes on.
///
/// # Errors
/// `AGAIN` or `CONNREFUSED` while nobody is there; anything else ends the attempt.
pub(crate) fn step(held: &mut Inner, fd: c_int) -> Result<(), Errno> {
    let means = nic::means().map_err(|why| {
        held.reason = Reason::Call(why);
        Errno::NODEV
    })?;
    let here = local(fd)?;
    if held.offer < 0 {
        held.nonce = random().map_err(|_| Errno::NOMEM)?;
        // Where the other end can tell that it is: beside the connection's own port.
        let place = if held.end == 0 { here } else { SocketAddr::new(here.ip(), 0) };
        let socket = rustix::net::socket_with(
            rustix::net::getsockname(borrowed(fd))?.address_family(),
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&socket, &place)?;
        if held.end == 1 {
            rustix::net::connect(&socket, &rustix::net::getpeername(borrowed(fd))?.ok_or(Errno::NOTCONN)?)?;
        }
        held.offer = out_of_the_way(socket)?;
    }
    let connection = name::connection(fd, held.end).ok_or(Errno::NOTCONN)?;
    let mut letter = Letter::new(KNOCK, &connection);
    if held.end == 1 {
        while let Some((answer, _)) = hear(held, means, &connection)? {
            if answer.kind() == ANSWER && answer.nonce(ACCEPTING) == held.nonce {
                return accept(held, means, here, &answer, letter);
            }
        }
        letter.put(ACCEPTING, &held.nonce);
        letter.sign(means);
        say(held.offer, &letter, None)?;
        return Err(Errno::AGAIN);
    }
    while let Some((knock, from)) = hear(held, means, &connection)? {
        if knock.kind() == KNOCK {
            let shared = match held.shared {
                Some(shared) => shared,
                None => Far::create(means, held.end, Some(here))?,
            };
            held.shared = Some(shared);
            letter.put(KIND, &[ANSWER]);
            letter.put(ACCEPTING, &knock.nonce(ACCEPTING));
            letter.put(CONNECTING, &held.nonce);
            letter.put(CARD_AT, &shared.far(|far| far.card().encode()).unwrap_or([0; Card::BYTES]));
            letter.sign(means);
            return say(held.offer, &letter, from);
        }
    }
    Err(Errno::AGAIN)
}

/// The accepting end knows the other's queue pair, and tells of its own.
fn accept(
    held: &mut Inner,
    means: &nic::Means,
    here: SocketAddr,
    answer: &Letter,
    mut card: Letter,
) -> Result<(), Errno> {
    let theirs = answer.card().ok_or(Errno::PERM)?;
    let shared = Far::create(means, held.end, Some(here))?;
    held.shared = Some(shared);
    held.dialled = true;
    shared.far(|far| far.connect(&theirs)).unwrap_or(Ok(()))?;
    card.put(KIND, &[CARD]);
    card.put(ACCEPTING, &held.nonce);
    card.put(CONNECTING, &answer.nonce(CONNECTING));
    card.put(CARD_AT, &shared.far(|far| far.card().encode()).unwrap_or([0; Card::BYTES]));
    card.sign(means);
    say(held.offer, &card, None)?;
    leave(held);
    Ok(())
}

/// Whether both ends know each other's queue pairs, as far as this one can tell: the connecting end waits for the card.
pub(crate) fn introduce(held: &mut Inner, fd: c_int) -> Result<bool, Errno> {
    let Some(shared) = held.shared else { return Ok(false) };
    if shared.far(|far| far.is_connected()) != Some(false) {
        return Ok(true);
    }
    let means = nic::means().map_err(|_| Errno::NODEV)?;
    let connection = name::connection(fd, held.end).ok_or(Errno::NOTCONN)?;
    while let Some((letter, _)) = hear(held, means, &connection)? {
        if letter.kind() == CARD && letter.nonce(CONNECTING) == held.nonce {
            let theirs = letter.card().ok_or(Errno::PERM)?;
            shared.far(|far| far.connect(&theirs)).unwrap_or(Ok(()))?;
            leave(held);
            return Ok(true);
        }
    }
    Ok(false)
}

/// The datagram socket is of no more use.
fn leave(held: &mut Inner) {
    crate::meeting::withdraw_offer(held);
}

/// The next letter about this connection from somebody who has the key. A few at a time.
fn hear(
    held: &Inner,
    means: &nic::Means,
    connection: &[u8; 36],
) -> Result<Option<(Letter, Option<SocketAddrAny>)>, Errno> {
    for _ in 0..LETTERS_AT_ONCE {
        let mut letter = Letter { bytes: [0; LETTER_BYTES + 1] };
        let (_, len, from) = match rustix::net::recvfrom(borrowed(held.offer), &mut letter.bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::CONNREFUSED) => return Ok(None),
            other => other?,
        };
        if len == LETTER_BYTES && letter.is_about(connection) && letter.is_signed(means) {
            return Ok(Some((letter, from)));
        }
    }
    Ok(None)
}

fn say(socket: c_int, letter: &Letter, to: Option<SocketAddrAny>) -> Result<(), Errno> {
    let (flags, bytes) = (SendFlags::DONTWAIT | SendFlags::NOSIGNAL, letter.bytes.get(..LETTER_BYTES).unwrap_or(&[]));
    let sent = match to {
        Some(to) => rustix::net::sendto(borrowed(socket), bytes, flags, &to),
        None => rustix::net::send(borrowed(socket), bytes, flags),
    };
    sent.map(|_| ())
}

fn local(fd: c_int) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(rustix::net::getsockname(borrowed(fd))?).map_err(|_| Errno::AFNOSUPPORT)
}

/// A datagram: what it is, of which connection, the two numbers, a card, the proof.
struct Letter {
    /// One more than any has, so that a longer one is seen to be.
    bytes: [u8; LETTER_BYTES + 1],
}

impl Letter {
    fn new(kind: u8, connection: &[u8; 36]) -> Self {
        let mut letter = Self { bytes: [0; LETTER_BYTES + 1] };
        letter.put(0, &GREETING);
        letter.put(KIND, &[kind]);
        letter.put(CONNECTION, connection);
        letter
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn take<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or([0; N])
    }

    fn kind(&self) -> u8 {
        self.take::<1>(KIND)[0]
    }

    fn nonce(&self, at: usize) -> [u8; 16] {
        self.take(at)
    }

    fn card(&self) -> Option<Card> {
        Card::decode(&self.take(CARD_AT))
    }

    fn is_about(&self, connection: &[u8; 36]) -> bool {
        self.take::<16>(0) == GREETING && self.take::<36>(CONNECTION) == *connection
    }

    fn proof(&self, means: &nic::Means) -> [u8; 32] {
        means.key.prove("sockets over rdma", self.bytes.get(..PROOF).unwrap_or(&[]))
    }

    fn sign(&mut self, means: &nic::Means) {
        let proof = self.proof(means);
        self.put(PROOF, &proof);
    }

    fn is_signed(&self, means: &nic::Means) -> bool {
        same(&self.proof(means), &self.take::<32>(PROOF))
    }
}

const GREETING: [u8; 16] = *b"overside-rdma-01";
const KNOCK: u8 = 1;
const ANSWER: u8 = 2;
const CARD: u8 = 3;
/// Where the parts of a letter lie; the numbers by the end that has made them up.
const KIND: usize = 16;
const CONNECTION: usize = 24;
const ACCEPTING: usize = 64;
const CONNECTING: usize = 80;
const CARD_AT: usize = 96;
const PROOF: usize = 144;
const LETTER_BYTES: usize = PROOF + 32;
const LETTERS_AT_ONCE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_letter_do_not_overlap() {
        const { assert!(KIND < CONNECTION && CONNECTION + 36 <= ACCEPTING && ACCEPTING + 16 <= CONNECTING) };
        const { assert!(CONNECTING + 16 <= CARD_AT && CARD_AT + Card::BYTES <= PROOF) };
        let mut letter = Letter::new(ANSWER, &[7; 36]);
        letter.put(ACCEPTING, &[1; 16]);
        letter.put(CONNECTING, &[2; 16]);
        assert!(letter.is_about(&[7; 36]) && !letter.is_about(&[8; 36]));
        assert_eq!((letter.kind(), letter.nonce(ACCEPTING), letter.nonce(CONNECTING)), (ANSWER, [1; 16], [2; 16]));
        assert_eq!(letter.card(), None, "no queue pair has the number 0");
    }
}
