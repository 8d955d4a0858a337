//! Where the host's processor time goes (figure 7c of vi-attached-storage): `perf` looks at every
//! processor some hundred times a second, and says in which function it is.

use super::place::program_at;
use crate::process::{Process, guarded};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Shares of the host's processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Layers {
    pub(super) database: f64,
    pub(super) kernel: f64,
    /// Taken by anybody, the kernel included.
    pub(super) locks: f64,
    /// The client of the volume, and what brings requests to it.
    pub(super) client: f64,
    /// What carries its messages.
    pub(super) transport: f64,
    /// Of other programs.
    pub(super) rest: f64,
}

/// Who is who.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who<'a> {
    /// The process that attaches a volume.
    pub(super) attached: Option<u32>,
    /// Not of the host: nodes, what attaches other sides' volumes, and who measures.
    pub(super) apart: &'a [u32],
}

/// Looks from now on.
pub(super) struct Sampling<'a> {
    who: Who<'a>,
    perf: Process,
    program: PathBuf,
    samples: PathBuf,
}

impl<'a> Sampling<'a> {
    /// What it sees lies in a folder meanwhile.
    ///
    /// # Errors
    /// There is no `perf`.
    pub(super) fn start(folder: &Path, who: Who<'a>) -> Result<Self> {
        let program = program_at("perf").context("there is no perf; install linux-perf")?;
        let samples = folder.join("samples");
        // Of itself it looks for ever.
        let mut command = guarded();
        command.arg(&program);
        command.args(["record", "--quiet", "--all-cpus", "--event", "cpu-clock", "--freq", A_SECOND, "--output"]);
        let quietly = command.arg(&samples).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let perf = Process::of(quietly.spawn().context("perf could not be started")?, "perf");
        Ok(Sampling { who, perf, program, samples })
    }

    /// Ends it: what it saw.
    ///
    /// # Errors
    /// It saw nothing, as the kernel may not let it.
    pub(super) fn end(self) -> Result<Layers> {
        if let Some(perf) = Pid::from_raw(self.perf.pid() as i32) {
            let _ = kill_process(perf, Signal::INT);
        }
        self.perf.end(PATIENCE);
        let mut says = Command::new(&self.program);
        says.args(["script", "--no-inline", "--fields", "comm,pid,ip,sym,dso", "--input"]).arg(&self.samples);
        let said = says.stdin(Stdio::null()).output().context("perf could not be asked")?;
        let layers = layers_of(&String::from_utf8_lossy(&said.stdout), self.who);
        let _ = std::fs::remove_file(&self.samples);
        layers.with_context(|| format!("perf saw nothing: {}", String::from_utf8_lossy(&said.stderr).trim()))
    }
}

/// Whether it may look, and what it sees of this process at work.
///
/// # Errors
/// It may not, or there is no `perf`.
pub(super) fn try_out(folder: &Path) -> Result<Layers> {
    let sampling = Sampling::start(folder, Who { attached: None, apart: &[] })?;
    let begun = Instant::now();
    while begun.elapsed() < TRIAL {
        std::hint::spin_loop();
    }
    sampling.end()
}

/// What `perf script` says, a line a sample.
fn layers_of(said: &str, who: Who<'_>) -> Result<Layers> {
    let mut layers = Layers::default();
    let mut seen = 0;
    for of in said.lines().filter_map(Sample::parse).filter_map(|sample| sample.layer(who)) {
        seen += 1;
        *match of {
            Layer::Database => &mut layers.database,
            Layer::Kernel => &mut layers.kernel,
            Layer::Locks => &mut layers.locks,
            Layer::Client => &mut layers.client,
            Layer::Transport => &mut layers.transport,
            Layer::Rest => &mut layers.rest,
        } += 1.0;
    }
    ensure!(seen > 0, "no sample of the host");
    let Layers { database, kernel, locks, client, transport, rest } = &mut layers;
    [database, kernel, locks, client, transport, rest].into_iter().for_each(|share| *share /= f64::from(seen));
    Ok(layers)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Database,
    Kernel,
    Locks,
    Client,
    Transport,
    Rest,
}

/// What a processor did at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample<'a> {
    program: &'a str,
    process: u32,
    address: u64,
    /// Function and file, as `perf` writes them.
    place: &'a str,
}

impl<'a> Sample<'a> {
    /// The name of a program is padded to 16 characters, and may have spaces.
    fn parse(line: &'a str) -> Option<Sample<'a>> {
        let (program, rest) = line.split_at_checked(16)?;
        let (process, rest) = rest.trim_start().split_once(' ')?;
        let (address, place) = rest.trim_start().split_once(' ')?;
        let address = u64::from_str_radix(address, 16).ok()?;
        Some(Sample { program: program.trim(), process: process.parse().ok()?, address, place })
    }

    /// None where it is not of the host, or the processor was idle.
    fn layer(&self, who: Who<'_>) -> Option<Layer> {
        if self.process == 0 || who.apart.contains(&self.process) || APART.contains(&self.program) {
            return None;
        }
        let has = |names: &[&str]| names.iter().any(|name| self.place.contains(name));
        let locks = has(LOCKS);
        // Linux has its own half of the addresses.
        if self.address >> 63 == 1 {
            return Some(if locks { Layer::Locks } else { Layer::Kernel });
        }
        let ours = who.attached == Some(self.process) || has(OURS);
        Some(match () {
            () if locks => Layer::Locks,
            () if has(CARRIES) => Layer::Transport,
            () if ours => Layer::Client,
            () if self.program == DATABASE => Layer::Database,
            () => Layer::Rest,
        })
    }
}

const DATABASE: &str = "postgres";
/// Terminals, and who looks.
const APART: [&str; 2] = ["pgbench", "perf"];
/// The program that attaches, and the library in the database's process.
const OURS: &[&str] = &["liboverside_preload.so", "/overside)"];
/// Crates of verbs, connections and providers; names of functions have theirs in them.
const CARRIES: &[&str] = &["overside_verbs", "overside_transfer", "overside_shm", "overside_tcp", "overside_ibv"];
/// Functions that take locks or wait for them: the kernel's, PostgreSQL's latches, the C library's.
const LOCKS: &[&str] = &[
    "spin_lock",
    "queued_spin_lock",
    "queued_read_lock",
    "queued_write_lock",
    "osq_lock",
    "mutex_lock",
    "mutex_spin",
    "rwsem_",
    "down_read",
    "down_write",
    "futex",
    "LWLock",
    "s_lock",
    "perform_spin_delay",
    "pthread_rwlock_rd",
    "pthread_rwlock_wr",
    "pthread_cond",
    "lll_lock",
];
/// It takes a moment to begin.
const TRIAL: Duration = Duration::from_millis(500);
const A_SECOND: &str = "499";
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: [(&str, u32, &str); 14] = [
        ("postgres", 400, "4007f1 hash_search_with_hash_value (/usr/lib/postgresql/15/bin/postgres)"),
        ("postgres", 400, "7f442319ec79 __memmove_evex (/usr/lib/x86_64-linux-gnu/libc.so.6)"),
        ("postgres", 400, "400aaa LWLockAcquire (/usr/lib/postgresql/15/bin/postgres)"),
        ("postgres", 400, "ffffffff81001000 copy_page ([kernel.kallsyms])"),
        ("postgres", 400, "7f0000000001 overside_volume::client::link::Link::post (/tmp/liboverside_preload.so)"),
        ("postgres", 400, "7f0000000002 _RNvMs_13overside_shm4ring (/tmp/liboverside_preload.so)"),
        ("overside", 500, "500001 overside_vault::fronts::fuse::serve (/opt/overside)"),
        ("overside", 500, "7f442319ec79 __memmove_evex (/usr/lib/x86_64-linux-gnu/libc.so.6)"),
        ("overside", 500, "ffffffff81002000 native_queued_spin_lock_slowpath ([kernel.kallsyms])"),
        ("overside", 600, "500001 overside_vault::cache::device (/opt/overside)"),
        ("pgbench", 700, "600001 doCustom (/usr/bin/pgbench)"),
        ("swapper", 0, "ffffffff81003000 pv_native_safe_halt ([kernel.kallsyms])"),
        ("kworker/0:1H-kb", 61, "ffffffff81004000 _raw_spin_unlock_irqrestore ([kernel.kallsyms])"),
        ("lto cgu.00", 32573, "7f442319ec79 (anonymous namespace)::SROA::run (/usr/lib/libLLVM.so)"),
    ];

    #[test]
    fn each_sample_is_of_the_layer_whose_function_it_is_in() {
        let line = |(program, process, rest)| format!("{program:>16} {process:>5} {rest}\n");
        let said: String = SAID.map(line).concat() + "\nno sample\n";
        let who = Who { attached: Some(500), apart: &[600] };
        let layers = layers_of(&said, who).unwrap();
        let shares = [layers.database, layers.kernel, layers.locks, layers.client, layers.transport, layers.rest];
        assert_eq!(shares.map(|share| (share * 11.0).round() as u32), [2, 2, 2, 3, 1, 1], "{layers:?}");
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(layers_of("", who).is_err(), "nothing is not zero");
    }

    #[test]
    fn a_program_may_have_spaces_in_its_name() {
        let line = "     lto cgu.00 32573      7f442319ec79 (anonymous namespace)::run (/usr/lib/libLLVM.so)";
        let place = "(anonymous namespace)::run (/usr/lib/libLLVM.so)";
        let wanted = Sample { program: "lto cgu.00", process: 32573, address: 0x7f44_2319_ec79, place };
        assert_eq!(Sample::parse(line), Some(wanted));
        assert_eq!(Sample::parse("perf.data has no samples!"), None);
    }

    /// Where there is a perf that may look, it sees this process work.
    #[test]
    fn who_works_is_seen() {
        let folder = std::env::temp_dir().join(format!("overside-bench-layers-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let looked = try_out(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let Ok(layers) = looked else { return };
        assert!(layers.rest > 0.1, "{layers:?}");
    }
}
