//! The other libraries' side: a small C program each, compiled where their headers are installed,
//! run as two processes.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use overside_bench::figures::Sample;
use rustix::process::{Pid, Signal, kill_process};

/// A library that gathers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Libfabric,
    Ucx,
}

impl Library {
    pub const ALL: [Library; 2] = [Library::Libfabric, Library::Ucx];

    pub fn name(self) -> &'static str {
        match self {
            Library::Libfabric => "libfabric",
            Library::Ucx => "UCX",
        }
    }

    /// Source, and what it is linked with.
    fn source(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Library::Libfabric => (include_str!("ofi.c"), &["-lfabric"]),
            Library::Ucx => (include_str!("ucx.c"), &["-lucp", "-lucs"]),
        }
    }

    /// What to install where it does not compile.
    fn packages(self) -> &'static str {
        match self {
            Library::Libfabric => "libfabric-dev",
            Library::Ucx => "libucx-dev",
        }
    }
}

/// A directory with the programs; gone when it is dropped.
pub struct Programs(PathBuf);

impl Programs {
    pub fn new() -> Result<Programs> {
        let directory = std::env::temp_dir().join(format!("overside-peers-gather-{}", std::process::id()));
        std::fs::create_dir(&directory).with_context(|| format!("{} cannot be made", directory.display()))?;
        let programs = Programs(directory);
        std::fs::write(programs.0.join("gather.h"), include_str!("gather.h"))?;
        Ok(programs)
    }

    /// The program for a library; an error says why there is none.
    pub fn compile(&self, library: Library) -> Result<PathBuf> {
        let (text, libraries) = library.source();
        let (source, program) = (self.0.join(format!("{library:?}.c")), self.0.join(format!("{library:?}")));
        std::fs::write(&source, text)?;
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let said = Command::new(&compiler).args(["-O2", "-o"]).arg(&program).arg(&source).args(libraries).output();
        let said = said.with_context(|| format!("there is no C compiler {}", compiler.display()))?;
        let first = String::from_utf8_lossy(&said.stderr).lines().next().unwrap_or_default().to_owned();
        ensure!(said.status.success(), "it does not compile here (Debian's {} is needed): {first}", library.packages());
        Ok(program)
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How long messages are, and of how many records.
#[derive(Clone, Copy, Debug)]
pub struct MessageKind {
    pub region_bytes: usize,
    pub record_bytes: usize,
    pub per_message: usize,
}

/// A sender and a receiver of a library.
pub struct Pair {
    sender: Line,
    receiver: Line,
    /// Gather entries a message may have.
    pub entries: usize,
}

impl Pair {
    /// Starts and connects both.
    pub fn start(program: &Path, provider: &str, kind: MessageKind) -> Result<Pair> {
        let MessageKind { region_bytes, record_bytes, per_message } = kind;
        let numbers = [region_bytes, record_bytes, per_message].map(|number| number.to_string());
        let start = |role: &str, address: &str| {
            let mut arguments = vec![role];
            arguments.extend(numbers.iter().map(String::as_str));
            arguments.extend([provider, address]);
            Line::start(program, &arguments)
        };
        let mut receiver = start("receive", "")?;
        let address = receiver.read()?;
        let mut sender = start("send", &address)?;
        let [entries] = sender.numbers("ready")?;
        Ok(Pair { sender, receiver, entries: entries as usize })
    }

    /// What so many messages came to at the receiver, sent in this way.
    pub fn check(&mut self, packed: bool, messages: u64) -> Result<u64> {
        Ok(self.play("check", packed, u64::MAX, messages)?.1)
    }

    /// Sends for so long.
    pub fn run(&mut self, packed: bool, slice_ns: u64) -> Result<Sample> {
        Ok(self.play("plain", packed, slice_ns, u64::MAX)?.0)
    }

    fn play(&mut self, receive: &str, packed: bool, slice_ns: u64, messages: u64) -> Result<(Sample, u64)> {
        self.receiver.say(receive)?;
        let [] = self.receiver.numbers("ready")?;
        self.sender.say(&format!("{} {slice_ns} {messages}", if packed { "pack" } else { "gather" }))?;
        let [end, receiver_ns, received, digest] = self.receiver.numbers("done")?;
        let [start, sender_ns, bytes, requests] = self.sender.numbers("sent")?;
        self.sender.say("rest")?;
        self.receiver.say("rest")?;
        ensure!(received == bytes, "{received} bytes of {bytes} arrived");
        let wall_ns = end.saturating_sub(start);
        Ok((Sample { bytes, requests, wall_ns, sender_ns, receiver_ns, ..Sample::default() }, digest))
    }
}

/// The digest that receivers of these programs tell: the sum of each record's FNV-1a.
pub fn digest_of(record: &[u8]) -> u64 {
    record.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// A process that is told lines and answers lines.
struct Line {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Line {
    fn start(program: &Path, arguments: &[&str]) -> Result<Line> {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", program.display()))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else { bail!("no pipes") };
        Ok(Line { child, to, from: BufReader::new(from) })
    }

    fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.to, "{line}").context("it has ended; its last words are above")
    }

    fn read(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("it has ended; its last words are above");
        }
        Ok(line.trim().to_owned())
    }

    /// The numbers of a line that begins with `word`.
    fn numbers<const N: usize>(&mut self, word: &str) -> Result<[u64; N]> {
        let line = self.read()?;
        let numbers = line.strip_prefix(word).map(|rest| rest.split_whitespace().map(str::parse).collect());
        let numbers: Option<Vec<u64>> = numbers.and_then(Result::ok);
        numbers
            .and_then(|n| n.try_into().ok())
            .with_context(|| format!("{word} and {N} numbers were due, {line:?} came"))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Asked first: libfabric takes its segment out of /dev/shm then, and leaves it there when it is killed.
        let asked = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _ = asked.map(|child| kill_process(child, Signal::TERM));
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long a program may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_is_read_by_its_word() {
        let mut line = Line::start(Path::new("/bin/cat"), &[]).unwrap();
        line.say("sent 1 2").unwrap();
        assert_eq!(line.numbers("sent").unwrap(), [1, 2]);
        line.say("sent 1").unwrap();
        assert!(line.numbers::<2>("sent").unwrap_err().to_string().contains("2 numbers were due"));
        line.say("done").unwrap();
        line.numbers::<0>("done").unwrap();
    }

    #[test]
    fn a_library_that_is_not_there_says_what_to_install() {
        let programs = Programs::new().unwrap();
        for library in Library::ALL {
            if let Err(error) = programs.compile(library) {
                assert!(error.to_string().contains(library.packages()), "{error:#}");
            }
        }
    }
}
