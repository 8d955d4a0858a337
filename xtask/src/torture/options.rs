//! What may be asked of torture, and its help.

use std::path::PathBuf;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TortureOptions {
    pub seconds: u64,
    /// Seeds count up from here; by the clock, if nothing is said.
    pub from: Option<u64>,
    /// One program, and what it saw.
    pub seed: Option<u64>,
    pub script: Option<PathBuf>,
    pub times: u64,
    pub jobs: usize,
    /// For each program that differs; one program is shortened only when this is said.
    pub shrink_seconds: Option<u64>,
    pub stop: bool,
    /// As many programs may differ: rare differences that are known and not mended yet.
    pub allow: usize,
    pub release: bool,
    pub library: Option<PathBuf>,
    /// Words that a program's steps must have, each of them.
    pub with: Vec<String>,
    /// Words that they must not have.
    pub without: Vec<String>,
    /// A folder for scripts of programs that differ.
    pub keep: Option<PathBuf>,
}

impl TortureOptions {
    /// None when the arguments mean nothing.
    pub fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self {
            seconds: 60,
            from: None,
            seed: None,
            script: None,
            times: 1,
            jobs: std::thread::available_parallelism().map_or(2, usize::from) * 2,
            shrink_seconds: None,
            stop: false,
            allow: 0,
            release: false,
            library: None,
            with: Vec::new(),
            without: Vec::new(),
            keep: None,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--stop" => options.stop = true,
                "--release" => options.release = true,
                "--with" => options.with.push((*arguments.next()?).to_owned()),
                "--without" => options.without.push((*arguments.next()?).to_owned()),
                name @ ("--script" | "--library" | "--keep") => {
                    let path = arguments.next().map(PathBuf::from)?;
                    match name {
                        "--script" => options.script = Some(path),
                        "--library" => options.library = Some(path),
                        _ => options.keep = Some(path),
                    }
                }
                name => {
                    let number = arguments.next()?.parse().ok()?;
                    match name {
                        "--seconds" if number > 0 => options.seconds = number,
                        "--from" => options.from = Some(number),
                        "--seed" => options.seed = Some(number),
                        "--times" if number > 0 => options.times = number,
                        "--jobs" if number > 0 => options.jobs = number as usize,
                        "--allow" => options.allow = number as usize,
                        "--shrink" => options.shrink_seconds = Some(number),
                        _ => return None,
                    }
                }
            }
        }
        Some(options)
    }
}

pub const HELP: &str = "\
usage: cargo xtask torture [--seconds N] [--from SEED] [--jobs N] [--stop] [--allow N] [--shrink SECONDS] [--keep FOLDER]
                           [--with WORD]... [--without WORD]...
       cargo xtask torture --seed SEED | --script FILE [--times N]
       both with [--release] or [--library FILE]

Makes random programs, two processes with sockets between them, and runs each plainly and under the sockets library.
What their calls return, how they end and whether they end must be equal; status 1 says that they were not.

  --seconds N       how long to go on making programs (60); a program that differs is finished
  --from SEED       the first seed; they count up from there (by the clock)
  --seed SEED       one program: its script, and what each step came to
  --script FILE     a script as printed, which may have been changed by hand
  --times N         runs of the one program (1)
  --jobs N          programs at a time
  --with WORD       only programs with a step of this verb, call or way of waiting; so for each WORD given
  --without WORD    only programs without one
  --stop            ends at the first difference
  --allow N         status 1 only when more than N programs differ (0): what is rare, known and not mended yet
  --shrink SECONDS  how long each of the first differing programs is shortened (60; 0: not at all); one program only if said
  --keep FOLDER     leaves a script of each differing program there
  --release         the library as it is shipped; otherwise with checks of overflow
  --library FILE    a library that has been built before

A script has a line for each step: VERB CONNECTION N PIECE CALL WAIT DELAY. xtask/src/torture/programs/ has the verbs.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_mean_nothing_are_refused() {
        let options = TortureOptions::parse(&["--seconds", "5", "--jobs", "3", "--stop", "--keep", "found"]).unwrap();
        assert_eq!(
            (options.seconds, options.jobs, options.stop, options.keep),
            (5, 3, true, Some(PathBuf::from("found")))
        );
        assert_eq!(TortureOptions::parse(&["--seed", "7"]).unwrap().seed, Some(7));
        for wrong in
            [&["--seconds"][..], &["--seconds", "0"], &["--seed", "x"], &["--forever"], &["5"], &["--jobs", "0"]]
        {
            assert_eq!(TortureOptions::parse(wrong), None, "{wrong:?}");
        }
    }
}
