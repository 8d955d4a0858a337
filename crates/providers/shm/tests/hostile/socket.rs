//! What is said and passed on the socket.

use std::os::fd::{AsFd, OwnedFd};

use crate::ends::{End, fresh_name};
use overside_memory::{Segment, Window};
use overside_verbs::*;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::raw::*;

#[test]
fn descriptors_of_the_wrong_kind_are_refused() {
    let memfd = |len: u64, seals: SealFlags, hollow: bool| {
        let fd = rustix::fs::memfd_create("odd", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, len).unwrap();
        if !hollow {
            rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
        }
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let zero = rustix::fs::open("/dev/zero", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let length = CONTROL_BYTES as u64;
    let odd: Vec<(&str, OwnedFd)> = vec![
        ("a pipe", pipe),
        ("a device", zero),
        ("unsealed", memfd(length, SealFlags::empty(), false)),
        ("may shrink", memfd(length, SealFlags::GROW | SealFlags::SEAL, false)),
        ("too short", memfd(length - 4096, all, false)),
        ("too long", memfd(length + 4096, all, false)),
        ("hollow", memfd(length, all, true)),
    ];
    let mut scene = Scene::new();
    for (what, fd) in &odd {
        let messages = [
            attach_message(),
            segment_message(3, length),
            grant_message(5, 15, 0, length),
            grant_message(5, 15, 1, length),
        ];
        for message in messages {
            let (raw, qp) = scene.hostile();
            if message[0] != 2 {
                raw.attach();
            }
            say(&raw.socket, &message, &[fd.as_fd()]);
            let (closed, done) = scene.settle(qp, true);
            assert_eq!(closed, Some(Status::Malformed), "{what} in {message:?}");
            scene.check(qp, done);
        }
    }
}

#[test]
fn messages_that_are_cut_replayed_or_out_of_place_close_their_connection() {
    let memory = Segment::shared(CONTROL_BYTES).unwrap();
    let fd = memory.fd().unwrap();
    let length = CONTROL_BYTES as u64;
    let mut cases: Vec<(Vec<u8>, usize)> = vec![
        (HELLO.to_vec(), 0),
        (attach_message(), 1),
        (attach_message(), 0),
        (segment_message(0, length), 1),
        (segment_message(3, length), 0),
        (segment_message(3, length), 2),
        (segment_message(3, 1 << 63), 1),
        (grant_message(1, 15, 2, length), 1),
        (vec![7], 1),
        (vec![8, 0], 0),
        (vec![0], 0),
        (vec![99; 64], 0),
        (vec![6; 65], 0),
        (vec![6, 1, 2], 0),
        ([attach_message(), vec![0]].concat(), 1),
    ];
    for whole in
        [attach_message(), segment_message(3, length), grant_message(1, 2, 0, length), [vec![5], vec![0; 16]].concat()]
    {
        cases.extend((1..whole.len()).map(|cut| (whole[..cut].to_vec(), usize::from(whole[0] != 5))));
    }
    let mut scene = Scene::new();
    for (message, fds) in cases {
        let (raw, qp) = scene.hostile();
        raw.attach();
        say(&raw.socket, &message, &vec![fd; fds]);
        let (closed, done) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed), "{message:?} with {fds} descriptors");
        scene.check(qp, done);
    }
    // One key, granted twice.
    let window = Window::new(4096).unwrap();
    let (raw, qp) = scene.hostile();
    raw.attach();
    (0..2).for_each(|_| say(&raw.socket, &grant_message(1, 15, 1, 4096), &[window.share(true).unwrap()]));
    let (closed, done) = scene.settle(qp, true);
    assert_eq!(closed, Some(Status::Malformed));
    scene.check(qp, done);
}

#[test]
fn a_flood_of_doorbells_and_more_memory_than_allowed_disturb_nobody() {
    let mut scene = Scene::new();
    let (raw, qp) = scene.hostile();
    raw.attach();
    (0..100).for_each(|_| say(&raw.socket, &[7], &[]));
    let (closed, done) = scene.settle(qp, false);
    assert_eq!(closed, None);
    scene.check(qp, done);

    let provider = overside_shm::ShmProvider::with_options(overside_shm::Options {
        peer_segments_max: 2,
        peer_bytes_max: 1 << 20,
    })
    .unwrap();
    let domain = provider.allocate_domain().unwrap();
    let queue = CompletionQueue::new(provider.open_port(&domain, PortOptions::default()).unwrap());
    scene.victim = End { provider, domain, queue, early: Vec::new() };
    let name = fresh_name("bounded");
    scene.listener = scene.victim.listen(&name);
    for (count, id, len) in [(3, 1, 4096u64), (1, 1, 2 << 20)] {
        let raw = Raw::greet(&name);
        let qp = scene.victim.accept(&mut *scene.listener);
        raw.attach();
        let memory = Segment::shared(len as usize).unwrap();
        (0..count).for_each(|i| say(&raw.socket, &segment_message(id + i, len), &[memory.fd().unwrap()]));
        let (closed, _) = scene.settle(qp, true);
        assert_eq!(closed, Some(Status::Malformed));
        scene.victim.queue.close(qp);
    }
}
