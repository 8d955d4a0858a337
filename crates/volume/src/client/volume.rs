//! An attached volume.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::Clock;

use super::handle::LinkHandle;
use crate::array::Array;
use crate::device::{Completion, Device, Geometry, Request};

/// A volume of a node, as a device that takes requests of any length.
#[derive(Debug)]
pub struct Volume {
    /// Cuts what is longer than the node takes.
    pieces: Array,
    handle: LinkHandle,
    clock: Arc<dyn Clock>,
}

impl Volume {
    pub(super) fn new(pieces: Array, handle: LinkHandle, clock: Arc<dyn Clock>) -> Volume {
        Volume { pieces, handle, clock }
    }

    /// What may be known of its link, and asked of it, while it lies under other devices.
    pub fn handle(&self) -> LinkHandle {
        self.handle.clone()
    }

    /// Ends the session, so that another writer need not wait; at most for `patience`. One that is
    /// dropped keeps a writer's place for as long as the node waits for those who vanish.
    pub fn close(mut self, patience: Duration) {
        self.handle.close(&mut self.pieces, &*self.clock, patience);
    }
}

impl Device for Volume {
    fn geometry(&self) -> Geometry {
        self.pieces.geometry()
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.pieces.submit(batch);
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.pieces.poll(out)
    }

    fn arm(&mut self) -> bool {
        self.pieces.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pieces.fd()
    }

    fn due(&self) -> Option<Instant> {
        self.pieces.due()
    }
}
