//! A member that is not there.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use overside_volume::{Completion, Device, DeviceError, Geometry, Request};

/// Keeps the place of a mirror's member whose file cannot be used. Whatever is asked of it fails.
#[derive(Debug)]
pub struct Absent {
    geometry: Geometry,
    done: Vec<Completion>,
}

impl Absent {
    /// In the place of one that should be so large.
    pub fn new(geometry: Geometry) -> Absent {
        Absent { geometry, done: Vec::new() }
    }
}

impl Device for Absent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.done.extend(batch.drain(..).map(|request| request.ended(Err(DeviceError::Failed))));
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let found = self.done.len();
        out.append(&mut self.done);
        found
    }

    fn arm(&mut self) -> bool {
        self.done.is_empty()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
