//! The ping-pong programs that come with libfabric and UCX, and NetPIPE over Open MPI, where they
//! are installed: run as they are, side by side with the rest.

use super::play::{Seats, Stretch};
use crate::process::{GUARD, Process, guarded};
use anyhow::{Context, Result, bail, ensure};
use std::{
    env,
    io::Read,
    net::TcpListener,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A program and what it goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// `fi_pingpong`, with this provider and kind of endpoint.
    PingPong { provider: &'static str, endpoint: &'static str },
    /// `ucx_perftest`, with this `UCX_TLS`.
    PerfTest { transport: &'static str },
    /// `NPopenmpi`, with this byte transfer layer of Open MPI.
    NetPipe { layer: &'static str },
}

/// One of them, with how many round trips fill a stretch.
pub(super) struct Foreign {
    program: Program,
    iterations: u64,
    /// Why it plays no more.
    failed: Option<String>,
}

impl Program {
    const ALL: [Program; 6] = [
        Program::PingPong { provider: "shm", endpoint: "rdm" },
        Program::PingPong { provider: "tcp", endpoint: "msg" },
        Program::PerfTest { transport: "shm" },
        Program::PerfTest { transport: "tcp" },
        Program::NetPipe { layer: "vader" },
        Program::NetPipe { layer: "tcp" },
    ];

    pub(super) fn name(self) -> String {
        match self {
            Program::PingPong { provider, .. } => format!("libfabric {provider}"),
            Program::PerfTest { transport } => format!("UCX {transport}"),
            // As the others call it.
            Program::NetPipe { layer: "vader" } => "Open MPI shm".to_owned(),
            Program::NetPipe { layer } => format!("Open MPI {layer}"),
        }
    }

    /// The command, and Debian's package that has it.
    fn command(self) -> (&'static str, &'static str) {
        match self {
            Program::PingPong { .. } => ("fi_pingpong", "libfabric-bin"),
            Program::PerfTest { .. } => ("ucx_perftest", "ucx-utils"),
            Program::NetPipe { .. } => ("NPopenmpi", "netpipe-openmpi"),
        }
    }

    /// What starts it, ending it when this process does.
    fn guarded() -> Command {
        let mut command = guarded();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Both ends of one that starts them itself, on processors as listed.
    fn both(layer: &str, lists: &[String; 2], iterations: u64, size: usize) -> Command {
        let mut command = Program::guarded();
        command.args([LAUNCHER, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1"]);
        command.args(["--mca", "btl", &format!("self,{layer}"), "--mca", "btl_vader_single_copy_mechanism", "none"]);
        command.args(["--mca", "btl_tcp_if_include", "lo"]);
        let (iterations, size) = (iterations.to_string(), size.to_string());
        for (end, list) in lists.iter().enumerate() {
            command.args(if end == 0 { &[][..] } else { &[":"] }).args(["-np", "1", PINNER, "-c", list, "NPopenmpi"]);
            command.args(["-p", "0", "-l", &size, "-u", &size, "-n", &iterations, "-o", "/dev/null"]);
        }
        command
    }

    /// One end of it. It ends when the process that started it does, and is asked to: libfabric
    /// takes its segment out of `/dev/shm` when it is, and leaves it there when it is killed.
    fn end(self, port: u16, iterations: u64, size: usize, leads: bool) -> Command {
        let mut command = Program::guarded();
        command.arg(self.command().0);
        let (port, iterations, size) = (port.to_string(), iterations.to_string(), size.to_string());
        match self {
            Program::PingPong { provider, endpoint } => {
                command.args(["-p", provider, "-e", endpoint, "-I", &iterations, "-S", &size]);
                command.args([if leads { "-P" } else { "-B" }, &port]);
            }
            Program::PerfTest { transport } => {
                command.env("UCX_TLS", transport);
                command.args(["-t", "tag_lat", "-w", "4", "-f", "-v", "-n", &iterations, "-s", &size, "-p", &port]);
            }
            Program::NetPipe { .. } => unreachable!("it starts both ends itself"),
        }
        if leads {
            command.arg("127.0.0.1");
        }
        command
    }

    /// Nanoseconds of a round trip, of what the leading end printed last: all tell the time of
    /// one way, in microseconds.
    fn round_trip_ns(self, printed: &str) -> Option<f64> {
        let last = printed.lines().rfind(|line| !line.trim().is_empty())?;
        let one_way = match self {
            // bytes, sent, acknowledged, total, time, MB/s, µs a transfer, transfers a second
            Program::PingPong { .. } => last.split_whitespace().nth(6)?,
            // iterations, median, average since the last line, average of all, …
            Program::PerfTest { .. } => last.split(',').nth(3)?,
            // …: … bytes … times --> … Mbps in … usec
            Program::NetPipe { .. } => last.trim_end().strip_suffix("usec")?.rsplit_once(" in ")?.1.trim(),
        };
        one_way.parse::<f64>().ok().filter(|us| *us > 0.0).map(|us| us * 2e3)
    }
}

impl Foreign {
    /// Those of the wanted ones that work where and beside what this process is now, and of each
    /// other one why it does not.
    pub(super) fn present(
        seats: &Seats,
        slice_ns: u64,
        size: usize,
        wants: impl Fn(&str) -> bool,
    ) -> (Vec<Foreign>, Vec<String>) {
        let (mut present, mut absent) = (Vec::new(), Vec::new());
        for program in Program::ALL.into_iter().filter(|program| wants(&program.name())) {
            let (command, package) = program.command();
            let mut foreign = Foreign { program, iterations: ITERATIONS, failed: None };
            let needs: &[&str] = match program {
                Program::NetPipe { .. } => &[command, GUARD, LAUNCHER, PINNER],
                _ => &[command, GUARD],
            };
            if let Some(missing) = needs.iter().find(|command| !installed(command)) {
                absent.push(format!("{}: {missing} is not installed (Debian: {package})", program.name()));
                continue;
            }
            foreign.play(seats, slice_ns, size);
            match foreign.failed() {
                None => present.push(foreign),
                Some(why) => absent.push(why),
            }
        }
        (present, absent)
    }

    /// All that there may be.
    pub(super) fn names() -> impl Iterator<Item = String> {
        Program::ALL.into_iter().map(Program::name)
    }

    /// Its name and why, once it has failed.
    pub(super) fn failed(&self) -> Option<String> {
        self.failed.as_ref().map(|why| format!("{}: {why}", self.name()))
    }

    pub(super) fn name(&self) -> String {
        self.program.name()
    }

    /// Lets both ends play for about so long, unless it failed once. What of their processor time
    /// is not for starting and connecting nobody tells.
    pub(super) fn play(&mut self, seats: &Seats, slice_ns: u64, size: usize) -> Stretch {
        let played = if self.failed.is_some() { Ok(Stretch::default()) } else { self.try_play(seats, slice_ns, size) };
        played.unwrap_or_else(|why| {
            self.failed = Some(format!("{why:#}"));
            Stretch::default()
        })
    }

    fn try_play(&mut self, seats: &Seats, slice_ns: u64, size: usize) -> Result<Stretch> {
        let name = self.program.command().0;
        let printed = match self.program {
            Program::NetPipe { layer } => {
                let both = Program::both(layer, &seats.lists()?, self.iterations, size);
                let said = Running::start(both, name)?.ended(Instant::now() + LAUNCHED)?;
                // It prints what it measures as if it were a complaint.
                said.map_err(anyhow::Error::msg)?.1
            }
            _ => self.played_in_pairs(seats, size)?,
        };
        let each = self.program.round_trip_ns(&printed).with_context(|| format!("{name} printed {printed:?}"))?;
        let round_trips = self.iterations;
        self.iterations = ((slice_ns as f64 / each) as u64).clamp(ITERATIONS, ITERATIONS_MAX);
        Ok(Stretch { round_trips, wall_ns: (each * round_trips as f64) as u64, cpu_ns: 0 })
    }

    /// What the leading end printed.
    fn played_in_pairs(&self, seats: &Seats, size: usize) -> Result<String> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr())?.port();
        let (name, deadline) = (self.program.command().0, Instant::now() + PATIENCE);
        let ours = |leads| self.program.end(port, self.iterations, size, leads);
        let mut follower = seats.across(|| Running::start(ours(false), name))?;
        let printed = loop {
            match Running::start(ours(true), name)?.ended(deadline)? {
                Ok((printed, _)) => break printed,
                // It came before the other listened. Not again once that one is gone.
                Err(why) => {
                    follower.process.alive().with_context(|| why.clone())?;
                    ensure!(Instant::now() < deadline, "{name} does not get to its end: {why}");
                    thread::sleep(Duration::from_millis(5));
                }
            }
        };
        // Not killed while it takes down what it has put into `/dev/shm`.
        follower.process.end(PATIENCE);
        Ok(printed)
    }
}

struct Running {
    process: Process,
    out: ChildStdout,
    err: ChildStderr,
}

impl Running {
    fn start(mut command: Command, name: &'static str) -> Result<Running> {
        let mut child: Child = command.spawn().with_context(|| format!("{name} could not be started"))?;
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else { bail!("no pipes") };
        Ok(Running { process: Process::of(child, name), out, err })
    }

    /// What it printed and what it complained of, or that it failed; an error when
    /// it does not end in time.
    fn ended(mut self, deadline: Instant) -> Result<Result<(String, String), String>> {
        let status = loop {
            match self.process.ended()? {
                Some(status) => break status,
                None if Instant::now() > deadline => bail!("it does not end in time"),
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        let (mut printed, mut said) = (String::new(), String::new());
        self.out.read_to_string(&mut printed)?;
        self.err.read_to_string(&mut said)?;
        Ok(if status.success() { Ok((printed, said)) } else { Err(format!("{status}: {}", said.trim())) })
    }
}

fn installed(command: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(command).is_file()))
}

/// Of util-linux, as [`GUARD`] is: puts a program on processors.
const PINNER: &str = "taskset";
/// Of Open MPI: starts both ends. That takes it seconds where others work.
const LAUNCHER: &str = "mpirun";
const LAUNCHED: Duration = Duration::from_secs(30);
/// Round trips at first, and in the longest stretch.
const ITERATIONS: u64 = 16;
const ITERATIONS_MAX: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_they_print_is_one_way() {
        let pingpong = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                        64      20k     =20k     2.4m        0.44s      5.84      10.96       0.09\n";
        let shm = Program::ALL[0];
        assert_eq!(shm.round_trip_ns(pingpong), Some(21_920.0));
        let perftest = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                        20000,3.520,32.902,111.510,1.86,0.55,30394,8968\n\n";
        assert_eq!(Program::ALL[2].round_trip_ns(perftest), Some(223_020.0));
        let netpipe = "1: somewhere\n0: somewhere\nNow starting the main loop\n  \
                       0:      64 bytes  20000 times -->    500.32 Mbps in       0.98 usec\n\n";
        assert_eq!(Program::ALL[4].round_trip_ns(netpipe), Some(1_960.0));
        assert_eq!(Program::ALL[5].round_trip_ns("in time usec"), None);
        assert_eq!(shm.round_trip_ns("fi_getinfo: -61"), None);
        assert_eq!(shm.round_trip_ns(""), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_told_and_one_that_is_there_plays() {
        let (present, absent) = Foreign::present(&super::super::ANYWHERE.take().unwrap(), 0, 64, |_| true);
        assert_eq!(present.len() + absent.len(), Program::ALL.len());
        for program in Program::ALL {
            let (command, package) = program.command();
            let told = absent.iter().find(|why| why.starts_with(&program.name()));
            assert_eq!(told.is_some(), present.iter().all(|one| one.program != program));
            assert!(installed(command) || told.is_some_and(|why| why.contains(package)), "{command}");
            assert!(present.iter().all(|one| one.failed().is_none()));
        }
    }
}
