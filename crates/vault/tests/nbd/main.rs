//! The NBD front, against a client that knows the protocol and against programs that nobody here wrote.

mod client;
mod hostile;
mod node;
mod peers;
mod protocol;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overside_vault::fronts::nbd::{Exports, NbdOptions, NbdServer, NbdSocket, OneExport};
use overside_verbs::SystemClock;
use overside_verbs::watch::Signal;
use overside_volume::{Completion, Device, Geometry, MemoryDevice, Request, Work};

/// On a machine with other things to do.
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: u64 = 1 << 20;

/// A server on a thread of its own, which ends with this.
struct Served {
    folder: tempfile::TempDir,
    stopper: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
    log: Log,
    polls: Arc<AtomicUsize>,
}

impl Served {
    /// Under the name `v`.
    fn of(device: Box<dyn Device>) -> Served {
        Served::with(device, NbdOptions::default())
    }

    fn with(device: Box<dyn Device>, options: NbdOptions) -> Served {
        let (log, polls) = (Log::default(), Arc::new(AtomicUsize::new(0)));
        let device = Box::new(Logged { device, log: log.clone(), polls: polls.clone() });
        let mut served = Served::exporting(Box::new(OneExport::new("v", device)), options);
        (served.log, served.polls) = (log, polls);
        served
    }

    fn exporting(exports: Box<dyn Exports>, options: NbdOptions) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let socket = NbdSocket::bind(&folder.path().join("s")).unwrap();
        let server = NbdServer::new(socket, exports, SystemClock::handle(), options).unwrap();
        let stopper = server.stopper();
        let thread = std::thread::spawn(move || drop(server.run().unwrap()));
        Served { folder, stopper, thread: Some(thread), log: Log::default(), polls: Arc::default() }
    }

    fn memory() -> Served {
        Served::of(Box::new(MemoryDevice::new(BYTES).unwrap()))
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Nobody says anything: it looks at its device a few times at most, however long that lasts.
    fn sleeps(&self) {
        let before = self.polls.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(300));
        let looked = self.polls.load(Ordering::Relaxed) - before;
        assert!(looked < 20, "it looked {looked} times although nothing came");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.notify();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server failed");
        assert!(!self.path().exists() || std::thread::panicking(), "the socket's file stayed");
    }
}

type Log = Arc<Mutex<Vec<String>>>;

/// Says what a device was asked for.
#[derive(Debug)]
struct Logged {
    device: Box<dyn Device>,
    log: Log,
    polls: Arc<AtomicUsize>,
}

impl Device for Logged {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        let before: Vec<String> = batch.iter().map(|request| said(&request.work)).collect();
        self.device.submit(batch);
        let taken = before.len() - batch.len();
        self.log.lock().unwrap().extend(before.into_iter().take(taken));
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.polls.fetch_add(1, Ordering::Relaxed);
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

fn said(work: &Work) -> String {
    match work {
        Work::Read { at, length, .. } => format!("read {at} {length}"),
        Work::Write { at, from, fua } => format!("write {at} {}{}", from.len(), if *fua { " fua" } else { "" }),
        Work::Flush => "flush".into(),
        Work::Discard { at, length } => format!("discard {at} {length}"),
        Work::Zero { at, length } => format!("zero {at} {length}"),
        Work::Hint { at, length, hint } => format!("hint {at} {length} {hint:?}"),
        Work::Check { at, length, mend, .. } => format!("check {at} {length} {mend}"),
    }
}
