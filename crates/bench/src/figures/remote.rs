//! Receivers on another host. There `overside bench receive` waits; for each receiver that a figure asks for it starts a
//! process, which connects back to the figure's own listener. What that process is told, and what it answers, goes over a
//! channel between both hosts, which proves the key as every connection does.

use super::receiver;
use crate::{meeting::Meeting, process::Process};
use anyhow::{Context, Result, ensure};
use overside::{
    Address, Channel, Network, Transport, at, memory::Buffer, shape::Shape, transfer::Error, verbs::VerbsError,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket},
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
    time::Duration,
};

/// Where receivers are to be started.
#[derive(Clone, Debug)]
pub(super) struct Host {
    address: Address,
    network: Network,
}

impl Host {
    /// # Errors
    /// No address, or one that reaches this host alone.
    pub(super) fn new(address: &str, network: &Network) -> Result<Host> {
        let address: Address = address.parse()?;
        beyond(&address)?;
        Ok(Host { address, network: network.clone() })
    }

    pub(super) fn transport(&self) -> &Transport {
        self.address.transport()
    }

    /// A place on this host that the other one reaches, and that nobody else has.
    pub(super) fn meeting(&self) -> Result<Meeting> {
        let ip = self.towards().with_context(|| format!("there is no way to {}", self.address))?;
        let port = TcpListener::bind((ip, 0))?.local_addr()?.port();
        let address = format!("{}:{}", self.transport().name, SocketAddr::new(ip, port));
        Ok(Meeting { address: address.parse()?, network: self.network.clone() })
    }

    /// The address of this host that a connection to the other one comes from.
    fn towards(&self) -> Result<IpAddr> {
        let there = self.address.name().to_socket_addrs()?.next().context("the name has no address")?;
        let from: IpAddr = if there.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((from, 0))?;
        // Nothing is sent.
        socket.connect(there)?;
        Ok(socket.local_addr()?.ip())
    }

    /// Whether somebody receives there, and has the same key: asked before anything is measured.
    pub(super) fn look(&self) -> Result<()> {
        self.connect().map(drop)
    }

    fn connect(&self) -> Result<Channel> {
        let nobody = || format!("nobody receives at {}; start `overside bench receive` there", self.address);
        at(self.address.to_string()).network(&self.network).connect(PATIENCE).with_context(nobody)
    }

    /// Starts a receiver there, which connects to `meeting`; the line to it.
    pub(super) fn receiver(&self, meeting: &Meeting) -> Result<UnixStream> {
        let channel = self.connect()?;
        let mut line = Carried::new(channel)?;
        line.send(meeting.address.to_string().as_bytes())?;
        let (ours, theirs) = UnixStream::pair().context("no socket pair could be made")?;
        // It ends when this side hangs up, or the other one does.
        thread::spawn(move || drop(line.carry(theirs)));
        Ok(ours)
    }
}

fn beyond(address: &Address) -> Result<()> {
    let name = address.transport().name;
    ensure!(name != "shm", "{address} reaches this host alone; give tcp:HOST:PORT or rdma:HOST:PORT");
    Ok(())
}

/// Starts receivers for figures of other hosts, as they ask for them, until the process is ended. `told` hears each address.
///
/// Call it from the main thread, which must outlive it.
///
/// # Errors
/// The address cannot be listened at, or reaches this host alone.
pub fn receive(listen: &str, network: &Network, mut told: impl FnMut(&str) -> Result<()>) -> Result<()> {
    beyond(&listen.parse()?)?;
    let mut listener = at(listen).network(network).listen()?;
    told(&format!("receiving for figures at {listen}"))?;
    loop {
        let channel = match listener.accept(PATIENCE) {
            Ok(channel) => channel,
            Err(Error::Verbs(VerbsError::TimedOut(_))) => continue,
            Err(error) => return Err(error.into()),
        };
        // One that cannot be served is told so by the end of its line.
        if let Err(error) = serve(channel, network) {
            told(&format!("a receiver was not started: {error:#}"))?;
        }
    }
}

/// Starts one receiver, and carries what it is told and what it says.
fn serve(channel: Channel, network: &Network) -> Result<()> {
    let mut line = Carried::new(channel)?;
    // Who hangs up at once has looked whether somebody is here.
    let Ok(Some(asked)) = line.receive(PATIENCE) else { return Ok(()) };
    let address: Address = std::str::from_utf8(&asked).context("what was asked for is no text")?.parse()?;
    beyond(&address)?;
    let meeting = Meeting { address, network: network.clone() };
    let (process, socket) = Process::start("receiver", receiver::ROLE, &[&meeting.to_string()], None)?;
    thread::spawn(move || {
        // Whichever side ends it, the process goes with it.
        drop(line.carry(socket));
        drop(process);
    });
    Ok(())
}

/// A line between two processes, carried by a channel.
struct Carried {
    channel: Channel,
    /// What is sent lies here.
    buffer: Option<Buffer>,
}

impl Carried {
    fn new(channel: Channel) -> Result<Carried> {
        Ok(Carried { channel, buffer: None })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let mut buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => self.channel.allocate(LINE_BYTES)?,
        };
        buffer[..bytes.len()].copy_from_slice(bytes);
        let buffer = Arc::new(buffer);
        let shape = Arc::new(Shape::contiguous(0, bytes.len() as u64)?.one_message());
        let declared = self.channel.declare(&buffer, &shape)?;
        self.channel.send(&declared, PATIENCE)?;
        self.channel.flush(PATIENCE)?;
        drop(declared);
        self.buffer = Arc::try_unwrap(buffer).ok();
        Ok(())
    }

    /// What came, if anything did in time.
    fn receive(&mut self, within: Duration) -> Result<Option<Vec<u8>>> {
        let message = match self.channel.receive(within) {
            Ok(message) => message,
            Err(Error::Verbs(VerbsError::TimedOut(_))) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let bytes = message.to_vec();
        self.channel.recycle(message)?;
        Ok(Some(bytes))
    }

    /// Carries both ways until one side hangs up.
    fn carry(mut self, mut line: UnixStream) -> Result<()> {
        let mut bytes = [0; LINE_BYTES];
        loop {
            line.set_nonblocking(true)?;
            match line.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(count) => self.send(&bytes[..count])?,
                Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {}
                Err(error) => return Err(error.into()),
            }
            line.set_nonblocking(false)?;
            if let Some(came) = self.receive(LOOK)? {
                line.write_all(&came)?;
            }
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at the other way. Nothing that is timed waits for it.
const LOOK: Duration = Duration::from_millis(2);
/// Commands, answers and addresses are shorter.
const LINE_BYTES: usize = 4096;
