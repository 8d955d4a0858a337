//! The other ends of a figure on another host. There `overside bench receive` waits; for each other
//! end that a figure asks for it starts a process, which connects back to the figure's own
//! listener. What that process is told, and what it answers, goes over a channel between both
//! hosts, which proves the key as every connection does.

use super::{messages, receiver};
use crate::{process::Process, rendezvous::Rendezvous};
use anyhow::{Context, Result, bail, ensure};
use overside::{
    Address, Channel, Network, Transport, at, memory::Buffer, shape::Shape, transfer::Error, verbs::VerbsError,
};
use std::{
    fmt,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket},
    os::unix::net::UnixStream,
    str::FromStr,
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
    pub(super) fn rendezvous(&self) -> Result<Rendezvous> {
        let ip = self.towards().with_context(|| format!("there is no way to {}", self.address))?;
        let port = TcpListener::bind((ip, 0))?.local_addr()?.port();
        let address = format!("{}:{}", self.transport().name, SocketAddr::new(ip, port));
        Ok(Rendezvous { address: address.parse()?, network: self.network.clone() })
    }

    /// The address of this host that a connection to the other one comes from.
    pub(super) fn towards(&self) -> Result<IpAddr> {
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

    /// Starts an end there; the line to it.
    pub(super) fn start(&self, end: &OtherEnd) -> Result<UnixStream> {
        let channel = self.connect()?;
        let mut line = Carried::new(channel)?;
        line.send(end.to_string().as_bytes())?;
        let (ours, theirs) = UnixStream::pair().context("no socket pair could be made")?;
        // It ends when this side hangs up, or the other one does.
        thread::spawn(move || drop(line.carry(theirs)));
        Ok(ours)
    }
}

/// The other end of what is measured: a process that connects to where it is told to. As text it is
/// what one host asks another for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OtherEnd {
    /// A receiver.
    Receiver(Address),
    /// Who answers messages that come this way.
    Answers(messages::MessageForm, Address),
    /// Who answers messages of the kernel's own TCP. It sends the secret first.
    Tcp {
        /// Where.
        address: SocketAddr,
        /// What tells it from anybody else who connects; hexadecimal digits.
        secret: String,
    },
}

impl OtherEnd {
    /// Starts it on this host, which is that of `network`.
    pub(super) fn start(&self, network: &Network) -> Result<(Process, UnixStream)> {
        let rendezvous =
            |address: &Address| Rendezvous { address: address.clone(), network: network.clone() }.to_string();
        match self {
            OtherEnd::Receiver(address) => Process::start("receiver", receiver::ROLE, &[&rendezvous(address)], None),
            OtherEnd::Answers(way, address) => {
                Process::start("answering process", messages::ROLE, &["verbs", way.name(), &rendezvous(address)], None)
            }
            OtherEnd::Tcp { address, secret } => {
                Process::start("answering process", messages::ROLE, &["tcp", &address.to_string(), secret], None)
            }
        }
    }

    /// An error for what cannot be reached from another host.
    fn beyond(&self) -> Result<()> {
        match self {
            OtherEnd::Receiver(address) | OtherEnd::Answers(_, address) => beyond(address),
            OtherEnd::Tcp { .. } => Ok(()),
        }
    }
}

impl fmt::Display for OtherEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No address has a space in it.
        match self {
            OtherEnd::Receiver(address) => write!(f, "receiver {address}"),
            OtherEnd::Answers(way, address) => write!(f, "answers {address} {}", way.name()),
            OtherEnd::Tcp { address, secret } => write!(f, "tcp {address} {secret}"),
        }
    }
}

impl FromStr for OtherEnd {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<OtherEnd> {
        let words: Vec<&str> = text.splitn(3, ' ').collect();
        Ok(match words[..] {
            ["receiver", address] => OtherEnd::Receiver(address.parse()?),
            ["answers", address, way] => OtherEnd::Answers(way.parse()?, address.parse()?),
            ["tcp", address, secret] if !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                OtherEnd::Tcp { address: address.parse()?, secret: secret.to_owned() }
            }
            _ => bail!("{text:?} is nothing that can be started; use one build on both hosts"),
        })
    }
}

fn beyond(address: &Address) -> Result<()> {
    let name = address.transport().name;
    ensure!(name != "shm", "{address} reaches this host alone; give tcp:HOST:PORT or rdma:HOST:PORT");
    Ok(())
}

/// Starts the other ends of figures of other hosts, as they ask for them, until the process is
/// ended. `told` hears each address.
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

/// Starts one end, and carries what it is told and what it says.
fn serve(channel: Channel, network: &Network) -> Result<()> {
    let mut line = Carried::new(channel)?;
    // Who hangs up at once has looked whether somebody is here.
    let Ok(Some(asked)) = line.receive(PATIENCE) else { return Ok(()) };
    let end: OtherEnd = std::str::from_utf8(&asked).context("what was asked for is no text")?.parse()?;
    end.beyond()?;
    let (process, socket) = end.start(network)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_what_is_started_and_nothing_else_is() {
        let address: Address = "tcp:10.0.0.2:7000".parse().unwrap();
        let tcp = OtherEnd::Tcp { address: "[::1]:7000".parse().unwrap(), secret: "00ff".into() };
        let answers = messages::MessageForm::ALL.map(|way| OtherEnd::Answers(way, address.clone()));
        for end in answers.into_iter().chain([OtherEnd::Receiver(address), tcp]) {
            assert_eq!(end.to_string().parse::<OtherEnd>().unwrap(), end);
            end.beyond().unwrap();
        }
        for wrong in [
            "",
            " ",
            "receiver",
            "receiver nowhere",
            "receiver tcp:10.0.0.2:7000 SEND",
            "tcp:10.0.0.2:7000",
            "answers tcp:10.0.0.2:7000",
            "answers tcp:10.0.0.2:7000 SEMD",
            "tcp 10.0.0.2:7000",
            "tcp 10.0.0.2:7000 ",
            "tcp 10.0.0.2:7000 00 ff",
            "tcp somewhere 00",
            "busy",
        ] {
            assert!(wrong.parse::<OtherEnd>().is_err(), "{wrong:?}");
        }
        assert!("receiver shm:here".parse::<OtherEnd>().unwrap().beyond().is_err(), "it reaches this host alone");
    }
}
