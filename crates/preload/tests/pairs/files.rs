//! Files sent, as web servers send them.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use crate::sock::{Log, Side, nap, pattern, recv, recv_exactly, send_all, until};

/// sendfile: from a position, from the file's own, past its end, into a full connection, and of what is no file.
pub(crate) fn files(side: Side, log: &mut Log) {
    side.warm_up();
    let bytes = pattern(7, BYTES);
    if !side.server {
        let parts = [1000..201_000, 0..50_000, 50_000..100_000, BYTES - 100..BYTES, 0..BYTES];
        for (i, part) in parts.into_iter().enumerate() {
            if i == LAST {
                until(|| full().exists().then_some(()));
            }
            assert!(recv_exactly(side.fd, part.len()) == bytes[part], "part {i}");
            send_all(side.fd, &[i as u8]);
        }
        assert_eq!(recv_exactly(side.fd, 5), b"after");
        return log.say("all parts");
    }
    let mut file = file_of(&bytes);
    let mut at: libc::off_t = 1000;
    let mut parts = 0..;
    let mut taken = || assert_eq!(recv_exactly(side.fd, 1), [parts.next().unwrap()]);
    log.result("from a position", send(&side, &file, Some(&mut at), 200_000));
    log.say(format_args!("then at {at}, the file at {}", file.stream_position().unwrap()));
    taken();
    for _ in 0..2 {
        log.result("from where it is", send(&side, &file, None, 50_000));
        log.say(format_args!("the file at {}", file.stream_position().unwrap()));
        taken();
    }
    file.seek(SeekFrom::End(-100)).unwrap();
    log.result("past the end", send(&side, &file, None, 1 << 20));
    log.result("at the end", send(&side, &file, None, 1 << 20));
    log.result("nothing", send(&side, &file, None, 0));
    taken();
    fill(&side, &file, log);
    taken();
    let folder = File::open("/").unwrap();
    log.result("a folder", send(&side, &folder, None, 100));
    send_all(side.fd, b"after");
}

/// A file is the first that goes over the connection, to a peer that waits for it already: the ends meet in the midst of it. Both
/// poll before each call, as programs with time limits do.
pub(crate) fn file_first(side: Side, log: &mut Log) {
    let bytes = pattern(7, BYTES);
    let wait = |events| {
        let mut poll = libc::pollfd { fd: side.fd, events, revents: 0 };
        // SAFETY: one pollfd.
        assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1);
    };
    nonblocking(side.fd, true);
    if side.server {
        let file = file_of(&bytes);
        let mut at: libc::off_t = 0;
        while (at as usize) < BYTES {
            wait(libc::POLLOUT);
            let left = BYTES - at as usize;
            if send(&side, &file, Some(&mut at), left) < 0 {
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
            }
        }
    } else {
        let (mut got, mut piece) = (Vec::new(), [0; 8192]);
        while got.len() < BYTES {
            let n = recv(side.fd, &mut piece, 0);
            match usize::try_from(n) {
                Ok(n) => got.extend_from_slice(&piece[..n]),
                Err(_) => wait(libc::POLLIN),
            }
        }
        assert!(got == bytes, "in another order");
    }
    nonblocking(side.fd, false);
    log.say("all of it");
}

/// Is there once the connection takes no more: the other end reads nothing before.
fn full() -> std::path::PathBuf {
    std::path::Path::new(&std::env::var("FOLDER").unwrap()).join("full")
}

/// All of the file without ever waiting in the call, slower than the connection takes it.
fn fill(side: &Side, file: &File, log: &mut Log) {
    let mut at: libc::off_t = 0;
    let mut was_full = false;
    nonblocking(side.fd, true);
    while (at as usize) < BYTES {
        let before = at;
        let n = send(side, file, Some(&mut at), BYTES - before as usize);
        if n < 0 {
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
            was_full = true;
            std::fs::write(full(), "").unwrap();
            let mut poll = libc::pollfd { fd: side.fd, events: libc::POLLOUT, revents: 0 };
            // SAFETY: one pollfd.
            assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1);
        } else {
            assert!(n > 0 && at == before + n as libc::off_t, "{n} from {before} to {at}");
            was_full |= (at as usize) < BYTES;
        }
    }
    // A kernel may take all of it.
    std::fs::write(full(), "").unwrap();
    nonblocking(side.fd, false);
    log.say(format_args!("all, full in between: {was_full}"));
}

/// A cork is in while the ends meet, and out again later. One left in holds each wake byte back for 200 ms: then this does not end in time.
pub(crate) fn corked(side: Side, log: &mut Log) {
    let cork = |on: libc::c_int| {
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_CORK);
        // SAFETY: an int of ours.
        side.tcp.then(|| unsafe {
            libc::setsockopt(side.fd, level, name, (&raw const on).cast(), size_of_val(&on) as libc::socklen_t)
        })
    };
    for round in 0..1000usize {
        let message = pattern(round, 100);
        if !side.server {
            send_all(side.fd, &message);
            assert!(recv_exactly(side.fd, 200) == [&message[..], &message[..]].concat());
            continue;
        }
        assert!(recv_exactly(side.fd, 100) == message);
        // The client sleeps by now, and must be woken.
        nap(1);
        cork(1);
        send_all(side.fd, &message);
        send_all(side.fd, &message);
        cork(0);
    }
    log.say("all rounds");
}

fn send(side: &Side, file: &File, at: Option<&mut libc::off_t>, len: usize) -> isize {
    let at = at.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: descriptors of ours, and a position of ours or none.
    unsafe { libc::sendfile(side.fd, file.as_raw_fd(), at, len) }
}

fn nonblocking(fd: RawFd, on: bool) {
    // SAFETY: a descriptor of ours.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags), 0);
    }
}

fn file_of(bytes: &[u8]) -> File {
    // SAFETY: a new descriptor that nobody else owns.
    let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"part".as_ptr(), 0)) };
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

const BYTES: usize = 16_000_000;
const LAST: usize = 4;
