//! Who is there: version, what both can do, and proof on both sides that they hold the same key.
//!
//! Connector and listener each bring a nonce; each proves the key over everything that was said, in a role of its own, so that
//! nothing of it can be played back. The listener proves first, and the connector hears that its own proof was taken before it
//! goes on. The same words, in two more roles, are the keys of the frames' tags. Pure, but for `connect`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use overside_verbs::watch::failed;
use overside_verbs::{Link, Peer, ProtectionDomain, VerbsError};
use rustix::net::sockopt;

use crate::address;
use crate::options::Options;
use crate::registry::random;
use crate::seal::{Key, same};

/// A connection that has shaken hands, as it rests in a [`Link`].
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) socket: OwnedFd,
    pub(crate) keys: Option<Keys>,
    pub(crate) domain: u64,
    /// Which provider made it.
    pub(crate) provider: u64,
}

/// Keys of the frames' tags.
#[derive(Clone, Copy)]
pub struct Keys {
    /// Of frames that leave.
    pub out: [u8; 32],
    /// Of frames that come.
    pub into: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(hidden)")
    }
}

/// What both sides say first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol.
    pub version: u32,
    /// [`KEY`], [`TAGS`], [`NO`].
    pub flags: u32,
    /// Never the same twice.
    pub nonce: [u8; 32],
}

impl Hello {
    /// What these options say.
    pub fn new(options: &Options, nonce: [u8; 32]) -> Self {
        let key = if options.key.is_some() { KEY } else { 0 };
        let tags = if options.tags() { TAGS } else { 0 };
        Self { version: VERSION, flags: key | tags, nonce }
    }

    /// As it travels.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[12..16].copy_from_slice(&self.flags.to_le_bytes());
        out[16..48].copy_from_slice(&self.nonce);
        out
    }

    /// From bytes; none when it is no greeting of any version.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let version = half(8);
        let rest_is_ours = version != VERSION || (bytes[48..] == [0; 16] && half(12) & !(KEY | TAGS | NO) == 0);
        (bytes[..8] == *MAGIC && rest_is_ours).then(|| Self {
            version,
            flags: half(12),
            nonce: std::array::from_fn(|i| bytes[16 + i]),
        })
    }

    /// Why `ours` cannot go with what the peer said, in words for our user.
    pub fn differs(&self, ours: &Hello) -> Option<String> {
        let either = |bit: u32, us: &str, them: &str| match (ours.flags & bit, self.flags & bit) {
            (0, 0) => None,
            (0, _) => Some(us.to_owned()),
            (_, 0) => Some(them.to_owned()),
            _ => None,
        };
        if self.version != ours.version {
            return Some(format!(
                "it speaks version {} of the tcp protocol, this process version {}; use the same release on both sides",
                self.version, ours.version
            ));
        }
        either(
            KEY,
            "it asks for a key; give the same --key-file on both sides",
            "it has no key; give the same --key-file on both sides",
        )
        .or_else(|| {
            let both = "frames carry tags on one side only; give --no-mac on both sides or on none";
            either(TAGS, both, both)
        })
    }
}

/// The whole exchange of one connection, once both greetings are known.
#[derive(Clone, Debug)]
pub struct Exchange {
    key: Key,
    said: [u8; HELLO_BYTES * 2],
}

impl Exchange {
    /// Of the connector's greeting and the listener's.
    pub fn new(key: Option<&Key>, connector: &[u8; HELLO_BYTES], listener: &[u8; HELLO_BYTES]) -> Self {
        let mut said = [0; HELLO_BYTES * 2];
        said[..HELLO_BYTES].copy_from_slice(connector);
        said[HELLO_BYTES..].copy_from_slice(listener);
        Self { key: key.cloned().unwrap_or_else(Key::none), said }
    }

    /// The proof of a role.
    pub fn proof(&self, role: Role) -> [u8; PROOF_BYTES] {
        self.key.prove(role.words(), &self.said)
    }

    /// Whether `proof` is that.
    pub fn holds(&self, role: Role, proof: &[u8]) -> bool {
        same(&self.proof(role), proof)
    }

    /// Keys of the frames' tags.
    pub(crate) fn keys(&self, listens: bool) -> Keys {
        let (up, down) = (
            self.key.prove("frames of the connector", &self.said),
            self.key.prove("frames of the listener", &self.said),
        );
        if listens { Keys { out: down, into: up } } else { Keys { out: up, into: down } }
    }
}

/// Who proves what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The listener holds the key.
    Listener,
    /// The connector holds the key.
    Connector,
    /// The listener has taken the connector's proof.
    Welcome,
}

impl Role {
    fn words(self) -> &'static str {
        match self {
            Role::Listener => "listener",
            Role::Connector => "connector",
            Role::Welcome => "welcome",
        }
    }
}

/// Connects and shakes hands.
pub(crate) fn connect(
    provider: u64,
    options: &Options,
    domain: &ProtectionDomain,
    name: &str,
    timeout: Duration,
) -> Result<Link, VerbsError> {
    let end = Instant::now() + timeout;
    let mut stream = reach(name, end, timeout)?;
    let ours = Hello::new(options, random()?);
    let said = ours.encode();
    say(&mut stream, &said)?;
    let answer: [u8; HELLO_BYTES + PROOF_BYTES] = hear(&mut stream, end, timeout)?;
    let greeting: [u8; HELLO_BYTES] = std::array::from_fn(|i| answer[i]);
    let theirs =
        Hello::decode(&greeting).ok_or_else(|| VerbsError::Handshake("it does not speak this protocol".to_owned()))?;
    if let Some(why) = theirs.differs(&ours) {
        return Err(VerbsError::Handshake(why));
    }
    if theirs.flags & NO != 0 {
        return Err(VerbsError::Handshake("it takes no more connections now; try again later".to_owned()));
    }
    let exchange = Exchange::new(options.key.as_ref(), &said, &greeting);
    if !exchange.holds(Role::Listener, &answer[HELLO_BYTES..]) {
        return Err(VerbsError::Handshake("its key is another one; give the same --key-file on both sides".to_owned()));
    }
    say(&mut stream, &exchange.proof(Role::Connector))?;
    let welcome: [u8; PROOF_BYTES] = hear(&mut stream, end, timeout)?;
    if !exchange.holds(Role::Welcome, &welcome) {
        return Err(VerbsError::Handshake("it did not take our proof".to_owned()));
    }
    let address = stream.peer_addr().map_or_else(|_| name.to_owned(), |address| address.to_string());
    stream.set_nonblocking(true).map_err(|e| system("making the socket nonblocking", &e))?;
    let socket = OwnedFd::from(stream);
    prepare(&socket)?;
    let keys = options.tags().then(|| exchange.keys(false));
    Ok(link(address, Wire { socket, keys, domain: domain.id(), provider }))
}

/// The first of the host's addresses that answers.
fn reach(name: &str, end: Instant, timeout: Duration) -> Result<TcpStream, VerbsError> {
    let mut reason = String::new();
    for address in address::resolve(name)? {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(VerbsError::TimedOut(timeout));
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(|e| system("TCP_NODELAY", &e))?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Err(VerbsError::TimedOut(timeout)),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(VerbsError::Unreachable { address: format!("tcp:{name}"), reason })
}

fn say(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), VerbsError> {
    stream.write_all(bytes).map_err(|e| VerbsError::Handshake(format!("it hung up ({e})")))
}

/// Reads exactly that much, however slowly it comes, until the end of all patience.
fn hear<const N: usize>(stream: &mut TcpStream, end: Instant, timeout: Duration) -> Result<[u8; N], VerbsError> {
    let (mut bytes, mut got) = ([0; N], 0);
    while got < N {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(VerbsError::TimedOut(timeout));
        }
        stream.set_read_timeout(Some(left)).map_err(|e| system("SO_RCVTIMEO", &e))?;
        match stream.read(&mut bytes[got..]) {
            Ok(0) => return Err(VerbsError::Handshake("it hung up; it may want another key".to_owned())),
            Ok(more) => got += more,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {}
            Err(e) => return Err(VerbsError::Handshake(format!("it hung up ({e})"))),
        }
    }
    Ok(bytes)
}

/// What every connection has: no delay, and an end within seconds when the other side's host is gone.
pub(crate) fn prepare(socket: impl AsFd) -> Result<(), VerbsError> {
    let socket = socket.as_fd();
    let refused = |e| failed("setting the socket's options", e);
    sockopt::set_tcp_nodelay(socket, true).map_err(refused)?;
    sockopt::set_socket_keepalive(socket, true).map_err(refused)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(1)).map_err(refused)?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1)).map_err(refused)?;
    sockopt::set_tcp_keepcnt(socket, 3).map_err(refused)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE_MS).map_err(refused)
}

pub(crate) fn link(address: String, wire: Wire) -> Link {
    Link::new(Peer { pid: None, uid: None, description: address }, wire)
}

pub(crate) fn system(what: &'static str, error: &std::io::Error) -> VerbsError {
    VerbsError::System { what, reason: error.to_string() }
}

const MAGIC: &[u8; 8] = b"overside";
/// Version of everything that travels on a connection.
pub const VERSION: u32 = 1;
/// The speaker has a key.
pub const KEY: u32 = 1;
/// Its frames carry tags.
pub const TAGS: u32 = 2;
/// The listener takes no more.
pub const NO: u32 = 4;
/// Bytes of a greeting.
pub const HELLO_BYTES: usize = 64;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// What is sent and not acknowledged by the peer's host for so long ends the connection.
const SILENCE_MS: u32 = 4000;

#[cfg(test)]
mod tests {
    use super::*;

    fn options(key: Option<&[u8]>, mac: bool) -> Options {
        Options { key: key.and_then(Key::from_bytes), mac, ..Options::default() }
    }

    #[test]
    fn only_the_same_key_proves_anything_and_only_in_its_role() {
        let [a, b] = [[1; HELLO_BYTES], [2; HELLO_BYTES]];
        let key = Key::from_bytes(&[7; 32]);
        let ours = Exchange::new(key.as_ref(), &a, &b);
        let proof = ours.proof(Role::Connector);
        assert!(Exchange::new(key.as_ref(), &a, &b).holds(Role::Connector, &proof));
        assert!(!ours.holds(Role::Listener, &proof) && !ours.holds(Role::Welcome, &proof));
        assert!(!Exchange::new(Key::from_bytes(&[8; 32]).as_ref(), &a, &b).holds(Role::Connector, &proof));
        assert!(!Exchange::new(None, &a, &b).holds(Role::Connector, &proof));
        assert!(!Exchange::new(key.as_ref(), &a, &[3; HELLO_BYTES]).holds(Role::Connector, &proof));
        let (up, down) = (ours.keys(false), ours.keys(true));
        assert!(up.out == down.into && up.into == down.out && up.out != up.into);
    }

    #[test]
    fn greetings_travel_and_differences_are_told() {
        let ours = Hello::new(&options(Some(&[1; 32]), true), [9; 32]);
        assert_eq!(Hello::decode(&ours.encode()), Some(ours));
        assert_eq!(ours.differs(&ours), None);
        let other = |key, mac| Hello::new(&options(key, mac), [0; 32]).differs(&ours).unwrap();
        assert!(other(None, true).contains("it has no key"));
        assert!(other(Some(&[1; 32]), false).contains("--no-mac"));
        let newer = Hello { version: 7, ..ours };
        assert!(newer.differs(&ours).unwrap().contains("version 7"));
        let mut bytes = ours.encode();
        bytes[60] = 1;
        assert_eq!(Hello::decode(&bytes), None);
        assert_eq!(Hello::decode(&[0; HELLO_BYTES]), None);
    }
}
