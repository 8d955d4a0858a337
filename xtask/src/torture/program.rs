//! A random program: lists of steps, for the threads and children of two sides, as text and as
//! values.

use std::fmt;

use anyhow::{Context, Result, bail};

/// One step of a list. What does not matter for a verb is 0 or `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub verb: String,
    pub connection: usize,
    /// Bytes, rounds, microseconds, a number of a barrier or list: as the verb has it.
    pub n: i64,
    /// Bytes of one call.
    pub piece: i64,
    /// Which system call, or which of the verb's ways.
    pub call: String,
    /// How the step waits.
    pub wait: String,
    /// Microseconds after each call.
    pub delay: i64,
    /// Steps that were made together and go together; no part of the text.
    pub phase: u32,
}

impl Step {
    pub fn new(verb: &str, connection: usize) -> Self {
        let none = || "-".to_owned();
        Self { verb: verb.to_owned(), connection, n: 0, piece: 0, call: none(), wait: none(), delay: 0, phase: 0 }
    }

    pub fn n(mut self, n: i64) -> Self {
        self.n = n;
        self
    }

    pub fn piece(mut self, piece: i64) -> Self {
        self.piece = piece;
        self
    }

    pub fn call(mut self, call: &str) -> Self {
        call.clone_into(&mut self.call);
        self
    }

    pub fn wait(mut self, wait: &str) -> Self {
        wait.clone_into(&mut self.wait);
        self
    }

    pub fn delay(mut self, delay: i64) -> Self {
        self.delay = delay;
        self
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, connection, n, piece, call, wait, delay, .. } = self;
        write!(f, "{verb} {connection} {n} {piece} {call} {wait} {delay}")
    }
}

/// Where lists wait for one another. What it says depends on when its process is killed, and tells
/// nothing else.
pub fn is_barrier(step: &Step) -> bool {
    ["barrier", "settle"].contains(&step.verb.as_str())
}

/// The side that accepts, or the one that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    A,
    B,
}

impl Side {
    pub fn other(self) -> Self {
        if self == Self::A { Self::B } else { Self::A }
    }
}

/// The steps of a thread, or of a child process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    pub side: Side,
    pub child: bool,
    pub steps: Vec<Step>,
}

/// A program of two sides. The first list of a side is its main thread's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// `tcp`, `tcp6` or `unix`.
    pub family: String,
    /// Which side has the library: `both`, `A` or `B`.
    pub under: String,
    /// Whether ends look for each other from the first call on.
    pub soon: bool,
    /// The limit of descriptors; 0 leaves it, -1 is as large as the kernel lets it be.
    pub nofile: i64,
    /// How a side's main thread ends: `return` or `_exit`.
    pub ending: String,
    pub lists: Vec<List>,
}

impl Program {
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.lists.iter().flat_map(|list| &list.steps)
    }

    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let head = lines.next().context("an empty script")?;
        let ["program", family, "under", under, "soon", soon, "nofile", nofile, "ending", ending] =
            head.split_whitespace().collect::<Vec<_>>()[..]
        else {
            bail!("a script begins with: program FAMILY under SIDE soon 0|1 nofile N ending WAY");
        };
        let mut program = Self {
            family: family.to_owned(),
            under: under.to_owned(),
            soon: soon == "1",
            nofile: nofile.parse()?,
            ending: ending.to_owned(),
            lists: Vec::new(),
        };
        for line in lines {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["list", side @ ("A" | "B"), number, kind @ ("thread" | "child")] => {
                    if number.parse() != Ok(program.lists.len()) {
                        bail!("`{line}`: lists are numbered from 0 on");
                    }
                    let side = if side == "A" { Side::A } else { Side::B };
                    program.lists.push(List { side, child: kind == "child", steps: Vec::new() });
                }
                [verb, connection, n, piece, call, wait, delay] => {
                    let step = Step::new(verb, connection.parse()?).n(n.parse()?).piece(piece.parse()?);
                    let list = program.lists.last_mut().context("a step before the first list")?;
                    list.steps.push(step.call(call).wait(wait).delay(delay.parse()?));
                }
                _ => bail!("`{line}`: a step is VERB CONNECTION N PIECE CALL WAIT DELAY"),
            }
        }
        Ok(program)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, under, soon, nofile, ending, lists } = self;
        writeln!(f, "program {family} under {under} soon {} nofile {nofile} ending {ending}", u8::from(*soon))?;
        for (number, list) in lists.iter().enumerate() {
            writeln!(f, "list {:?} {number} {}", list.side, if list.child { "child" } else { "thread" })?;
            for step in &list.steps {
                writeln!(f, "  {step}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::generate::generate;
    use super::*;

    /// Steps know no phase after they have been text.
    fn without_phases(mut program: Program) -> Program {
        program.lists.iter_mut().flat_map(|list| &mut list.steps).for_each(|step| step.phase = 0);
        program
    }

    #[test]
    fn text_and_values_say_the_same() {
        for seed in 0..200 {
            let program = without_phases(generate(seed));
            assert_eq!(Program::parse(&program.to_string()).unwrap(), program);
        }
    }

    #[test]
    fn scripts_that_mean_nothing_are_refused() {
        let head = "program tcp under both soon 1 nofile 0 ending return\n";
        for wrong in ["", "list A 0 thread", "x", "list A 1 thread", "open 0 0 0 plain - 0", "list A 0 thread\nopen 0"]
        {
            let text = if wrong.is_empty() { String::new() } else { format!("{head}{wrong}") };
            assert_eq!(Program::parse(&text).is_err(), wrong != "list A 0 thread", "{wrong}");
        }
    }
}
