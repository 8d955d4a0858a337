//! The kernel's own ways: a Unix socket, TCP over loopback.

use super::play::{Ball, PATIENCE, Side, Stretch, follow, lead};
use anyhow::{Context, Result, ensure};
use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    thread,
    time::{Duration, Instant},
};

/// A connected stream socket.
pub(super) struct Stream {
    socket: Socket,
}

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Of a descriptor that was handed over.
    pub(super) fn unix(fd: OwnedFd) -> Stream {
        Stream { socket: Socket::Unix(UnixStream::from(fd)) }
    }

    /// To who awaits it at an address, and knows it by the secret.
    pub(super) fn connect(address: &str, secret: &str) -> Result<Stream> {
        let mut socket = TcpStream::connect(address).with_context(|| format!("nobody listens at {address}"))?;
        socket.write_all(secret.as_bytes())?;
        Stream::tcp(socket)
    }

    fn tcp(socket: TcpStream) -> Result<Stream> {
        socket.set_nodelay(true)?;
        Ok(Stream { socket: Socket::Tcp(socket) })
    }
}

/// A listener for one connection: plain TCP proves no key, so who comes says a secret that
/// was told to nobody else.
pub(super) struct Awaiting {
    listener: TcpListener,
    pub(super) secret: String,
}

impl Awaiting {
    /// At this address of the host.
    pub(super) fn at(ip: IpAddr) -> Result<Awaiting> {
        let listener = TcpListener::bind((ip, 0)).with_context(|| format!("no TCP port of {ip} is free"))?;
        let mut secret = [0; 16];
        File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut secret)).context("/dev/urandom")?;
        let secret = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Awaiting { listener, secret })
    }

    pub(super) fn address(&self) -> Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// The first that says the secret.
    pub(super) fn accept(self) -> Result<Stream> {
        let end = Instant::now() + PATIENCE;
        self.listener.set_nonblocking(true)?;
        loop {
            match self.listener.accept() {
                Ok((mut socket, _)) => {
                    socket.set_nonblocking(false)?;
                    socket.set_read_timeout(Some(STRANGER))?;
                    let mut said = vec![0; self.secret.len()];
                    if socket.read_exact(&mut said).is_ok() && said == self.secret.as_bytes() {
                        socket.set_read_timeout(None)?;
                        return Stream::tcp(socket);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
                Err(error) => return Err(error.into()),
            }
            ensure!(Instant::now() < end, "the answering process does not connect");
        }
    }
}

/// A message on its way over a socket, made of bytes of its own.
pub(in crate::figures) struct Bytes<'a, S> {
    pub(in crate::figures) socket: &'a mut S,
    pub(in crate::figures) message: Vec<u8>,
}

impl<S: Read + Write> Ball for Bytes<'_, S> {
    fn send(&mut self, end: bool) -> Result<()> {
        self.message[0] = u8::from(end);
        Ok(self.socket.write_all(&self.message)?)
    }

    fn receive(&mut self) -> Result<bool> {
        self.socket.read_exact(&mut self.message)?;
        Ok(self.message[0] == 1)
    }
}

impl Side for Stream {
    fn lead(&mut self, slice_ns: u64, size: usize) -> Result<Stretch> {
        let message = vec![0; size];
        match &mut self.socket {
            Socket::Unix(socket) => lead(&mut Bytes { socket, message }, slice_ns),
            Socket::Tcp(socket) => lead(&mut Bytes { socket, message }, slice_ns),
        }
    }

    fn follow(&mut self, size: usize) -> Result<()> {
        let message = vec![0; size];
        match &mut self.socket {
            Socket::Unix(socket) => follow(&mut Bytes { socket, message }),
            Socket::Tcp(socket) => follow(&mut Bytes { socket, message }),
        }
    }
}

/// Between two looks whether somebody came.
const LOOK: Duration = Duration::from_millis(1);
/// Who does not say the secret at once does not know it.
const STRANGER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_stranger_takes_nobodys_place() {
        let awaiting = Awaiting::at(Ipv4Addr::LOCALHOST.into()).unwrap();
        let (address, secret) = (awaiting.address().unwrap().to_string(), awaiting.secret.clone());
        assert_eq!(secret.len(), 32);
        // Connections are taken in the order in which they came.
        let silent = TcpStream::connect(&address).unwrap();
        drop(silent);
        let _wrong = Stream::connect(&address, &"0".repeat(32)).unwrap();
        let right = Stream::connect(&address, &secret).unwrap();
        let Socket::Tcp(ours) = right.socket else { unreachable!("it is TCP") };
        let Socket::Tcp(theirs) = awaiting.accept().unwrap().socket else { unreachable!("it is TCP") };
        assert_eq!(theirs.peer_addr().unwrap(), ours.local_addr().unwrap());
    }
}
