//! What both ends of a connection can tell of it, and nobody confuses: the
//! name under which they meet.

use std::ffi::c_int;

use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType};

use crate::kernel;

/// An abstract Unix address: version, user, and the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    bytes: [u8; NAME_BYTES],
    len: usize,
}

impl Name {
    /// The name for a connection; `end` is 0 for the side that connected.
    pub(crate) fn of(fd: c_int, end: usize) -> Option<Self> {
        let socket = kernel::borrowed(fd);
        let mut name = Self { bytes: [0; NAME_BYTES], len: 0 };
        name.text(b"overside-socket-1-");
        name.number(u64::from(rustix::process::geteuid().as_raw()));
        match rustix::net::sockopt::socket_domain(socket).ok()? {
            AddressFamily::UNIX => {
                let inode = rustix::fs::fstat(socket).ok()?.st_ino;
                let key = if end == 0 { inode } else { u64::from(unix_peer(u32::try_from(inode).ok()?)?) };
                name.text(b"-unix-");
                name.number(key);
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                name.text(b"-tcp-");
                name.text(&connection(fd, end)?);
            }
            _ => return None,
        }
        // A name cut short could be another connection's.
        (name.len < NAME_BYTES).then_some(name)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    fn text(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    fn number(&mut self, number: u64) {
        self.text(&number.to_be_bytes());
    }
}

/// A TCP connection's addresses and ports, those of the side that connected first.
pub(crate) fn connection(fd: c_int, end: usize) -> Option<[u8; 36]> {
    let socket = kernel::borrowed(fd);
    let here = endpoint(&rustix::net::getsockname(socket).ok()?)?;
    let there = endpoint(&rustix::net::getpeername(socket).ok()??)?;
    let (connecting, accepting) = if end == 0 { (here, there) } else { (there, here) };
    let mut bytes = [0; 36];
    bytes.first_chunk_mut::<18>()?.copy_from_slice(&connecting);
    bytes.last_chunk_mut::<18>()?.copy_from_slice(&accepting);
    Some(bytes)
}

/// Address and port; an IPv4 address that is dressed as IPv6 on one side is the same as
/// the bare one on the other.
fn endpoint(address: &SocketAddrAny) -> Option<[u8; 18]> {
    let (ip, port) = if let Ok(v4) = SocketAddrV4::try_from(address.clone()) {
        (v4.ip().to_ipv6_mapped(), v4.port())
    } else {
        let v6 = SocketAddrV6::try_from(address.clone()).ok()?;
        (*v6.ip(), v6.port())
    };
    let mut bytes = [0; 18];
    bytes.first_chunk_mut::<16>()?.copy_from_slice(&ip.octets());
    bytes.last_chunk_mut::<2>()?.copy_from_slice(&port.to_be_bytes());
    (port != 0).then_some(bytes)
}

/// The inode of the other end of a Unix socket, as the kernel tells it (NETLINK_SOCK_DIAG).
fn unix_peer(inode: u32) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(rustix::net::netlink::SOCK_DIAG);
    let netlink = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).ok()?;
    // nlmsghdr: length, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, sequence, port; then unix_diag_req: family, protocol, padding,
    // states, inode, what to show (the peer), cookie (any).
    let request: [u32; 10] = [40, 20 | 1 << 16, 1, 0, libc::AF_UNIX as u32, u32::MAX, inode, 4, u32::MAX, u32::MAX];
    let mut bytes = [0; 40];
    for (chunk, word) in bytes.chunks_exact_mut(4).zip(request) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    rustix::net::send(&netlink, &bytes, rustix::net::SendFlags::empty()).ok()?;
    let mut answer = [0; 256];
    let (_, len) = rustix::net::recv(&netlink, &mut answer, rustix::net::RecvFlags::empty()).ok()?;
    let answer = answer.get(..len)?;
    let word = |at: usize| answer.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes));
    let half = |at: usize| answer.get(at..)?.first_chunk::<2>().map(|bytes| u16::from_ne_bytes(*bytes));
    // nlmsghdr, then unix_diag_msg: family, type, state, padding, inode, cookie; then attributes.
    if half(4)? != 20 || word(20)? != inode {
        return None;
    }
    let mut at = 32;
    while at + 4 <= len {
        let attribute_len = usize::from(half(at)?);
        if half(at + 2)? == UNIX_DIAG_PEER {
            return word(at + 4).filter(|peer| *peer != 0);
        }
        at += attribute_len.max(4).next_multiple_of(4);
    }
    None
}

const UNIX_DIAG_PEER: u16 = 2;
/// sun_path has 108 bytes, of which an abstract name has a zero in front.
const NAME_BYTES: usize = 107;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ends_find_the_same_name() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = std::net::TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            let host = if address == "[::1]:0" { "::1" } else { "127.0.0.1" };
            let client = std::net::TcpStream::connect((host, port)).unwrap();
            let (server, _) = listener.accept().unwrap();
            let names = (Name::of(client.as_raw_fd(), 0).unwrap(), Name::of(server.as_raw_fd(), 1).unwrap());
            assert_eq!(names.0, names.1);
            assert!(names.0.len < NAME_BYTES, "{} bytes", names.0.len);
        }
        let folder = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(folder.path().join("s")).unwrap();
        let client = std::os::unix::net::UnixStream::connect(folder.path().join("s")).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!(Name::of(client.as_raw_fd(), 0), Name::of(server.as_raw_fd(), 1));
        assert!(Name::of(client.as_raw_fd(), 0).is_some());
    }
}
