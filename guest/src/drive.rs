//! The machine's disk, which forgets: what no flush covers is gone with the power, or some of it,
//! sector by sector. It is the node's volatile member behind the node's NBD server, so that each of
//! the machine's flushes arrives there.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use overside_memory::{Bytes, Segment};
use overside_vault::fronts::nbd::{NbdOptions, NbdServer, NbdSocket, OneExport};
use overside_vault::members::Volatile;
use overside_vault::members::volatile::{Lost, VolatileHandle, XorShift};
use overside_verbs::SystemClock;
use overside_verbs::watch::Signal;
use overside_volume::{Completion, Device, Geometry, MemoryDevice, Request, Work, complete};

use crate::host::output;

/// The disk, which outlives the machines that use it.
#[derive(Debug)]
pub struct Drive {
    device: Shared,
    handle: VolatileHandle,
    socket: PathBuf,
}

/// A machine's connection to it.
#[derive(Debug)]
pub struct Attached {
    serving: JoinHandle<()>,
    stopper: Arc<Signal>,
    socket: PathBuf,
}

impl Drive {
    /// A new disk of so many bytes with an ext4 file system. One that `lies` calls a flush done and
    /// does nothing.
    pub fn formatted(folder: &Path, bytes: u64, lies: bool) -> Result<Drive> {
        let scratch = folder.join(format!("disk-{}.scratch", std::process::id()));
        let file = std::fs::File::create(&scratch)?;
        file.set_len(bytes)?;
        drop(file);
        let made =
            output(Command::new("/usr/sbin/mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=0"]).arg(&scratch));
        let stable = std::fs::read(&scratch);
        std::fs::remove_file(&scratch)?;
        made?;
        Self::holding(&stable?, folder, lies)
    }

    fn holding(stable: &[u8], folder: &Path, lies: bool) -> Result<Drive> {
        let mut base = MemoryDevice::new(stable.len() as u64)?;
        for (at, chunk) in (0..).step_by(CHUNK).zip(stable.chunks(CHUNK)) {
            let mut buffer = Segment::private(CHUNK)?.carve(CHUNK).pop().context("no memory for the disk")?;
            buffer[..chunk.len()].copy_from_slice(chunk);
            let write = Work::Write { at, from: Bytes::prefix(buffer, chunk.len()), fua: false };
            complete(&mut base, &SystemClock, write, PATIENCE).1?;
        }
        let device = Volatile::over(Box::new(base))?;
        let handle = device.handle();
        if lies {
            handle.lie();
        }
        let socket = folder.join(format!("disk-{}", std::process::id()));
        Ok(Drive { device: Shared(Arc::new(Mutex::new(device))), handle, socket })
    }

    /// Serves the next machine.
    pub fn attach(&self) -> Result<Attached> {
        let export = OneExport::new("disk", Box::new(self.device.clone()));
        // One that has stopped never answers what it has.
        let options = NbdOptions { patience: Duration::from_millis(100), ..NbdOptions::default() };
        let server = NbdServer::new(NbdSocket::bind(&self.socket)?, Box::new(export), SystemClock::handle(), options)?;
        let stopper = server.stopper();
        let serving = std::thread::spawn(move || _ = server.run());
        Ok(Attached { serving, stopper, socket: self.socket.clone() })
    }

    /// It stops in the middle of what it does: behind so many more writes that are in its cache
    /// alone.
    pub fn stop_after(&self, writes: u64) {
        self.handle.stop_after(writes);
    }

    /// Whether it has stopped.
    pub fn has_stopped(&self) -> bool {
        self.handle.has_stopped()
    }

    /// The power goes; what that leaves, by chance.
    pub fn lose_power(&self, chance: &mut XorShift) -> Result<Lost> {
        Ok(self.device.device().lose_power(chance, &SystemClock)?)
    }
}

impl Attached {
    /// For QEMU's command line.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Waits until nothing more arrives. The machine must have ended.
    pub fn ended(self) -> Result<()> {
        self.stopper.notify();
        ensure!(self.serving.join().is_ok(), "the disk's server failed");
        Ok(())
    }
}

/// The device, for one machine after the other.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<Volatile>>);

impl Shared {
    fn device(&self) -> MutexGuard<'_, Volatile> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Device for Shared {
    fn geometry(&self) -> Geometry {
        self.device().geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.device().submit(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.device().poll(out)
    }
    fn arm(&mut self) -> bool {
        self.device().arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        // It lies in memory.
        None
    }
}

const CHUNK: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// One machine writes and goes; what no flush covered may be gone for the next one.
    #[test]
    fn a_machine_finds_what_the_one_before_flushed() {
        let folder = std::env::temp_dir().join(format!("guest-drive-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let drive = Drive::holding(&[7; 8 * 512], &folder, false).unwrap();
        for round in 0..2u8 {
            let attached = drive.attach().unwrap();
            let mut peer = UnixStream::connect(attached.socket()).unwrap();
            let mut greeting = [0; 18];
            peer.read_exact(&mut greeting).unwrap();
            peer.write_all(&[0, 0, 0, 3]).unwrap();
            // NBD_OPT_EXPORT_NAME without a name, as QEMU asks.
            peer.write_all(&[&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat()).unwrap();
            let mut export = [0; 10];
            peer.read_exact(&mut export).unwrap();
            assert_eq!(export[..8], (8 * 512u64).to_be_bytes());
            let mut ask = |kind: u16, at: u64, count: u32, bytes: &[u8], answer: usize| {
                let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
                request.extend([0, 0].into_iter().chain(kind.to_be_bytes()));
                request.extend(77u64.to_be_bytes().into_iter().chain(at.to_be_bytes()).chain(count.to_be_bytes()));
                peer.write_all(&[&request, bytes].concat()).unwrap();
                let mut reply = vec![0; 16 + answer];
                peer.read_exact(&mut reply).unwrap();
                assert_eq!(reply[4..8], [0; 4]);
                reply[16..].to_vec()
            };
            let found = ask(0, 0, 1024, &[], 1024);
            assert_eq!((found[0], [7, 9].contains(&found[512])), (if round == 0 { 7 } else { 8 }, true));
            ask(1, 0, 512, &[8; 512], 0);
            ask(3, 0, 0, &[], 0);
            ask(1, 512, 512, &[9; 512], 0);
            assert_eq!(drive.handle.cached(), 1);
            drop(peer);
            attached.ended().unwrap();
            assert_eq!(drive.lose_power(&mut XorShift::of(1)).unwrap().cached, 1);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
