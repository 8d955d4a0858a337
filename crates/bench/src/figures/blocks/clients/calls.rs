//! System calls of processes, by `perf stat`: it counts them in the kernel and stops nobody, so
//! that who polls and who sleeps is as it is without it.

use crate::{
    figures::oltp::place::program_at,
    process::{Process, guarded},
};
use anyhow::{Context, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process},
};
use std::{
    io::{Read, Write},
    os::fd::AsFd,
    process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// What some processes called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) all: u64,
    /// Of them, to sleep until another thread says so, or to say so: what a lock does that somebody
    /// else holds, too.
    pub(super) futexes: u64,
}

/// Counts when it is told to.
pub(super) struct Counting {
    perf: Process,
    orders: ChildStdin,
    answers: ChildStdout,
    said: ChildStderr,
    patience: Duration,
}

impl Counting {
    pub(super) fn of(pids: &[u32]) -> Result<Counting> {
        let perf = program_at("perf").context("there is no perf; install linux-perf")?;
        let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = guarded();
        command.arg(perf);
        command.args(["stat", "-x", ",", "--no-inherit", "--delay", "-1", "--control", "fd:0,1", "-e", EVENTS, "-p"]);
        Counting::begun(command.arg(&pids).env("LC_ALL", "C"), PATIENCE)
    }

    fn begun(command: &mut Command, patience: Duration) -> Result<Counting> {
        let mut perf = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("perf could not be started")?;
        let ends = (perf.stdin.take(), perf.stdout.take(), perf.stderr.take());
        let perf = Process::of(perf, "perf");
        let (Some(orders), Some(answers), Some(said)) = ends else { anyhow::bail!("perf has no pipes") };
        let mut counting = Counting { perf, orders, answers, said, patience };
        // It answers once it has found the processes.
        match counting.tell("disable") {
            Ok(()) => Ok(counting),
            Err(error) => {
                let words = counting.words().unwrap_or_else(|_| error.to_string());
                anyhow::bail!("perf does not count: {}", words.trim())
            }
        }
    }

    pub(super) fn start(&mut self) -> Result<()> {
        self.tell("enable")
    }

    pub(super) fn end(mut self) -> Result<Calls> {
        self.tell("disable")?;
        let words = self.words()?;
        Calls::parse(&words).with_context(|| format!("perf said {words:?}"))
    }

    /// It says that it has heard.
    fn tell(&mut self, order: &str) -> Result<()> {
        writeln!(self.orders, "{order}")?;
        let (mut answer, mut byte, until) = (Vec::new(), [0], Instant::now() + self.patience);
        while !answer.ends_with(b"\n") {
            comes(&self.answers, until)?;
            ensure!(self.answers.read(&mut byte)? == 1, "perf has ended");
            answer.push(byte[0]);
        }
        ensure!(answer.ends_with(b"ack\n"), "perf does not do as it is told");
        Ok(())
    }

    /// What it says at its end.
    fn words(&mut self) -> Result<String> {
        if let Some(pid) = Pid::from_raw(self.perf.pid() as i32) {
            let _ = kill_process(pid, Signal::INT);
        }
        let (mut words, mut some, until) = (Vec::new(), [0; 4096], Instant::now() + self.patience);
        loop {
            comes(&self.said, until)?;
            match self.said.read(&mut some)? {
                0 => return Ok(String::from_utf8_lossy(&words).into_owned()),
                read => words.extend_from_slice(&some[..read]),
            }
        }
    }
}

/// Waits until there is something to read, or its end.
fn comes(from: &impl AsFd, until: Instant) -> Result<()> {
    let left = Timespec::try_from(until.saturating_duration_since(Instant::now()))?;
    ensure!(poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&left))? > 0, "perf does not answer in time");
    Ok(())
}

impl Calls {
    /// Lines of `count,unit,event,…`.
    fn parse(words: &str) -> Option<Calls> {
        let count = |event: &str| {
            let mut lines = words.lines().map(|line| line.split(',').collect::<Vec<_>>());
            lines.find(|fields| fields.get(2) == Some(&event))?[0].parse().ok()
        };
        let (all, futexes) = EVENTS.split_once(',')?;
        Some(Calls { all: count(all)?, futexes: count(futexes)? })
    }
}

/// On a machine with other things to do.
const PATIENCE: Duration = Duration::from_secs(10);
const EVENTS: &str = "raw_syscalls:sys_enter,syscalls:sys_enter_futex";

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getppid;

    #[test]
    fn counts_are_read_and_what_was_not_counted_is_none() {
        let said = "Events enabled\n108,,raw_syscalls:sys_enter,265254,100.00,,\n7,,syscalls:sys_enter_futex,265254,100.00,,\n";
        assert_eq!(Calls::parse(said), Some(Calls { all: 108, futexes: 7 }));
        assert_eq!(Calls::parse(&said.replace("108", "<not counted>")), None);
        assert_eq!(Calls::parse("event syntax error"), None);
    }

    /// Where there is a perf that may count, it counts what is called meanwhile, and nothing that
    /// is called before. Other tests call things in this process, too.
    #[test]
    fn what_is_called_meanwhile_is_counted() {
        let called = |times| (0..times).for_each(|_| _ = getppid());
        let Ok(mut counting) = Counting::of(&[std::process::id()]) else { return };
        called(100 * CALLS);
        counting.start().unwrap();
        called(CALLS);
        let calls = counting.end().unwrap();
        assert!((CALLS..50 * CALLS).contains(&calls.all), "{calls:?}");
    }

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        let begun = Instant::now();
        let refused = Counting::begun(Command::new("sleep").arg("600"), Duration::from_millis(300));
        assert!(refused.is_err_and(|error| error.to_string().contains("does not count")));
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    const CALLS: u64 = 5000;
}
