//! The place of a volume's device, which may become another one while clients use the volume.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use overside_volume::{Completion, Device, Geometry, Request};

/// A device that can be taken out, and put back as another one with the same bytes. Requests wait
/// with their callers meanwhile.
#[derive(Debug)]
pub(super) struct Slot {
    geometry: Geometry,
    device: Option<Box<dyn Device>>,
    in_flight: usize,
    /// It gets nothing more.
    is_closed: bool,
}

impl Slot {
    pub(super) fn new(device: Box<dyn Device>) -> Slot {
        Slot { geometry: device.geometry(), device: Some(device), in_flight: 0, is_closed: false }
    }

    /// Nothing is handed to the device from now on. The device, once it has ended what it has.
    pub(super) fn close(&mut self) -> Option<Box<dyn Device>> {
        self.is_closed = true;
        if self.in_flight == 0 { self.device.take() } else { None }
    }

    /// Goes on, with this device or with the one that is there.
    pub(super) fn open(&mut self, device: Option<Box<dyn Device>>) {
        self.device = device.or(self.device.take());
        self.is_closed = false;
    }
}

impl Device for Slot {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        if let Some(device) = self.device.as_mut().filter(|_| !self.is_closed) {
            let before = batch.len();
            device.submit(batch);
            self.in_flight += before - batch.len();
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let found = self.device.as_mut().map_or(0, |device| device.poll(out));
        self.in_flight -= found;
        found
    }

    fn arm(&mut self) -> bool {
        self.device.as_mut().is_none_or(|device| device.arm())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref()?.fd()
    }

    fn due(&self) -> Option<Instant> {
        self.device.as_ref()?.due()
    }
}
