//! The socket between two processes: whole messages, each with a descriptor or none.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// What arrived.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A message of this many bytes.
    Message(usize, Option<OwnedFd>),
    /// Nothing for now.
    Nothing,
    /// The other end is closed.
    End,
    /// Something no peer of ours sends: too long, or with too many descriptors.
    Malformed,
}

/// A Unix socket that keeps message boundaries and never blocks.
pub(crate) fn open() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends one message; `Err(AGAIN)` when it does not fit now.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], passed: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        let sent = match &passed {
            None => rustix::net::send(&socket, bytes, flags),
            Some(fd) => {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                let fds = [*fd];
                ancillary.push(SendAncillaryMessage::ScmRights(&fds));
                rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
            }
        };
        match sent {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            // Too many descriptors in flight, or no buffer: as full as full can be.
            Err(Errno::TOOMANYREFS | Errno::NOBUFS) => return Err(Errno::AGAIN),
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives one message without waiting.
pub(crate) fn receive(socket: impl AsFd, out: &mut [u8]) -> Arrival {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(out)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Arrival::Nothing,
            Err(_) => return Arrival::End,
            Ok(got) => break got,
        }
    };
    let mut fds = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten();
    let fd = fds.next();
    if fds.next().is_some() || got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Arrival::Malformed;
    }
    if got.bytes == 0 { Arrival::End } else { Arrival::Message(got.bytes, fd) }
}
