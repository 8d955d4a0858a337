//! pyarrow's Flight: C++ at both ends, each a Python process of its own that does nothing else.
//!
//! Server and client are [`SCRIPT`], run by a Python with pyarrow and numpy
//! (`pip install pyarrow numpy`). The server takes the batches from our Flight server and serves
//! them. The client takes them all once or for a while, reads a byte of each cache line of each
//! buffer as every side's consumer does, and says how long that took.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use overside_bench::measure::Cpu;
use serde::Deserialize;

use super::Sample;

/// Both processes.
pub struct PyArrow {
    server: Script,
    client: Script,
}

/// What the client says of a run.
#[derive(Debug, Deserialize)]
pub struct Run {
    pub scans: u64,
    pub rows: u64,
    pub bytes: u64,
    seconds: f64,
    cpu_ns: u64,
}

impl PyArrow {
    /// Serves what the Flight server at `source` serves in batches of `rows`.
    pub fn start(python: &Path, source: &str, rows: usize) -> Result<Self> {
        let rows = rows.to_string();
        let (server, address) = Script::start(python, &["serve", source, &rows])?;
        let (client, _) = Script::start(python, &["scan", &address, &rows])?;
        Ok(Self { server, client })
    }

    /// Scans for a while, once at least.
    pub fn run(&mut self, atleast: Duration) -> Result<Run> {
        writeln!(self.client.to, "{}", atleast.as_secs_f64())?;
        let said = self.client.line()?;
        serde_json::from_str(&said).with_context(|| format!("the pyarrow client said {said:?}"))
    }

    /// As a sample.
    pub fn sample(&mut self, atleast: Duration) -> Result<Sample> {
        let server = self.server.child.id();
        let before = Cpu::of(server)?;
        let run = self.run(atleast)?;
        // A thread that runs just now is a tick behind in the account of another process.
        std::thread::sleep(Duration::from_millis(8));
        let used = Cpu::of(server)? - before;
        let rows = run.rows as f64;
        Ok(Sample {
            rows_per_s: rows / run.seconds,
            server_ns: used as f64 / rows,
            client_ns: run.cpu_ns as f64 / rows,
        })
    }
}

/// A process that runs the script; it ends when its standard input does.
struct Script {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Script {
    /// The process, and the first line that it says.
    fn start(python: &Path, arguments: &[&str]) -> Result<(Self, String)> {
        let mut child = Command::new(python)
            .args(["-c", SCRIPT])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", python.display()))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else { bail!("no pipes") };
        let mut script = Self { child, to, from: BufReader::new(from) };
        let line = script.line()?;
        Ok((script, line))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("the pyarrow process ended; its last words are above (it needs pyarrow and numpy)");
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SCRIPT: &str = include_str!("pyarrow.py");
