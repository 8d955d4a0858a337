//! The receiving side: a process of its own, which does what the sender tells it over a socket.

use super::{
    digest::Digest,
    sender::{SPIN, SPIN_CROWDED, port_options},
};
use crate::{
    measure::{Cpu, now_ns},
    process::{child_socket, read_word, write_words},
    rendezvous::Rendezvous,
};
use anyhow::{Context, Result, bail};
use overside::{
    memory::{Segment, Window},
    transfer::{Bundle, Ended, Endpoint, Ring, RingOptions},
    verbs::{Access, AtomicScope, Memory, Opcode, QueuePair, RemoteToken, Status, WorkCompletion},
};
use std::{
    io::{self, ErrorKind, Read},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

/// What a receiver is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Connect anew, with receive buffers of so many bytes.
    Connect {
        /// Bytes of the longest message.
        message_bytes: u64,
        /// There are more processes than processors.
        crowded: bool,
        /// Post no receive before there is one to wait for: a client that has stalled.
        stalled: bool,
    },
    /// Receive until the end.
    Receive,
    /// The same, keeping a digest of the messages, those that share a SEND taken apart.
    Check,
    /// Offer memory to be read and memory to be written.
    Offer {
        /// Bytes of each.
        bytes: u64,
    },
    /// Say what was written to the first bytes of what was offered, and zero them.
    Written {
        /// So many.
        bytes: u64,
    },
}

/// What a receiver says: of a stretch, (tokens) of what it offers, or (digest) of what was written
/// there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Payload received.
    pub bytes: u64,
    /// Messages received; where they were checked, those that share a SEND count each.
    pub messages: u64,
    /// Processor time in nanoseconds.
    pub cpu_ns: u64,
    /// Of it, polling for nothing.
    pub poll_ns: u64,
    /// Digest of what was received.
    pub digest: u64,
    /// Memory that may be read.
    pub readable: Option<RemoteToken>,
    /// Memory that may be written.
    pub writable: Option<RemoteToken>,
}

impl Command {
    pub(super) fn words(self) -> [u64; 2] {
        match self {
            Command::Connect { message_bytes, crowded, stalled } => {
                [(u64::from(crowded) * CROWDED) | (u64::from(stalled) * STALLED), message_bytes]
            }
            Command::Receive => [1, 0],
            Command::Check => [2, 0],
            Command::Offer { bytes } => [3, bytes],
            Command::Written { bytes } => [5, bytes],
        }
    }

    fn from_bytes(bytes: [u8; COMMAND_BYTES]) -> io::Result<Command> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (what, of) = (word(0), word(8));
        Ok(match what {
            what if (what & !(CROWDED | STALLED)) == 0 => {
                Command::Connect { message_bytes: of, crowded: what & CROWDED != 0, stalled: what & STALLED != 0 }
            }
            1 => Command::Receive,
            2 => Command::Check,
            3 => Command::Offer { bytes: of },
            5 => Command::Written { bytes: of },
            _ => return Err(ErrorKind::InvalidData.into()),
        })
    }
}

impl Answer {
    fn words(self) -> [u64; 13] {
        let token = |token: Option<RemoteToken>| {
            let bytes = token.map_or([0; 32], RemoteToken::to_bytes);
            std::array::from_fn::<u64, 4, _>(|i| u64::from_le_bytes(std::array::from_fn(|j| bytes[i * 8 + j])))
        };
        let [a, b, c, d] = token(self.readable);
        let [e, f, g, h] = token(self.writable);
        [self.bytes, self.messages, self.cpu_ns, self.poll_ns, self.digest, a, b, c, d, e, f, g, h]
    }

    pub(super) fn read(line: &mut UnixStream) -> io::Result<Answer> {
        let mut words = [0; 13];
        for word in &mut words {
            *word = read_word(line)?;
        }
        let token = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let token = RemoteToken::from_bytes(bytes.try_into().unwrap_or([0; 32]));
            (token.len > 0).then_some(token)
        };
        Ok(Answer {
            bytes: words[0],
            messages: words[1],
            cpu_ns: words[2],
            poll_ns: words[3],
            digest: words[4],
            readable: token(&words[5..9]),
            writable: token(&words[9..13]),
        })
    }
}

/// A process that receives: connects there whenever it is told to.
pub(super) fn serve(rendezvous: Rendezvous) -> Result<()> {
    let mut line = child_socket()?;
    let mut receiver = Receiver::open(rendezvous)?;
    loop {
        // The parent hangs up when it is done.
        let Some(command) = receiver.command(&mut line)? else { return Ok(()) };
        let answer = match command {
            Command::Connect { message_bytes, crowded, stalled } => {
                receiver.crowded = crowded;
                receiver.endpoint.queue().set_spin(if crowded { SPIN_CROWDED } else { SPIN });
                receiver.connect(message_bytes as usize, crowded, stalled)?
            }
            Command::Offer { bytes } => receiver.offer(bytes as usize)?,
            Command::Written { bytes } => receiver.written(bytes as usize)?,
            Command::Receive => receiver.receive(&mut line, None)?,
            Command::Check => receiver.receive(&mut line, Some(Digest::default()))?,
        };
        write_words(&mut line, &answer.words())?;
    }
}

struct Receiver {
    rendezvous: Rendezvous,
    endpoint: Endpoint,
    /// Of the connection, and its receives.
    connected: Option<(QueuePair, Receives)>,
    /// Whether there are more processes than processors.
    crowded: bool,
    /// What was offered last.
    offered: Option<Offered>,
}

/// Memory that the sender may reach, of one size.
struct Offered {
    bytes: usize,
    readable: (Memory, RemoteToken),
    writable: (Memory, RemoteToken),
}

/// Receives of a connection.
enum Receives {
    Posted(Ring),
    /// Posted when there is something to wait for.
    Due(RingOptions),
}

impl Receiver {
    fn open(rendezvous: Rendezvous) -> Result<Receiver> {
        // A small batch finds what was just moved in the nearest cache.
        let endpoint = Endpoint::builder(rendezvous.provider()?).port(port_options()).batch(16).open()?;
        Ok(Receiver { rendezvous, endpoint, connected: None, crowded: false, offered: None })
    }

    /// The next command; none when the parent has hung up. The port is polled meanwhile: where a
    /// provider does not progress by itself, the sender's last requests complete only so.
    fn command(&mut self, line: &mut UnixStream) -> Result<Option<Command>> {
        let (mut bytes, mut have, mut done) = ([0; COMMAND_BYTES], 0, Vec::new());
        line.set_nonblocking(true)?;
        while have < COMMAND_BYTES {
            match line.read(&mut bytes[have..]) {
                Ok(0) => return Ok(None),
                Ok(came) => have += came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.endpoint.queue().poll_wait_or(&mut done, Some(LOOK), Some(line.as_fd()))?;
                    done.clear();
                    // Between two stretches a connection ends only to be replaced; what is not fetched would keep the port awake, and
                    // those who are not asked would take the processors from those who are.
                    while self.endpoint.next_end().is_some() {}
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        line.set_nonblocking(false)?;
        Ok(Some(Command::from_bytes(bytes)?))
    }

    fn connect(&mut self, message_bytes: usize, crowded: bool, stalled: bool) -> Result<Answer> {
        if let Some((pair, receives)) = self.connected.take() {
            self.endpoint.close(pair);
            // The receives of a closed queue pair come back flushed, before anything of the next one does.
            let (mut flushed, end) = (Vec::new(), now_ns() + PATIENCE.as_nanos() as u64);
            while self.endpoint.queue().in_flight() > 0 && now_ns() < end {
                self.endpoint.queue().poll(&mut flushed);
            }
            if let Receives::Posted(ring) = receives {
                self.endpoint.deregister(&ring.memory())?;
            }
        }
        let pair = self.endpoint.connect(self.rendezvous.address.name(), PATIENCE)?;
        let count = receives(message_bytes, crowded);
        let repost = (count / if crowded { 4 } else { 8 }).clamp(1, 8);
        let options = RingOptions { queue_pair: Some(pair), bytes: message_bytes.max(64), count, repost, ..RING };
        let receives = if stalled { Receives::Due(options) } else { Receives::Posted(self.endpoint.ring(options)?) };
        self.connected = Some((pair, receives));
        Ok(Answer::default())
    }

    /// What may be reached stays as long as its size is asked for: a new one for each
    /// connection would pile up.
    fn offer(&mut self, bytes: usize) -> Result<Answer> {
        if self.offered.as_ref().is_none_or(|offered| offered.bytes != bytes) {
            if let Some(old) = self.offered.take() {
                self.endpoint.deregister(&old.readable.0)?;
                self.endpoint.deregister(&old.writable.0)?;
            }
            let mut readable = Segment::shared(bytes)?.carve(bytes).pop().context("nothing to offer")?;
            readable.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 64) as u8);
            let written = match self.endpoint.capabilities().atomics {
                AtomicScope::None => Access::REMOTE_WRITE,
                AtomicScope::Device | AtomicScope::Cpu => Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            };
            let mut registered = |memory: Memory, access| -> Result<(Memory, RemoteToken)> {
                let token = self.endpoint.register(memory.clone(), access)?;
                Ok((memory, token))
            };
            self.offered = Some(Offered {
                bytes,
                readable: registered(Memory::Segment(readable.segment().clone()), Access::REMOTE_READ)?,
                writable: registered(Memory::Window(Arc::new(Window::new(bytes)?)), written)?,
            });
        }
        let tokens = self.offered.as_ref().map(|offered| (offered.readable.1, offered.writable.1));
        let (readable, writable) = tokens.unzip();
        Ok(Answer { readable, writable, ..Answer::default() })
    }

    fn written(&mut self, bytes: usize) -> Result<Answer> {
        let offered = self.offered.as_ref().context("nothing was offered")?;
        let Memory::Window(window) = &offered.writable.0 else { bail!("nothing can be written") };
        let (mut found, mut digest) = (vec![0; bytes], Digest::default());
        window.read(0, &mut found)?;
        digest.message(&found);
        found.fill(0);
        window.write(0, &found)?;
        Ok(Answer { digest: digest.value(), ..Answer::default() })
    }

    /// Says that it is ready, then receives until the end.
    fn receive(&mut self, line: &mut UnixStream, mut digest: Option<Digest>) -> Result<Answer> {
        let (pair, receives) = self.connected.take().context("not connected")?;
        let mut ring = match receives {
            Receives::Posted(ring) => ring,
            Receives::Due(options) => self.endpoint.ring(options)?,
        };
        let mut answer = Answer::default();
        let (before, spun) = (Cpu::own(), self.endpoint.queue().spun());
        write_words(line, &answer.words())?;
        let mut done = Vec::new();
        loop {
            // One of many sleeps on a word of memory where the provider can: waking it costs both ends less than a bell, and others work
            // meanwhile. One alone is as fast as it is woken, and waits for its parent's line as well.
            let line = (!self.crowded).then(|| line.as_fd());
            self.endpoint.queue().poll_wait_or(&mut done, Some(LOOK), line)?;
            if done.is_empty() {
                self.watch(pair)?;
            }
            let mut ended = false;
            for completion in done.drain(..) {
                ended |= take(completion, &mut ring, &mut answer, digest.as_mut())?;
            }
            if ended {
                ring.post_all(self.endpoint.queue())?;
                self.connected = Some((pair, Receives::Posted(ring)));
                answer.cpu_ns = Cpu::own() - before;
                answer.poll_ns = ((self.endpoint.queue().spun() - spun).as_nanos() as u64).min(answer.cpu_ns);
                if let Some(digest) = digest {
                    (answer.messages, answer.digest) = (digest.messages(), digest.value());
                }
                return Ok(answer);
            }
            ring.post(self.endpoint.queue())?;
        }
    }

    /// An error if the sender has gone; of connections before this one the end is no news.
    fn watch(&mut self, pair: QueuePair) -> Result<()> {
        while let Some(Ended { queue_pair, reason, .. }) = self.endpoint.next_end() {
            if queue_pair == pair {
                bail!("the sender has gone: {reason}");
            }
        }
        Ok(())
    }
}

/// Whether it was the end.
fn take(done: WorkCompletion, ring: &mut Ring, answer: &mut Answer, digest: Option<&mut Digest>) -> Result<bool> {
    if done.status != Status::Success {
        bail!("a receive ended as {:?}", done.status);
    }
    let buffer = done.buffer.context("a receive without its buffer")?;
    let end = done.immediate == Some(END);
    if !end && done.opcode == Opcode::Receive {
        answer.bytes += done.bytes;
        answer.messages += 1;
        if let Some(digest) = digest {
            Bundle::new(&buffer[..done.bytes as usize], done.immediate)?.for_each(|message| digest.message(message));
        }
    }
    ring.completed();
    ring.put(buffer);
    Ok(end)
}

/// Receive buffers for messages of `message_bytes`: a ring of a mebibyte, or of a quarter where
/// several receivers share a processor's cache, so that it stays there. Not fewer than 4, and no
/// more than a port's depth.
pub fn receives(message_bytes: usize, crowded: bool) -> usize {
    let ring_bytes = if crowded { RING_BYTES / 4 } else { RING_BYTES };
    (ring_bytes / message_bytes.max(64).next_multiple_of(64)).clamp(4, 128)
}

/// The role under which a process receives.
pub const ROLE: &str = "figure-receiver";
/// Immediate data of the message that ends a stretch: as framing it would promise more
/// lengths than a message holds.
pub const END: u32 = u32::MAX;
const COMMAND_BYTES: usize = 16;
/// Bits of a command to connect.
const CROWDED: u64 = 4;
const STALLED: u64 = 8;
/// The first message shall not meet pages that are not there yet.
const RING: RingOptions = RingOptions { touched: true, ..RingOptions::EMPTY };
const RING_BYTES: usize = 1 << 20;
const LOOK: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_answers_travel() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let token = RemoteToken { at: 3, len: 9, rkey: u128::MAX - 7 };
        let answer =
            Answer { bytes: 1, messages: 2, cpu_ns: 3, poll_ns: 5, digest: 4, readable: None, writable: Some(token) };
        write_words(&mut here, &answer.words()).unwrap();
        assert_eq!(Answer::read(&mut there).unwrap(), answer);
        let connect = |crowded, stalled| Command::Connect { message_bytes: 5, crowded, stalled };
        let connects = [(false, false), (true, false), (false, true), (true, true)].map(|(a, b)| connect(a, b));
        let others = [Command::Receive, Command::Check, Command::Offer { bytes: 6 }, Command::Written { bytes: 7 }];
        for command in connects.into_iter().chain(others) {
            write_words(&mut here, &command.words()).unwrap();
            let mut bytes = [0; COMMAND_BYTES];
            there.read_exact(&mut bytes).unwrap();
            assert_eq!(Command::from_bytes(bytes).unwrap(), command);
        }
        assert!(Command::from_bytes([99; COMMAND_BYTES]).is_err());
    }

    #[test]
    fn rings_are_small_and_never_empty() {
        assert_eq!((receives(16 << 10, false), receives(16 << 10, true)), (64, 16));
        assert_eq!((receives(1, true), receives(1 << 20, false), receives(100, false)), (128, 4, 128));
    }
}
