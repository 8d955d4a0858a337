//! One run of a machine: boots, runs the job, tells how it ended.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host::tied;
use crate::image::Base;
use crate::jobs::Job;
use crate::kernel::write_whole;

/// The job's exit status; what it prints is printed here.
pub fn run(base: &Base, packed: &Path, job: &Job) -> Result<i32> {
    let initrd = initrd(base, packed)?;
    let folder = packed.parent().context("the archive has no folder")?;
    let nodes: Vec<Option<u8>> = if job.machines == 1 { vec![None] } else { (1..=job.machines).map(Some).collect() };
    let (told, lines) = mpsc::channel();
    let mut machines = Vec::new();
    for node in nodes {
        machines.push(Machine::start(base, &initrd, node, folder, job, None, told.clone())?);
    }
    drop(told);
    let status = wait(&lines, machines.len(), job)?;
    drop(machines);
    std::fs::remove_file(initrd)?;
    Ok(status)
}

/// The first file system: what every guest has, and the job.
pub fn initrd(base: &Base, packed: &Path) -> Result<PathBuf> {
    let initrd = packed.with_extension("initrd");
    let mut bytes = std::fs::read(&base.archive)?;
    bytes.extend(std::fs::read(packed)?);
    write_whole(&initrd, &bytes)?;
    Ok(initrd)
}

/// Until each machine has said how it ended, or one that it failed: the others may wait for it for
/// ever.
fn wait(lines: &mpsc::Receiver<String>, machines: usize, job: &Job) -> Result<i32> {
    let end = Instant::now() + Duration::from_secs(job.limit_s);
    let mut running = machines;
    while running > 0 {
        let line = match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("guest {}: no end within its time", job.name),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("guest {}: it ended without a status", job.name),
        };
        println!("{line}");
        let Some((_, status)) = line.split_once("] guest-exit ") else { continue };
        match status.trim().parse().context("the guest's status is no number")? {
            0 => running -= 1,
            failed => return Ok(failed),
        }
    }
    Ok(0)
}

/// A running machine; it ends with this.
pub struct Machine {
    child: Child,
}

impl Machine {
    /// `told`: gets every line of its console, its name in front. `drive`: the socket of a disk
    /// that it has.
    pub fn start(
        base: &Base,
        initrd: &Path,
        node: Option<u8>,
        folder: &Path,
        job: &Job,
        drive: Option<&Path>,
        told: mpsc::Sender<String>,
    ) -> Result<Self> {
        // A machine that nobody waits for would run on for ever.
        let mut command = tied("qemu-system-x86_64");
        // Several processors, emulated, would wait for each other.
        command.args(["-accel", "tcg", "-cpu", "max", "-M", "q35", "-smp", "1", "-m", "1024", "-nodefaults"]);
        command.args(["-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        command.arg("-kernel").arg(&base.kernel).arg("-initrd").arg(initrd);
        if let Some(socket) = drive {
            // Without a cache of QEMU's own; the guest knows that the disk has one, and flushes it.
            let options = format!("if=virtio,format=raw,cache=none,file=nbd+unix:///?socket={}", socket.display());
            command.arg("-drive").arg(options);
        }
        let mut append = BOOT_OPTIONS.to_owned();
        if let Some(node) = node {
            append.push_str(&format!(" guest.node={node}"));
            let socket = |node: u8| folder.join(format!("wire-{}-{node}", std::process::id())).display().to_string();
            let _ = std::fs::remove_file(socket(node));
            let (ours, theirs) = (socket(node), socket(3 - node));
            command
                .arg("-netdev")
                .arg(format!("dgram,id=wire,local.type=unix,local.path={ours},remote.type=unix,remote.path={theirs}"));
            let device = format!("virtio-net-pci,netdev=wire,host_mtu=4500,mac=02:00:00:00:00:0{node}");
            command.arg("-device").arg(device);
        }
        command.arg("-append").arg(append);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().context("qemu-system-x86_64 cannot be started")?;
        let console = child.stdout.take().context("no pipe")?;
        let shown = node.map_or_else(|| job.name.to_owned(), |node| format!("{} {node}", job.name));
        std::thread::spawn(move || {
            for line in BufReader::new(console).split(b'\n').map_while(std::result::Result::ok) {
                let line = String::from_utf8_lossy(&line);
                if told.send(format!("[{shown}] {}", line.trim_end_matches('\r'))).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Quiet, fast under emulation, and over at the first panic.
const BOOT_OPTIONS: &str = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check \
     random.trust_cpu=on 8250.nr_uarts=1 cryptomgr.notests nowatchdog rcupdate.rcu_expedited=1";
