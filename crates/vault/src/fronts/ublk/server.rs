//! The loop: the driver's queue on one side, the device on the other. It sleeps
//! when neither has anything.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use overside_disk::{DESCRIPTOR_BYTES, Ublk, UblkControl, UblkEvent};
use overside_memory::Bytes;
use overside_verbs::Clock;
use overside_verbs::watch::Signal;
use overside_volume::{Device, Work};
use rustix::io::Errno;

use super::wire::{ANY_DEVICE, Information, UblkRequest, parameters};
use super::{BLOCK_DEVICE, UblkDriver, UblkError};
use crate::fronts::room::Room;
use crate::fronts::routed::{Ended, Routed, errno_of, give_back};
use crate::fronts::wakes::{PATIENCE, Wakes, watch, watch_device};

/// Serves a device as a block device. The driver wants one thread to begin and to go on.
#[derive(Debug)]
pub struct UblkServer {
    driver: Ublk,
    /// The block device's.
    number: u32,
    /// When it is to stop, all requests fail once none has ended in time.
    wakes: Wakes,
    device: Routed<u16>,
    /// Places of the queue whose requests were taken and not answered.
    taken: BTreeSet<u16>,
    ended: Vec<Ended<u16>>,
    room: Room,
    stage: Stage,
    /// All requests fail.
    refuses: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody sees a block device yet.
    Added,
    /// The kernel makes the block device, and reads its partitions.
    Starting,
    Live,
    /// The kernel takes the block device away.
    Stopping,
    Stopped,
}

impl UblkServer {
    /// Adds a device to the driver. Nobody sees it yet.
    ///
    /// # Errors
    /// The driver or the system refuses.
    pub fn new(driver: UblkDriver, device: Box<dyn Device>, clock: Arc<dyn Clock>) -> Result<UblkServer, UblkError> {
        let geometry = device.geometry();
        let wanted = parameters(geometry).ok_or(UblkError::Units { bytes: geometry.unit_bytes })?;
        let wakes = Wakes::new(clock, PATIENCE)?;
        let mut driver = driver;
        driver.sweep();
        let UblkDriver(mut driver) = driver;
        watch(&wakes.epoll, &driver, KERNEL)?;
        watch_device(&wakes.epoll, &*device)?;
        let number = add(&mut driver, wanted)?;
        Ok(UblkServer {
            driver,
            number,
            wakes,
            device: Routed::new(device),
            taken: BTreeSet::new(),
            ended: Vec::new(),
            room: Room::default(),
            stage: Stage::Added,
            refuses: false,
        })
    }

    /// Ends [`start`](Self::start) or [`run`](Self::run) when it is notified.
    pub fn stopper(&self) -> Arc<Signal> {
        self.wakes.stopper()
    }

    /// Makes the block device, and serves the kernel meanwhile: it looks for
    /// partitions. Where the device is.
    ///
    /// # Errors
    /// The driver or the system refuses.
    pub fn start(&mut self) -> Result<PathBuf, UblkError> {
        let opened = self.driver.open_queue(self.number, DEPTH);
        opened.map_err(|source| UblkError::Driver { what: "a queue of requests", source })?;
        self.begin(UblkControl::Start, Stage::Starting)?;
        self.go_on_until(|server| server.stage != Stage::Starting)?;
        Ok(PathBuf::from(format!("{BLOCK_DEVICE}{}", self.number)))
    }

    /// Serves until it is stopped, or somebody takes the block device away. Then what was written
    /// to it is carried out first, as long as requests end. Gives the device back.
    ///
    /// # Errors
    /// The driver or the system refuses.
    pub fn run(mut self) -> Result<Box<dyn Device>, UblkError> {
        self.go_on_until(|server| server.stage == Stage::Stopped && server.driver.fetching() == 0)?;
        self.driver.close_queue();
        match self.driver.ask(UblkControl::Delete, self.number, Vec::new()) {
            // Somebody else has.
            Err(error) if Errno::from_io_error(&error) != Some(Errno::NODEV) => {
                Err(UblkError::Driver { what: "to take the device away", source: error })
            }
            _ => Ok(self.device.device),
        }
    }

    fn go_on_until(&mut self, is_over: impl Fn(&UblkServer) -> bool) -> Result<(), UblkError> {
        loop {
            let mut sleeps = self.turn()?;
            if is_over(self) {
                return Ok(());
            }
            if self.wakes.stops_until.is_some() && self.stage == Stage::Live {
                self.begin(UblkControl::Stop, Stage::Stopping)?;
            }
            if !self.refuses && self.wakes.is_late() {
                self.refuses = true;
                for place in std::mem::take(&mut self.taken) {
                    self.commit(place, Err(Errno::IO))?;
                }
                sleeps = false;
            }
            let stops = self.wakes.stops_until.filter(|_| !self.refuses);
            let until = self.device.device.due().into_iter().chain(stops).min();
            // Requests are taken in every turn.
            self.wakes.wait(sleeps, until, |_, _| {})?;
        }
    }

    /// All that can be done without waiting. Whether there is nothing left but to sleep.
    fn turn(&mut self) -> Result<bool, UblkError> {
        loop {
            let mut again = false;
            while let Some(event) = self.driver.event() {
                again = true;
                self.take(event)?;
            }
            let mut ended = std::mem::take(&mut self.ended);
            again |= self.device.drive(&mut ended);
            for (place, work, result) in ended.drain(..) {
                self.answer(place, work, result.map_err(errno_of))?;
            }
            self.ended = ended;
            self.driver.submit().map_err(asks)?;
            if !again {
                return Ok(self.device.device.arm());
            }
        }
    }

    fn take(&mut self, event: UblkEvent) -> Result<(), UblkError> {
        match event {
            UblkEvent::Request(place, _) if self.refuses => self.commit(place, Err(Errno::IO)),
            UblkEvent::Request(place, descriptor) => self.carry(place, descriptor),
            UblkEvent::Ended(_, Errno::NODEV) => {
                // Somebody takes the block device away.
                self.wakes.stop();
                Ok(())
            }
            UblkEvent::Ended(_, errno) => Err(UblkError::Driver { what: "a request's end", source: errno.into() }),
            UblkEvent::Answered(answer) => {
                self.stage = match (self.stage, answer) {
                    (Stage::Starting, Ok(_)) => Stage::Live,
                    (Stage::Starting, Err(source)) => {
                        return Err(UblkError::Driver { what: "to make the block device", source });
                    }
                    // Whatever it says, it serves nothing any more.
                    _ => Stage::Stopped,
                };
                Ok(())
            }
        }
    }

    fn carry(&mut self, place: u16, descriptor: [u8; DESCRIPTOR_BYTES]) -> Result<(), UblkError> {
        let work =
            UblkRequest::parse(&descriptor).map_err(|_| Errno::INVAL).and_then(|request| self.work(place, request));
        match work {
            Ok(work) => {
                self.taken.insert(place);
                self.device.push(work, place);
                Ok(())
            }
            Err(errno) => self.commit(place, Err(errno)),
        }
    }

    /// What the device is asked.
    fn work(&mut self, place: u16, request: UblkRequest) -> Result<Work, Errno> {
        Ok(match request {
            UblkRequest::Read { at, length } => {
                Work::Read { at, length, into: self.room.take(length).ok_or(Errno::NOMEM)? }
            }
            UblkRequest::Write { at, length, durable } => {
                let mut buffer = self.room.take(length).ok_or(Errno::NOMEM)?;
                if self.driver.bytes_of(place, &mut buffer[..length]).is_err() {
                    self.room.put(buffer);
                    return Err(Errno::IO);
                }
                Work::Write { at, from: Bytes::prefix(buffer, length), fua: durable }
            }
            UblkRequest::Flush => Work::Flush,
            UblkRequest::Discard { at, length } => Work::Discard { at, length },
            UblkRequest::Zero { at, length } => Work::Zero { at, length },
            UblkRequest::Other => return Err(Errno::OPNOTSUPP),
        })
    }

    /// The device has ended a request.
    fn answer(&mut self, place: u16, work: Work, result: Result<(), Errno>) -> Result<(), UblkError> {
        // All that were taken have failed before.
        if !self.taken.remove(&place) || self.refuses {
            give_back(work, &mut self.room);
            return Ok(());
        }
        let result = result.and_then(|()| match &work {
            Work::Read { length, into, .. } => match self.driver.bytes_for(place, &into[..*length]) {
                Ok(()) => Ok(*length),
                Err(_) => Err(Errno::IO),
            },
            Work::Write { from, .. } => Ok(from.len()),
            _ => Ok(0),
        });
        give_back(work, &mut self.room);
        self.wakes.go_on();
        self.commit(place, result)
    }

    fn commit(&mut self, place: u16, result: Result<usize, Errno>) -> Result<(), UblkError> {
        let result = result.map_or_else(|errno| -errno.raw_os_error(), |bytes| bytes as i32);
        self.driver.commit(place, result).map_err(asks)
    }

    fn begin(&mut self, what: UblkControl, stage: Stage) -> Result<(), UblkError> {
        self.stage = stage;
        let process = u64::from(std::process::id());
        self.driver.begin(what, self.number, process, Vec::new()).map_err(asks)?;
        self.driver.submit().map_err(asks)
    }
}

/// Adds a device, with its parameters; its number.
fn add(driver: &mut Ublk, parameters: Vec<u8>) -> Result<u32, UblkError> {
    let information = Information::wanted(DEPTH, std::process::id());
    let added = driver.ask(UblkControl::Add, ANY_DEVICE, information).map_err(|source| {
        match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::ACCESS) => UblkError::NotRoot,
            // It numbers its commands in another way.
            Some(Errno::OPNOTSUPP) => UblkError::Old,
            _ => UblkError::Driver { what: "a device", source },
        }
    })?;
    let malformed = |_| UblkError::Driver { what: "a device", source: io::ErrorKind::InvalidData.into() };
    let Information { device, depth, copies, .. } = Information::parse(&added).map_err(malformed)?;
    let set = match copies && depth == DEPTH {
        true => driver.ask(UblkControl::SetParameters, device, parameters),
        false => Err(Errno::OPNOTSUPP.into()),
    };
    match set {
        Ok(_) => Ok(device),
        Err(source) => {
            let _ = driver.ask(UblkControl::Delete, device, Vec::new());
            let is_old = Errno::from_io_error(&source) == Some(Errno::OPNOTSUPP);
            Err(if is_old { UblkError::Old } else { UblkError::Driver { what: "a device's parameters", source } })
        }
    }
}

/// The driver's commands cannot be given.
fn asks(source: io::Error) -> UblkError {
    UblkError::Driver { what: "a command", source }
}

/// Requests that the kernel has under way here; more wait in it.
const DEPTH: u16 = 128;
const KERNEL: u64 = 0;
