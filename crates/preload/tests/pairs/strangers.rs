//! Somebody else at the place where two ends meet: the connecting end turns him away and stays with the kernel. And one who takes
//! his time, whom it waits for.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags,
    SocketType,
};

use crate::sock::{Log, Side, recv_exactly, send_all};

/// What the stranger leaves there.
enum Gift {
    OtherVersion,
    Unsealed,
    Nothing,
    AsAnotherUser,
    TakenBefore,
    /// All that it must be, but the rings were left again; and it comes long after whoever brings it.
    LateAndSwitched,
}

pub(crate) fn other_version(side: Side, log: &mut Log) {
    attach(side, log, &Gift::OtherVersion);
}

pub(crate) fn unsealed(side: Side, log: &mut Log) {
    attach(side, log, &Gift::Unsealed);
}

pub(crate) fn empty_handed(side: Side, log: &mut Log) {
    attach(side, log, &Gift::Nothing);
}

pub(crate) fn stranger(side: Side, log: &mut Log) {
    attach(side, log, &Gift::AsAnotherUser);
}

pub(crate) fn late(side: Side, log: &mut Log) {
    attach(side, log, &Gift::LateAndSwitched);
}

pub(crate) fn taken_before(side: Side, log: &mut Log) {
    attach(side, log, &Gift::TakenBefore);
}

fn attach(side: Side, log: &mut Log, gift: &Gift) {
    let name = name(&side);
    let address = || SocketAddrUnix::new_abstract_name(&name).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    if side.server {
        // An absurd request to be shut off, after which the library leaves the rendezvous to this test.
        // SAFETY: the system refuses it.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, 77, 0, 0, 0) };
        if matches!(gift, Gift::TakenBefore) {
            // Ends that meet at once are there before.
            let _ = rustix::net::bind(&socket, &address());
        }
    }
    side.warm_up();
    let late = matches!(gift, Gift::LateAndSwitched);
    // Nothing is at stake without the library, where nobody is there.
    let called = side.server && late && rustix::net::connect(&socket, &address()).is_ok();
    if late {
        side.warm_up();
    }
    if called {
        give(&socket, gift);
    } else if side.server && !late && !matches!(gift, Gift::TakenBefore) {
        // SAFETY: no memory is passed; without the right to, nothing happens.
        unsafe {
            if matches!(gift, Gift::AsAnotherUser) {
                libc::seteuid(65_534);
            }
            // Without the library nobody is there.
            if rustix::net::connect(&socket, &address()).is_ok() {
                give(&socket, gift);
            }
            libc::seteuid(0);
        }
    }
    side.warm_up();
    side.warm_up();
    side.rendezvous(1);
    log.say("as ever");
}

fn give(socket: &OwnedFd, gift: &Gift) {
    let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memory, 4096 + 2 * (128 << 10) + 2 * (4 << 20)).unwrap();
    rustix::fs::fallocate(&memory, rustix::fs::FallocateFlags::empty(), 0, 4096).unwrap();
    if matches!(gift, Gift::LateAndSwitched) {
        for tail in TAILS {
            rustix::io::pwrite(&memory, &SWITCHED.to_ne_bytes(), tail).unwrap();
        }
    }
    if !matches!(gift, Gift::Unsealed) {
        use rustix::fs::SealFlags;
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [memory.as_fd()];
    if !matches!(gift, Gift::Nothing) {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let greeting: &[u8] = if matches!(gift, Gift::OtherVersion) { b"overside-sock-99" } else { GREETING };
    // The other end may have turned us away already.
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(greeting)], &mut ancillary, SendFlags::NOSIGNAL);
}

/// As `rendezvous` and `layout` have them. That these are today's is shown by `late`, whose gift would be turned away otherwise.
const GREETING: &[u8] = b"overside-sock-05";
const SWITCHED: u64 = 1 << 63;
const TAILS: [u64; 2] = [128, 640];

/// The name under which the ends of this connection meet.
fn name(side: &Side) -> Vec<u8> {
    let mut name = b"overside-socket-1-".to_vec();
    name.extend(u64::from(rustix::process::geteuid().as_raw()).to_be_bytes());
    // SAFETY: the descriptor is open as long as the test runs.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(side.fd) };
    if side.tcp {
        name.extend(b"-tcp-");
        let here = rustix::net::getsockname(socket).unwrap();
        let there = rustix::net::getpeername(socket).unwrap().unwrap();
        for address in if side.server { [there, here] } else { [here, there] } {
            name.extend(endpoint(&address));
        }
    } else {
        // The connecting end tells which it is.
        let inode = if side.server {
            u64::from_be_bytes(recv_exactly(side.fd, 8).try_into().unwrap())
        } else {
            let inode = rustix::fs::fstat(socket).unwrap().st_ino;
            send_all(side.fd, &inode.to_be_bytes());
            inode
        };
        name.extend(b"-unix-");
        name.extend(inode.to_be_bytes());
    }
    name
}

fn endpoint(address: &SocketAddrAny) -> Vec<u8> {
    let v4 = std::net::SocketAddrV4::try_from(address.clone()).unwrap();
    let mut bytes = v4.ip().to_ipv6_mapped().octets().to_vec();
    bytes.extend(v4.port().to_be_bytes());
    bytes
}
