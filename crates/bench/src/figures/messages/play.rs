//! Two processes pass a message back and forth: who leads counts, who follows answers.

use super::{bare, sockets, verbs};
use crate::{
    measure::{Cpu, elapsed_ns, now_ns},
    process::{Process, child_socket, read_word, write_words},
};
use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::{
    ffi::OsString,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

/// A message and its way: one end of it.
pub(in crate::figures) trait Ball {
    /// Passes it on, for the last time if `end`.
    fn send(&mut self, end: bool) -> Result<()>;

    /// Waits for it; whether it was the last time.
    fn receive(&mut self) -> Result<bool>;
}

/// One end of a connection.
pub(in crate::figures) trait Side {
    /// Passes messages of `size` bytes and takes the answers for so long.
    fn lead(&mut self, slice_ns: u64, size: usize) -> Result<Stretch>;

    /// Answers until the last message.
    fn follow(&mut self, size: usize) -> Result<()>;
}

/// What a stretch came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::figures) struct Stretch {
    pub(in crate::figures) round_trips: u64,
    pub(in crate::figures) wall_ns: u64,
    /// Processor time of both processes.
    pub(in crate::figures) cpu_ns: u64,
}

impl Stretch {
    pub(in crate::figures) fn per_s(&self) -> f64 {
        self.round_trips as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    pub(in crate::figures) fn cpu_each(&self) -> f64 {
        self.cpu_ns as f64 / self.round_trips.max(1) as f64
    }
}

/// The leading end's part.
pub(in crate::figures) fn lead(ball: &mut impl Ball, slice_ns: u64) -> Result<Stretch> {
    let mut pass = |times: u64| -> Result<()> {
        for _ in 0..times {
            ball.send(false)?;
            if ball.receive()? {
                bail!("the other end stopped by itself");
            }
        }
        Ok(())
    };
    pass(WARM_UP)?;
    let (start, before) = (now_ns(), Cpu::own());
    let (mut round_trips, mut wall_ns) = (0, 0);
    while wall_ns < slice_ns {
        pass(BATCH)?;
        round_trips += BATCH;
        wall_ns = elapsed_ns(start);
    }
    let cpu_ns = Cpu::own() - before;
    ball.send(true)?;
    Ok(Stretch { round_trips, wall_ns, cpu_ns })
}

/// The other end's part.
pub(in crate::figures) fn follow(ball: &mut impl Ball) -> Result<()> {
    while !ball.receive()? {
        ball.send(false)?;
    }
    Ok(())
}

/// A side with the process at its other end.
pub(in crate::figures) struct Match {
    pub(in crate::figures) name: String,
    side: Box<dyn Side>,
    line: UnixStream,
    /// On another host it is none of this one's.
    _process: Option<Process>,
}

impl Match {
    /// Starts the other process, which is to be `kind` with these arguments and has `input` as its
    /// standard input; `open` makes this end of it.
    pub(in crate::figures) fn start(
        seats: &Seats,
        name: &str,
        arguments: &[&str],
        input: Option<OwnedFd>,
        open: impl FnOnce(&mut UnixStream) -> Result<Box<dyn Side>>,
    ) -> Result<Match> {
        let (process, line) = seats.across(|| Process::start("answering process", ROLE, arguments, input))?;
        Match::over(name, line, Some(process), open)
    }

    /// With the process at the other end of `line`.
    pub(super) fn over(
        name: &str,
        mut line: UnixStream,
        process: Option<Process>,
        open: impl FnOnce(&mut UnixStream) -> Result<Box<dyn Side>>,
    ) -> Result<Match> {
        line.set_read_timeout(Some(PATIENCE)).context("a socket refuses a deadline")?;
        let side = open(&mut line).with_context(|| name.to_owned())?;
        Ok(Match { name: name.to_owned(), side, line, _process: process })
    }

    /// Plays for so long.
    pub(in crate::figures) fn play(&mut self, slice_ns: u64, size: usize) -> Result<Stretch> {
        write_words(&mut self.line, &[size as u64])?;
        let mut stretch = self.side.lead(slice_ns, size).with_context(|| self.name.clone())?;
        // The warm-up's share of the other's time is as large as that of its messages.
        let all = read_word(&mut self.line).with_context(|| format!("{}: the other process ended", self.name))?;
        stretch.cpu_ns += all * stretch.round_trips / (stretch.round_trips + WARM_UP);
        Ok(stretch)
    }
}

/// The answering process.
pub(in crate::figures) fn child(arguments: &[OsString]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let mut line = child_socket()?;
    let input = || std::io::stdin().as_fd().try_clone_to_owned();
    let mut side: Box<dyn Side> = match arguments[..] {
        ["busy"] => loop {
            std::hint::spin_loop();
        },
        ["spin"] => Box::new(bare::Spin::theirs(input()?)?),
        ["futex"] => Box::new(bare::Futex::theirs(input()?)?),
        ["unix"] => Box::new(sockets::Stream::unix(input()?)),
        ["tcp", address, secret] => Box::new(sockets::Stream::connect(address, secret)?),
        ["verbs", way, rendezvous] => Box::new(verbs::Verbs::connect(way.parse()?, &rendezvous.parse()?, &mut line)?),
        _ => bail!("there is no such side: {arguments:?}"),
    };
    // The parent hangs up when it is done.
    while let Ok(size) = read_word(&mut line) {
        let before = Cpu::own();
        side.follow(size as usize)?;
        write_words(&mut line, &[Cpu::own() - before])?;
    }
    Ok(())
}

/// Which processors this process may use, put back when dropped; children
/// started meanwhile inherit them.
pub(in crate::figures) struct Pinned(CpuSet);

impl Pinned {
    fn to(some: &CpuSet) -> Result<Pinned> {
        let all = allowed()?;
        sched_setaffinity(None, some).context("the kernel does not pin this process to a processor")?;
        Ok(Pinned(all))
    }

    /// How many there are.
    pub(in crate::figures) fn processors() -> usize {
        sched_getaffinity(None).map_or(1, |set| set.count() as usize)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Where the ends of a side run: this process where it is pinned to, and what it starts as well,
/// unless it is the other end.
pub(in crate::figures) struct Seats {
    other: CpuSet,
    pinned: Pinned,
    _beside: Vec<(Process, UnixStream)>,
}

impl Seats {
    /// On the first processors of those allowed now, beside programs that keep them
    /// busy. `apart`: each end on one of its own, so that it does not depend on the
    /// scheduler whether there are two.
    pub(super) fn take(processors: usize, busy: usize, apart: bool) -> Result<Seats> {
        let all = allowed()?;
        let set = |skipped: usize, count: usize| set_of(cpus_of(&all).skip(skipped).take(count));
        let apart = apart && processors == 2 && all.count() >= 2;
        let (ours, other) = if apart { (set(0, 1), set(1, 1)) } else { (set(0, processors), set(0, processors)) };
        let pinned = Pinned::to(&ours)?;
        let hog = |_| Process::start("busy process", ROLE, &["busy"], None);
        Ok(Seats { other, pinned, _beside: (0..busy).map(hog).collect::<Result<_>>()? })
    }

    /// The processors of this end and of the other one, as `taskset` takes them.
    pub(super) fn lists(&self) -> Result<[String; 2]> {
        let list = |set: &CpuSet| cpus_of(set).map(|cpu| cpu.to_string()).collect::<Vec<_>>().join(",");
        Ok([list(&allowed()?), list(&self.other)])
    }

    /// What `start` starts is the other end.
    pub(in crate::figures) fn across<T>(&self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        let _there = Pinned::to(&self.other)?;
        start()
    }

    /// What `start` starts has so many processors: those that this process is not on come first.
    pub(in crate::figures) fn on<T>(&self, processors: usize, start: impl FnOnce() -> Result<T>) -> Result<T> {
        let ours = allowed()?;
        let (shared, free): (Vec<_>, Vec<_>) = cpus_of(&self.pinned.0).partition(|cpu| ours.is_set(*cpu));
        let _there = Pinned::to(&set_of(free.into_iter().chain(shared).take(processors)))?;
        start()
    }
}

fn cpus_of(set: &CpuSet) -> impl Iterator<Item = usize> {
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu))
}

fn set_of(cpus: impl Iterator<Item = usize>) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.for_each(|cpu| set.set(cpu));
    set
}

fn allowed() -> Result<CpuSet> {
    sched_getaffinity(None).context("the kernel does not say which processors this process may use")
}

/// The role under which a process answers.
pub(in crate::figures) const ROLE: &str = "figure-answer";
pub(in crate::figures) const WARM_UP: u64 = 32;
/// Round trips between two looks at the clock.
const BATCH: u64 = 16;
pub(in crate::figures) const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_apart_share_no_processor_and_all_is_put_back() {
        let before = allowed().unwrap();
        let seats = Seats::take(2, 0, true).unwrap();
        let ours = allowed().unwrap();
        let theirs = seats.across(allowed).unwrap();
        assert_eq!(allowed().unwrap(), ours, "whoever starts the other end stays where it is");
        let first = |set: &CpuSet| cpus_of(set).next().map(|cpu| cpu.to_string());
        let lists = seats.lists().unwrap().map(|list| list.split(',').next().map(str::to_owned));
        assert_eq!(lists, [first(&ours), first(&theirs)]);
        if before.count() >= 2 {
            assert_eq!((ours.count(), theirs.count()), (1, 1));
            assert!(cpus_of(&ours).all(|cpu| !theirs.is_set(cpu)));
        }
        for wanted in [1, 2] {
            let given = seats.on(wanted, allowed).unwrap();
            assert_eq!(given.count(), before.count().min(wanted as u32));
            // It shares this process's processor only where there is no other.
            assert_eq!(cpus_of(&ours).any(|cpu| given.is_set(cpu)), before.count() <= wanted as u32);
        }
        assert_eq!(allowed().unwrap(), ours, "whoever starts others stays where it is");
        drop(seats);
        assert_eq!(allowed().unwrap(), before);
    }
}
