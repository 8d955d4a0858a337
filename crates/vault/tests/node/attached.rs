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
    _served: Vec<Served>,
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
    Attached { device: Box::new(device), _served: vec![served], _folder: folder }
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

mod as_a_member_of_another_node {
    use super::*;
    use overside_service::SystemThreads;
    use overside_vault::members::RemoteMember;

    /// All of it but the first block. It is attached by the member's own thread.
    fn open() -> Box<dyn Device> {
        let name = fresh_name("tcp");
        let whole = Box::new(MemoryDevice::new((1 << 20) + 4096).unwrap());
        let served = serve("tcp", &name, whole, NodeOptions::default());
        let attach = move || Link::attach(provider("tcp"), &name, "v", LinkOptions::default());
        let volume = attach().unwrap();
        let range = (4096, 1 << 20);
        let again = Box::new(move || attach().ok());
        let device = RemoteMember::new(Some(volume), again, range, SystemClock::handle(), &SystemThreads).unwrap();
        Box::new(Attached { device: Box::new(device), _served: vec![served], _folder: None })
    }

    overside_conformance::device_tests!(open);
}

/// Nodes that each serve one such device, and what another node has of them.
fn on_nodes(devices: Vec<Box<dyn Device>>) -> (Vec<Served>, Vec<Box<dyn Device>>) {
    use overside_service::SystemThreads;
    use overside_vault::members::RemoteMember;
    let member = |device: Box<dyn Device>| {
        let (name, bytes) = (fresh_name("tcp"), device.geometry().bytes);
        let served = serve("tcp", &name, device, NodeOptions::default());
        let attach = move || Link::attach(provider("tcp"), &name, "v", LinkOptions::default()).ok();
        let (first, clock) = (attach(), SystemClock::handle());
        let member = RemoteMember::new(first, Box::new(attach), (0, bytes), clock, &SystemThreads).unwrap();
        (served, Box::new(member) as Box<dyn Device>)
    };
    devices.into_iter().map(member).unzip()
}

fn memory() -> Box<dyn Device> {
    Box::new(MemoryDevice::new(1 << 19).unwrap())
}

mod raid_5_over_three_nodes {
    use super::*;
    use overside_volume::Raid;

    fn open() -> Box<dyn Device> {
        let (nodes, members) = on_nodes(vec![memory(), memory(), memory()]);
        let raid = Raid::parity(members, 8192).unwrap();
        Box::new(Attached { device: Box::new(raid), _served: nodes, _folder: None })
    }

    overside_conformance::device_tests!(open);
}

/// RAID 0 of one node over mirrors of two others.
mod stripes_over_nodes_of_mirrors {
    use super::*;
    use overside_volume::{Array, Raid};

    fn open() -> Box<dyn Device> {
        let mirror = || Box::new(Raid::mirror(vec![memory(), memory()]).unwrap()) as Box<dyn Device>;
        let (mut nodes, members) = on_nodes(vec![mirror(), mirror()]);
        let name = fresh_name("shm");
        let stripes = Array::stripes(members, 8192).unwrap();
        // The client's node ends first.
        nodes.insert(0, serve("shm", &name, Box::new(stripes), NodeOptions::default()));
        let device = Link::attach(provider("shm"), &name, "v", LinkOptions::default()).unwrap();
        Box::new(Attached { device: Box::new(device), _served: nodes, _folder: None })
    }

    overside_conformance::device_tests!(open);
}

mod a_concatenation_of_two_nodes {
    use super::*;
    use overside_volume::Array;

    fn open() -> Box<dyn Device> {
        let (nodes, members) = on_nodes(vec![memory(), memory()]);
        let all = Array::concat(members).unwrap();
        Box::new(Attached { device: Box::new(all), _served: nodes, _folder: None })
    }

    overside_conformance::device_tests!(open);
}

/// Its requests fail while its node is away, and are carried out once it is there.
#[test]
fn a_member_whose_node_is_away_fails_and_is_back_with_it() {
    use overside_service::SystemThreads;
    use overside_vault::members::RemoteMember;
    use overside_volume::{DeviceError, Work, complete};
    let name = fresh_name("shm");
    let at = name.clone();
    let options = LinkOptions { give_up: Some(Duration::from_millis(50)), returns: true, ..LinkOptions::default() };
    let attach = Box::new(move || Link::attach(provider("shm"), &at, "v", options.clone()).ok());
    let mut member = RemoteMember::new(None, attach, (0, 1 << 20), SystemClock::handle(), &SystemThreads).unwrap();
    let mut flush = || complete(&mut member, &SystemClock, Work::Flush, PATIENCE).1;
    assert_eq!(flush(), Err(DeviceError::Unreachable));
    for _ in 0..2 {
        let served = serve("shm", &name, Box::new(MemoryDevice::new(1 << 20).unwrap()), NodeOptions::default());
        let until = Instant::now() + PATIENCE;
        while flush() != Ok(()) {
            assert!(Instant::now() < until, "it is not back");
        }
        drop(served);
        assert_eq!(flush(), Err(DeviceError::Unreachable), "it does not wait for ever");
    }
}
