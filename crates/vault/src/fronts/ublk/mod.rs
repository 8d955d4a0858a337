//! A device as a block device of this host, by the kernel's ublk driver.
//!
//! The driver hands requests over by io_uring ([`overside_disk::Ublk`]) and takes their
//! bytes by system calls. So a WRITE's lie in a buffer of their length, and a READ's go
//! from where the device put them. One thread owns the device and the driver's queue, and
//! sleeps when there is nothing to do.
//!
//! | in the order of a request | file |
//! |---|---|
//! | the driver's structures; pure | `wire` |
//! | the loop, its beginning and its end | `server` |
//!
//! Devices whose server was killed: the kernel fails what was under way and takes the block device
//! away. What is left of it, a number, goes with the next one that is added.

mod server;
mod wire;

use std::io;
use std::path::Path;

use overside_disk::{Ublk, UblkControl};
use overside_verbs::VerbsError;

pub use server::UblkServer;
use wire::Information;
#[doc(hidden)]
pub use wire::{fuzz_ublk, seeds_ublk};

/// The kernel's driver.
#[derive(Debug)]
pub struct UblkDriver(Ublk);

impl UblkDriver {
    /// The driver, if this kernel has one and this process may use it.
    ///
    /// # Errors
    /// The text says what to do.
    pub fn open() -> Result<UblkDriver, UblkError> {
        Ublk::open().map(UblkDriver).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => UblkError::NotRoot,
            io::ErrorKind::NotFound => UblkError::Absent,
            // The file is there, and nobody behind it.
            _ if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => UblkError::Absent,
            _ => UblkError::Driver { what: "/dev/ublk-control", source: error },
        })
    }

    /// The process that serves the block device at `path`; none, where it was killed or the
    /// device is another program's.
    ///
    /// # Errors
    /// It is no such device, or a file system on it is mounted.
    pub fn server_of(&mut self, path: &Path) -> Result<Option<u32>, UblkError> {
        let number = path.to_str().and_then(|text| text.strip_prefix(BLOCK_DEVICE)).and_then(|text| text.parse().ok());
        let number = number.ok_or(UblkError::NoDevice)?;
        let information = self.information(number).map_err(|_| UblkError::NoDevice)?;
        if !information.ours {
            return Err(UblkError::NoDevice);
        }
        // The kernel opens it so for nobody while it is mounted.
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC;
        if rustix::fs::open(path, flags, rustix::fs::Mode::empty()).err() == Some(rustix::io::Errno::BUSY) {
            return Err(UblkError::Busy);
        }
        Ok(information.server.filter(|server| is_there(*server)))
    }

    /// Takes away what is left of devices whose servers were killed.
    pub fn sweep(&mut self) {
        let Ok(names) = std::fs::read_dir("/dev") else { return };
        let numbers = names.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok());
        for number in numbers.collect::<Vec<u32>>() {
            let left = self.information(number).is_ok_and(|information| {
                information.ours && !information.lives && !information.server.is_some_and(is_there)
            });
            if left {
                // Somebody else may do the same.
                let _ = self.0.ask(UblkControl::Delete, number, Vec::new());
            }
        }
    }

    fn information(&mut self, number: u32) -> Result<Information, UblkError> {
        let failed = |source| UblkError::Driver { what: "what it says of a device", source };
        let bytes = self.0.ask(UblkControl::Information, number, vec![0; wire::INFORMATION_BYTES]).map_err(failed)?;
        Information::parse(&bytes).map_err(|_| failed(io::ErrorKind::InvalidData.into()))
    }
}

/// Whether there is a process of this number.
fn is_there(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Its number comes behind it.
const BLOCK_DEVICE: &str = "/dev/ublkb";

/// Why there is no block device.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The kernel has no such driver, or has not loaded it.
    #[error(
        "the ublk driver is not there (/dev/ublk-control): `modprobe ublk_drv` (Linux 6.5 or later), or attach it by --fuse FILE --loop"
    )]
    Absent,
    /// Only root may add block devices.
    #[error("only root may add a block device: run this as root, or attach it by --nbd or --fuse")]
    NotRoot,
    /// The driver lacks what is used here.
    #[error("this kernel's ublk driver is too old: Linux 6.5 or later is needed, or attach it by --fuse FILE --loop")]
    Old,
    /// Nothing of this project's is there.
    #[error("no volume is attached there")]
    NoDevice,
    /// Somebody has it mounted, or has it for himself.
    #[error("a file system on it is mounted, or a program has it for itself; unmount it or end that one first")]
    Busy,
    /// The volume's units are larger than the kernel's pages.
    #[error("the volume is read in units of {bytes} bytes, which is too much for a block device; attach it by --nbd")]
    Units {
        /// Their length.
        bytes: u64,
    },
    /// The driver refuses something.
    #[error("the ublk driver refuses {what}: {source}")]
    Driver {
        /// What it was asked.
        what: &'static str,
        /// What it says.
        source: io::Error,
    },
    /// The system refuses.
    #[error(transparent)]
    System(#[from] VerbsError),
}
