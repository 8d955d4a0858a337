//! Other processes of a measurement: this executable again, with hidden arguments.
//!
//! None outlives the one that measures. A child asks the kernel to be killed when its
//! parent dies, whatever the parent dies of; the parent kills and reaps by pid what it
//! started when it is done or fails. Nothing has a name in a file system: data goes over as
//! a memory file and a socket pair.

use crate::measure::Split;
use anyhow::{Context, Result, bail};
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Signal, getppid, set_parent_process_death_signal},
};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The hidden subcommand under which an executable runs [`crate::child_main`].
pub const SUBCOMMAND: &str = "bench-child";

/// A process beside the one that measures, killed and reaped when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: &'static str,
}

impl Process {
    /// Starts this executable as `bench-child ROLE PARENT ARGUMENTS…`, with `input` as its standard
    /// input; its standard output is the other end of the returned socket.
    ///
    /// Call it from the thread that lives longest: the kernel takes the death of the thread that
    /// started a child for its parent's.
    ///
    /// # Errors
    ///
    /// The executable cannot be started.
    pub fn start(
        name: &'static str,
        role: &str,
        arguments: &[&str],
        input: Option<OwnedFd>,
    ) -> Result<(Process, UnixStream)> {
        Process::start_in(&[], name, role, arguments, input)
    }

    /// As [`Process::start`], with more in its environment.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn start_in(
        environment: &[(&str, &OsStr)],
        name: &'static str,
        role: &str,
        arguments: &[&str],
        input: Option<OwnedFd>,
    ) -> Result<(Process, UnixStream)> {
        Process::start_by(&[], environment, name, role, arguments, input)
    }

    /// The same, by a command that is given the executable and its arguments behind its own,
    /// and runs it in its place.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn start_by(
        by: &[&str],
        environment: &[(&str, &OsStr)],
        name: &'static str,
        role: &str,
        arguments: &[&str],
        input: Option<OwnedFd>,
    ) -> Result<(Process, UnixStream)> {
        let (ours, theirs) = UnixStream::pair().context("no socket pair could be made")?;
        let executable = std::env::current_exe().context("the path of this executable is unknown")?;
        let mut command = match by {
            [] => Command::new(executable),
            [program, words @ ..] => {
                let mut command = Command::new(program);
                command.args(words).arg(executable);
                command
            }
        };
        let child = command
            .envs(environment.iter().copied())
            .args([SUBCOMMAND, role, &std::process::id().to_string()])
            .args(arguments)
            .stdin(input.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .with_context(|| format!("the {name} could not be started"))?;
        Ok((Process { child, name }, ours))
    }

    /// Takes care of a child that was started otherwise.
    pub(crate) fn of(child: Child, name: &'static str) -> Process {
        Process { child, name }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// User and system time it has used.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn used(&self) -> Result<Split> {
        Ok(Split::of(self.child.id())?)
    }

    /// Waits until it has ended by itself; after `patience` it is killed all the same.
    pub fn end(mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    ///
    /// The kernel does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("the {} cannot be watched", self.name))
    }

    /// An error if it has ended.
    ///
    /// # Errors
    ///
    /// It has ended; says how.
    pub fn alive(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => bail!("the {} ended early ({status}); its last words are above", self.name),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; then there is only to reap.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Another program, which is asked to end when the thread that starts it does: give it the program
/// and its arguments.
pub(crate) fn guarded() -> Command {
    let mut command = Command::new(GUARD);
    command.args(["--pdeathsig", "TERM"]);
    command
}

/// What [`guarded`] needs; Debian's package util-linux has it.
pub(crate) const GUARD: &str = "setpriv";

/// Called first in a child: ties its life to the parent's.
///
/// # Errors
///
/// The parent, of process id `parent`, is gone already, or the kernel refuses.
pub(crate) fn die_with(parent: &OsStr) -> Result<()> {
    let parent = parent.to_str().and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
    let parent = parent.context(
        "the parent's process id is missing; this command is for `overside demo` and `overside bench` themselves",
    )?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("the kernel does not tie this process to its parent")?;
    // It may have died before the kernel knew.
    if getppid() != Some(parent) {
        bail!("the process that started this one is gone");
    }
    Ok(())
}

/// The socket that a child has as standard output.
pub(crate) fn child_socket() -> Result<UnixStream> {
    Ok(UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// A memory file that holds `bytes`, to be given to a child.
pub(crate) fn memory_file(bytes: &[u8]) -> Result<File> {
    let file = memfd_create("overside-bench", MemfdFlags::CLOEXEC).context("no memory file could be made")?;
    let mut file = File::from(file);
    file.write_all(bytes).context("memory ran out while rows were handed to another process")?;
    file.rewind()?;
    Ok(file)
}

/// A child's standard input, which is a memory file that others may read at the same time.
pub(crate) fn child_file() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Reads one little-endian word.
pub(crate) fn read_word(socket: &mut UnixStream) -> io::Result<u64> {
    let mut word = [0; 8];
    socket.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// Writes little-endian words.
pub(crate) fn write_words(socket: &mut UnixStream, words: &[u64]) -> io::Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    socket.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Whoever ends a figure in mid-measurement leaves nobody behind.
    #[test]
    fn what_is_guarded_ends_with_who_started_it() {
        let begun = Instant::now();
        let starts = move || {
            let sleeper = Process::of(guarded().args(["sleep", "600"]).spawn().unwrap(), "sleeper");
            let name = format!("/proc/{}/comm", sleeper.pid());
            while std::fs::read_to_string(&name).is_ok_and(|name| name != "sleep\n") {
                assert!(begun.elapsed() < Duration::from_secs(60), "it does not begin");
                thread::sleep(Duration::from_millis(10));
            }
            sleeper
        };
        let mut sleeper = thread::spawn(starts).join().unwrap();
        while sleeper.ended().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it goes on alone");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_memory_file_is_read_by_several() {
        let file = memory_file(b"rows").unwrap();
        for _ in 0..2 {
            let copy = File::from(file.as_fd().try_clone_to_owned().unwrap());
            let mut bytes = [0; 4];
            copy.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"rows");
        }
    }

    #[test]
    fn a_child_whose_parent_is_another_gives_up() {
        assert!(die_with(OsStr::new("no number")).is_err());
        let error = die_with(OsStr::new("1999999999")).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
        set_parent_process_death_signal(None).unwrap();
    }

    #[test]
    fn a_dropped_process_is_gone_and_reaped() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let id = child.id();
        drop(Process { child, name: "sleeper" });
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn an_early_end_is_told() {
        let child = Command::new("false").spawn().unwrap();
        let mut process = Process { child, name: "sleeper" };
        while process.alive().is_ok() {
            std::thread::yield_now();
        }
        assert!(process.alive().unwrap_err().to_string().contains("the sleeper ended early"));
    }
}
