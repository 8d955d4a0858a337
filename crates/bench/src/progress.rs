//! One line of progress on a terminal; nothing anywhere else.

use std::io::{IsTerminal, Write, stderr};

/// Where no prices are stored, they are measured first; whoever waits is told.
pub(crate) const MEASURING: &str = "measuring what transfers cost; `overside calibrate` would store that";

/// A line that is written over as things go on.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { shown: stderr().is_terminal() }
    }

    /// Shows what is done now.
    pub(crate) fn say(&self, what: &str) {
        if self.shown {
            // A terminal that went away is no reason to stop.
            let _ = write!(stderr(), "\r\x1b[2K{what} …");
            let _ = stderr().flush();
        }
    }

    /// Shows how much of it is done.
    pub(crate) fn part(&self, what: &str, done: usize, all: usize) {
        if self.shown {
            let filled = WIDTH * done.min(all) / all.max(1);
            let bar = "█".repeat(filled) + &"·".repeat(WIDTH - filled);
            let _ = write!(stderr(), "\r\x1b[2K{what} {bar} {} %", 100 * done.min(all) / all.max(1));
            let _ = stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }
}

const WIDTH: usize = 24;
