//! A provider within one process, as simple as the sentences allow: one lock, and whoever calls in carries
//! out whatever can be carried out. It can be told to break one of its promises.

mod fabric;
mod port;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overside_conformance::{Doomed, Harness, peer_until_killed};
use overside_planner::{AtomicScope, Bends, Capabilities, ForeignMemory, Profile};
use overside_verbs::port::Port;
use overside_verbs::{
    Access, Link, Listener, Memory, MemoryRegion, Peer, PortOptions, ProtectionDomain, Provider, RemoteToken,
    VerbsError,
};

use fabric::{Fabric, Region};
use port::ReferencePort;

/// A promise that the reference breaks when told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Takes requests beyond the depth, and says that it did not.
    TouchesRefused,
    /// Gives messages to the youngest receive.
    LastReceiveFirst,
    /// Sends fragments by address.
    SortsFragments,
    /// Reads inline bytes and lists when it sends.
    KeepsPointers,
    /// Fails a message that meets no receive.
    NeedsReceives,
    /// Writes all of a message that is too long.
    WritesPastTheEnd,
    /// Writes the last word first.
    LastWordFirst,
    /// Lets a short WRITE overtake a long one.
    WritesOvertake,
    /// READs late, whatever is fenced.
    IgnoresFences,
    /// Adds by load and store.
    LoadsThenStores,
    /// Takes any key for any right.
    IgnoresKeys,
    /// Needs the target to call in.
    NeedsTheTarget,
    /// Throws the shared receives away with a queue pair.
    FlushesShared,
    /// Does not notice a death.
    MissesDeath,
    /// Completes a region after the first of its SENDs.
    RegionsOfOne,
    /// One peer's mistake closes every queue pair of the port.
    ClosesAll,
    /// Wakes for completed sends when none is in flight any more.
    WakesForTheLast,
    /// Lets memory go at the next poll, and wakes nobody for that.
    HoardsMemory,
    /// Tells nobody that there is room again.
    ForgetsRoom,
    /// Says nothing of what ended silently before the end.
    LeavesSilence,
}

/// Providers over one fabric, one for each end.
pub struct ReferenceHarness {
    fabric: Arc<Mutex<Fabric>>,
    wrap: fn(Box<dyn Port>) -> Box<dyn Port>,
}

impl ReferenceHarness {
    pub fn new(fault: Option<Fault>, wrap: fn(Box<dyn Port>) -> Box<dyn Port>) -> Self {
        Self { fabric: Arc::new(Mutex::new(Fabric::new(fault))), wrap }
    }

    fn reference(&self) -> Reference {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let owner = NEXT.fetch_add(1, Ordering::Relaxed);
        Reference { fabric: self.fabric.clone(), owner, wrap: self.wrap }
    }
}

impl Harness for ReferenceHarness {
    fn provider(&self) -> Arc<dyn Provider> {
        Arc::new(self.reference())
    }

    fn doomed(&self, name: &str) -> Option<Box<dyn Doomed>> {
        let provider = self.reference();
        let doomed = DoomedThread {
            fabric: self.fabric.clone(),
            owner: provider.owner,
            killed: Arc::new(AtomicBool::new(false)),
        };
        let (name, killed) = (name.to_owned(), doomed.killed.clone());
        std::thread::spawn(move || peer_until_killed(Arc::new(provider), &name, &killed));
        Some(Box::new(doomed))
    }
}

struct DoomedThread {
    fabric: Arc<Mutex<Fabric>>,
    owner: u64,
    killed: Arc<AtomicBool>,
}

impl Doomed for DoomedThread {
    fn kill(&mut self) {
        self.killed.store(true, Ordering::Release);
        self.fabric.lock().unwrap().kill(self.owner);
    }
}

#[derive(Debug)]
pub struct Reference {
    fabric: Arc<Mutex<Fabric>>,
    owner: u64,
    wrap: fn(Box<dyn Port>) -> Box<dyn Port>,
}

impl Provider for Reference {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sge_max: 16,
            inline_max: 64,
            message_max: 1 << 20,
            depth_max: 128,
            progress_by_itself: true,
            one_sided: true,
            atomics: AtomicScope::Cpu,
            last_byte_last: true,
            region_bytes_max: 1 << 20,
            foreign: ForeignMemory::Direct,
        }
    }

    fn profile(&self) -> Profile {
        // Nobody prices anything here.
        Profile {
            send_request_ns: 1.0,
            send_fragment_ns: 1.0,
            send_byte_ns: 1.0,
            pack_byte_ns: 1.0,
            pack_piece_ns: 1.0,
            pack_request_ns: 10.0,
            row_ns: 1.0,
            receive_request_ns: 1.0,
            receive_fragment_ns: 1.0,
            receive_byte_ns: 1.0,
            wire_byte_ns: 0.0,
            bends: Bends::default(),
            source: "none".into(),
            elsewhere: None,
        }
    }

    fn allocate_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        Ok(ProtectionDomain::new(self.fabric.lock().unwrap().number()))
    }

    fn register(&self, domain: &ProtectionDomain, memory: &Memory, access: Access) -> Result<MemoryRegion, VerbsError> {
        let mut fabric = self.fabric.lock().unwrap();
        let rkey = u128::from(fabric.number()) << 64 | 0x5EED_0000;
        let region = Region { domain: domain.id(), memory: memory.clone(), access };
        fabric.regions.insert(rkey, region);
        Ok(MemoryRegion::new(memory.clone(), access, rkey))
    }

    fn deregister(&self, region: MemoryRegion) -> Result<(), VerbsError> {
        let RemoteToken { rkey, .. } = region.token();
        let mut fabric = self.fabric.lock().unwrap();
        let ended = fabric.regions.remove(&rkey);
        if fabric.fault == Some(Fault::HoardsMemory) {
            fabric.hoard.extend(ended);
        }
        Ok(())
    }

    fn listen(&self, _domain: &ProtectionDomain, name: &str) -> Result<Box<dyn Listener>, VerbsError> {
        self.fabric.lock().unwrap().waiting.insert(name.into(), Vec::new());
        Ok(Box::new(Waiting { fabric: self.fabric.clone(), name: name.into(), never: port::eventfd() }))
    }

    fn connect(&self, _domain: &ProtectionDomain, name: &str, timeout: Duration) -> Result<Link, VerbsError> {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            let mut fabric = self.fabric.lock().unwrap();
            if fabric.waiting.contains_key(name) {
                let (ours, theirs) = fabric.connection();
                fabric.waiting.get_mut(name).unwrap().push(theirs);
                return Ok(link(ours));
            }
            drop(fabric);
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(VerbsError::TimedOut(timeout))
    }

    fn open_port(&self, domain: &ProtectionDomain, options: PortOptions) -> Result<Box<dyn Port>, VerbsError> {
        let port = ReferencePort::open(&self.fabric, self.owner, domain.id(), options.depth.min(128));
        Ok((self.wrap)(Box::new(port)))
    }
}

fn link(end: usize) -> Link {
    Link::new(Peer { pid: Some(std::process::id()), uid: None, description: "this process".into() }, end)
}

#[derive(Debug)]
struct Waiting {
    fabric: Arc<Mutex<Fabric>>,
    name: String,
    never: std::os::fd::OwnedFd,
}

impl Listener for Waiting {
    fn accept(&mut self, timeout: Duration) -> Result<Option<Link>, VerbsError> {
        let end = Instant::now() + timeout;
        while Instant::now() < end {
            if let Some(end) = self.fabric.lock().unwrap().waiting.get_mut(&self.name).and_then(Vec::pop) {
                return Ok(Some(link(end)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.never)
    }
}
