//! Who starts a server's threads.

use std::fmt;

use overside_verbs::VerbsError;

/// Starts threads: the operating system's, or those of a simulation that runs one at a time.
pub trait Threads: Send + Sync + fmt::Debug {
    /// Runs `run` on a thread of its own, called `name`.
    ///
    /// # Errors
    /// When there can be no further thread.
    fn start(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<Running, VerbsError>;
}

/// A thread that was started.
pub struct Running(Box<dyn FnOnce() + Send + Sync>);

impl Running {
    /// `join` waits for the thread's end.
    pub fn new(join: impl FnOnce() + Send + Sync + 'static) -> Running {
        Running(Box::new(join))
    }

    /// Waits for its end.
    pub fn join(self) {
        (self.0)();
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

/// Threads of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemThreads;

impl Threads for SystemThreads {
    fn start(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<Running, VerbsError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.map_err(|e| VerbsError::no_thread(&e))?;
        // A panic of the thread was reported where it was caught.
        Ok(Running::new(move || drop(thread.join())))
    }
}
