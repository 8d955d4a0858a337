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
    /// Which of how many figures this is.
    of: Cell<Option<(usize, usize)>>,
    /// When the parts began that are counted now.
    began_ns: Cell<u64>,
}

/// When a pipe gets its next line: what ends soon says nothing, and what takes long fills no file.
#[derive(Debug)]
struct Pace {
    next_ns: Cell<u64>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        let now = now_ns();
        Progress {
            terminal: stderr().is_terminal(),
            pace: Pace::from(now),
            of: Cell::new(None),
            began_ns: Cell::new(now),
        }
    }

    /// The next of several figures begins: the `at`th of `all`.
    pub(crate) fn begin(&self, at: usize, all: usize) {
        self.of.set((all > 1).then_some((at, all)));
        self.began_ns.set(now_ns());
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

    /// Says what stays to be read.
    pub(crate) fn tell(&self, line: &str) {
        let clear = if self.terminal { "\r\x1b[2K" } else { "" };
        let _ = writeln!(stderr(), "{clear}{line}");
    }

    /// Shows how much of it is done, and how long the rest takes if it goes on so.
    pub(crate) fn part(&self, what: &str, done: usize, all: usize) {
        let now = now_ns();
        if done == 0 {
            self.began_ns.set(now);
        }
        let of = self.of.get().map_or_else(String::new, |(at, all)| format!(" ({at} of {all})"));
        let what = format!("{what}{of}");
        let left = left(now - self.began_ns.get(), done, all);
        let percent = 100 * done.min(all) / all.max(1);
        if self.terminal {
            let filled = WIDTH * done.min(all) / all.max(1);
            let bar = "█".repeat(filled) + &"·".repeat(WIDTH - filled);
            let _ = write!(stderr(), "\r\x1b[2K{what} {bar} {percent} %{left}");
            let _ = stderr().flush();
        } else if self.pace.is_due(now_ns()) {
            let _ = writeln!(stderr(), "{what}: {percent} %{left}");
        }
    }
}

/// What the rest takes, by what was done until now; nothing while that is too little to
/// tell, or the rest too short.
fn left(elapsed_ns: u64, done: usize, all: usize) -> String {
    if done == 0 || done >= all || elapsed_ns < 1_000_000_000 {
        return String::new();
    }
    let rest_s = elapsed_ns as f64 / done as f64 * (all - done) as f64 / 1e9;
    match rest_s {
        ..2.0 => String::new(),
        ..100.0 => format!(", about {rest_s:.0} s left"),
        _ => format!(", about {:.0} min left", rest_s / 60.0),
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
    fn what_is_left_follows_from_what_was_done() {
        let second = 1_000_000_000;
        for (elapsed_s, done, all, wanted) in [
            (0, 0, 10, ""),
            (9, 0, 10, ""),
            (5, 1, 10, ", about 45 s left"),
            (60, 1, 11, ", about 10 min left"),
            (60, 10, 10, ""),
            (60, 99, 100, ""),
        ] {
            assert_eq!(left(elapsed_s * second, done, all), wanted, "{elapsed_s} s, {done} of {all}");
        }
    }

    #[test]
    fn a_pipe_gets_a_line_now_and_then() {
        let pace = Pace::from(100);
        let due = [100, LINE_NS + 99, LINE_NS + 100, LINE_NS + 101, 2 * LINE_NS + 100, 9 * LINE_NS];
        assert_eq!(due.map(|now| pace.is_due(now)), [false, false, true, false, true, true]);
    }
}
