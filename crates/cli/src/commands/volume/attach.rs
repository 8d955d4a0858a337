//! `overside volume attach`

use super::named;
use crate::args::Attach;
use crate::output::{self, grouped};
use crate::signals::{Doorbell, NO_THREAD, Ringer};
use anyhow::{Context, Result, bail};
use overside::vault::fronts::fuse::{FuseMount, FuseServer};
use overside::vault::fronts::nbd::{NbdOptions, NbdServer, NbdSocket, OneExport};
use overside::vault::fronts::ublk::{UblkDriver, UblkServer};
use overside::verbs::SystemClock;
use overside::verbs::watch::Signal;
use overside::volume::client::{LinkHandle, LinkOptions, Volume};
use overside::volume::wire::Role;
use overside::volume::{Completion, Device, DeviceError, Geometry, Request};
use rustix::mm::MlockAllFlags;
use serde_json::{Map, json};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attaches a volume and serves it to programs until a signal comes.
///
/// # Errors
/// The node does not let this side in, or the place where programs are to find it cannot be made.
pub fn run(args: &Attach) -> Result<()> {
    // Before anything is attached, so that no signal finds it without its end prepared.
    let doorbell = Doorbell::new()?;
    let (_, name) = named(&args.at.volume)?;
    let role = match (args.read_only, args.take_over) {
        (true, _) => Role::Reader,
        (_, true) => Role::TakeOver,
        _ => Role::Writer,
    };
    // Before the node lets anybody in: who is refused there leaves no writer behind that does not say goodbye.
    let front = match (&args.nbd, &args.fuse) {
        (Some(socket), _) => Front::Nbd(NbdSocket::bind(socket)?, socket),
        (_, Some(file)) => Front::Fuse(FuseMount::new(file, args.read_only)?, file),
        _ if args.ublk => Front::Ublk(Box::new(UblkDriver::open()?)),
        _ => bail!("say where programs find it: --nbd unix:PATH, --fuse FILE or --ublk"),
    };
    if args.block_device || args.ublk {
        keep_in_memory();
    }
    let give_up = args.give_up.map(Duration::from_secs);
    let options = super::going(&args.ways, LinkOptions { role, give_up, ..LinkOptions::default() });
    let volume = super::attach(&args.at, options)?;
    let (handle, geometry) = (volume.handle(), volume.geometry());
    let volume = Attached { volume, handle: handle.clone(), ends: Some(doorbell.ringer()?) };
    let device = match front {
        Front::Nbd(socket, path) => {
            by_nbd((socket, path), name, Box::new(volume), doorbell, |uri| tell(args, geometry, "nbd", uri, None))?
        }
        Front::Fuse(mount, file) => Some(by_fuse(args, (mount, file), volume, doorbell)?),
        Front::Ublk(driver) => Some(by_ublk(args, *driver, volume, doorbell)?),
    };
    drop(device);
    if handle.is_refused() {
        bail!(DeviceError::Refused);
    }
    if args.at.json {
        let ended = json!({"granted": handle.granted(), "deregistrations": handle.deregistrations()});
        return output::line(&json!({"ended": ended}).to_string());
    }
    output::line("ended; what was acknowledged is the node's")
}

/// A volume whose server ends once the node refuses to let it in again. Else no program would
/// learn why each request fails. However that one ends, it says goodbye.
#[derive(Debug)]
struct Attached {
    volume: Volume,
    handle: LinkHandle,
    ends: Option<Ringer>,
}

impl Device for Attached {
    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.volume.submit(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let found = self.volume.poll(out);
        if self.handle.is_refused() {
            self.ends.take().iter().for_each(Ringer::ring);
        }
        found
    }
    fn arm(&mut self) -> bool {
        self.volume.arm()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.volume.fd()
    }
    fn due(&self) -> Option<Instant> {
        self.volume.due()
    }
}

impl Drop for Attached {
    /// So that the next writer need not wait.
    fn drop(&mut self) {
        self.handle.close(&mut self.volume, &SystemClock, GOODBYE_PATIENCE);
    }
}

/// Where programs find it.
enum Front<'a> {
    Nbd(NbdSocket, &'a Path),
    Fuse(FuseMount, &'a Path),
    Ublk(Box<UblkDriver>),
}

/// Serves a device to NBD clients at a socket until a signal comes, and gives it back. `tell` hears
/// where they find it.
///
/// # Errors
/// The system refuses, or `tell` fails.
pub(super) fn by_nbd(
    (socket, path): (NbdSocket, &Path),
    name: &str,
    device: Box<dyn Device>,
    doorbell: Doorbell,
    tell: impl FnOnce(&str) -> Result<()>,
) -> Result<Option<Box<dyn Device>>> {
    let exports = Box::new(OneExport::new(name, device));
    let server = NbdServer::new(socket, exports, SystemClock::handle(), NbdOptions::default())?;
    stop_at_signal(doorbell, server.stopper())?;
    tell(&format!("nbd+unix:///{name}?socket={}", path.display()))?;
    Ok(server.run()?.open(name).ok())
}

fn by_ublk(args: &Attach, driver: UblkDriver, volume: Attached, doorbell: Doorbell) -> Result<Box<dyn Device>> {
    let geometry = volume.geometry();
    let mut server = UblkServer::new(driver, Box::new(volume), SystemClock::handle())?;
    stop_at_signal(doorbell, server.stopper())?;
    let device = server.start()?;
    tell(args, geometry, "device", &device.display().to_string(), None)?;
    Ok(server.run()?)
}

fn stop_at_signal(doorbell: Doorbell, stopper: Arc<Signal>) -> Result<()> {
    let wait = move || {
        doorbell.wait();
        stopper.notify();
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context(NO_THREAD)?;
    Ok(())
}

fn by_fuse(
    args: &Attach,
    (mount, file): (FuseMount, &Path),
    volume: Attached,
    doorbell: Doorbell,
) -> Result<Box<dyn Device>> {
    let geometry = volume.geometry();
    let server = FuseServer::new(mount, Box::new(volume), SystemClock::handle())?;
    let (stopper, ringer) = (server.stopper(), doorbell.ringer()?);
    let shown = file.display().to_string();
    let by = Some(if server.is_by_io_uring() { "io_uring" } else { "/dev/fuse" });
    if !args.block_device {
        tell(args, geometry, "file", &shown, by)?;
    }
    std::thread::scope(|scope| {
        // Whoever asks for a loop device reads the file, which is served meanwhile.
        let beside = move || {
            let ended = if args.block_device {
                with_loop_device(file, args.read_only, |device| {
                    tell(args, geometry, "device", device, by)?;
                    doorbell.wait();
                    Ok(())
                })
            } else {
                doorbell.wait();
                Ok(())
            };
            stopper.notify();
            ended
        };
        let beside =
            std::thread::Builder::new().name("signals".into()).spawn_scoped(scope, beside).context(NO_THREAD)?;
        let served = server.run();
        ringer.ring();
        let ended = beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let device = served?;
        ended.map(|()| device)
    })
}

/// Says where it is now, and how the kernel's requests come.
fn tell(args: &Attach, geometry: Geometry, how: &str, place: &str, by: Option<&str>) -> Result<()> {
    if args.at.json {
        let mut said = Map::new();
        said.insert("attached".into(), json!(args.at.volume));
        said.insert(how.into(), json!(place));
        said.insert("pid".into(), json!(std::process::id()));
        said.insert("bytes".into(), json!(geometry.bytes));
        said.insert("read_only".into(), json!(geometry.read_only));
        said.extend(by.map(|by| ("by".into(), json!(by))));
        return output::line(&serde_json::Value::Object(said).to_string());
    }
    let only = if geometry.read_only { ", to be read only" } else { "" };
    let by = by.map_or(String::new(), |by| format!(" (by {by})"));
    output::line(&format!("{} of {} bytes is attached{only}: {place}{by}", args.at.volume, grouped(geometry.bytes)))
}

/// Calls `work` with a loop device over the file.
fn with_loop_device(file: &Path, read_only: bool, work: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    let mut setup = losetup();
    setup.args(["--find", "--show", "--direct-io=on"]).args(read_only.then_some("--read-only")).arg(file);
    let made = setup.output().context("losetup (package mount) makes loop devices, and cannot be run")?;
    if !made.status.success() {
        bail!("no loop device: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let worked = work(&device);
    // While the file is still served: what the kernel has not written yet is written now.
    let ended = losetup().args(["--detach", &device]).output();
    if !ended.is_ok_and(|ended| ended.status.success()) {
        eprintln!("overside: {device} stays, and fails from now on; unmount it, then `losetup --detach {device}`");
    }
    worked
}

/// In a group of its own: Ctrl-C is for this process.
fn losetup() -> Command {
    let mut command = Command::new("losetup");
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.stdin(Stdio::null());
    command
}

/// The kernel may have to write to the device to get memory, so this process must not wait for
/// memory then.
fn keep_in_memory() {
    let flusher = rustix::process::configure_io_flusher_behavior(true);
    let locked = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
    if flusher.is_err() || locked.is_err() {
        eprintln!(
            "overside: the kernel does not let this process keep its memory; where memory is short, writes to the device may hang \
             (run as root)"
        );
    }
}

/// How long a node may take to hear that this client goes.
pub(super) const GOODBYE_PATIENCE: Duration = Duration::from_secs(2);
