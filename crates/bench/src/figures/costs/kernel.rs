//! What of a round trip over the kernel's sockets is the kernel's.

use super::super::{
    Setting,
    figure::{Figure, Table},
};
use crate::measure::{Split, Switches, alternate, elapsed_ns, now_ns};
use anyhow::{Context, Result};
use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    thread,
};

/// Both ends block, as programs do that do not own their processor.
pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    setting.progress.say("costs: round trips");
    let listener = TcpListener::bind("127.0.0.1:0").context("no TCP socket on loopback")?;
    let tcp = TcpStream::connect(listener.local_addr()?)?;
    let (answering, _) = listener.accept()?;
    tcp.set_nodelay(true)?;
    answering.set_nodelay(true)?;
    let (unix, other) = UnixStream::pair()?;
    let ends = [thread::spawn(move || echo(answering)), thread::spawn(move || echo(other))];
    let mut lines: [Box<dyn ReadWrite>; 2] = [Box::new(tcp), Box::new(unix)];
    let (mut shares, mut switches) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let times = alternate(lines.len(), setting.rounds(), |side, _| -> Result<f64> {
        let mut message = [1; MESSAGE_BYTES];
        let (before, switched) = (Split::of(std::process::id())?, Switches::own()?);
        let (start, mut trips) = (now_ns(), 0u64);
        while elapsed_ns(start) < SLICE_NS {
            lines[side].write_all(&message)?;
            lines[side].read_exact(&mut message)?;
            trips += 1;
        }
        let wall = elapsed_ns(start);
        switches[side].push(Switches::own()?.since(switched) as f64 / trips as f64);
        shares[side].push(Split::of(std::process::id())?.since(before).kernel_share());
        Ok(wall as f64 / trips as f64)
    })?;
    drop(lines);
    for end in ends {
        end.join().ok().context("an echo panicked")??;
    }
    for (side, name) in NAMES.into_iter().enumerate() {
        figure.record(format!("kernel's share of a round trip: {name}"), 0, std::mem::take(&mut shares[side]));
        figure.record(format!("switches a round trip: {name}"), 0, std::mem::take(&mut switches[side]));
        figure.record(format!("round trip, ns: {name}"), 0, times[side].clone());
    }
    Ok(())
}

pub(super) fn table(figure: &Figure) -> Table {
    let row = |name: &str| {
        let median = |of: &str| figure.spread_of(&format!("{of}: {name}")).median;
        vec![
            name.to_owned(),
            format!("{:.1}", median("round trip, ns") / 1e3),
            format!("{:.0} %", 100.0 * median("kernel's share of a round trip")),
            format!("{:.1}", median("switches a round trip")),
        ]
    };
    let head = ["", "µs", "kernel's share", "context switches"].map(str::to_owned).to_vec();
    let caption = format!("Round trips of {MESSAGE_BYTES} bytes over the kernel's sockets, both ends together");
    Table { caption, head, rows: NAMES.map(row).to_vec() }
}

trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

/// Answers until the other end hangs up.
fn echo(mut line: impl Read + Write) -> Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    loop {
        match line.read_exact(&mut message) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            came => came?,
        }
        line.write_all(&message)?;
    }
}

const NAMES: [&str; 2] = ["TCP", "Unix socket"];
const MESSAGE_BYTES: usize = 64;
/// Some twenty ticks of the kernel's account.
const SLICE_NS: u64 = 150_000_000;
