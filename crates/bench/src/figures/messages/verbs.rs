//! The ways of rdma-sockets over any provider, and SEND beside them.
//!
//! `index`: the message by WRITE, then a counter raised by FETCH_ADD (RS-M09).
//! `header and footer`: one WRITE of length, message and validity into zeroed memory; the
//! receiver looks at the header, then at the footer, and zeroes what it took (RS-M10 to RS-M13).
//! `inline`: the same with the bytes in the request (RS-M18). These poll memory, and cannot
//! sleep. SEND meets a receive and sleeps by itself.

use super::play::{Ball, Side, Stretch, follow, lead};
use crate::{
    figures::sender::port_options,
    process::{read_word, write_words},
    rendezvous::Rendezvous,
};
use anyhow::{Context, Result, bail, ensure};
use overside::{
    memory::{Buffer, View, Window},
    shape::{Run, Shape},
    transfer::{Endpoint, Ring, RingOptions},
    verbs::{Access, Atomic, Memory, QueuePair, Remote, RemoteToken, Status, WorkCompletion, WorkRequest, Writable},
};
use std::{
    collections::VecDeque,
    hint::spin_loop,
    os::unix::net::UnixStream,
    str::FromStr,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

/// How a message goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::figures) enum MessageForm {
    Index,
    Framed,
    FramedInline,
    Send,
    SendInline,
}

impl MessageForm {
    pub(in crate::figures) const ALL: [MessageForm; 5] = [
        MessageForm::Index,
        MessageForm::Framed,
        MessageForm::FramedInline,
        MessageForm::Send,
        MessageForm::SendInline,
    ];

    pub(in crate::figures) fn name(self) -> &'static str {
        match self {
            MessageForm::Index => "index",
            MessageForm::Framed => "header and footer",
            MessageForm::FramedInline => "header and footer, inline",
            MessageForm::Send => "SEND",
            MessageForm::SendInline => "SEND inline",
        }
    }
}

impl FromStr for MessageForm {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<MessageForm> {
        MessageForm::ALL.into_iter().find(|way| way.name() == name).with_context(|| format!("there is no way {name:?}"))
    }
}

/// One end of a queue pair.
pub(super) struct Verbs {
    way: MessageForm,
    pub(super) inline_max: usize,
    endpoint: Endpoint,
    pair: QueuePair,
    ring: Ring,
    /// Every message there is to send, by size, slot and whether it is the last.
    messages: Arc<Buffer>,
    /// Of each frame, the message and all of it.
    shapes: Vec<[Shape; 2]>,
    /// What the peer writes: a counter, then slots.
    window: Arc<Window>,
    remote: RemoteToken,
    /// Messages sent and received, ever.
    turns: [u64; 2],
    done: Vec<WorkCompletion>,
    batch: VecDeque<WorkRequest>,
    size: usize,
}

impl Verbs {
    /// An end without a connection.
    pub(super) fn endpoint(rendezvous: &Rendezvous) -> Result<Endpoint> {
        Ok(Endpoint::builder(rendezvous.provider()?).port(port_options()).open()?)
    }

    /// The connecting end.
    pub(super) fn connect(way: MessageForm, rendezvous: &Rendezvous, line: &mut UnixStream) -> Result<Verbs> {
        let mut endpoint = Verbs::endpoint(rendezvous)?;
        let pair = endpoint.connect(rendezvous.address.name(), PATIENCE)?;
        Verbs::over(way, endpoint, pair, line)
    }

    /// Either end, once it is connected. Tokens go over `line`.
    pub(super) fn over(
        way: MessageForm,
        mut endpoint: Endpoint,
        pair: QueuePair,
        line: &mut UnixStream,
    ) -> Result<Verbs> {
        let bytes = SIZES.len() * SLOTS as usize * 2 * STRIDE;
        let mut messages = endpoint.allocate(bytes)?;
        fill(&mut messages);
        let window = Arc::new(Window::new(STRIDE * (SLOTS as usize + 1))?);
        let access = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let ours = endpoint.register(Memory::Window(window.clone()), access)?.to_bytes();
        write_words(line, &std::array::from_fn::<u64, 4, _>(|i| word_of(&ours[i * 8..])))?;
        let mut theirs = [0; 32];
        for part in theirs.chunks_exact_mut(8) {
            part.copy_from_slice(&read_word(line)?.to_le_bytes());
        }
        let ring = RingOptions { queue_pair: Some(pair), bytes: STRIDE, count: RECEIVES, ..RingOptions::default() };
        let ring = endpoint.ring(RingOptions { repost: RECEIVES / 2, ..ring })?;
        Ok(Verbs {
            way,
            inline_max: endpoint.capabilities().inline_max,
            endpoint,
            pair,
            ring,
            shapes: (0..bytes / STRIDE).map(shapes).collect::<Result<_>>()?,
            messages: Arc::new(messages),
            window,
            remote: RemoteToken::from_bytes(theirs),
            turns: [0; 2],
            done: Vec::new(),
            batch: VecDeque::new(),
            size: SIZES[0],
        })
    }

    fn resize(&mut self, size: usize) -> Result<()> {
        ensure!(SIZES.contains(&size), "messages of {size} bytes are not prepared");
        self.size = size;
        Ok(())
    }

    /// Where the next message lies, from its length field to its footer.
    fn frame(&self, end: bool) -> usize {
        let size = SIZES.iter().position(|size| *size == self.size).unwrap_or(0);
        ((size * SLOTS as usize + (self.turns[0] % SLOTS) as usize) * 2 + usize::from(end)) * STRIDE
    }

    /// The message of a frame, or all of it.
    fn view(&self, frame: usize, whole: bool) -> Result<View> {
        Ok(View::of(&self.messages, &self.shapes[frame / STRIDE][usize::from(whole)])?)
    }

    /// Gives back what was received, off the way of the answer.
    fn refill(&mut self) -> Result<()> {
        Ok(self.ring.post(self.endpoint.queue())?)
    }

    fn post(&mut self) -> Result<()> {
        while !self.batch.is_empty() {
            self.endpoint.queue().post(self.pair, &mut self.batch)?;
            if !self.batch.is_empty() {
                self.endpoint.queue().poll(&mut self.done);
            }
        }
        Ok(())
    }

    /// Looks at memory until it holds something, and lets the provider do its part meanwhile.
    fn look(&mut self, there: impl Fn(&Window) -> Result<bool>) -> Result<()> {
        for looks in 1u64.. {
            if there(&self.window)? {
                break;
            }
            spin_loop();
            if looks.is_multiple_of(POLL_EVERY) {
                self.endpoint.queue().poll(&mut self.done);
                self.done.retain(|done| done.status != Status::Success);
                ensure!(self.done.is_empty(), "a request failed: {:?}", self.done);
                if self.endpoint.next_end().is_some() {
                    bail!("the other end is gone");
                }
            }
            // The other may be waiting for this very processor.
            if looks.is_multiple_of(YIELD_EVERY) {
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// The next slot of the window.
    fn slot(&self) -> u64 {
        (self.turns[1] % SLOTS + 1) * STRIDE as u64
    }

    fn receive_counted(&mut self) -> Result<bool> {
        let (turn, at) = (self.turns[1] + 1, self.slot());
        self.look(|window| Ok(window.word(0)?.load(Ordering::Acquire) >= turn))?;
        self.take(at)
    }

    fn receive_framed(&mut self) -> Result<bool> {
        let (at, size) = (self.slot(), self.size as u64);
        self.look(|window| Ok(window.word(at)?.load(Ordering::Acquire) != 0))?;
        // The header is there; the footer is in the last word of all, and that becomes visible last.
        self.look(|window| Ok(window.word(at + size)?.load(Ordering::Acquire) >> 32 == u64::from(VALID)))?;
        let last = self.take(at + 4)?;
        let zeros = [0; STRIDE];
        self.window.write(at, &zeros[..self.size + FRAME])?;
        Ok(last)
    }

    /// Copies the message out and looks whether it is the one that is due.
    fn take(&mut self, at: u64) -> Result<bool> {
        let mut message = [0; STRIDE];
        self.window.read(at, &mut message[..self.size])?;
        self.check(&message)
    }

    fn check(&self, message: &[u8]) -> Result<bool> {
        let due = (self.turns[1] % SLOTS) as u8;
        ensure!(message[1] == due && message[self.size - 1] == due, "message {} came when {due} was due", message[1]);
        Ok(message[0] == 1)
    }

    fn receive_sent(&mut self) -> Result<bool> {
        loop {
            if self.done.is_empty() && self.endpoint.queue().poll_wait(&mut self.done, Some(PATIENCE))? == 0 {
                ensure!(self.endpoint.next_end().is_none(), "the other end is gone");
                continue;
            }
            let Some(done) = self.done.pop() else { continue };
            ensure!(done.status == Status::Success, "a request ended as {:?}", done.status);
            if let Some(buffer) = done.buffer {
                ensure!(done.bytes == self.size as u64, "a message of {} bytes came", done.bytes);
                let last = self.check(&buffer)?;
                self.ring.completed();
                self.ring.put(buffer);
                return Ok(last);
            }
        }
    }
}

impl Ball for Verbs {
    fn send(&mut self, end: bool) -> Result<()> {
        let (frame, size) = (self.frame(end), self.size);
        let to = Remote::<Writable>::new(self.remote);
        let slot = (self.turns[0] % SLOTS + 1) * STRIDE as u64;
        let request = match self.way {
            MessageForm::Index => WorkRequest::write(0, self.view(frame, false)?, to.part(slot, size as u64)?),
            MessageForm::Framed => {
                let len = size + FRAME;
                WorkRequest::write(0, self.view(frame, true)?, to.part(slot, len as u64)?)
            }
            MessageForm::FramedInline => {
                let len = size + FRAME;
                WorkRequest::write_inline(0, &self.messages[frame..frame + len], to.part(slot, len as u64)?)
            }
            MessageForm::Send => WorkRequest::send(0, self.view(frame, false)?),
            MessageForm::SendInline => {
                let message = frame + 4..frame + 4 + size;
                while !self.endpoint.queue().post_inline(self.pair, 0, &self.messages[message.clone()], None, false)? {
                    self.endpoint.queue().poll(&mut self.done);
                }
                self.turns[0] += 1;
                return self.refill();
            }
        };
        self.batch.push_back(request.unsignalled());
        if self.way == MessageForm::Index {
            let counter = Remote::<Atomic>::new(self.remote).part(0, 8)?;
            self.batch.push_back(WorkRequest::fetch_add(0, counter, 1).unsignalled());
        }
        self.turns[0] += 1;
        self.post()?;
        self.refill()
    }

    fn receive(&mut self) -> Result<bool> {
        let last = match self.way {
            MessageForm::Index => self.receive_counted(),
            MessageForm::Framed | MessageForm::FramedInline => self.receive_framed(),
            MessageForm::Send | MessageForm::SendInline => self.receive_sent(),
        }?;
        self.turns[1] += 1;
        Ok(last)
    }
}

impl Side for Verbs {
    fn lead(&mut self, slice_ns: u64, size: usize) -> Result<Stretch> {
        self.resize(size)?;
        lead(self, slice_ns)
    }

    fn follow(&mut self, size: usize) -> Result<()> {
        self.resize(size)?;
        follow(self)
    }
}

fn shapes(frame: usize) -> Result<[Shape; 2]> {
    let (at, size) = ((frame * STRIDE) as u64, size_of(frame) as u64);
    Ok([Shape::list(&[Run::new(at + 4, size)])?, Shape::list(&[Run::new(at, size + FRAME as u64)])?])
}

fn size_of(frame: usize) -> usize {
    SIZES[(frame / 2 / SLOTS as usize).min(SIZES.len() - 1)]
}

/// Writes every message: length, bytes (first whether it is the last, then its slot), footer.
fn fill(messages: &mut [u8]) {
    for (frame, bytes) in messages.chunks_exact_mut(STRIDE).enumerate() {
        let size = size_of(frame);
        bytes.fill((frame / 2 % SLOTS as usize) as u8);
        bytes[..4].copy_from_slice(&(size as u32).to_le_bytes());
        bytes[4] = (frame % 2) as u8;
        bytes[4 + size..FRAME + size].copy_from_slice(&VALID.to_le_bytes());
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[i]))
}

/// Bytes of a message. The last word of a frame must hold its footer, so these are multiples of 8.
pub(super) const SIZES: [usize; 12] = [64, 16, 32, 96, 128, 192, 256, 320, 384, 432, 480, 504];
/// Length and footer.
pub(super) const FRAME: usize = 8;
const SLOTS: u64 = 8;
const STRIDE: usize = 576;
const RECEIVES: usize = 16;
/// Not zero, as memory that was not written is.
const VALID: u32 = 0x600d_f007;
const POLL_EVERY: u64 = 16;
const YIELD_EVERY: u64 = 128;
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use overside::{Address, Network};
    use std::sync::atomic::AtomicU32;

    /// Two ends of this process.
    fn ends(way: MessageForm) -> [Verbs; 2] {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("messages-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let provider = Address::here("shm", &name).unwrap().provider(&Network::default()).unwrap();
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let open = || Endpoint::builder(provider.clone()).port(port_options()).open().unwrap();
        let (mut accepting, mut connecting) = (open(), open());
        let mut listener = accepting.listen(&name).unwrap();
        let other = thread::spawn(move || {
            let pair = connecting.connect(&name, PATIENCE).unwrap();
            Verbs::over(way, connecting, pair, &mut there).unwrap()
        });
        let (pair, _) = accepting.accept(&mut *listener, PATIENCE).unwrap();
        [Verbs::over(way, accepting, pair, &mut here).unwrap(), other.join().unwrap()]
    }

    /// A frame is one request, which raises no counter; a message and its notice apart are two
    /// (RS-M09, RS-M10).
    #[test]
    fn a_frame_is_one_request_and_what_was_taken_is_zeroed() {
        for (way, requests) in [(MessageForm::Framed, 1), (MessageForm::FramedInline, 1), (MessageForm::Index, 2)] {
            let [mut from, mut to] = ends(way);
            for turn in 1..=3 * SLOTS {
                let before = from.endpoint.queue().sends_in_flight(from.pair);
                from.send(false).unwrap();
                assert_eq!(from.endpoint.queue().sends_in_flight(from.pair) - before, requests, "{way:?}");
                let slot = to.slot();
                assert!(!to.receive().unwrap());
                let counter = to.window.word(0).unwrap().load(Ordering::Acquire);
                assert_eq!(counter, turn * (requests as u64 - 1), "{way:?}");
                let mut left = [1; STRIDE];
                to.window.read(slot, &mut left).unwrap();
                assert!(way == MessageForm::Index || left.iter().all(|byte| *byte == 0), "{way:?}, turn {turn}");
            }
        }
    }

    /// Length and message are there, and the validity is another one, or none (RS-M12).
    #[test]
    fn a_frame_without_its_validity_is_no_message_yet() {
        let [from, mut to] = ends(MessageForm::Framed);
        let (window, slot, size) = (to.window.clone(), to.slot(), to.size);
        window.write(slot, &from.messages[..4 + size]).unwrap();
        let taking = thread::spawn(move || to.receive().map(|_| ()));
        for footer in [0, VALID ^ 1] {
            window.write(slot + 4 + size as u64, &footer.to_le_bytes()).unwrap();
            thread::sleep(Duration::from_millis(50));
            assert!(!taking.is_finished(), "{footer:x}");
        }
        window.write(slot + 4 + size as u64, &VALID.to_le_bytes()).unwrap();
        taking.join().unwrap().unwrap();
    }

    #[test]
    fn every_frame_is_a_length_a_message_that_says_whose_turn_it_is_and_a_footer() {
        let frames = SIZES.len() * SLOTS as usize * 2;
        let mut messages = vec![0; frames * STRIDE];
        fill(&mut messages);
        for frame in 0..frames {
            let (bytes, size) = (&messages[frame * STRIDE..(frame + 1) * STRIDE], size_of(frame));
            assert!(size.is_multiple_of(8) && size + FRAME <= STRIDE, "the footer ends the last aligned word");
            assert_eq!(word_of(bytes) as u32 as usize, size);
            assert_eq!(bytes[4], (frame % 2) as u8, "whether it is the last");
            let turn = (frame / 2 % SLOTS as usize) as u8;
            assert!(bytes[5..4 + size].iter().all(|byte| *byte == turn));
            assert_eq!(word_of(&bytes[size..]) >> 32, u64::from(VALID));
            let [message, whole] = shapes(frame).unwrap();
            assert_eq!((message.bytes(), whole.bytes()), (size as u64, (size + FRAME) as u64));
        }
        for way in MessageForm::ALL {
            assert_eq!(way.name().parse::<MessageForm>().unwrap(), way);
        }
    }
}
