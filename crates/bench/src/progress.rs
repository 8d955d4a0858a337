//! One line of progress on a terminal; anywhere else a line now and then.

use crate::measure::now_ns;
use std::{
    cell::Cell,
    io::{IsTerminal, Write, stderr},
};

/// Where no prices are stored, they are measured first; whoever waits is told.
pub(crate) const MEASURING: &str = "measuring what transfers cost; `overside calibrate` would store that";

/// How far things are, on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    /// A line is written over as things go on.
    terminal: bool,
    pace: Pace,
}

/// When a pipe gets its next line: what ends soon says nothing, and what takes long fills no file.
#[derive(Debug)]
struct Pace {
    next_ns: Cell<u64>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { terminal: stderr().is_terminal(), pace: Pace::from(now_ns()) }
    }

    /// Shows what is done now.
    pub(crate) fn say(&self, what: &str) {
        // A terminal or a pipe that went away is no reason to stop.
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[2K{what} …");
            let _ = stderr().flush();
        } else if self.pace.is_due(now_ns()) {
            let _ = writeln!(stderr(), "{what} …");
        }
    }

    /// Shows how much of it is done.
    pub(crate) fn part(&self, what: &str, done: usize, all: usize) {
        let percent = 100 * done.min(all) / all.max(1);
        if self.terminal {
            let filled = WIDTH * done.min(all) / all.max(1);
            let bar = "█".repeat(filled) + &"·".repeat(WIDTH - filled);
            let _ = write!(stderr(), "\r\x1b[2K{what} {bar} {percent} %");
            let _ = stderr().flush();
        } else if self.pace.is_due(now_ns()) {
            let _ = writeln!(stderr(), "{what}: {percent} %");
        }
    }
}

impl Pace {
    fn from(now_ns: u64) -> Pace {
        Pace { next_ns: Cell::new(now_ns + LINE_NS) }
    }

    /// Whether a line may be written now; the next comes later.
    fn is_due(&self, now_ns: u64) -> bool {
        let due = now_ns >= self.next_ns.get();
        if due {
            self.next_ns.set(now_ns + LINE_NS);
        }
        due
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }
}

const WIDTH: usize = 24;
/// Between two lines on a pipe.
const LINE_NS: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_gets_a_line_now_and_then() {
        let pace = Pace::from(100);
        let due = [100, LINE_NS + 99, LINE_NS + 100, LINE_NS + 101, 2 * LINE_NS + 100, 9 * LINE_NS];
        assert_eq!(due.map(|now| pace.is_due(now)), [false, false, true, false, true, true]);
    }
}
