//! One client to many of one table: rate, processor time and the server's memory.

use super::{CLIENTS, MEMORY, RATE, SERVER, ScanPath, series};
use crate::{
    figures::{
        Figure, Setting,
        tables::{
            clients::{Worker, scattered},
            server::{Kept, Served},
        },
    },
    limits::Touched,
    measure::{Cpu, alternate, elapsed_ns, now_ns},
};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

/// A server whose clients scan in one way.
struct ScanServer {
    way: ScanPath,
    served: Served,
    workers: Vec<Worker>,
    /// It has put the rows, and stays: what its connection takes is in both numbers.
    _loader: Worker,
    /// What the server had resident before another client came.
    resident: u64,
}

/// What a stretch of time came to, of all clients together.
struct Stretch {
    rows: u64,
    wall_ns: u64,
    server_ns: u64,
    clients_ns: u64,
    /// Bytes that the server had resident, at most.
    resident: u64,
}

pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    setting.progress.say("scans: tables");
    let mut sides = ScanPath::ALL.map(|way| ScanServer::start(setting, way)).into_iter().collect::<Result<Vec<_>>>()?;
    let mut first = None;
    for (at, clients) in COUNTS.into_iter().enumerate() {
        for side in &mut sides {
            side.connect(clients, &mut first)?;
        }
        setting.progress.part("scans: fan-out", at, COUNTS.len());
        let rounds = alternate(sides.len(), setting.rounds(), |side, _| sides[side].run(slice_ns(setting)))?;
        for (side, rounds) in sides.iter().zip(rounds) {
            let mut record = |of: &str, value: &dyn Fn(&Stretch) -> f64| {
                figure.record(series(WHAT, of, side.way), clients as u64, rounds.iter().map(value).collect());
            };
            record(RATE, &|stretch| stretch.rows as f64 * 1e9 / stretch.wall_ns as f64);
            record(SERVER, &|stretch| stretch.server_ns as f64 / stretch.rows as f64);
            record(CLIENTS, &|stretch| stretch.clients_ns as f64 / stretch.rows as f64);
            record(MEMORY, &|stretch| stretch.resident.saturating_sub(side.resident) as f64 / clients as f64);
        }
    }
    sides.into_iter().for_each(|side| side.served.end());
    Ok(())
}

impl ScanServer {
    fn start(setting: &Setting<'_>, way: ScanPath) -> Result<ScanServer> {
        let kept = if way == ScanPath::OneSided { Kept::Open } else { Kept::Memory };
        let served = Served::start(setting.over, kept, Path::new(""), false)?;
        let mut loader = Worker::new(&served, ROWS, 1)?;
        loader.fill(|number| scattered(number, ROWS))?;
        let resident = resident(served.pid())?;
        Ok(ScanServer { way, served, workers: Vec::new(), _loader: loader, resident })
    }

    /// As many clients as that, each of which has read the table once; every one of
    /// every mode reads the same.
    fn connect(&mut self, clients: usize, first: &mut Option<Touched>) -> Result<()> {
        while self.workers.len() < clients {
            let mut worker = Worker::new(&self.served, ROWS, 1)?;
            let read = self.way.read(&mut worker)?;
            ensure!(*first.get_or_insert(read) == read, "a scan by {} brings other rows", self.way.name());
            self.workers.push(worker);
        }
        Ok(())
    }

    /// All clients at once scan for so long.
    fn run(&mut self, ns: u64) -> Result<Stretch> {
        let (start, client, server) = (now_ns(), Cpu::own(), self.served.cpu()?);
        let (way, is_over, mut most) = (self.way, AtomicBool::new(false), 0);
        let rows = thread::scope(|scope| -> Result<u64> {
            let scan = |worker: &mut Worker| -> Result<u64> {
                let mut rows = 0;
                while !is_over.load(Ordering::Acquire) {
                    rows += way.read(worker)?.rows;
                }
                Ok(rows)
            };
            let running: Vec<_> = self.workers.iter_mut().map(|worker| scope.spawn(move || scan(worker))).collect();
            let mut looked = Ok(());
            while looked.is_ok() && elapsed_ns(start) < ns {
                thread::sleep(LOOK);
                looked = resident(self.served.pid()).map(|now| most = most.max(now));
            }
            is_over.store(true, Ordering::Release);
            let joined = running.into_iter().map(|part| part.join());
            let rows = joined.map(|part| part.map_err(|_| anyhow::anyhow!("a client panicked"))?).sum::<Result<u64>>();
            looked.and(rows)
        })?;
        let wall_ns = elapsed_ns(start);
        let (server_ns, clients_ns) = (self.served.cpu()? - server, Cpu::own() - client);
        Ok(Stretch { rows, wall_ns, server_ns, clients_ns, resident: most })
    }
}

impl ScanPath {
    /// The whole table, in this way.
    fn read(self, worker: &mut Worker) -> Result<Touched> {
        match self {
            ScanPath::Served(mode) => Ok(worker.read(ROWS, mode)?.0),
            ScanPath::OneSided => worker.read_one_sided(),
        }
    }
}

/// Bytes of memory that a process has mapped and touched, of its own and shared.
fn resident(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("a server ended; its last words are above")?;
    of_status(&text).context("/proc/PID/status has no VmRSS")
}

fn of_status(text: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

fn slice_ns(setting: &Setting<'_>) -> u64 {
    if setting.quick { 40_000_000 } else { 300_000_000 }
}

/// As series are named.
pub(super) const WHAT: &str = "fan-out";
pub(super) const ROWS: u64 = 50_000;
const COUNTS: [usize; 5] = [1, 2, 4, 8, 15];
const LOOK: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_resident_is_read_in_bytes() {
        assert_eq!(of_status("Name:\tx\nVmRSS:\t    1234 kB\nRssAnon:\t 7 kB\n"), Some(1234 << 10));
        assert_eq!(of_status("Name:\tVmRSS\n"), None);
        assert!(resident(std::process::id()).unwrap() > 1 << 20);
    }
}
