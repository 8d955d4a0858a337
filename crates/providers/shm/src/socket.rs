//! The socket between two processes: whole messages, each with a descriptor or none.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};
use rustix::process::Pid;

use crate::closing;
use crate::messages::BYTES_MAX;

/// What arrived.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A message of this many bytes.
    Message(usize, Option<Passed>),
    /// Nothing for now.
    Nothing,
    /// The other end is closed.
    End,
    /// Something no peer of ours sends: too long, or with too many descriptors.
    Malformed,
    /// This process has no descriptor left for what came.
    NoDescriptor,
}

/// A descriptor that somebody passed: of anything at all.
#[derive(Debug)]
pub(crate) struct Passed(Option<OwnedFd>);

impl Passed {
    /// The descriptor if it is a memory file's. Of anything else nothing is asked, since answering
    /// might take its owner for ever.
    pub(crate) fn memory(mut self) -> Option<OwnedFd> {
        self.0.take_if(|descriptor| is_memory(descriptor))
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(descriptor) = self.0.take()
            && !is_memory(&descriptor)
        {
            closing::close(descriptor);
        }
    }
}

/// Whether a descriptor is a memory file's, by the one question that no other file is asked.
fn is_memory(descriptor: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(descriptor).is_ok()
}

/// One end of a connection. To close it is to close what lies in it unread, so it is emptied
/// before.
#[derive(Debug)]
pub(crate) struct Connected {
    socket: Option<OwnedFd>,
    /// A forked child has only a copy, and what lies in it is its parent's.
    owner: Pid,
}

impl Connected {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: Some(socket), owner: rustix::process::getpid() }
    }

    /// Nothing is received any more but what is there; the end shows to whoever waits for it.
    pub(crate) fn close_to_receiving(&self) {
        let _ = rustix::net::shutdown(self, Shutdown::Read);
    }
}

impl AsFd for Connected {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("there until drop").as_fd()
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        if self.owner != rustix::process::getpid() {
            return;
        }
        // Nothing comes after this, and with credentials a message of no bytes is told from the
        // end.
        self.close_to_receiving();
        let _ = rustix::net::sockopt::set_socket_passcred(&*self, true);
        let mut bytes = [0; BYTES_MAX];
        for _ in 0..UNREAD_MAX {
            match receive(&*self, &mut bytes) {
                Arrival::Message(..) | Arrival::Malformed => {}
                Arrival::Nothing | Arrival::End => return,
                Arrival::NoDescriptor => break,
            }
        }
        self.socket.take().into_iter().for_each(closing::close);
    }
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
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives one message without waiting.
pub(crate) fn receive(socket: impl AsFd, out: &mut [u8]) -> Arrival {
    // Room for all that a message can carry: what finds none is closed by the system, in this
    // thread.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX), ScmCredentials(1))];
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
    let (mut first, mut count, mut came) = (None, 0, got.bytes > 0);
    for message in ancillary.drain() {
        came = true;
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                count += 1;
                // All but the first are closed here, each as what it is.
                let passed = Passed(Some(descriptor));
                first.get_or_insert(passed);
            }
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) && count < PASSED_MAX {
        return Arrival::NoDescriptor;
    }
    if count > 1 || got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Arrival::Malformed;
    }
    if came { Arrival::Message(got.bytes, first) } else { Arrival::End }
}

/// Descriptors that the system lets one message carry (`SCM_MAX_FD`).
const PASSED_MAX: usize = 253;
/// Messages that are taken out of a socket before it is closed. Those of a peer that may not force
/// its buffer larger are far fewer.
const UNREAD_MAX: usize = 4096;
