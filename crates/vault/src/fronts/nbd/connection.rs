//! One client's connection: bytes in, requests out, replies back. It never waits.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overside_memory::{Buffer, Bytes};
use overside_volume::{DeviceError, Hint, Work};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use super::negotiation::{Agreed, Negotiation, Next, Offers};
use super::wire::{Command, Failure, Head, Malformed, NbdRequest, OPTION_BYTES, OPTION_BYTES_MAX, REQUEST_BYTES};
use crate::fronts::room::Room;
use crate::fronts::routed::give_back;

#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    inbox: Inbox,
    stage: Stage,
    /// Words of the negotiation, and how many of them are sent.
    spoken: Vec<u8>,
    spoken_sent: usize,
    outbox: VecDeque<Outgoing>,
    /// Bytes of the first reply that are sent.
    sent: usize,
    /// Requests whose replies are not sent, and bytes of memory that they hold.
    requests: usize,
    bytes: usize,
    /// Nothing more is read; it ends when the last reply is sent.
    closing: bool,
    /// The system took less than there was.
    pub(super) blocked: bool,
}

#[derive(Debug)]
enum Stage {
    Negotiating(Negotiation),
    Serving(Agreed, Receiving),
}

/// What the next bytes are.
#[derive(Debug)]
enum Receiving {
    /// A request's. The last one brought bytes along, so the next one may, too.
    Header { after_write: bool },
    /// A WRITE's.
    Payload { request: NbdRequest, buffer: Buffer, got: usize },
    /// Those of a WRITE that cannot be, which is answered behind them.
    Skipped { cookie: u64, failure: Failure, left: usize },
}

#[derive(Debug)]
struct Outgoing {
    head: Head,
    body: Option<(Buffer, usize)>,
    /// Bytes of memory that the request held.
    held: usize,
}

/// Bytes that have come and were not looked at.
#[derive(Debug)]
struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// A request for an export's device.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) work: Work,
    pub(super) reply: Reply,
    /// It is answered only after a FLUSH.
    pub(super) flushes: bool,
}

/// What a request is answered with when it has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    cookie: u64,
    /// Bytes of memory that it holds.
    held: usize,
}

/// The connection is of no use any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken;

impl From<Malformed> for Broken {
    fn from(_: Malformed) -> Broken {
        Broken
    }
}

impl Connection {
    /// Says the server's first words.
    pub(super) fn new(socket: OwnedFd) -> Connection {
        Connection {
            socket,
            inbox: Inbox { bytes: vec![0; INBOX_BYTES].into(), start: 0, end: 0 },
            stage: Stage::Negotiating(Negotiation::default()),
            spoken: super::wire::greeting(),
            spoken_sent: 0,
            outbox: VecDeque::new(),
            sent: 0,
            requests: 0,
            bytes: 0,
            closing: false,
            blocked: false,
        }
    }

    /// Whether more is read from it now: what one client makes this side keep has a bound.
    pub(super) fn reads(&self) -> bool {
        !self.closing && !self.is_full() && self.inbox.end - self.inbox.start < self.inbox.bytes.len()
    }

    /// Whether no more requests are taken out of what has come.
    pub(super) fn is_full(&self) -> bool {
        let holds = self.requests >= REQUESTS_MAX || self.bytes >= BYTES_MAX;
        match &self.stage {
            Stage::Negotiating(_) => self.spoken_sent < self.spoken.len(),
            Stage::Serving(_, Receiving::Header { .. }) => holds,
            // What was begun is finished.
            Stage::Serving(..) => false,
        }
    }

    /// Whether all that it was to say is said, and nothing comes after that.
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.requests == 0 && self.spoken_sent == self.spoken.len()
    }

    /// Nothing more is read.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.inbox.start = self.inbox.end;
    }

    /// The export that it uses.
    pub(super) fn export(&self) -> Option<u64> {
        match &self.stage {
            Stage::Serving(agreed, _) => Some(agreed.export),
            Stage::Negotiating(_) => None,
        }
    }

    /// Takes what has come, once: a client that says much does not keep others waiting.
    pub(super) fn receive(&mut self) -> Result<(), Broken> {
        self.inbox.compact();
        let limit = match &self.stage {
            // Not into the payload that may come behind it: that goes where it is to lie.
            Stage::Serving(_, Receiving::Header { after_write: true } | Receiving::Payload { .. }) => REQUEST_BYTES,
            _ => self.inbox.bytes.len(),
        };
        let free = &mut self.inbox.bytes[self.inbox.end..limit.max(self.inbox.end)];
        let mut both = [IoSliceMut::new(&mut []), IoSliceMut::new(free)];
        let room = match &mut self.stage {
            Stage::Serving(_, Receiving::Payload { request, buffer, got }) => {
                both[0] = IoSliceMut::new(&mut buffer[*got..request.length as usize]);
                both[0].len()
            }
            _ => 0,
        };
        if room + both[1].len() == 0 {
            return Ok(());
        }
        let parts = if room == 0 { &mut both[1..] } else { &mut both[..] };
        let come = match rustix::io::readv(&self.socket, parts) {
            Ok(0) => {
                // The client may still read what it asked for.
                self.close();
                return if matches!(self.stage, Stage::Serving(_, Receiving::Header { .. })) {
                    Ok(())
                } else {
                    Err(Broken)
                };
            }
            Ok(come) => come,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => return Err(Broken),
        };
        if let Stage::Serving(_, Receiving::Payload { got, .. }) = &mut self.stage {
            *got += come.min(room);
        }
        self.inbox.end += come - come.min(room);
        Ok(())
    }

    /// The next request that has come whole, if there is one. What cannot be
    /// carried out is answered.
    pub(super) fn next(&mut self, offers: &mut dyn Offers, room: &mut Room) -> Result<Option<Taken>, Broken> {
        while !self.closing && !self.is_full() {
            let is_more = match &mut self.stage {
                Stage::Negotiating(_) => self.negotiate(offers)?,
                Stage::Serving(agreed, receiving) => {
                    let agreed = *agreed;
                    match receiving {
                        Receiving::Header { .. } => match self.inbox.take::<REQUEST_BYTES>() {
                            Some(header) => {
                                if let Some(taken) = self.request(NbdRequest::parse(header)?, agreed, room) {
                                    return Ok(Some(taken));
                                }
                                true
                            }
                            None => false,
                        },
                        Receiving::Payload { request, buffer, got } => {
                            let left = &mut buffer[*got..request.length as usize];
                            *got += self.inbox.copy(left);
                            if *got == request.length as usize {
                                return Ok(self.written());
                            }
                            false
                        }
                        Receiving::Skipped { cookie, failure, left } => {
                            *left -= self.inbox.skip(*left);
                            if *left == 0 {
                                let (cookie, failure) = (*cookie, *failure);
                                *receiving = Receiving::Header { after_write: false };
                                self.refuse(cookie, failure, agreed);
                                true
                            } else {
                                false
                            }
                        }
                    }
                }
            };
            if !is_more {
                break;
            }
        }
        Ok(None)
    }

    /// Whether there may be more to look at.
    fn negotiate(&mut self, offers: &mut dyn Offers) -> Result<bool, Broken> {
        let Stage::Negotiating(negotiation) = &mut self.stage else { return Ok(false) };
        self.spoken.clear();
        self.spoken_sent = 0;
        let (used, next) = negotiation.step(self.inbox.waiting(), offers, &mut self.spoken)?;
        self.inbox.skip(used);
        match next {
            Next::More => {}
            Next::End => self.close(),
            Next::Requests(agreed) => self.stage = Stage::Serving(agreed, Receiving::Header { after_write: false }),
        }
        Ok(used > 0)
    }

    fn request(&mut self, request: NbdRequest, agreed: Agreed, room: &mut Room) -> Option<Taken> {
        let Stage::Serving(_, receiving) = &mut self.stage else { return None };
        let is_write = request.payload() > 0;
        *receiving = Receiving::Header { after_write: is_write };
        let (cookie, length) = (request.cookie, request.length as usize);
        let moves = matches!(request.command, Some(Command::Read | Command::Write));
        let checked = request.check(agreed.geometry, agreed.allocation);
        let buffer = match checked {
            Ok(()) if moves => room.take(length).ok_or(Failure::NoMemory).map(Some),
            checked => checked.map(|()| None),
        };
        let buffer = match buffer {
            Ok(buffer) => buffer,
            Err(failure) if is_write => {
                *receiving = Receiving::Skipped { cookie, failure, left: length };
                return None;
            }
            Err(failure) => {
                self.refuse(cookie, failure, agreed);
                return None;
            }
        };
        let held = buffer.as_ref().map_or(0, |buffer| buffer.len());
        let (at, bytes) = (request.at, u64::from(request.length));
        let work = match (request.command?, buffer) {
            (Command::Read, Some(into)) => Work::Read { at, length, into },
            (Command::Write, Some(buffer)) => {
                // Counted from now on: a payload that never comes is kept, too.
                self.bytes += held;
                *receiving = Receiving::Payload { request, buffer, got: 0 };
                return None;
            }
            (Command::Flush, _) => Work::Flush,
            (Command::Trim, _) => Work::Discard { at, length: bytes },
            (Command::WriteZeroes, _) if request.no_hole() => Work::Zero { at, length: bytes },
            (Command::WriteZeroes, _) => Work::Discard { at, length: bytes },
            (Command::Cache, _) => Work::Hint { at, length: bytes, hint: Hint::WillNeed },
            (Command::BlockStatus, _) => {
                self.say(Head::status(cookie, request.length), None, 0);
                return None;
            }
            (Command::Disconnect, _) => {
                self.close();
                return None;
            }
            (Command::Read | Command::Write, None) => return None,
        };
        self.requests += 1;
        self.bytes += held;
        let flushes = request.fua() && work.writes();
        Some(Taken { work, reply: Reply { cookie, held }, flushes })
    }

    /// A WRITE's bytes are there.
    fn written(&mut self) -> Option<Taken> {
        let Stage::Serving(_, receiving) = &mut self.stage else { return None };
        let next = Receiving::Header { after_write: true };
        let Receiving::Payload { request, buffer, .. } = std::mem::replace(receiving, next) else { return None };
        self.requests += 1;
        let held = buffer.len();
        let work =
            Work::Write { at: request.at, from: Bytes::prefix(buffer, request.length as usize), fua: request.fua() };
        Some(Taken { work, reply: Reply { cookie: request.cookie, held }, flushes: false })
    }

    fn refuse(&mut self, cookie: u64, failure: Failure, agreed: Agreed) {
        self.say(Head::failed(cookie, agreed.structured, failure), None, 0);
    }

    /// An answer to what the device was not asked.
    fn say(&mut self, head: Head, body: Option<(Buffer, usize)>, held: usize) {
        self.requests += 1;
        self.outbox.push_back(Outgoing { head, body, held });
    }

    /// The device has ended a request.
    pub(super) fn answer(&mut self, reply: Reply, work: Work, result: Result<(), DeviceError>, room: &mut Room) {
        let Stage::Serving(agreed, _) = &self.stage else { return };
        let (Reply { cookie, held }, structured) = (reply, agreed.structured);
        let (head, body) = match (work, result) {
            (Work::Read { at, length, into }, Ok(())) => {
                (Head::data(cookie, structured, at, length), Some((into, length)))
            }
            (work, result) => {
                give_back(work, room);
                let failed = |error| Head::failed(cookie, structured, Failure::from(error));
                (result.map_or_else(failed, |()| Head::done(cookie, structured)), None)
            }
        };
        self.outbox.push_back(Outgoing { head, body, held });
    }

    /// Says what the socket takes.
    pub(super) fn send(&mut self, room: &mut Room) -> Result<(), Broken> {
        self.blocked = false;
        while self.spoken_sent < self.spoken.len() || !self.outbox.is_empty() {
            let mut parts = [IoSlice::new(&[]); PARTS_MAX];
            let (mut count, mut skip, mut all) = (0, self.sent, 0);
            let mut push = |bytes| {
                parts[count] = IoSlice::new(bytes);
                count += 1;
            };
            let spoken = &self.spoken[self.spoken_sent..];
            if !spoken.is_empty() {
                push(spoken);
                all += spoken.len();
            }
            for outgoing in self.outbox.iter().take((PARTS_MAX - 1) / 2) {
                for part in [outgoing.head.bytes(), outgoing.body()] {
                    let skipped = skip.min(part.len());
                    skip -= skipped;
                    if skipped < part.len() {
                        push(&part[skipped..]);
                        all += part.len() - skipped;
                    }
                }
            }
            let mut control = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(&self.socket, &parts[..count], &mut control, SendFlags::NOSIGNAL) {
                Ok(took) => {
                    self.said(took, room);
                    if took < all {
                        self.blocked = true;
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    break;
                }
                Err(_) => return Err(Broken),
            }
        }
        Ok(())
    }

    fn said(&mut self, took: usize, room: &mut Room) {
        let words = took.min(self.spoken.len() - self.spoken_sent);
        self.spoken_sent += words;
        self.sent += took - words;
        while let Some(first) = self.outbox.front() {
            let whole = first.head.bytes().len() + first.body().len();
            if self.sent < whole {
                break;
            }
            self.sent -= whole;
            if let Some(Outgoing { body, held, .. }) = self.outbox.pop_front() {
                self.requests -= 1;
                self.bytes -= held;
                body.into_iter().for_each(|(buffer, _)| room.put(buffer));
            }
        }
    }
}

impl Outgoing {
    fn body(&self) -> &[u8] {
        self.body.as_ref().map_or(&[], |(buffer, length)| &buffer[..*length])
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Inbox {
    fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn skip(&mut self, most: usize) -> usize {
        let skipped = most.min(self.end - self.start);
        self.start += skipped;
        skipped
    }

    fn copy(&mut self, into: &mut [u8]) -> usize {
        let length = into.len().min(self.end - self.start);
        into[..length].copy_from_slice(&self.bytes[self.start..self.start + length]);
        self.skip(length)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.waiting().first_chunk::<N>()?;
        self.skip(N);
        Some(taken)
    }

    /// Moves what waits to the front, where little of it does.
    fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
    }
}

/// Requests of one client whose replies are not sent; more wait in its socket.
const REQUESTS_MAX: usize = 128;
/// Bytes of memory that one client's requests hold before no further one is looked at.
const BYTES_MAX: usize = 16 << 20;
/// Room for the longest option that is looked at.
const INBOX_BYTES: usize = OPTION_BYTES + OPTION_BYTES_MAX as usize;
/// Pieces of replies that go to the system at once.
const PARTS_MAX: usize = 65;
