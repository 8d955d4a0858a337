//! CPU time of this process and of others, in nanoseconds.
//!
//! Of this process: `CLOCK_PROCESS_CPUTIME_ID`. Of another one: the sum over its threads of
//! `/proc/PID/task/TID/schedstat`, which is the same account. A thread that is running just
//! now is up to one tick (4 ms) behind, and a sleeping one is exact. A thread that has ended
//! is no longer counted. The split into user and system comes from `/proc/PID/stat`, whose
//! ticks are 10 ms and sampled: good for a share over a whole run, useless for one scan,
//! hence a type of its own ([`Split`]).

use rustix::time::{ClockId, clock_gettime};
use std::{fmt::Display, fs, ops::Sub};

/// CPU time used so far, by all threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    /// Nanoseconds since the process began.
    pub ns: u64,
}

impl Cpu {
    /// Of this process.
    pub fn own() -> Cpu {
        Cpu { ns: clock_ns(ClockId::ProcessCPUTime) }
    }

    /// Of the calling thread.
    pub fn thread() -> Cpu {
        Cpu { ns: clock_ns(ClockId::ThreadCPUTime) }
    }

    /// Of the process `pid`.
    ///
    /// # Errors
    ///
    /// The process has ended, or this kernel keeps no such account.
    pub fn of(pid: u32) -> Result<Cpu, CpuError> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| CpuError::new(pid, e))?;
        let mut ns = 0;
        for thread in threads {
            let thread = thread.map_err(|e| CpuError::new(pid, e))?;
            // A thread that ended between the listing and here takes its time with it, as any thread that ended does.
            let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else {
                continue;
            };
            let run = text.split_ascii_whitespace().next().and_then(|field| field.parse::<u64>().ok());
            ns += run.ok_or_else(|| CpuError::new(pid, "its schedstat has no run time"))?;
        }
        Ok(Cpu { ns })
    }
}

impl Sub for Cpu {
    type Output = u64;

    /// Nanoseconds between two readings; zero if a thread's end took its time with it.
    fn sub(self, before: Cpu) -> u64 {
        self.ns.saturating_sub(before.ns)
    }
}

/// User and system time of a process, in clock ticks (10 ms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Ticks in user mode.
    pub user: u64,
    /// Ticks in the kernel.
    pub system: u64,
}

impl Split {
    /// Of the process `pid`, threads that have ended included.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn of(pid: u32) -> Result<Split, CpuError> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|e| CpuError::new(pid, e))?;
        Split::parse(&text).ok_or_else(|| CpuError::new(pid, "its stat could not be read"))
    }

    /// What was used since `before`.
    pub fn since(self, before: Split) -> Split {
        Split { user: self.user.saturating_sub(before.user), system: self.system.saturating_sub(before.system) }
    }

    /// Both.
    pub fn total(self) -> u64 {
        self.user + self.system
    }

    /// The kernel's share, 0 to 1; zero when nothing was used.
    pub fn kernel_share(self) -> f64 {
        let all = self.user + self.system;
        if all == 0 { 0.0 } else { self.system as f64 / all as f64 }
    }

    /// The command in field 2 may contain anything, blanks and parentheses included: fields count
    /// from its last parenthesis.
    fn parse(stat: &str) -> Option<Split> {
        let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(11);
        Some(Split { user: fields.next()?.parse().ok()?, system: fields.next()?.parse().ok()? })
    }
}

/// How often the threads of a process waited, by their own will.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches(u64);

impl Switches {
    /// Of this process.
    ///
    /// # Errors
    ///
    /// `/proc` is not there.
    pub fn own() -> Result<Switches, CpuError> {
        Switches::of(std::process::id())
    }

    /// Of the process `pid`.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn of(pid: u32) -> Result<Switches, CpuError> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| CpuError::new(pid, e))?;
        let status = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).ok();
        let counts = threads.flatten().filter_map(status).filter_map(|text| Switches::parse(&text));
        Ok(Switches(counts.sum()))
    }

    /// Those since `before`.
    pub fn since(self, before: Switches) -> u64 {
        self.0.saturating_sub(before.0)
    }

    fn parse(status: &str) -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    }
}

/// CPU time of a process could not be read.
#[derive(Debug)]
pub struct CpuError {
    pid: u32,
    why: String,
}

impl CpuError {
    fn new(pid: u32, why: impl Display) -> CpuError {
        CpuError { pid, why: why.to_string() }
    }
}

impl Display for CpuError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "CPU time of process {} cannot be read ({}): is it still running, and is /proc mounted?",
            self.pid, self.why
        )
    }
}

impl std::error::Error for CpuError {}

/// `CLOCK_MONOTONIC` in nanoseconds: the same clock in every process of this host.
pub fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// Nanoseconds since `start` (of [`now_ns`]).
pub fn elapsed_ns(start: u64) -> u64 {
    now_ns().saturating_sub(start)
}

fn clock_ns(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        process::Command,
        time::{Duration, Instant},
    };

    #[test]
    fn waits_are_counted_and_no_other_line_is() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t99\n";
        assert_eq!((Switches::parse(status), Switches::parse("Name:\tx\n")), (Some(17), None));
    }

    fn burn(ns: u64) {
        let start = Cpu::thread();
        while Cpu::thread() - start < ns {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn work_is_counted_and_sleep_is_not() {
        let before = Cpu::thread();
        burn(20_000_000);
        let worked = Cpu::thread() - before;
        std::thread::sleep(std::time::Duration::from_millis(30));
        let slept = Cpu::thread() - before - worked;
        assert!(worked >= 20_000_000 && slept < 5_000_000, "{worked} {slept}");
    }

    /// A process without threads that end, as this one has them.
    #[test]
    fn another_process_is_read_as_the_kernel_accounts_it() {
        let start = Instant::now();
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut idle = Command::new("sleep").arg("600").spawn().unwrap();
        let mut seen = Cpu::default();
        while seen.ns < 50_000_000 && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
            seen = Cpu::of(busy.id()).unwrap();
        }
        let (lasted, slept) = (start.elapsed(), Cpu::of(idle.id()).unwrap());
        for child in [&mut busy, &mut idle] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(seen.ns >= 50_000_000 && u128::from(seen.ns) <= lasted.as_nanos(), "{seen:?} of {lasted:?}");
        assert!(slept.ns < 40_000_000, "{slept:?}");
        assert!(Cpu::of(u32::MAX - 1).unwrap_err().to_string().contains("still running"));
    }

    #[test]
    fn a_hostile_command_name_does_not_shift_the_fields() {
        let stat = "77 (a) 1 2 (b c) S 1 77 77 0 -1 4194304 99 0 0 0 120 30 0 0 20 0 1 0 79272";
        assert_eq!(Split::parse(stat), Some(Split { user: 120, system: 30 }));
        assert_eq!(Split::parse("77 (a) S"), None);
        assert!((Split { user: 120, system: 30 }.kernel_share() - 0.2).abs() < 1e-9);
    }
}
