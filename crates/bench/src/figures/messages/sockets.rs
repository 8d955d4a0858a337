//! The kernel's own ways: a Unix socket, TCP over loopback.

use super::play::{Ball, Side, Stretch, follow, lead};
use anyhow::{Context, Result};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
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

    /// To a listener on this host.
    pub(super) fn connect(address: &str) -> Result<Stream> {
        Stream::tcp(TcpStream::connect(address).with_context(|| format!("nobody listens at {address}"))?)
    }

    /// From a listener on this host.
    pub(super) fn accept(listener: &TcpListener) -> Result<Stream> {
        Stream::tcp(listener.accept()?.0)
    }

    fn tcp(socket: TcpStream) -> Result<Stream> {
        socket.set_nodelay(true)?;
        Ok(Stream { socket: Socket::Tcp(socket) })
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
