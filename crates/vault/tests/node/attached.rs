//! An attached volume keeps every sentence of a device.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use overside_vault::server::Writes;
use overside_volume::client::{Link, LinkOptions};
use overside_volume::{Completion, Geometry, MemoryDevice, Request};

use super::*;

/// A volume, the node that serves it, and where its bytes lie.
#[derive(Debug)]
struct Attached {
    device: Box<dyn Device>,
    _served: Served,
    _folder: Option<tempfile::TempDir>,
}

fn attached(transport: &str, in_file: bool, writes: Writes) -> Attached {
    attached_with(transport, in_file, NodeOptions { writes, ..NodeOptions::default() })
}

fn attached_with(transport: &str, in_file: bool, options: NodeOptions) -> Attached {
    let folder = in_file.then(|| tempfile::tempdir().unwrap());
    let device: Box<dyn Device> = match &folder {
        Some(folder) => file(&folder.path().join("disk"), 4 << 20),
        None => Box::new(MemoryDevice::new(1 << 20).unwrap()),
    };
    let name = fresh_name(transport);
    let served = serve(transport, &name, device, options);
    let device = Link::attach(provider(transport), &name, "v", LinkOptions::default()).unwrap();
    Attached { device: Box::new(device), _served: served, _folder: folder }
}

impl Device for Attached {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.device.submit(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.device.poll(out)
    }
    fn arm(&mut self) -> bool {
        self.device.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }
    fn due(&self) -> Option<Instant> {
        self.device.due()
    }
}

mod memory_over_shm {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(attached("shm", false, Writes::Through))
    }

    overside_conformance::device_tests!(open);
}

mod memory_over_tcp {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(attached("tcp", false, Writes::Back))
    }

    overside_conformance::device_tests!(open);
}

mod a_file_over_shm {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(attached("shm", true, Writes::Through))
    }

    overside_conformance::device_tests!(open);
}

mod a_file_over_tcp {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(attached("tcp", true, Writes::Back))
    }

    overside_conformance::device_tests!(open);
}

mod a_file_and_a_cache_over_shm {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(attached_with("shm", true, NodeOptions { cache: small_cache(), ..NodeOptions::default() }))
    }

    overside_conformance::device_tests!(open);
}

mod a_file_and_a_cache_over_tcp {
    use super::*;

    fn open() -> Box<dyn Device> {
        let options = NodeOptions { cache: small_cache(), writes: Writes::Back, ..NodeOptions::default() };
        Box::new(attached_with("tcp", true, options))
    }

    overside_conformance::device_tests!(open);
}
