//! What a node counts of a volume's requests.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use overside_memory::{Bytes, Segment};
use overside_volume::client::{Link, LinkOptions};
use overside_volume::{Completion, DeviceError, Geometry, MemoryDevice, Request, Work, complete};

use super::*;

const BYTES: u64 = 1 << 20;

/// Memory that has no room for what is written to its second half.
#[derive(Debug)]
struct Half(MemoryDevice, Vec<Completion>);

impl Device for Half {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        for request in batch.drain(..) {
            match request.work {
                Work::Write { at, .. } if at >= BYTES / 2 => self.1.push(request.ended(Err(DeviceError::NoSpace))),
                _ => self.0.submit(&mut [request].into()),
            }
        }
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let found = self.1.len();
        out.append(&mut self.1);
        found + self.0.poll(out)
    }
    fn arm(&mut self) -> bool {
        self.1.is_empty() && self.0.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}

#[test]
fn a_request_that_failed_counts_as_failed_and_as_nothing_else() {
    for transport in TRANSPORTS {
        let name = fresh_name(transport);
        let device = Half(MemoryDevice::new(BYTES).unwrap(), Vec::new());
        let _served = serve(transport, &name, Box::new(device), NodeOptions::default());
        let mut client = Link::attach(provider(transport), &name, "v", LinkOptions::default()).unwrap();
        let buffer = || Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        let mut asks = |work| complete(&mut client, &SystemClock, work, PATIENCE).1;
        let write = |at| Work::Write { at, from: Bytes::from(buffer()), fua: false };
        assert_eq!([0, 4096, 0].map(|at| asks(write(at))), [Ok(()); 3]);
        assert_eq!([BYTES / 2, BYTES - 4096].map(|at| asks(write(at))), [Err(DeviceError::NoSpace); 2]);
        assert_eq!(asks(Work::Read { at: BYTES / 2, length: 512, into: buffer() }), Ok(()));
        assert_eq!(asks(Work::Flush), Ok(()));
        let report = overside_vault::server::status(provider(transport), &name, "v", PATIENCE).unwrap();
        let counts = report.volumes[0].counts;
        let done = (counts.reads, counts.read_bytes, counts.writes, counts.written_bytes, counts.others);
        assert_eq!((done, counts.failed), ((1, 512, 3, 3 * 4096, 1), 2), "{transport}");
    }
}
