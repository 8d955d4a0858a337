//! The ends of a connection between hosts find each other, while it goes on through the kernel.
//!
//! By datagrams, not one byte of the stream: the connecting end listens on the UDP port of its
//! connection's own number, the accepting end sends there. `HELLO` names the connection; `ANSWER`
//! and `CARD` bring each end's queue pair and a number that the other has made up for this once,
//! and carry a proof of the key that both hosts have.
//!
//! The connecting end proves first: a server's hello carries nothing that depends on the key, so a
//! connecting stranger has nothing to try keys on. The connecting end listens to the address alone
//! that its program connected to.
//!
//! Nobody waits: a step is made at the end of a call, a datagram that is lost costs the
//! acceleration, and where nobody answers the connection stays as it is.

use core::net::SocketAddr;
use std::ffi::c_int;

use overside_ibv::Card;
use overside_verbs::handshake::{Key, same};
use overside_verbs::random;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType};

use super::out_of_the_way;
use crate::connection::Inner;
use crate::diagnosis::Reason;
use crate::fallback;
use crate::kernel::borrowed;
use crate::name;
use crate::remote::{self as device, Means, Remote};
use crate::rim::remote;
use crate::state::{Datagrams, Search};

/// One step towards a rendezvous. Once there is memory for it, [`introduce`] goes on.
///
/// # Errors
/// `AGAIN` or `CONNREFUSED` while nobody is there; anything else ends the attempt.
pub(crate) fn step(held: &mut Inner, fd: c_int) -> Result<(), Errno> {
    let means = device::means().map_err(|why| {
        held.reason = Reason::Call(why);
        Errno::NODEV
    })?;
    let here = local(fd)?;
    if held.search.socket().is_none() {
        let nonce = random().map_err(|_| Errno::NOMEM)?;
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
        held.search = Search::Datagrams(Datagrams { socket: out_of_the_way(socket)?, nonce, theirs: None });
    }
    let Datagrams { socket, nonce, .. } = datagrams(held)?;
    let connection = name::connection(fd, held.end).ok_or(Errno::NOTCONN)?;
    let mut datagram = Datagram::new(HELLO, &connection);
    if held.end == 1 {
        while let Some((answer, _)) = hear(held, fd, means, &connection)? {
            if answer.kind() == ANSWER && answer.nonce(ACCEPTING) == nonce {
                return accept(held, means, here, &answer, datagram);
            }
        }
        datagram.put(ACCEPTING, &nonce);
        say(socket, &datagram, None)?;
        return Err(Errno::AGAIN);
    }
    while let Some((hello, from)) = hear(held, fd, means, &connection)? {
        if hello.kind() == HELLO {
            let shared = Remote::create(means, held.end, Some(here))?;
            held.attach(shared, false);
            return answer(held, means, &hello, datagram, from);
        }
    }
    Err(Errno::AGAIN)
}

/// The connecting end names its queue pair to each sender of a hello, however often.
fn answer(
    held: &Inner,
    means: &Means,
    hello: &Datagram,
    mut answer: Datagram,
    to: Option<SocketAddrAny>,
) -> Result<(), Errno> {
    let Datagrams { socket, nonce, .. } = datagrams(held)?;
    answer.put(KIND, &[ANSWER]);
    answer.put(ACCEPTING, &hello.nonce(ACCEPTING));
    answer.put(CONNECTING, &nonce);
    answer.put_card(held);
    answer.sign(&means.key);
    say(socket, &answer, to)
}

/// The accepting end knows the other's queue pair, and tells of its own.
fn accept(
    held: &mut Inner,
    means: &Means,
    here: SocketAddr,
    answer: &Datagram,
    datagram: Datagram,
) -> Result<(), Errno> {
    let theirs = answer.card().ok_or(Errno::PERM)?;
    let shared = Remote::create(means, held.end, Some(here))?;
    held.attach(shared, true);
    remote(&shared, |remote| remote.connect(&theirs)).unwrap_or(Ok(()))?;
    if let Search::Datagrams(Datagrams { theirs, .. }) = &mut held.search {
        *theirs = Some(answer.nonce(CONNECTING));
    }
    tell_card(held, means, datagram)
}

fn tell_card(held: &Inner, means: &Means, mut card: Datagram) -> Result<(), Errno> {
    let Datagrams { socket, nonce, theirs } = datagrams(held)?;
    card.put(KIND, &[CARD]);
    card.put(ACCEPTING, &nonce);
    card.put(CONNECTING, &theirs.ok_or(Errno::NOTCONN)?);
    card.put_card(held);
    card.sign(&means.key);
    say(socket, &card, None)
}

/// Whether both ends know each other's queue pairs, as far as this one can tell: the connecting end
/// waits for the card, and the accepting one repeats it until the other has written.
pub(crate) fn introduce(held: &mut Inner, fd: c_int) -> Result<bool, Errno> {
    let Some(shared) = held.shared() else { return Ok(false) };
    let connected = remote(&shared, |remote| remote.is_connected()) != Some(false);
    if connected
        && (held.search.socket().is_none()
            || held.end == 0
            || remote(&shared, |remote| remote.has_received()) == Some(true))
    {
        leave(held);
        return Ok(true);
    }
    let means = device::means().map_err(|_| Errno::NODEV)?;
    let connection = name::connection(fd, held.end).ok_or(Errno::NOTCONN)?;
    if connected {
        if held.operations.is_multiple_of(CARD_TURN) {
            // That nobody listens any more may be a word about an earlier one; the device will tell.
            let _ = tell_card(held, means, Datagram::new(CARD, &connection));
        }
        return Ok(true);
    }
    while let Some((datagram, from)) = hear(held, fd, means, &connection)? {
        if datagram.kind() == HELLO {
            answer(held, means, &datagram, Datagram::new(ANSWER, &connection), from)?;
        } else if datagram.kind() == CARD && datagram.nonce(CONNECTING) == datagrams(held)?.nonce {
            let theirs = datagram.card().ok_or(Errno::PERM)?;
            remote(&shared, |remote| remote.connect(&theirs)).unwrap_or(Ok(()))?;
            leave(held);
            return Ok(true);
        }
    }
    Ok(false)
}

fn datagrams(held: &Inner) -> Result<Datagrams, Errno> {
    match held.search {
        Search::Datagrams(datagrams) => Ok(datagrams),
        Search::Idle | Search::Listening(_) | Search::Accepted(_) => Err(Errno::NOTCONN),
    }
}

/// The datagram socket is of no more use.
fn leave(held: &mut Inner) {
    fallback::withdraw_offer(held);
}

/// The next datagram about this connection from the other end's host: a hello, or from somebody who
/// has the key. A few at a time.
fn hear(
    held: &Inner,
    fd: c_int,
    means: &Means,
    connection: &[u8; 36],
) -> Result<Option<(Datagram, Option<SocketAddrAny>)>, Errno> {
    let Datagrams { socket, .. } = datagrams(held)?;
    for _ in 0..DATAGRAMS_AT_ONCE {
        let mut datagram = Datagram { bytes: [0; DATAGRAM_BYTES + 1] };
        let (_, len, from) = match rustix::net::recvfrom(borrowed(socket), &mut datagram.bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::CONNREFUSED) => return Ok(None),
            other => other?,
        };
        if datagram.is_taken(len, connection, &means.key) && comes_from(fd, from.as_ref())? {
            return Ok(Some((datagram, from)));
        }
    }
    Ok(None)
}

/// Whether a datagram is of the host at the other end of the connection. A connected socket hears
/// no other, and may say no address.
fn comes_from(fd: c_int, from: Option<&SocketAddrAny>) -> Result<bool, Errno> {
    let host = |address: &SocketAddrAny| SocketAddr::try_from(address.clone()).ok().map(|it| it.ip().to_canonical());
    let peer = rustix::net::getpeername(borrowed(fd))?.ok_or(Errno::NOTCONN)?;
    Ok(from.is_none_or(|from| host(from) == host(&peer)))
}

fn say(socket: c_int, datagram: &Datagram, to: Option<SocketAddrAny>) -> Result<(), Errno> {
    let (flags, bytes) =
        (SendFlags::DONTWAIT | SendFlags::NOSIGNAL, datagram.bytes.get(..DATAGRAM_BYTES).unwrap_or(&[]));
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
struct Datagram {
    /// One more than any has, so that a longer one is seen to be.
    bytes: [u8; DATAGRAM_BYTES + 1],
}

impl Datagram {
    fn new(kind: u8, connection: &[u8; 36]) -> Self {
        let mut datagram = Self { bytes: [0; DATAGRAM_BYTES + 1] };
        datagram.put(0, &GREETING);
        datagram.put(KIND, &[kind]);
        datagram.put(CONNECTION, connection);
        datagram
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

    /// What the other end needs to know of this one's queue pair.
    fn put_card(&mut self, held: &Inner) {
        let card = held.shared().and_then(|shared| remote(&shared, |remote| remote.card().encode()));
        self.put(CARD_AT, &card.unwrap_or([0; Card::BYTES]));
    }

    fn proof(&self, key: &Key) -> [u8; 32] {
        key.prove("sockets over rdma", self.bytes.get(..PROOF).unwrap_or(&[]))
    }

    fn sign(&mut self, key: &Key) {
        let proof = self.proof(key);
        self.put(PROOF, &proof);
    }

    /// Whether a datagram of this length is one about this connection: a hello, or of somebody who
    /// has the key.
    fn is_taken(&self, len: usize, connection: &[u8; 36], key: &Key) -> bool {
        len == DATAGRAM_BYTES && self.is_about(connection) && (self.is_hello(connection) || self.is_signed(key))
    }

    /// A hello says its sender's number and no more.
    fn is_hello(&self, connection: &[u8; 36]) -> bool {
        let mut hello = Datagram::new(HELLO, connection);
        hello.put(ACCEPTING, &self.nonce(ACCEPTING));
        self.bytes.get(..DATAGRAM_BYTES) == hello.bytes.get(..DATAGRAM_BYTES)
    }

    fn is_signed(&self, key: &Key) -> bool {
        self.kind() != HELLO && same(&self.proof(key), &self.take::<32>(PROOF))
    }
}

const GREETING: [u8; 16] = *b"overside-rdma-02";
const HELLO: u8 = 1;
const ANSWER: u8 = 2;
const CARD: u8 = 3;
/// Where the parts of a datagram lie; the numbers by the end that has made them up.
const KIND: usize = 16;
const CONNECTION: usize = 24;
const ACCEPTING: usize = 64;
const CONNECTING: usize = 80;
const CARD_AT: usize = 96;
const PROOF: usize = 144;
const DATAGRAM_BYTES: usize = PROOF + 32;
const DATAGRAMS_AT_ONCE: usize = 8;
/// Calls between two of the same.
const CARD_TURN: u32 = 4;

/// Of a datagram, for the fuzz target and the replay of its corpus: all there is to take from it.
#[cfg(any(test, fuzzing))]
pub(crate) mod parts {
    use super::*;

    /// The key that the corpus is signed with.
    pub(crate) fn key() -> Key {
        const BYTES: [u8; 32] = [
            72, 252, 114, 31, 187, 193, 114, 224, 146, 95, 162, 122, 241, 103, 29, 226, 37, 186, 146, 113, 52, 128, 41,
            152, 177, 10, 21, 104, 161, 136, 101, 43,
        ];
        Key::from_bytes(&BYTES).expect("random bytes")
    }

    const CONNECTION_OF_ALL: [u8; 36] = [7; 36];
    const NUMBER: std::ops::Range<usize> = ACCEPTING..CONNECTING;

    /// Whether this byte of an input is in the number of a hello.
    #[cfg(test)]
    pub fn is_number_of_hello(bytes: &[u8], at: usize) -> bool {
        bytes.get(1 + KIND) == Some(&HELLO) && at.checked_sub(1).is_some_and(|at| NUMBER.contains(&at))
    }

    /// True: it is taken. The first byte says whether it is signed by a holder of the key.
    ///
    /// # Panics
    /// When it is not what its sender said.
    pub fn datagram(bytes: &[u8]) -> bool {
        let Some((signed, bytes)) = bytes.split_first() else { return false };
        let mut datagram = Datagram { bytes: [0; DATAGRAM_BYTES + 1] };
        let len = bytes.len().min(DATAGRAM_BYTES + 1);
        datagram.bytes[..len].copy_from_slice(&bytes[..len]);
        if signed & 1 == 1 && datagram.kind() != HELLO {
            datagram.sign(&key());
        }
        if !datagram.is_taken(len, &CONNECTION_OF_ALL, &key()) {
            return false;
        }
        let mut changed = Datagram { bytes: datagram.bytes };
        let at = usize::from(signed >> 1) % DATAGRAM_BYTES;
        changed.bytes[at] ^= 1;
        // Nobody has signed a hello: it may say any number.
        let free = datagram.kind() == HELLO && NUMBER.contains(&at);
        assert!(free || !changed.is_taken(len, &CONNECTION_OF_ALL, &key()), "another one has the same proof");
        if let Some(card) = datagram.card() {
            assert_eq!(Card::decode(&card.encode()), Some(card), "a card has one encoding");
        }
        datagram.kind() == HELLO || datagram.card().is_some()
    }

    /// Inputs that it takes.
    pub fn seeds() -> Vec<Vec<u8>> {
        let card = parts_card();
        [HELLO, ANSWER, CARD]
            .into_iter()
            .flat_map(|kind| {
                let mut datagram = Datagram::new(kind, &CONNECTION_OF_ALL);
                datagram.put(ACCEPTING, &[1; 16]);
                if kind != HELLO {
                    datagram.put(CONNECTING, &[2; 16]);
                    datagram.put(CARD_AT, &card);
                    datagram.sign(&key());
                }
                [0, 1].map(|signed| [&[signed], &datagram.bytes[..DATAGRAM_BYTES]].concat())
            })
            .collect()
    }

    /// Queue pair 17, first packet 9, a path of 4096 bytes.
    fn parts_card() -> [u8; Card::BYTES] {
        std::array::from_fn(|at| match at {
            0 => 17,
            4 => 9,
            8..16 => 3,
            34 => 5,
            35 => 16,
            _ => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_tells_nothing_of_the_key_and_stands_for_no_proof() {
        let (connection, key) = ([7; 36], parts::key());
        let mut hello = Datagram::new(HELLO, &connection);
        hello.put(ACCEPTING, &[1; 16]);
        assert_eq!(hello.take::<32>(PROOF), [0; 32]);
        assert!(hello.is_taken(DATAGRAM_BYTES, &connection, &key));
        // Nor is one taken that carries more.
        for at in [CONNECTING, CARD_AT, PROOF] {
            let mut more = Datagram { bytes: hello.bytes };
            more.put(at, &[1]);
            assert!(!more.is_taken(DATAGRAM_BYTES, &connection, &key), "at {at}");
        }
        // What brings a queue pair needs the proof.
        for kind in [ANSWER, CARD] {
            hello.put(KIND, &[kind]);
            assert!(!hello.is_taken(DATAGRAM_BYTES, &connection, &key));
            let mut signed = Datagram { bytes: hello.bytes };
            signed.sign(&key);
            assert!(signed.is_taken(DATAGRAM_BYTES, &connection, &key));
        }
    }

    /// Or the answer to a forged hello, which proves the key, would go to the forger.
    #[test]
    fn only_the_host_at_the_other_end_is_heard() {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let from = |address: &str| Some(SocketAddrAny::from(address.parse::<SocketAddr>().unwrap()));
        let received = |from: Option<SocketAddrAny>| comes_from(stream.as_raw_fd(), from.as_ref());
        assert_eq!((received(from("127.0.0.1:9")), received(from("[::ffff:127.0.0.1]:9"))), (Ok(true), Ok(true)));
        assert_eq!((received(from("127.0.0.2:9")), received(from("[::1]:9"))), (Ok(false), Ok(false)));
        assert_eq!(received(None), Ok(true), "a connected socket hears no other");
    }

    #[test]
    fn the_parts_of_a_datagram_do_not_overlap() {
        const { assert!(KIND < CONNECTION && CONNECTION + 36 <= ACCEPTING && ACCEPTING + 16 <= CONNECTING) };
        const { assert!(CONNECTING + 16 <= CARD_AT && CARD_AT + Card::BYTES <= PROOF) };
        let mut datagram = Datagram::new(ANSWER, &[7; 36]);
        datagram.put(ACCEPTING, &[1; 16]);
        datagram.put(CONNECTING, &[2; 16]);
        assert!(datagram.is_about(&[7; 36]) && !datagram.is_about(&[8; 36]));
        assert_eq!(
            (datagram.kind(), datagram.nonce(ACCEPTING), datagram.nonce(CONNECTING)),
            (ANSWER, [1; 16], [2; 16])
        );
        assert_eq!(datagram.card(), None, "no queue pair has the number 0");
    }
}
