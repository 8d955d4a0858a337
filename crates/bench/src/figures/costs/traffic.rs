//! The memory traffic of copying records and of gathering them, at the sender,
//! counted by a simulated cache.
//!
//! Processors of shared machines have no counters for it. So the sending is run once more under
//! valgrind, whose cache simulation (cachegrind's, by callgrind, which counts one function alone)
//! says how many lines come from memory and go there. The device's own reads are not in it.

use super::super::{
    Setting,
    figure::{Figure, Table},
    records::Records,
};
use crate::SUBCOMMAND;
use anyhow::{Context, Result, bail, ensure};
use overside::{
    memory::{Buffer, Segment, View},
    shape::{Run, Shape},
};
use std::{ffi::OsString, hint::black_box, process::Command, sync::Arc};

/// How a message is made of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assembly {
    /// A list of where they lie.
    Gather,
    /// Copied into transmit buffers that are few, as a connection has them.
    Copy,
    /// Copied into buffers that no cache holds.
    CopyCold,
}

impl Assembly {
    const ALL: [Assembly; 3] = [Assembly::Gather, Assembly::Copy, Assembly::CopyCold];

    fn name(self) -> &'static str {
        match self {
            Assembly::Gather => "gather",
            Assembly::Copy => "copy-out",
            Assembly::CopyCold => "copy-out into cold buffers",
        }
    }
}

/// Counts every way, where valgrind is installed.
pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        setting.progress.say("costs: no valgrind here, so memory traffic is not counted (apt-get install valgrind)");
        return Ok(());
    }
    for (at, record_bytes) in RECORD_BYTES.into_iter().enumerate() {
        let mut of = [0.0; 3];
        for (nth, (way, of)) in Assembly::ALL.into_iter().zip(&mut of).enumerate() {
            setting.progress.part("costs: memory traffic", 3 * at + nth, 3 * RECORD_BYTES.len());
            *of = count(way, record_bytes)?;
            figure.count(&series(way.name()), record_bytes as u64, None, *of);
        }
        let [gather, copy, cold] = of;
        figure.count(ADDED, record_bytes as u64, None, copy - gather);
        figure.count(ADDED_COLD, record_bytes as u64, None, cold - gather);
    }
    Ok(())
}

/// Bytes between memory and the simulated cache for a byte that is sent.
fn count(way: Assembly, record_bytes: usize) -> Result<f64> {
    let executable = std::env::current_exe().context("the path of this executable is unknown")?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--demangle=no", "--callgrind-out-file=/dev/null", "--cache-sim=yes"])
        .args(["--simulate-wb=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=2097152,16,64"])
        .arg(format!("--toggle-collect=*{COUNTED}*"))
        .arg(executable)
        .args([SUBCOMMAND, ROLE, &std::process::id().to_string(), way.name(), &record_bytes.to_string()])
        .output()
        .context("valgrind could not be started")?;
    let report = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} under valgrind ended with {}:\n{report}", way.name(), output.status);
    let lines = lines_of(&report).with_context(|| format!("valgrind counted nothing:\n{report}"))?;
    Ok((LINE_BYTES * lines) as f64 / SENT_BYTES as f64)
}

/// Lines that came from memory or went there, by callgrind's report: last-level misses, and what
/// is written back for them.
fn lines_of(report: &str) -> Option<u64> {
    let of = |what: &str| report.lines().find_map(|line| line.split_once(what)?.1.split_once(':')).map(|(_, it)| it);
    let (events, counts) = (of("Events")?, of("Collected")?);
    let counts: Vec<u64> = counts.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let events: Vec<&str> = events.split_whitespace().collect();
    // Zeroes at the end are left out.
    let of = |event: &str| Some(counts.get(events.iter().position(|name| *name == event)?).copied().unwrap_or(0));
    // Nothing else than a run that counted nothing has no reads.
    of("Dr").filter(|reads| *reads > 0)?;
    ["DLmr", "DLmw", "ILdmr", "DLdmr", "DLdmw"].into_iter().map(of).sum()
}

/// The process whose sending is counted.
pub(in crate::figures) fn send(arguments: &[OsString]) -> Result<()> {
    let [way, record_bytes] = arguments else { bail!("a way and the length of a record are told") };
    let way = Assembly::ALL.into_iter().find(|known| *way == *known.name()).context("there is no such way")?;
    let record_bytes: usize = record_bytes.to_str().and_then(|bytes| bytes.parse().ok()).context("no length")?;
    let memory = |bytes: usize| -> Result<Buffer> {
        let mut memory = Segment::private(bytes)?.carve(bytes).pop().context("a segment has a buffer")?;
        memory.fill(1);
        Ok(memory)
    };
    let sends = SENT_BYTES / SEND_BYTES;
    let mut buffers = (0..if way == Assembly::CopyCold { sends } else { BUFFERS })
        .map(|_| memory(SEND_BYTES))
        .collect::<Result<Vec<_>>>()?;
    let region = Arc::new(memory(REGION_BYTES)?);
    // What was written so far goes to memory before anything is counted.
    black_box(region.chunks(LINE_BYTES as usize).fold(0, |sum: u8, line| sum.wrapping_add(line[0])));
    let mut records = Records::new(&region, record_bytes);
    counted_sends(way, &mut records, &mut buffers, sends)
}

#[inline(never)]
fn counted_sends(way: Assembly, records: &mut Records, buffers: &mut [Buffer], sends: usize) -> Result<()> {
    let per_send = SEND_BYTES / records.record_bytes();
    for nth in 0..sends {
        if way == Assembly::Gather {
            let list: Vec<Run> = (0..per_send).map(|_| records.take()).collect();
            black_box(View::of(records.memory(), &Shape::list(&list)?)?);
        } else {
            let at = nth % buffers.len();
            black_box(records.pack(per_send, &mut buffers[at]));
        }
    }
    Ok(())
}

pub(super) fn table(figure: &Figure) -> Table {
    let of = |series: &str, x: usize| {
        let found = figure.measured.iter().find(|one| one.series == series && one.x == x as u64);
        found.and_then(|one| one.exact).map_or_else(|| "–".to_owned(), |bytes| format!("{bytes:.2}"))
    };
    let names =
        Assembly::ALL.map(|way| series(way.name())).into_iter().chain([ADDED.to_owned(), ADDED_COLD.to_owned()]);
    let rows = names.map(|name| {
        std::iter::once(name.clone()).chain(RECORD_BYTES.into_iter().map(|bytes| of(&name, bytes))).collect()
    });
    let head = ["", "records of 128 B", "of 1,024 B"].map(str::to_owned).to_vec();
    let caption =
        "Bytes between memory and a simulated last-level cache of 2 MiB for a byte that is sent, at the sender";
    Table { caption: caption.into(), head, rows: rows.collect() }
}

fn series(way: &str) -> String {
    format!("memory traffic a byte sent: {way}")
}

pub(in crate::figures) const ROLE: &str = "traffic";
const COUNTED: &str = "counted_sends";
const ADDED: &str = "memory traffic that copying adds";
const ADDED_COLD: &str = "memory traffic that copying adds, cold buffers";
const RECORD_BYTES: [usize; 2] = [128, 1024];
/// More than the simulated cache holds, each record once.
const REGION_BYTES: usize = 16 << 20;
const SENT_BYTES: usize = 8 << 20;
const SEND_BYTES: usize = 16 << 10;
const BUFFERS: usize = 8;
const LINE_BYTES: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "==7== Events    : Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw ILdmr DLdmr DLdmw\n\
                          ==7== Collected : 900 300 200 9 40 30 8 20 10 1 2 3\n";

    #[test]
    fn lines_to_and_from_memory_are_read_out_of_the_report() {
        assert_eq!(lines_of(REPORT), Some(20 + 10 + 1 + 2 + 3));
        assert_eq!(lines_of(&REPORT.replace(" 1 2 3", "")), Some(20 + 10));
        assert_eq!(lines_of(&REPORT.replace(" 300 ", " 0 ")), None);
        assert_eq!(lines_of("valgrind: no such file"), None);
        assert_eq!(lines_of("Events    : Ir\nCollected : 5\n"), None);
    }
}
