//! What a peer holds of memory that it was granted: a hostile one that keeps to the protocol up to the grant, and then asks the
//! system for more than it was given.

mod ends;

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ends::{End, fresh_name};
use overside_memory::{Segment, Window};
use overside_verbs::*;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::*;

/// Greets, and takes the descriptor of the first grant.
fn granted(name: &str, listener: &mut dyn Listener, victim: &mut End) -> (OwnedFd, Vec<u8>, OwnedFd) {
    let uid = rustix::process::getuid().as_raw();
    let address = SocketAddrUnix::new_abstract_name(format!("overside/{uid}/{name}").as_bytes()).unwrap();
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &address).unwrap();
    send(&socket, b"\x01overside\x06\0\0\0", SendFlags::NOSIGNAL).unwrap();
    let link = listener.accept(Duration::from_secs(5)).unwrap().expect("it greeted");
    victim.queue.attach(link).unwrap();
    loop {
        let (mut bytes, mut space) = ([0; 128], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let len = recvmsg(&socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
        assert!(len > 0, "the victim hung up");
        let passed = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        if bytes[0] == 4 {
            return (passed.expect("a grant carries a descriptor"), bytes[..len].to_vec(), socket);
        }
    }
}

fn mapped(fd: impl AsFd, prot: ProtFlags) -> Option<*mut u8> {
    // SAFETY: [test] a new mapping at an address of the system's choice.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, prot, MapFlags::SHARED, fd, 0) }.ok().map(<*mut _>::cast)
}

/// Every way to write into a memory whose descriptor one has.
fn ways_to_write(fd: &OwnedFd) -> Vec<&'static str> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let mut ways = Vec::new();
    if mapped(fd, both).is_some() {
        ways.push("mapping it");
    }
    if let Some(at) = mapped(fd, ProtFlags::READ)
        // SAFETY: [test] our own mapping of a page.
        && unsafe { rustix::mm::mprotect(at.cast(), 4096, rustix::mm::MprotectFlags::from_bits_retain(both.bits())) }
            .is_ok()
    {
        ways.push("mapping it to be read, then more");
    }
    if rustix::io::pwrite(fd, b"x", 0).is_ok() {
        ways.push("write(2)");
    }
    // Whoever has a descriptor can open the same file again, with the rights of its user.
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if let Ok(again) = std::fs::File::options().read(true).write(true).open(path)
        && (mapped(&again, both).is_some() || rustix::io::pwrite(&again, b"x", 0).is_ok())
    {
        ways.push("opening it again");
    }
    ways
}

fn grant_of(memory: Memory, access: Access) -> (OwnedFd, Vec<u8>) {
    let mut victim = End::new();
    let name = fresh_name("given");
    let mut listener = victim.listen(&name);
    victim.provider.register(&victim.domain, &memory, access).unwrap();
    let (fd, message, _socket) = granted(&name, &mut *listener, &mut victim);
    (fd, message)
}

#[test]
fn what_a_peer_may_only_read_it_cannot_make_writable() {
    let window = Arc::new(Window::new(4096).unwrap());
    window.write(0, b"mine").unwrap();
    let segment = Arc::new(Segment::shared(4096).unwrap());
    for memory in [Memory::Window(window.clone()), Memory::Segment(segment)] {
        let (fd, message) = grant_of(memory.clone(), Access::REMOTE_READ);
        assert_eq!((message[17], message[18]), (2, 0), "a right to read, and no window to write through");
        assert!(mapped(&fd, ProtFlags::READ).is_some(), "reading is its right");
        assert_eq!(ways_to_write(&fd), [""; 0], "{memory:?}");
    }
    let mut out = [0; 4];
    window.read(0, &mut out).unwrap();
    assert_eq!(&out, b"mine");
    // The same ways are open where writing is what was granted, or this test sees nothing.
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC | Access::REMOTE_READ] {
        let (fd, message) = grant_of(Memory::Window(Arc::new(Window::new(4096).unwrap())), access);
        assert_eq!(message[18], 1);
        assert_eq!(ways_to_write(&fd).len(), 4);
    }
}

#[test]
fn a_window_is_of_one_class_for_good() {
    let end = End::new();
    for (first, second) in [(Access::REMOTE_READ, Access::REMOTE_WRITE), (Access::REMOTE_ATOMIC, Access::REMOTE_READ)] {
        let window = Memory::Window(Arc::new(Window::new(4096).unwrap()));
        let region = end.provider.register(&end.domain, &window, first).unwrap();
        end.provider.deregister(region).unwrap();
        let refused = end.provider.register(&end.domain, &window, second).unwrap_err();
        assert!(refused.to_string().contains("make a window of its own"), "{refused}");
        assert!(end.provider.register(&end.domain, &window, Access::LOCAL).is_ok(), "no peer hears of that");
        assert!(end.provider.register(&end.domain, &window, first).is_ok());
    }
}
