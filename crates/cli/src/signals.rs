//! Ctrl-C and SIGTERM: noticed between two steps of a command, so that each ends cleanly.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags};

/// A file beyond `ulimit -f` is an error of its writer then, and no signal that ends the process.
pub fn ignore_file_size() {
    // Should the system refuse, the signal ends the process as ever.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// What the system's refusal of a thread means for people: its own text names neither cause.
pub const NO_THREAD: &str = "no thread could be started: too little memory, or too many threads (ulimit -v, -u)";

/// A command that was interrupted: nothing failed, and exit status 130 says so.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Whether a signal has come. A second one ends the process at once.
#[derive(Clone)]
pub struct Signals {
    raised: Arc<AtomicBool>,
}

impl Signals {
    /// Takes the signals over.
    ///
    /// # Errors
    /// The system refuses.
    pub fn take() -> Result<Signals> {
        let raised = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset, the second finds it set.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, raised.clone())
                .and_then(|_| signal_hook::flag::register(signal, raised.clone()))
                .context("signals cannot be taken over")?;
        }
        Ok(Signals { raised })
    }

    /// An error once a signal has come.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn check(&self) -> Result<()> {
        if self.raised.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }
}

/// Sleeps until a signal comes, or somebody rings.
pub struct Doorbell {
    ours: UnixStream,
    theirs: UnixStream,
}

/// Ends the sleep as a signal does.
#[derive(Debug)]
pub struct Ringer(UnixStream);

impl Ringer {
    /// Rings; more than once is as good as once.
    pub fn ring(&self) {
        // A full socket has rung long ago.
        let _ = (&self.0).write(&[1]);
    }
}

impl Doorbell {
    /// Takes the signals over; from now on none ends the process.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new() -> Result<Doorbell> {
        let (ours, theirs) = UnixStream::pair().context("no socket pair could be made")?;
        for signal in [SIGINT, SIGTERM] {
            let end = theirs.try_clone().context("no socket could be duplicated")?;
            signal_hook::low_level::pipe::register(signal, end).context("signals cannot be taken over")?;
        }
        Ok(Doorbell { ours, theirs })
    }

    /// Somebody who may ring.
    ///
    /// # Errors
    /// The system refuses.
    pub fn ringer(&self) -> Result<Ringer> {
        Ok(Ringer(self.theirs.try_clone().context("no socket could be duplicated")?))
    }

    /// Calls `work`, which has no part that a sudden end would harm: a signal meanwhile ends the
    /// process, as an interrupted command ends, with `meant` on standard error.
    ///
    /// # Errors
    /// The system has no room for a thread or socket.
    pub fn or_interrupted<T>(&self, meant: &str, work: impl FnOnce() -> T) -> Result<T> {
        let (done, ends) = UnixStream::pair().context("no socket pair could be made")?;
        std::thread::scope(|scope| {
            let watches = std::thread::Builder::new().name("signals".into());
            let watching = watches.spawn_scoped(scope, move || self.exit_unless(&ends, meant));
            watching.context(NO_THREAD)?;
            let outcome = work();
            drop(done);
            Ok(outcome)
        })
    }

    /// Returns when the other end of `done` is gone; a signal ends the process before.
    fn exit_unless(&self, done: &UnixStream, meant: &str) {
        loop {
            let mut watched = [PollFd::new(&self.ours, PollFlags::IN), PollFd::new(done, PollFlags::IN)];
            // What the system refuses now and then is tried again.
            let _ = rustix::event::poll(&mut watched, None);
            let [rung, over] = watched.map(|watched| !watched.revents().is_empty());
            if rung {
                // Nobody may be listening there.
                let _ = writeln!(std::io::stderr(), "overside: interrupted; {meant}");
                std::process::exit(130);
            }
            if over {
                return;
            }
        }
    }

    /// Sleeps until a signal comes or somebody rings.
    pub fn wait(mut self) {
        // An error could only come of a closed socket, whose other ends this process holds for good.
        let _ = self.ours.read(&mut [0]);
    }
}
