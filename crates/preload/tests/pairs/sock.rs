//! Plain system calls for test programs, and the transcript of what they returned.

use std::ffi::c_int;
use std::fmt::Write as _;
use std::os::fd::{IntoRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) fd: RawFd,
    pub(crate) server: bool,
    pub(crate) tcp: bool,
}

/// Written through to a file line by line, so that a killed program leaves what it saw.
pub(crate) struct Log {
    path: PathBuf,
    text: String,
}

impl Log {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, text: String::new() }
    }

    pub(crate) fn say(&mut self, line: impl std::fmt::Display) {
        writeln!(self.text, "{line}").unwrap();
        std::fs::write(&self.path, &self.text).unwrap();
    }

    /// What a call returned, and errno if it failed.
    pub(crate) fn result(&mut self, what: &str, result: isize) {
        let error = std::io::Error::last_os_error();
        let shown = if result < 0 { format!("{:?}", error.raw_os_error()) } else { String::new() };
        self.say(format_args!("{what}: {result} {shown}"));
    }
}

/// Connects the two programs.
pub(crate) fn attach(role: &str, address: &str, folder: &Path) -> Side {
    let tcp = !address.starts_with('/');
    let server = role == "server";
    let port = folder.join("port");
    let fd = match (server, tcp) {
        (true, true) => {
            let listener = std::net::TcpListener::bind(address).unwrap();
            std::fs::write(folder.join("port.new"), listener.local_addr().unwrap().to_string()).unwrap();
            std::fs::rename(folder.join("port.new"), &port).unwrap();
            listener.accept().unwrap().0.into_raw_fd()
        }
        (true, false) => std::os::unix::net::UnixListener::bind(address).unwrap().accept().unwrap().0.into_raw_fd(),
        (false, true) => {
            let address = until(|| std::fs::read_to_string(&port).ok());
            std::net::TcpStream::connect(address).unwrap().into_raw_fd()
        }
        (false, false) => until(|| std::os::unix::net::UnixStream::connect(address).ok()).into_raw_fd(),
    };
    Side { fd, server, tcp }
}

/// Tries until it works; a test that hangs is ended by whoever started it.
pub(crate) fn until<T>(mut f: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = f() {
            return value;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn send(fd: RawFd, bytes: &[u8], flags: c_int) -> isize {
    // SAFETY: a live slice.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags | libc::MSG_NOSIGNAL) }
}

pub(crate) fn recv(fd: RawFd, bytes: &mut [u8], flags: c_int) -> isize {
    // SAFETY: a live slice.
    unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) }
}

/// Sends all or panics.
pub(crate) fn send_all(fd: RawFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = send(fd, bytes, 0);
        assert!(n > 0, "send: {}", std::io::Error::last_os_error());
        bytes = &bytes[n as usize..];
    }
}

/// Receives exactly so many bytes or panics.
pub(crate) fn recv_exactly(fd: RawFd, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut at = 0;
    while at < len {
        let n = recv(fd, &mut bytes[at..], 0);
        assert!(n > 0, "recv after {at} of {len}: {n} {}", std::io::Error::last_os_error());
        at += n as usize;
    }
    bytes
}

/// Receives until the end; the bytes and what the last call returned.
pub(crate) fn recv_to_end(fd: RawFd) -> (Vec<u8>, isize) {
    let (mut all, mut part) = (Vec::new(), vec![0; 5000]);
    loop {
        let n = recv(fd, &mut part, 0);
        if n <= 0 {
            return (all, n);
        }
        all.extend_from_slice(&part[..n as usize]);
    }
}

/// Bytes that tell their place.
pub(crate) fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

impl Side {
    /// Exchanges until the ends have met.
    pub(crate) fn warm_up(&self) {
        for round in 0..12u8 {
            if self.server {
                assert_eq!(recv_exactly(self.fd, 16), [round; 16]);
                send_all(self.fd, &[round; 16]);
            } else {
                send_all(self.fd, &[round; 16]);
                assert_eq!(recv_exactly(self.fd, 16), [round; 16]);
            }
        }
    }

    /// Exchanges of a hundred bytes each, of a pattern that tells the rounds apart.
    pub(crate) fn exchange(&self, rounds: usize) {
        for round in 0..rounds {
            if self.server {
                assert!(recv_exactly(self.fd, 100) == pattern(round, 100));
                send_all(self.fd, &pattern(round, 100));
            } else {
                send_all(self.fd, &pattern(round, 100));
                assert!(recv_exactly(self.fd, 100) == pattern(round, 100));
            }
        }
    }

    /// Waits for the other side to have come here as well.
    pub(crate) fn rendezvous(&self, mark: u8) {
        if self.server {
            assert_eq!(recv_exactly(self.fd, 1), [mark]);
            send_all(self.fd, &[mark]);
        } else {
            send_all(self.fd, &[mark]);
            assert_eq!(recv_exactly(self.fd, 1), [mark]);
        }
    }

    /// The client of many programs: messages of 50 bytes, each of its round, and a rendezvous after each.
    pub(crate) fn send_rounds(&self, rounds: u8) {
        for round in 0..rounds {
            send_all(self.fd, &[round; 50]);
            self.rendezvous(round);
        }
    }

    /// The server's part of one of these rounds.
    pub(crate) fn take_round(&self, round: u8) {
        assert_eq!(recv_exactly(self.fd, 50), [round; 50]);
        self.rendezvous(round);
    }
}

pub(crate) fn nap(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// A child in this process's own memory, as Python starts programs; what it does must not pass for what this process does.
pub(crate) fn vfork_child() {
    // SAFETY: the child makes two system calls.
    #[allow(deprecated)]
    unsafe {
        let child = libc::vfork();
        if child == 0 {
            libc::close_range(5000, 5010, 0);
            libc::_exit(0);
        }
        assert!(child > 0);
    }
}

/// One more connection between the two programs, of the same family.
pub(crate) fn second(side: &Side) -> Side {
    use std::net::{TcpListener, TcpStream};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    if side.server {
        let (name, accept): (String, Box<dyn FnOnce() -> RawFd>) = if side.tcp {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let name = listener.local_addr().unwrap().to_string();
            (name, Box::new(move || listener.accept().unwrap().0.into_raw_fd()))
        } else {
            let name = format!("pairs-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
            (name, Box::new(move || listener.accept().unwrap().0.into_raw_fd()))
        };
        send_all(side.fd, format!("{name:40}").as_bytes());
        return Side { fd: accept(), ..*side };
    }
    let name = String::from_utf8(recv_exactly(side.fd, 40)).unwrap();
    let fd = if side.tcp {
        TcpStream::connect(name.trim()).unwrap().into_raw_fd()
    } else {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(name.trim()).unwrap()).unwrap().into_raw_fd()
    };
    Side { fd, ..*side }
}

pub(crate) fn close(fd: RawFd) {
    // SAFETY: a descriptor of ours.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

/// Sets an option to a value of the type that it takes.
pub(crate) fn set_option<T>(fd: RawFd, level: c_int, name: c_int, value: &T) {
    let (at, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as u32);
    // SAFETY: a live value and its size.
    assert_eq!(unsafe { libc::setsockopt(fd, level, name, at, len) }, 0, "{}", std::io::Error::last_os_error());
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
