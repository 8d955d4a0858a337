//! Whose socket is at the other end of a TCP connection on this host, as the kernel has it
//! (sock_diag(7), `inet_diag`).
//!
//! Without a key this is all that is known of a peer. A socket belongs to the user who made it; a
//! socket that has no process any more, or that no process has accepted yet, belongs to nobody.

use core::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Asks the kernel of the network namespace in which it was made.
#[derive(Debug)]
pub struct Owners {
    netlink: OwnedFd,
}

/// Why a peer without a key is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// The kernel does not say.
    #[error(
        "without a key the kernel must say which user's processes connect (sock_diag), and it does not ({0}); \
         give the same --key-file on both sides, or --anyone, which takes every user of this host"
    )]
    Unknown(String),
    /// Another user's.
    #[error(
        "it belongs to user {theirs}, and without a key user {ours} takes its own processes only; \
         give the same --key-file on both sides, or --anyone"
    )]
    Stranger {
        /// Whose it is.
        theirs: u32,
        /// Whose this process is.
        ours: u32,
    },
    /// Of a user that has no number here.
    #[error(
        "it may be of another user namespace, whose users have no number here; give the same --key-file on both sides"
    )]
    Nameless,
    /// No process has it.
    #[error("it has hung up, or is no process of this host; beyond it, give the same --key-file on both sides")]
    Nobody,
}

/// A socket as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KernelSocket {
    state: u8,
    user: u32,
    inode: u32,
}

/// What the kernel answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    KernelSocket(KernelSocket),
    Error(i32),
    /// To another question.
    Stale,
    Malformed,
}

impl Owners {
    /// Of the network namespace of this thread.
    ///
    /// # Errors
    /// [`OwnerError::Unknown`] when the kernel answers nobody.
    pub fn new() -> Result<Self, OwnerError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let netlink = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(SOCK_DIAG));
        let netlink = netlink.map_err(unknown)?;
        // Then nobody but the kernel can answer.
        rustix::net::connect(&netlink, &SocketAddrNetlink::new(0, 0)).map_err(unknown)?;
        Ok(Self { netlink })
    }

    /// For the connections to this listening socket of this process; the kernel is asked about
    /// itself first.
    ///
    /// # Errors
    /// [`OwnerError::Unknown`] when it does not say whose that is.
    pub fn of(listener: impl AsFd) -> Result<Self, OwnerError> {
        let owners = Self::new()?;
        let at = local(listener)?;
        let nowhere = SocketAddr::new(if at.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() }, 0);
        let ours = rustix::process::geteuid().as_raw();
        match owners.ask(at, nowhere)? {
            Some(KernelSocket { state: LISTEN, user, .. }) if user == ours => Ok(owners),
            other => Err(OwnerError::Unknown(format!("of this listener it says {other:?}"))),
        }
    }

    /// Whether a connection that was accepted comes from a process of this user.
    ///
    /// # Errors
    /// [`OwnerError`], if not or if the kernel does not say.
    pub fn check_connector(&self, socket: impl AsFd) -> Result<(), OwnerError> {
        self.check(socket, false)
    }

    /// Whether a connection that was made, and has been answered, goes to a process of this user,
    /// or of root, who could be in the way of anything.
    ///
    /// # Errors
    /// [`OwnerError`], if not or if the kernel does not say.
    pub fn check_listener(&self, socket: impl AsFd) -> Result<(), OwnerError> {
        self.check(socket, true)
    }

    fn check(&self, socket: impl AsFd, root_too: bool) -> Result<(), OwnerError> {
        let (ours, theirs) = (local(&socket)?, remote(&socket)?);
        if !theirs.ip().to_canonical().is_loopback() {
            return Err(OwnerError::Nobody);
        }
        let user = rustix::process::geteuid().as_raw();
        // The far end's own address is our peer's, and its peer's ours.
        permits(self.ask(theirs, ours)?, user, root_too, every_user_has_a_number)
    }

    /// The socket at `local` that is connected to `remote`; none when there is none.
    fn ask(&self, local: SocketAddr, remote: SocketAddr) -> Result<Option<KernelSocket>, OwnerError> {
        rustix::net::send(&self.netlink, &request(local, remote), SendFlags::DONTWAIT).map_err(unknown)?;
        let mut bytes = [0; ANSWER_BYTES_MAX];
        for _ in 0..ANSWERS_MAX {
            let (_, len) = loop {
                // It has answered before `send` returned.
                match rustix::net::recv(&self.netlink, &mut bytes[..], RecvFlags::DONTWAIT) {
                    Err(Errno::INTR) => {}
                    other => break other.map_err(unknown)?,
                }
            };
            match answer(bytes.get(..len).unwrap_or(&[]), sequence(local, remote)) {
                Answer::KernelSocket(found) => return Ok(Some(found)),
                Answer::Error(errno) if errno == Errno::NOENT.raw_os_error() => return Ok(None),
                Answer::Error(errno) => return Err(unknown(Errno::from_raw_os_error(errno))),
                Answer::Stale => {}
                Answer::Malformed => break,
            }
        }
        Err(OwnerError::Unknown("its answer makes no sense".to_owned()))
    }
}

/// Whether the process that has this socket may be talked to by a process of user `ours`.
fn permits(
    found: Option<KernelSocket>,
    ours: u32,
    root_too: bool,
    every_user_has_a_number: impl FnOnce() -> bool,
) -> Result<(), OwnerError> {
    // A listener is found where there is no connection; what is closing, or was not accepted, has
    // no process.
    let Some(KernelSocket { user: theirs, .. }) = found.filter(|found| found.state == ESTABLISHED && found.inode != 0)
    else {
        return Err(OwnerError::Nobody);
    };
    match theirs {
        NOBODY if !every_user_has_a_number() => Err(OwnerError::Nameless),
        theirs if theirs == ours || (root_too && theirs == ROOT) => Ok(()),
        theirs => Err(OwnerError::Stranger { theirs, ours }),
    }
}

/// A question by addresses, which has one answer: `struct nlmsghdr`, `struct inet_diag_req_v2`.
fn request(local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(8, &sequence(local, remote).to_ne_bytes());
    // The two have one family, since they are ends of one connection.
    put(16, &[if local.ip().to_canonical().is_ipv4() { AF_INET } else { AF_INET6 }, IPPROTO_TCP]);
    put(20, &u32::MAX.to_ne_bytes());
    put(24, &local.port().to_be_bytes());
    put(26, &remote.port().to_be_bytes());
    for (at, address) in [(28, local), (44, remote)] {
        match address.ip().to_canonical() {
            IpAddr::V4(address) => put(at, &address.octets()),
            IpAddr::V6(address) => put(at, &address.octets()),
        }
    }
    // Any cookie.
    put(64, &[0xff; 8]);
    bytes
}

/// Another one for each two ports, so that an answer to an earlier question is told apart.
fn sequence(local: SocketAddr, remote: SocketAddr) -> u32 {
    u32::from(local.port()) << 16 | u32::from(remote.port())
}

/// An answer: `struct nlmsghdr`, then `struct inet_diag_msg` or an error.
fn answer(bytes: &[u8], sequence: u32) -> Answer {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|word| Some(u32::from_ne_bytes(word.try_into().ok()?)));
    let (Some(len), Some(kind), Some(number)) = (word(0), bytes.get(4..6), word(8)) else { return Answer::Malformed };
    if (len as usize) < HEADER_BYTES || len as usize > bytes.len() {
        return Answer::Malformed;
    }
    if number != sequence {
        return Answer::Stale;
    }
    let kind = u16::from_ne_bytes([kind[0], kind[1]]);
    match (kind, word(HEADER_BYTES).map(u32::cast_signed)) {
        (NLMSG_ERROR, Some(error)) if len as usize >= HEADER_BYTES + 4 && error < 0 => {
            Answer::Error(error.saturating_neg())
        }
        (SOCK_DIAG_BY_FAMILY, _) if len as usize >= HEADER_BYTES + FOUND_BYTES => {
            match (bytes.get(HEADER_BYTES + 1), word(HEADER_BYTES + 64), word(HEADER_BYTES + 68)) {
                (Some(state), Some(user), Some(inode)) => {
                    Answer::KernelSocket(KernelSocket { state: *state, user, inode })
                }
                _ => Answer::Malformed,
            }
        }
        _ => Answer::Malformed,
    }
}

/// Whether this process' user namespace has a number for every user of the host; else those without
/// share [`NOBODY`].
fn every_user_has_a_number() -> bool {
    let read = || -> Result<Vec<u8>, Errno> {
        let file = rustix::fs::open("/proc/self/uid_map", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = vec![0; 4096];
        let len = rustix::io::read(&file, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    };
    read().is_ok_and(|bytes| is_whole(&String::from_utf8_lossy(&bytes)))
}

/// Whether the lines of a uid_map (first number here, first number outside, how many) are of all
/// numbers there are.
fn is_whole(map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() >= u64::from(u32::MAX)
}

fn local(socket: impl AsFd) -> Result<SocketAddr, OwnerError> {
    let address = rustix::net::getsockname(socket).map_err(unknown)?;
    SocketAddr::try_from(address).map_err(unknown)
}

fn remote(socket: impl AsFd) -> Result<SocketAddr, OwnerError> {
    let address = rustix::net::getpeername(socket).ok().flatten().ok_or(OwnerError::Nobody)?;
    SocketAddr::try_from(address).map_err(unknown)
}

fn unknown(errno: Errno) -> OwnerError {
    OwnerError::Unknown(errno.to_string())
}

/// `linux/netlink.h`, `linux/sock_diag.h`, `linux/inet_diag.h`, `net/tcp_states.h`.
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const FOUND_BYTES: usize = 72;
/// Room for an answer with the extensions that the kernel adds unasked.
const ANSWER_BYTES_MAX: usize = 1024;
/// Answers looked at for one question: stale ones can only be of questions whose answer could not
/// be taken.
const ANSWERS_MAX: usize = 8;
const ROOT: u32 = 0;
/// Whom the kernel names for a user that has no number in this user namespace (kernel.overflowuid,
/// unless changed).
const NOBODY: u32 = 65534;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream};

    const FOUND: KernelSocket = KernelSocket { state: ESTABLISHED, user: 1000, inode: 7 };

    fn encoded(found: KernelSocket, sequence: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + FOUND_BYTES];
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes[17] = found.state;
        bytes[80..84].copy_from_slice(&found.user.to_ne_bytes());
        bytes[84..88].copy_from_slice(&found.inode.to_ne_bytes());
        bytes
    }

    #[test]
    fn the_same_user_is_taken_and_nobody_else() {
        let permits = |found, root_too| permits(found, 1000, root_too, || false);
        assert_eq!(permits(Some(FOUND), false), Ok(()));
        let root = Some(KernelSocket { user: 0, ..FOUND });
        assert_eq!(permits(root, false), Err(OwnerError::Stranger { theirs: 0, ours: 1000 }));
        assert_eq!(permits(root, true), Ok(()));
        let other = Some(KernelSocket { user: 1001, ..FOUND });
        for root_too in [false, true] {
            assert_eq!(permits(other, root_too), Err(OwnerError::Stranger { theirs: 1001, ours: 1000 }));
            assert_eq!(permits(None, root_too), Err(OwnerError::Nobody));
        }
        // Sockets that no process has: in older kernels they are root's.
        for state in [2, 3, 4, 8, LISTEN] {
            assert_eq!(permits(Some(KernelSocket { state, ..FOUND }), true), Err(OwnerError::Nobody));
        }
        assert_eq!(permits(Some(KernelSocket { inode: 0, user: 0, ..FOUND }), true), Err(OwnerError::Nobody));
    }

    #[test]
    fn a_user_without_a_number_is_not_taken_for_nobody() {
        let nobody = Some(KernelSocket { user: NOBODY, ..FOUND });
        assert_eq!(permits(nobody, NOBODY, false, || false), Err(OwnerError::Nameless));
        assert_eq!(permits(nobody, NOBODY, false, || true), Ok(()));
        assert!(matches!(permits(nobody, 1000, true, || true), Err(OwnerError::Stranger { .. })));
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(is_whole("0 1000 1\n1 100000 4294967294\n"));
        for part in ["", "0 1000 1\n", "0 1000 1\n1 100000 65536\n", "x y z\n", "0 0\n"] {
            assert!(!is_whole(part), "{part}");
        }
    }

    #[test]
    fn answers_are_read_and_those_cut_short_are_not() {
        let whole = encoded(FOUND, 5);
        assert_eq!(answer(&whole, 5), Answer::KernelSocket(FOUND));
        assert_eq!(answer(&whole, 6), Answer::Stale);
        for len in 0..whole.len() {
            assert_eq!(answer(&whole[..len], 5), Answer::Malformed, "{len} bytes");
            let mut says = whole.clone();
            says[..4].copy_from_slice(&(len as u32).to_ne_bytes());
            assert_eq!(answer(&says, 5), Answer::Malformed, "says {len} bytes");
        }
        let error = |errno: i32| {
            let mut bytes = whole.clone();
            bytes[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            bytes[16..20].copy_from_slice(&errno.to_ne_bytes());
            answer(&bytes, 5)
        };
        assert_eq!(error(-2), Answer::Error(2));
        assert_eq!(error(i32::MIN), Answer::Error(i32::MAX));
        assert_eq!((error(0), error(2)), (Answer::Malformed, Answer::Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200), sequence: u32) {
            let _ = answer(&bytes, sequence);
        }

        #[test]
        fn a_question_names_both_addresses(a: u16, b: u16, v6: bool) {
            let host = if v6 { "::1" } else { "127.0.0.1" }.parse().unwrap();
            let bytes = request(SocketAddr::new(host, a), SocketAddr::new(host, b));
            prop_assert_eq!(&bytes[24..28], &[a.to_be_bytes(), b.to_be_bytes()].concat()[..]);
            prop_assert_eq!(bytes[16], if v6 { AF_INET6 } else { AF_INET });
        }
    }

    /// Both ends of a connection in this process, over both families, and an IPv6 socket with an
    /// IPv4 address.
    #[test]
    fn the_kernel_says_whose_an_end_is() {
        for (at, to) in
            [("127.0.0.1", "127.0.0.1"), ("[::1]", "[::1]"), ("[::]", "127.0.0.1"), ("[::]", "[::ffff:127.0.0.1]")]
        {
            let listener = match TcpListener::bind(format!("{at}:0")) {
                Ok(listener) => listener,
                Err(error) => {
                    eprintln!("SKIPPED: {at}: {error}");
                    continue;
                }
            };
            let owners = match Owners::of(&listener) {
                Ok(owners) => owners,
                Err(error) => return eprintln!("SKIPPED: {error}"),
            };
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect(format!("{to}:{port}")).unwrap();
            // Accepted by nobody yet.
            assert_eq!(owners.check_listener(&client), Err(OwnerError::Nobody), "{at}");
            let (server, _) = listener.accept().unwrap();
            assert_eq!(owners.check_connector(&server), Ok(()), "{at}");
            assert_eq!(owners.check_listener(&client), Ok(()), "{at}");
            // What it has left behind is nobody's.
            drop(client);
            assert_eq!(owners.check_connector(&server), Err(OwnerError::Nobody), "{at}");
        }
    }

    /// One that answers, as little as it likes, in the kernel's place.
    #[test]
    fn a_kernel_that_does_not_say_is_reported() {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let owners = Owners { netlink: ours };
        let (a, b) = ("127.0.0.1:3".parse().unwrap(), "127.0.0.1:4".parse().unwrap());
        assert!(matches!(owners.ask(a, b), Err(OwnerError::Unknown(_))), "no answer");
        let say = |bytes: &[u8]| _ = rustix::net::send(&theirs, bytes, SendFlags::empty()).unwrap();
        say(&[0; 20]);
        assert!(matches!(owners.ask(a, b), Err(OwnerError::Unknown(_))), "no sense");
        say(&encoded(FOUND, 77));
        say(&encoded(FOUND, sequence(a, b)));
        assert_eq!(owners.ask(a, b), Ok(Some(FOUND)), "after one to another question");
        (0..20).for_each(|_| say(&encoded(FOUND, 77)));
        assert!(matches!(owners.ask(a, b), Err(OwnerError::Unknown(_))), "never an answer to ours");
    }
}
